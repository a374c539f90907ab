"""Pairs of text and image into a dataset."""

from __future__ import annotations

import json
import os

import pytest
from tests.corpus.jobs import preprocess_multimodal
from tests.indexed.pairs import pair_bytes
from tests.preprocess.corpus import leftovers, write_lines

from tokenloom.errors import ConfigError, InputError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import MAX_IMAGE_BYTES, item_to_image
from tokenloom.tokenizers.plain import ByteTokenizer

TOKENIZER = ByteTokenizer()
PAIRS = {"cat": ("a cat\r\n", b"\xff\xd8cat"), "dog": ("", b"dogs"), "emu": ("naïve ✓", b"e")}


@pytest.fixture
def folder(tmp_path):
    """Holds the pairs, and the JSON lines that name them, beside an empty folder for what is written."""
    (tmp_path / "pairs").mkdir()
    for stem, (text, image) in PAIRS.items():
        (tmp_path / "pairs" / f"{stem}.txt").write_bytes(text.encode())
        (tmp_path / "pairs" / f"{stem}.jpg").write_bytes(image)
    write_lines(tmp_path / "pairs.jsonl", [{"text": text, "image": f"pairs/{s}.jpg"} for s, (text, _) in PAIRS.items()])
    (tmp_path / "out").mkdir()
    return tmp_path


def run(folder, name="pairs.jsonl", **options):
    options.setdefault("overwrite", True)
    options.setdefault("restart", True)
    return preprocess_multimodal(folder / name, folder / "out" / "p", TOKENIZER, **options)


def contents(folder):
    """Returns (tokens, image) of each document."""
    dataset = IndexedDataset(str(folder / "out" / "p"), multimodal=True)
    assert dataset.sequence_modes.tolist() == [0, 1] * dataset.num_documents
    return [
        (dataset[2 * document][0].tolist(), item_to_image(dataset[2 * document + 1][0]))
        for document in range(dataset.num_documents)
    ]


def test_a_document_is_a_text_and_an_image(folder):
    done = []
    summary = run(folder, progress=lambda at: done.append(at.counts["num_documents"]))
    assert contents(folder) == [(TOKENIZER.tokenize(text), image) for text, image in PAIRS.values()]
    assert list(dict.fromkeys(done)) == [0, 3]
    assert (summary.num_documents, summary.numbers["num_image_bytes"], summary.numbers["num_truncated"]) == (3, 10, 0)
    assert summary.numbers["num_text_tokens"] == sum(len(TOKENIZER.tokenize(text)) for text, _ in PAIRS.values())
    assert (summary.num_rejected, summary.rejected_paths) == (0, ())


def test_lines_and_folder_and_any_number_of_workers_give_the_same_bytes(folder):
    run(folder, num_workers=1)
    expected = pair_bytes(folder / "out" / "p")
    for name, workers in (("pairs.jsonl", 3), ("pairs", 1), ("pairs", 4)):
        run(folder, name, num_workers=workers)
        assert pair_bytes(folder / "out" / "p") == expected


def test_texts_end_or_are_filled_up(folder):
    run(folder, append_eod=True)
    assert [tokens[-1:] for tokens, _ in contents(folder)] == [[TOKENIZER.eod], [], [TOKENIZER.eod]]
    summary = run(folder, append_eod=True, pad_length=4)
    (cat, _), (dog, _), (emu, _) = contents(folder)
    expected = [TOKENIZER.tokenize(PAIRS[stem][0]) for stem in ("cat", "emu")]
    for tokens, text in zip((cat, emu), expected, strict=True):
        assert tokens == (text + [TOKENIZER.eod] * 4)[:4]
    assert dog == []
    assert summary.numbers["num_truncated"] == sum(len(text) > 4 for text in expected)
    assert summary.numbers["num_truncated"] > 0


