import json
import os
from pathlib import Path

import pytest
from tests.corpus.jobs import files_of, interrupt_after, preprocess_multimodal
from tests.indexed.pairs import pair_bytes
from tests.preprocess.corpus import PAIR_SUFFIXES, leftovers, write_lines

from tokenloom.errors import ConfigError, InputError, OutputExistsError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import MAX_IMAGE_BYTES, item_to_image
from tokenloom.indexed.manifests import read_manifest
from tokenloom.indexed.verify import verify_dataset
from tokenloom.preprocess.multimodal import write_image_records
from tokenloom.tokenizers.plain import ByteTokenizer

TOKENIZER = ByteTokenizer()
PAIRS = {"cat": ("a cat\r\n", b"\xff\xd8cat"), "dog": ("", b"dogs"), "emu": ("naïve ✓", b"e")}


@pytest.fixture
def folder(tmp_path):
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
    dataset = IndexedDataset(str(folder / "out" / "p"), multimodal=True)
    assert dataset.sequence_modes.tolist() == [0, 1] * dataset.num_documents
    sequences = [tokens for tokens, _ in dataset]
    return [(text.tolist(), item_to_image(image)) for text, image in zip(sequences[::2], sequences[1::2], strict=True)]


def test_a_document_is_a_text_and_an_image(folder):
    done = []
    summary = run(folder, progress=lambda at: done.append(at.counts["num_documents"]))
    assert contents(folder) == [(TOKENIZER.tokenize(text), image) for text, image in PAIRS.values()]
    assert list(dict.fromkeys(done)) == [0, 3]
    assert (summary.num_documents, summary.numbers["num_image_bytes"], summary.numbers["num_truncated"]) == (3, 10, 0)
    assert summary.numbers["num_text_tokens"] == sum(len(TOKENIZER.tokenize(text)) for text, _ in PAIRS.values())
    assert (summary.num_rejected, summary.rejected_paths) == (0, ())
    expected = pair_bytes(folder / "out" / "p")
    for name, workers in (("pairs.jsonl", 3), ("pairs", 1), ("pairs", 4)):
        run(folder, name, num_workers=workers)
        assert pair_bytes(folder / "out" / "p") == expected


def test_texts_end_or_are_filled_up(folder):
    run(folder, append_eod=True)
    assert [tokens[-1:] for tokens, _ in contents(folder)] == [[TOKENIZER.eod], [], [TOKENIZER.eod]]
    summary = run(folder, append_eod=True, pad_length=4)
    assert [tokens for tokens, _ in contents(folder)] == [[*b"a ca"], [], [*"naïve".encode()[:4]]]
    assert summary.numbers["num_truncated"] == 2
    run(folder, append_eod=True, pad_length=12)
    assert contents(folder)[0][0] == [*b"a cat\r\n", *[TOKENIZER.eod] * 5]
    with pytest.raises(ConfigError, match="`pad_length`: needs `append_eod`"):
        run(folder, pad_length=4)
    with pytest.raises(ConfigError, match="pad_length"):
        run(folder, pad_length=0, append_eod=True)


BAD = [
    (b"{", "not JSON: "),
    (b'["x"]', "expected an object, found an array"),
    (b"\xff", "not UTF-8: value 0xff at byte 1"),
    ({"image": "pairs/cat.jpg"}, "expected a string under 'text', found none"),
    ({"text": 5, "image": "pairs/cat.jpg"}, "expected a string under 'text', found a number"),
    ({"text": "x", "image": None}, "expected a string under 'image', found null"),
    ({"text": "x", "image": "pairs/fox.jpg"}, "cannot read the image `{folder}/pairs/fox.jpg`: No such file"),
    ({"text": "x", "image": "a\0b"}, "cannot read the image '{folder}/a\\x00b': ValueError: embedded null byte"),
    ({"text": "x", "image": "pairs"}, "cannot read the image `{folder}/pairs`: Is a directory"),
    ({"text": "x", "image": "pipe"}, "image `{folder}/pipe`: cannot open `{folder}/pipe`: it is a pipe"),
    ({"text": "x", "image": "empty"}, "image `{folder}/empty`: "),
    ({"text": "x", "image": "huge"}, "image `{folder}/huge`: "),
]


def rejected(folder):
    return [json.loads(line) for line in (folder / "out" / "p.rejected.jsonl").read_text().splitlines()]


def test_bad_lines_are_set_aside_with_their_reasons(folder):
    (folder / "empty").touch()
    os.mkfifo(folder / "pipe")
    with open(folder / "huge", "wb") as stream:
        stream.truncate(MAX_IMAGE_BYTES + 1)  # takes no space, and must not be read
    good = {"text": "x", "image": "pairs/cat.jpg"}
    path = write_lines(folder / "pairs.jsonl", [good, *(line for line, _ in BAD), b"", good])
    with pytest.raises(InputError, match=f"^`{path}` line 2: not JSON: .*\nhint: correct the line, or set"):
        run(folder)
    assert leftovers(folder / "out") == []
    summary = run(folder, skip_bad_lines=True)
    assert (summary.num_documents, summary.num_rejected) == (2, len(BAD))
    assert [record["line"] for record in rejected(folder)] == list(range(2, 2 + len(BAD)))
    for record, (_, reason) in zip(rejected(folder), BAD, strict=True):
        assert record["reason"].startswith(reason.format(folder=folder))
    run(folder, "pairs", skip_bad_lines=True)
    assert leftovers(folder / "out") == [f"p.{suffix}" for suffix in PAIR_SUFFIXES]


