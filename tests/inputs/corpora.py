import bz2
import gzip
import itertools
import json
import lzma
import os
from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tokenloom.inputs import ReadLimits
from tokenloom.inputs.find import inspect_input, whole_file
from tokenloom.inputs.record_format import open_slice
from tokenloom.inputs.records import ParsedBlock, parse_block

LINE = b'{"text": "a"}\n'
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def write(folder, *names, data=LINE):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def write_data(path, data):
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def found_in(folder, found):
    """Returns the input files and the ignored files, relative to a folder."""
    below = [str(os.path.relpath(file.path, folder)) for file in found.files]
    return below, [str(os.path.relpath(path, folder)) for path in found.ignored]


def json_lines(records):
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def write_parquet(path, rows, **options):
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), path, **options)
    return path


def write_arrow(path, rows, *, batch_rows=1000, stream=False, **options):
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    settings = pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema, options=settings) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return path


def open_whole(path, *, input_format=None, block_bytes=1000, **options):
    slice_ = whole_file(inspect_input(str(path), input_format=input_format))
    return open_limited(slice_, block_bytes=block_bytes, **options)


def open_limited(slice_, *, block_bytes, keys=None, **limits):
    return open_slice(slice_, block_bytes=block_bytes, keys=keys, limits=ReadLimits(**limits))


def parse_file(path, keys=("text",), **options):
    with closing(open_whole(path, keys=keys, **options)) as reader:
        return [parse_block(block, keys) for block in reader.blocks()]


def parse_slices(slices, keys=("text",), **options):
    parsed: list[ParsedBlock] = []
    for slice_ in slices:
        with closing(open_limited(slice_, keys=keys, **options)) as reader:
            parsed += [parse_block(block, keys) for block in reader.blocks()]
    return parsed


def documents(parsed, column=0):
    found: list[list[str]] = []
    for block in parsed:
        texts, ends = block.columns[column].texts, block.columns[column].document_ends
        bounds = range(len(texts) + 1) if ends is None else [0, *ends.tolist()]
        assert len(bounds) == block.num_documents + 1
        found += [texts[start:stop] for start, stop in itertools.pairwise(bounds)]
    return found


def bad(parsed):
    return [(line.line, line.reason) for block in parsed for line in block.bad_lines]
