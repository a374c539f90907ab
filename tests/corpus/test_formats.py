from __future__ import annotations

from pathlib import Path

import pytest
from tests.corpus.jobs import preprocess
from tests.indexed.pairs import pair_bytes
from tests.inputs.corpora import COMPRESSIONS, documents, json_lines, parse_slices, write_arrow, write_parquet
from tests.preprocess.corpus import EOD

from tokenloom.errors import InputError
from tokenloom.inputs.find import cut_inputs, find_inputs

TEXTS = [f"document {row} " + "def f(x):\t return é中 " * (row % 9) + EOD * (row % 2) for row in range(400)]
TEXTS[7] = "x" * 5000
ROWS = [{"id": number, "text": text, "meta": {"text": text}} for number, text in enumerate(TEXTS)]


def write_corpus(folder: Path, name: str) -> Path:
    path = folder / name
    if name == "saved":
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(ROWS).save_to_disk(path)
        [file] = find_inputs([str(path)]).files
        return Path(file.path)
    if name.endswith(".parquet"):
        return write_parquet(path, ROWS, row_group_size=90)
    if ".arrow" in name:
        return write_arrow(path, ROWS, batch_rows=70, stream=name.endswith("s"))
    suffix = path.suffix if path.suffix in COMPRESSIONS else ""
    rows = ["text,id", *(f'"{text}",7' for text in TEXTS)]
    lines = {".txt": TEXTS, ".csv": rows}.get(Path(name.removesuffix(suffix)).suffix)
    path.write_bytes(COMPRESSIONS[suffix](json_lines(ROWS) if lines is None else "\n".join([*lines, ""]).encode()))
    return path


CASES = [(name, "text") for name in ("a.jsonl.zst", "a.txt", "a.txt.gz", "a.arrow", "a.arrows", "a.csv", "a.csv.gz")]
CASES += [("a.jsonl", "meta.text"), ("a.parquet", "meta.text")]
CASES += [pytest.param(f"a.jsonl.{codec}", "text", marks=pytest.mark.slow) for codec in ("gz", "bz2", "xz")]
CASES += [pytest.param("saved", "text", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "key"), CASES)
def test_every_format_comes_to_the_same_bytes(tmp_path: Path, tokenizer, name: str, key: str):
    options = {"append_eod": True, "num_workers": 2, "block_bytes": 3000}
    preprocess(write_corpus(tmp_path, "a.jsonl"), tmp_path / "lines", tokenizer, **options)
    path = write_corpus(tmp_path, name)
    chosen = "text-lines" if ".txt" in name else None
    summary = preprocess(path, tmp_path / "other", tokenizer, input_format=chosen, keys=[key], **options)
    assert summary.num_documents == len(TEXTS)
    assert pair_bytes(tmp_path / f"other_{key}_document") == pair_bytes(tmp_path / "lines_text_document")


def test_files_of_text_are_the_same_documents(tmp_path: Path):
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number:04}.txt").write_text(text, encoding="utf-8")
    shards = cut_inputs(find_inputs([str(tmp_path)], input_format="text-files").files, shard_bytes=2000)
    assert 1 < len(shards) < len(TEXTS)
    slices = [slice_ for shard in shards for slice_ in shard]
    assert documents(parse_slices(slices, block_bytes=100)) == [[text] for text in TEXTS]


def test_bad_rows_are_named_and_set_aside_like_lines(tmp_path: Path, tokenizer):
    write_parquet(tmp_path / "a.parquet", [{"text": "a"}, {"text": None}, {"text": "b"}])
    with pytest.raises(InputError) as caught:
        preprocess(tmp_path / "a.parquet", tmp_path / "out", tokenizer, input_format="parquet")
    reason = "expected a string or an array of strings under 'text', found null"
    assert caught.value.message == f"`{tmp_path}/a.parquet` row 2: {reason}"
    assert caught.value.hint.startswith("correct the row, or set `bad_records` to write bad rows")
    options = {"input_format": "parquet", "skip_bad_records": True}
    summary = preprocess(tmp_path / "a.parquet", tmp_path / "out", tokenizer, **options)
    assert (summary.num_documents, summary.num_rejected) == (2, 1)
    record = f'{{"file": "{tmp_path}/a.parquet", "row": 2, "reason": "{reason}", "text": "{{\\"text\\": null}}"}}\n'
    assert (tmp_path / "out.rejected.jsonl").read_text() == record


def test_a_bad_file_of_text_is_named_and_set_aside_by_its_path(tmp_path: Path, tokenizer):
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(InputError) as caught:
        preprocess(path, tmp_path / "out", tokenizer, input_format="text-files")
    assert caught.value.message == f"`{path}`: not UTF-8: byte 0xe9 at column 4"
    with pytest.raises(InputError, match=r"no documents found: .* 1 bad records; the first is `.*a\.txt`: not UTF-8"):
        preprocess(path, tmp_path / "out", tokenizer, input_format="text-files", skip_bad_records=True)
