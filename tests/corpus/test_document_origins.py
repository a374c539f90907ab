import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.corpus.jobs import (
    files_of,
    interrupt_after,
    messages,
    preprocess,
    preprocess_chat,
    preprocess_multimodal,
    standard_input,
)
from tests.corpus.records import BYTES, check, located, origins_of, texts_of
from tests.indexed.columns import read_hashes
from tests.inputs.corpora import COMPRESSIONS, json_lines, write_arrow, write_parquet
from tests.preprocess.corpus import EOD, leftovers, write_lines

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import item_to_image
from tokenloom.indexed.origins import read_origins
from tokenloom.preprocess.selection import hash_of_text, split_of
from tokenloom.tokenizers.plain import ByteTokenizer

ROWS = [{"id": number, "text": f"text {number} " + "é" * (number % 7)} for number in range(230)]


def test_blank_lines_and_bad_records_are_counted(tmp_path: Path):
    one = write_lines(tmp_path / "one.jsonl", [b"", {"text": "a"}, b" \t", b"bad", {"text": "b"}, {"text": ""}])
    two = write_lines(tmp_path / "two.jsonl", [b"bad", b"7"])
    three = write_lines(tmp_path / "three.jsonl", [{"text": "c"}, {"text": ["d", "e"]}, b"", {"other": "f"}])
    preprocess([one, two, three], tmp_path / "out", BYTES, skip_bad_records=True)
    prefix = f"{tmp_path}/out_text_document"
    expected = [(str(one), 2), (str(one), 5), (str(one), 6), (str(three), 1), (str(three), 2)]
    assert located(prefix) == expected
    assert texts_of(prefix) == ["a", "b", "", "c", "de"]
    for file, path, num_records in zip(origins_of(prefix).files, (one, two, three), (6, 2, 4), strict=True):
        assert (file.path, file.unit, file.num_records) == (str(path), "line", num_records)
        assert (file.num_bytes, file.version) == (path.stat().st_size, str(path.stat().st_mtime_ns))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt", "a.parquet", "a.arrows"])
def test_every_document_is_found_in_its_file(tmp_path: Path, name: str):
    path = tmp_path / name
    if name.endswith(".parquet"):
        write_parquet(path, ROWS, row_group_size=40)
    elif ".arrow" in name:
        write_arrow(path, ROWS, batch_rows=30, stream=name.endswith("s"))
    else:
        text = "".join(row["text"] + "\n\n" for row in ROWS).encode() if ".txt" in name else json_lines(ROWS)
        path.write_bytes(COMPRESSIONS[path.suffix if path.suffix in COMPRESSIONS else ""](text))
    input_format = "text-lines" if ".txt" in name else None
    options = {"shard_bytes": 1500, "block_bytes": 1000, "num_workers": 2}
    preprocess([path], tmp_path / "out", BYTES, input_format=input_format, **options)
    places = check(f"{tmp_path}/out_text_document")
    step, unit = 2 if ".txt" in name else 1, "line" if "jsonl" in name or ".txt" in name else "row"
    assert places == [(str(path), step * number + 1) for number in range(len(ROWS))]
    [file] = origins_of(f"{tmp_path}/out_text_document").files
    assert (file.unit, file.num_records) == (unit, 230 * step)
    assert Path(f"{tmp_path}/out_text_document.origins.npy").stat().st_size < 300 + 24 * (step - 1) * 230


class Refusing(ByteTokenizer):
    def encode_texts(self, texts: Any) -> Any:
        if any("r" in text for text in texts):
            raise RecursionError
        return super().encode_texts(texts)