def test_a_pair_without_its_other_half_is_named(folder):
    (folder / "pairs" / "ape.txt").write_text("alone")
    (folder / "pairs" / "cat.png").write_bytes(b"second")
    message = rf"^`{folder}/pairs` pair 1: expected `ape.txt` and one image `ape.\*`, found ape.txt\nhint: correct"
    with pytest.raises(InputError, match=message):
        run(folder, "pairs")
    (folder / "pairs" / "emu.txt").write_bytes(b"\xff")
    summary = run(folder, "pairs", skip_bad_lines=True)
    assert (summary.num_documents, summary.num_rejected) == (1, 3)
    records = rejected(folder)
    assert [(record["pair"], record["text"]) for record in records] == [(1, "ape"), (2, "cat"), (4, "emu")]
    assert "found cat.jpg, cat.png, cat.txt" in records[1]["reason"]
    assert records[2]["reason"].startswith(f"cannot read the text `{folder}/pairs/emu.txt`: 'utf-8' codec")


def test_images_go_with_records_by_name(tmp_path: Path):
    def write(**options):
        return write_image_records(f"{tmp_path}/in.jsonl", f"{tmp_path}/images", f"{tmp_path}/out", **options)

    (tmp_path / "images").mkdir()
    for name in ("b.png", "a.png", ".hidden"):
        (tmp_path / "images" / name).write_bytes(b"x")
    write_lines(tmp_path / "in.jsonl", [{"text": "one"}, b"", {"text": "zwö", "more": 1}])
    assert write() == write() == 2  # the second time, nothing to do
    records = [json.loads(line) for line in (tmp_path / "out").read_text("utf-8").splitlines()]
    one, two = (f"{tmp_path}/images/{name}.png" for name in "ab")
    assert records == [{"text": "one", "image": one}, {"text": "zwö", "more": 1, "image": two}]
    with pytest.raises(OutputExistsError):
        write(image_key="path")
    assert write(image_key="path", overwrite=True) == 2


@pytest.fixture
def many(tmp_path, rng):
    (tmp_path / "pairs").mkdir()
    (tmp_path / "out").mkdir()
    lines: list[object] = []
    for number in range(120):
        text = f"text {number} " * (number % 5)
        (tmp_path / "pairs" / f"{number:03d}.txt").write_text(text)
        (tmp_path / "pairs" / f"{number:03d}.jpg").write_bytes(rng.bytes(int(rng.integers(1, 400))))
        lines.append({"text": text, "image": f"pairs/{number:03d}.jpg"})
    (tmp_path / "pairs" / "lone.txt").write_text("x")
    lines[40:40] = [b"{bad", b""]
    write_lines(tmp_path / "pairs.jsonl", [*lines, {"text": "x", "image": "absent.jpg"}])
    return tmp_path


JOB = {"skip_bad_lines": True, "num_workers": 2, "num_processes": 1, "append_eod": True, "restart": False}


@pytest.mark.parametrize(("name", "shard_bytes"), [("pairs", 3), ("pairs.jsonl", 300)])
def test_bytes_depend_on_neither_shards_nor_interruptions(many, caplog, name, shard_bytes):
    whole = run(many, name, **JOB)
    expected = files_of(many / "out"), read_manifest(f"{many}/out/p")
    assert expected[1].ledger.num_kept == 120
    assert (whole.num_rejected, whole.num_blank_lines) == ((1, 0) if name == "pairs" else (2, 1))
    (many / "out").rename(many / "whole")
    (many / "out").mkdir()
    interrupt_after(20, many, name, shard_bytes=shard_bytes, job=run, **JOB | {"num_workers": 1})
    assert len(list((many / "out" / "p.job").glob("*_0.bin"))) >= 2
    with pytest.raises(ConfigError, match="other settings: append_eod was True, is False"):
        run(many, name, shard_bytes=shard_bytes, **JOB | {"append_eod": False})
    cut = run(many, name, shard_bytes=shard_bytes, **JOB)
    assert cut.num_shards_reused > 0
    assert (files_of(many / "out"), read_manifest(f"{many}/out/p")) == expected
    for count in ("num_documents", "num_tokens", "numbers", "num_rejected"):
        assert getattr(cut, count) == getattr(whole, count)
    assert verify_dataset(f"{many}/out/p", multimodal=True).problems == ()
    assert "redoing shard" not in caplog.text
