"""Arrow files and streams that are damaged, or larger than the limit when decoded."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.inputs.corpora import (
    documents,
    parse_file,
    write_arrow,
)

from tokenloom.errors import InputError


@pytest.mark.parametrize("cut", [0, 100, -9])
@pytest.mark.parametrize("stream", [True, False])
def test_arrow_that_is_cut_is_an_error(tmp_path: Path, cut: int, stream: bool):
    path = write_arrow(tmp_path / "a.arrow", [{"text": "x" * 50}] * 100, batch_rows=10, stream=stream)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"`.*a\.arrow`( is no Arrow file|: the Arrow stream has no end mark)"):
        parse_file(path)


def test_arrow_whose_offsets_lead_astray_is_an_error(tmp_path: Path):
    path = write_arrow(tmp_path / "a.arrow", [{"text": "x" * 50}] * 9)
    data = path.read_bytes()
    good = b"".join(number.to_bytes(4, "little") for number in (50, 100, 150))
    assert data.count(good) == 1
    path.write_bytes(data.replace(good, good[:4] + (1 << 30).to_bytes(4, "little") + good[8:]))
    with pytest.raises(InputError, match="row 1 or later: the Arrow data is damaged"):
        parse_file(path)


LIMIT = 64 << 20


def write(path: Path, table: pa.Table, *, stream: bool, **options: Any) -> Path:
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return path


def number(value: int) -> bytes:
    return struct.pack("<q", value)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
def test_a_decoded_batch_above_the_limit_is_refused(tmp_path: Path, stream: bool):
    table = pa.table({"text": ["x" * (15 << 20)] * 5})
    path = write(tmp_path / "a.arrow", table, stream=stream, compression="zstd")
    assert path.stat().st_size < 40_000
    with pytest.raises(InputError, match=rf"a\.arrow` row 1: a batch takes 7864\d{{4}} bytes, more than {LIMIT}"):
        parse_file(path, memory_bytes=LIMIT)
    assert documents(parse_file(path, memory_bytes=2 * LIMIT)) == [["x" * (15 << 20)]] * 5


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}], ids=str)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
def test_bytes_changed_anywhere_are_an_error_or_do_no_harm(
    tmp_path: Path, stream: bool, options: dict[str, Any], seed: int
):
    rng = random.Random(seed)
    column = pa.array(["a", "b", "a"] * 10).dictionary_encode()
    table = pa.table({"text": ["ab", "c", ""] * 10, "dictionary": column, "list": [[1], [], [2, 3]] * 10})
    path = write(tmp_path / "a.arrow", table, stream=stream, **options)
    assert len(documents(parse_file(path))) == 30
    data = path.read_bytes()
    for _ in range(100):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            changed[at : at + 8] = rng.choice([rng.randbytes(1), number(rng.choice([-1, 1 << 34, 1 << 62])), b""])
        path.write_bytes(changed)
        try:
            parse_file(path, memory_bytes=LIMIT)
        except InputError as error:
            found = error.message
            assert "a.arrow`" in found
