"""Hostile files: small on disk, huge or endless when read. Memory is measured in processes of their own."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.inputs.corpora import bad, documents, open_limited, parse_file, parse_slices, write_arrow

from tokenloom.inputs import InputSlice
from tokenloom.inputs.find import inspect_input


def repeated(open_file: Callable[[Path], Any], path: Path, piece: bytes, num_bytes: int) -> Path:
    with open_file(path) as file:
        for _ in range(num_bytes // len(piece)):
            file.write(piece)
    return path


OPENERS: dict[str, Callable[[Path], Any]] = {
    "a.jsonl.gz": lambda path: gzip.open(path, "wb", compresslevel=1),  # noqa: SIM115 - closed by `repeated`
    "a.jsonl.bz2": lambda path: bz2.open(path, "wb", compresslevel=1),  # noqa: SIM115 - closed by `repeated`
    "a.jsonl.xz": lambda path: lzma.open(path, "wb", preset=0),  # noqa: SIM115 - closed by `repeated`
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPENERS)
def test_a_line_that_a_compressed_file_repeats_for_ever_is_one_bad_record(tmp_path: Path, name: str):
    path = repeated(OPENERS[name], tmp_path / name, bytes(1 << 20), 64 << 20)
    num_documents, _, reasons, grown = measured(path, input_format="jsonl")
    reason = "longer than 8388608 bytes, which `max_record_bytes` allows; only its beginning is kept"
    assert (num_documents, reasons) == (0, [reason])
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


MEASURE = """
import json, re, sys
from contextlib import closing
from pathlib import Path
import pyarrow.compute, pyarrow.parquet, zstandard
from tokenloom.inputs.find import inspect_input, whole_file
from tokenloom.inputs.limits import ReadLimits
from tokenloom.inputs.record_format import open_slice
from tokenloom.inputs.records import parse_block

def most_kilobytes():  # of this program; what `getrusage` tells begins with the program that started it
    return int(re.search(r"VmHWM:\\s+([0-9]+)", Path("/proc/self/status").read_text())[1])


path, input_format, most_blocks = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
before = most_kilobytes()
num_documents = num_blank = 0
bad = []
slice_ = whole_file(inspect_input(path, input_format=input_format))
limits = ReadLimits(max_record_bytes=8 << 20)
with closing(open_slice(slice_, block_bytes=1 << 20, keys=["text"], limits=limits)) as reader:
    for number, block in zip(range(most_blocks), reader.blocks()):
        parsed = parse_block(block, ["text"])
        num_documents += parsed.num_documents
        num_blank += parsed.num_blank_lines
        bad += [line.reason for line in parsed.bad_lines]
grown = most_kilobytes() - before
print(json.dumps([num_documents, num_blank, bad, grown << 10]))
"""


def measured(path: Path, *, input_format: str = "", most_blocks: int = 1 << 30) -> tuple[int, int, list[str], int]:
    """Returns documents, blank lines, reasons of bad records, and by how many bytes the process grew."""
    command = [sys.executable, "-c", MEASURE, str(path), input_format, str(most_blocks)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return tuple(json.loads(done.stdout))