def test_many_blank_lines_and_records_that_a_tokenizer_refuses(tmp_path: Path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n\n \n" * 30_000 + b'{"text": "a"}\n' + b"\t\n\n" * 900 + b'{"text": "b"}\n{"text": "c"}\n\n  ')
    preprocess(path, tmp_path / "blank", BYTES)
    assert check(f"{tmp_path}/blank_text_document") == [(str(path), line) for line in (90_001, 91_802, 91_803)]
    texts = ["a", "r", "b", "", "c", "r", "r", "d", "e", "f", "g", "r"]
    lines = [{"text": text} if text else b"" for text in texts]
    paths = [write_lines(tmp_path / f"{number}.jsonl", lines) for number in range(3)]
    preprocess(paths, tmp_path / "out", Refusing(), skip_bad_records=True)
    good = [number for number, text in enumerate(texts, 1) if text not in ("", "r")]
    assert check(f"{tmp_path}/out_text_document") == [(str(path), line) for path in paths for line in good]


@pytest.mark.parametrize(("shard_bytes", "drops"), [(70, True), (1 << 20, True), (70, False)])
def test_splits_share_the_documents_out(tmp_path: Path, shard_bytes: int, drops: bool):
    lines = [b"" if number % 7 == 3 else {"text": f"{number % 31}"} for number in range(90)]
    paths = [write_lines(tmp_path / f"{name}.jsonl", lines) for name in "ab"]
    shares = {"train": 0.7, "valid": 0.3}
    options = {"drop_duplicates": drops, "document_hashes": True, "shard_bytes": shard_bytes}
    summary = preprocess(paths, tmp_path / "out", BYTES, shares=shares, **options)
    assert (summary.num_documents, summary.num_duplicates) == (2 * 77, 2 * 77 - 31 if drops else 0)
    first: dict[str, tuple[str, int]] = {}
    for path in paths:
        for number, line in enumerate(lines, 1):
            if isinstance(line, dict):
                first.setdefault(line["text"] if drops else f"{path} {number}", (str(path), number))
    found = []
    for index, split in enumerate(shares):
        places = check(f"{tmp_path}/out_{split}_text_document")
        assert places == sorted(places)
        hashes = read_hashes(f"{tmp_path}/out_{split}_text_document")
        texts = texts_of(f"{tmp_path}/out_{split}_text_document")
        assert np.array_equal(hashes, np.stack([hash_of_text(text) for text in texts]))
        assert (split_of(hashes, seed=0, shares=[*shares.values()]) == index).all()
        found += places
    assert sorted(found) == sorted(first.values())


def test_all_keys_share_origins_and_each_has_hashes_of_its_own_texts(tmp_path: Path):
    lines = [{"a": "x", "b": "1"}, b"bad", {"a": "y", "b": ["2", "3"]}, {"a": "x"}, {"b": "4", "a": ""}]
    path = write_lines(tmp_path / "in.jsonl", lines)
    preprocess(path, tmp_path / "out", BYTES, keys=("a", "b"), skip_bad_records=True, document_hashes=True)
    for key, texts in (("a", ["x", "y", ""]), ("b", ["1", "23", "4"])):
        prefix = f"{tmp_path}/out_{key}_document"
        assert located(prefix) == [(str(path), line) for line in (1, 3, 5)]
        assert texts_of(prefix) == texts
        hashes = read_hashes(prefix)
        found = [(hashes[number] == hash_of_text(text)).all() for number, text in enumerate(texts)]
        assert found == [True, key == "a", True]  # a document of two texts is no text


def test_a_pair_per_file_and_standard_input(tmp_path: Path):
    lines = [{"text": "a"}, b"", {"text": "b"}]
    paths = [write_lines(tmp_path / f"{name}.jsonl", lines) for name in "xy"]
    preprocess(paths, tmp_path / "out", BYTES, one_pair_per_file=True, shard_bytes=10)
    for path in paths:
        prefix = f"{tmp_path}/out/{path.stem}_text_document"
        assert check(prefix) == [(str(path), 1), (str(path), 3)]
        assert [file.path for file in origins_of(prefix).files] == [str(path)]
    with standard_input(b'{"text": "a"}\n\n{"text": "b"}\n'):
        preprocess("-", tmp_path / "out", BYTES, input_format="jsonl")
    assert located(f"{tmp_path}/out_text_document") == [("-", 1), ("-", 3)]


def test_records_of_conversations(tmp_path: Path, tokenizer):
    two = {"messages": [*({"role": "system", "content": "s"}, *messages("Hi", "Ho")["messages"]) * 2]}
    lines = [messages("a", "b"), b"", b"bad", two, messages("c"), messages("d", "e")]
    path = write_lines(tmp_path / "chat.jsonl", lines)
    for shard_bytes in (100, 1 << 20):
        options = {"chat_template": "chatml", "document_hashes": True, "shard_bytes": shard_bytes, "overwrite": True}
        preprocess_chat(path, tmp_path / "out", tokenizer, skip_bad_lines=True, num_processes=1, **options)
        assert located(tmp_path / "out") == [(str(path), line) for line in (1, 4, 6)]
        dataset, hashes = IndexedDataset(str(tmp_path / "out")), read_hashes(str(tmp_path / "out"))
        first = tokenizer.detokenize(dataset[0].tolist()).removesuffix(EOD)
        assert "user\na" in first
        assert (hashes[0] == hash_of_text(first)).all()
        assert dataset.num_documents == len(hashes) == 3


def test_records_of_texts_with_images_and_pairs_of_a_folder(tmp_path: Path):
    (tmp_path / "pairs").mkdir()
    for number in range(9):
        (tmp_path / "pairs" / f"{number}.jpg").write_bytes(b"image %d" % number)
        if number != 4:
            (tmp_path / "pairs" / f"{number}.txt").write_text(f"text {number}")
    lines: list[object] = [{"text": f"text {number}", "image": f"pairs/{number}.jpg"} for number in range(9)]
    lines[2], lines[5] = b"", b"bad"
    write_lines(tmp_path / "pairs.jsonl", lines)
    (tmp_path / "out").mkdir()
    for name, unit, skipped in (("pairs.jsonl", "line", (2, 5)), ("pairs", "pair", (4,))):
        for shard_bytes in (30 if name == "pairs.jsonl" else 1, 1 << 20):
            options = {"document_hashes": True, "shard_bytes": shard_bytes, "overwrite": True, "num_processes": 1}
            preprocess_multimodal(tmp_path / name, tmp_path / "out" / "p", BYTES, skip_bad_lines=True, **options)
            dataset = IndexedDataset(str(tmp_path / "out" / "p"), multimodal=True)
            hashes = read_hashes(str(tmp_path / "out" / "p"))
            places = located(tmp_path / "out" / "p")
            assert [record for _, record in places] == [number + 1 for number in range(9) if number not in skipped]
            [file] = origins_of(tmp_path / "out" / "p").files
            assert (file.path, file.unit, file.num_records) == (str(tmp_path / name), unit, 9)
            for document, (_, record) in enumerate(places):
                text, image = dataset[2 * document][0], item_to_image(dataset[2 * document + 1][0])
                assert (BYTES.detokenize(text.tolist()), image) == (f"text {record - 1}", b"image %d" % (record - 1))
                assert (hashes[document] == hash_of_text(f"text {record - 1}")).all()


def mixed(folder: Path) -> list[Path]:
    def line(number: int, row: int) -> object:
        return b"" if row % 5 == 0 else b"bad" if row % 11 == 0 else {"text": f"{number} {row}"}

    files = [[line(number, row) for row in range(60)] for number in range(3)]
    return [write_lines(folder / f"part-{number}.jsonl", lines) for number, lines in enumerate(files)]


OPTIONS: dict[str, Any] = {"shard_bytes": 300, "skip_bad_records": True, "document_hashes": True}


@pytest.mark.parametrize("origins", [True, False])
def test_an_interrupted_job_ends_with_the_same_bytes(tmp_path: Path, origins: bool):
    paths = mixed(tmp_path)
    (tmp_path / "whole").mkdir()
    (tmp_path / "out").mkdir()
    preprocess(paths, tmp_path / "whole" / "p", BYTES, **OPTIONS | {"shard_bytes": 1 << 20})
    interrupt_after(4, paths, tmp_path / "out" / "p", BYTES, **OPTIONS, origins=origins)
    summary = preprocess(paths, tmp_path / "out" / "p", BYTES, **OPTIONS)
    assert summary.num_shards_reused > 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    suffixes = ("bin", "idx", "origins.npy", "hashes.npy", "columns.json")
    assert {*files_of(tmp_path / "out")} == {"p.rejected.jsonl", *(f"p_text_document.{each}" for each in suffixes)}
    check(tmp_path / "out" / "p_text_document")


def test_what_was_made_without_origins_stays_as_it_is_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path, *_ = paths = mixed(tmp_path)
    options = {"skip_bad_records": True}
    preprocess(path, tmp_path / "out", BYTES, **options, origins=False)
    written = [f"out_text_document.{name}" for name in ("bin", "idx", "manifest.json")]
    assert leftovers(tmp_path, *paths) == ["out.rejected.jsonl", *written]
    with caplog.at_level(logging.WARNING):
        assert preprocess(path, tmp_path / "out", BYTES, **options).was_complete
    assert "exists without origins and is not rewritten" in caplog.text
    preprocess(path, tmp_path / "out", BYTES, **options, restart=True, overwrite=True)
    check(tmp_path / "out_text_document")
    preprocess(path, tmp_path / "out", BYTES, **options, origins=False, restart=True, overwrite=True)
    assert read_origins(str(tmp_path / "out_text_document")) is None
