"""Hostile files: small on disk, huge or endless when read. Memory is measured in processes of their own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
from tests.inputs.corpora import bad, documents, open_limited, parse_file, parse_slices, write_arrow

from tokenloom.inputs import InputSlice
from tokenloom.inputs.find import inspect_input


def test_slices_read_a_line_that_is_longer_than_them_once(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + b"x" * 3_000_000 + b'\n{"text": "b"}\n')
    file = inspect_input(str(path))
    bounds = [*range(0, file.num_bytes, 500_000), file.num_bytes]
    slices = [InputSlice(file=file, start=start, stop=stop) for start, stop in itertools.pairwise(bounds)]
    parsed = parse_slices(slices, block_bytes=10_000, max_record_bytes=20_000)
    assert documents(parsed) == [["a"], ["b"]]
    assert [line for line, _ in bad(parsed)] == [2]
    reader = open_limited(slices[0], block_bytes=10_000, max_record_bytes=20_000)
    list(reader.blocks())
    assert reader.num_text_bytes < 600_000  # not the rest of the line, which other slices pass over
    reader.close()


BIG = "x" * (1 << 12)
DICTIONARY = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array([BIG]))


def test_a_row_of_lists_that_stands_for_too_much_is_a_bad_row(tmp_path: Path):
    rows = pa.ListArray.from_arrays(pa.array([0, 1, 999, 1000], pa.int32()), DICTIONARY)
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": rows}))
    parsed = parse_file(path, max_record_bytes=2 << 12)
    assert [len(texts) for texts in documents(parsed)] == [1, 1]
    assert [line for line, _ in bad(parsed)] == [2]
    [line] = [line for block in parsed for line in block.bad_lines]
    assert line.data.startswith(b'{"text": ["xxxx')
    assert len(line.data) == 1024