BAD = [
    (b"{", "not JSON: "),
    (b'["x"]', "expected an object, found an array"),
    (b"\xff", "not UTF-8: byte 0xff at column 1"),
    ({"image": "pairs/cat.jpg"}, "expected a string under 'text', found none"),
    ({"text": 5, "image": "pairs/cat.jpg"}, "expected a string under 'text', found a number"),
    ({"text": "x", "image": None}, "expected a string under 'image', found null"),
    ({"text": "x", "image": "pairs/fox.jpg"}, "cannot read the image `{folder}/pairs/fox.jpg`: No such file"),
    ({"text": "x", "image": "a\0b"}, "cannot read the image '{folder}/a\\x00b': ValueError: embedded null byte"),
    ({"text": "x", "image": "pairs"}, "cannot read the image `{folder}/pairs`: Is a directory"),
    ({"text": "x", "image": "pipe"}, "image `{folder}/pipe`: cannot open `{folder}/pipe`: expected a regular file"),
    (
        {"text": "x", "image": "empty"},
        "image `{folder}/empty`: expected an image of 1 to 8589934584 bytes, found 0",
    ),
    (
        {"text": "x", "image": "huge"},
        "image `{folder}/huge`: expected an image of 1 to 8589934584 bytes, found 8589934585",
    ),
]


def test_bad_lines_are_set_aside_with_their_reasons(folder):
    (folder / "empty").touch()
    os.mkfifo(folder / "pipe")
    with open(folder / "huge", "wb") as stream:
        stream.truncate(MAX_IMAGE_BYTES + 1)  # takes no space, and must not be read
    good = {"text": "x", "image": "pairs/cat.jpg"}
    path = write_lines(folder / "pairs.jsonl", [good, *(line for line, _ in BAD), b"", good])
    with pytest.raises(InputError) as caught:
        run(folder)
    assert str(caught.value).startswith(f"`{path}` line 2: not JSON: ")
    assert str(caught.value).endswith(
        "\nhint: correct the line, or let bad lines be set aside in a file with `bad_records`"
    )
    assert leftovers(folder / "out") == []
    summary = run(folder, skip_bad_lines=True)
    assert (summary.num_documents, summary.num_rejected) == (2, len(BAD))
    records = [json.loads(line) for line in (folder / "out" / "p.rejected.jsonl").read_text().splitlines()]
    assert [record["line"] for record in records] == list(range(2, 2 + len(BAD)))
    for record, (_, reason) in zip(records, BAD, strict=True):
        assert record["reason"].startswith(reason.format(folder=folder))
    run(folder, "pairs", skip_bad_lines=True)
    assert leftovers(folder / "out") == ["p.bin", "p.columns.json", "p.idx", "p.manifest.json", "p.origins.npy"]


def test_a_pair_without_its_other_half_is_named(folder):
    (folder / "pairs" / "ape.txt").write_text("alone")
    (folder / "pairs" / "cat.png").write_bytes(b"second")
    with pytest.raises(InputError) as caught:
        run(folder, "pairs")
    assert str(caught.value) == (
        f"`{folder}/pairs` pair 1: expected `ape.txt` and one image of that name, found ape.txt\n"
        "hint: correct the pair, or let bad pairs be set aside in a file with `bad_records`"
    )
    (folder / "pairs" / "emu.txt").write_bytes(b"\xff")
    summary = run(folder, "pairs", skip_bad_lines=True)
    assert (summary.num_documents, summary.num_rejected) == (1, 3)
    records = [json.loads(line) for line in (folder / "out" / "p.rejected.jsonl").read_text().splitlines()]
    assert [(record["pair"], record["text"]) for record in records] == [(1, "ape"), (2, "cat"), (4, "emu")]
    assert "found cat.jpg, cat.png, cat.txt" in records[1]["reason"]
    assert records[2]["reason"].startswith(f"cannot read the text `{folder}/pairs/emu.txt`: 'utf-8' codec")


def test_wrong_settings_are_named(folder):
    with pytest.raises(ConfigError, match="expected `append_eod` with `pad_length`, found none"):
        run(folder, pad_length=4)
    with pytest.raises(ConfigError, match="expected pad_length of at least 1, found 0"):
        run(folder, pad_length=0, append_eod=True)
    with pytest.raises(ConfigError, match="expected num_workers of at least 1, found 0"):
        run(folder, num_workers=0)
