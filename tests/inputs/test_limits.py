"""Hostile files: small on disk, huge or endless when read. Memory is measured in processes of their own."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.inputs.corpora import bad, documents, parse_slices
from tests.inputs.measuring import measured

from tokenloom.inputs import InputSlice
from tokenloom.inputs.detect import inspect_input


def repeated(open_file: Callable[[Path], Any], path: Path, piece: bytes, num_bytes: int) -> Path:
    with open_file(path) as file:
        for _ in range(num_bytes // len(piece)):
            file.write(piece)
    return path


OPENERS: dict[str, Callable[[Path], Any]] = {
    "a.jsonl.gz": lambda path: gzip.open(path, "wb", compresslevel=1),  # noqa: SIM115 - closed by `repeated`
    "a.jsonl.zst": lambda path: zstandard.open(path, "wb"),
    "a.jsonl.bz2": lambda path: bz2.open(path, "wb", compresslevel=1),  # noqa: SIM115 - closed by `repeated`
    "a.jsonl.xz": lambda path: lzma.open(path, "wb", preset=0),  # noqa: SIM115 - closed by `repeated`
}


@pytest.mark.parametrize("name", OPENERS)
def test_a_line_that_a_compressed_file_repeats_for_ever_is_one_bad_record(tmp_path: Path, name: str):
    path = repeated(OPENERS[name], tmp_path / name, bytes(1 << 20), 64 << 20)
    num_documents, _, reasons, grown = measured(path, input_format="jsonl")
    reason = "longer than 8388608 bytes, which `max_record_bytes` allows; only its beginning is kept"
    assert (num_documents, reasons) == (0, [reason])
    assert grown < 40 << 20


def test_blank_lines_cost_next_to_nothing(tmp_path: Path):
    path = repeated(OPENERS["a.jsonl.zst"], tmp_path / "a.jsonl.zst", b"\n" * (1 << 20), 16 << 20)
    num_documents, num_blank, reasons, grown = measured(path, input_format="jsonl")
    assert (num_documents, num_blank, reasons) == (0, 16 << 20, [])
    assert grown < 40 << 20


def test_slices_read_a_line_that_is_longer_than_them_once(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + b"x" * 3_000_000 + b'\n{"text": "b"}\n')
    file = inspect_input(str(path))
    bounds = [*range(0, file.num_bytes, 500_000), file.num_bytes]
    slices = [InputSlice(file=file, start=start, stop=stop) for start, stop in itertools.pairwise(bounds)]
    parsed = parse_slices(slices, block_bytes=10_000, max_record_bytes=20_000)
    assert documents(parsed) == [["a"], ["b"]]
    assert [line for line, _ in bad(parsed)] == [2]
    from tokenloom.inputs.reading import open_slice

    reader = open_slice(slices[0], block_bytes=10_000, max_record_bytes=20_000)
    list(reader.blocks())
    assert reader.num_text_bytes < 600_000  # not the rest of the line, which other slices pass over
    reader.close()
