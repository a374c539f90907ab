"""Arrow whose messages lie about what they take: refused before anything is allocated."""

from __future__ import annotations

import random
import resource
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.inputs.corpora import documents, parse_file

from tokenloom.errors import InputError

ROWS = 4093
TABLE = pa.table({"text": ["ab"] * ROWS, "other": pa.array(range(ROWS), pa.int32())})
LIMIT = 32 << 20


def write(path: Path, batches: pa.Table | list[pa.RecordBatch], *, stream: bool, **options: Any) -> Path:
    batches = batches.to_batches() if isinstance(batches, pa.Table) else batches
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def patch(path: Path, old: bytes, new: bytes, *, stop: int | None = None) -> Path:
    """Replaces all occurrences before `stop`, at least one."""
    data = path.read_bytes()
    head, tail = data[:stop], data[len(data) if stop is None else stop :]
    assert old in head
    path.write_bytes(head.replace(old, new) + tail)
    return path


def number(value: int) -> bytes:
    return struct.pack("<q", value)


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Nothing here may ask for a gigabyte."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
@pytest.mark.parametrize("claim", [1 << 33, 1 << 40, 1 << 62])
def test_a_compressed_buffer_that_claims_too_much_is_refused(tmp_path: Path, stream: bool, claim: int):
    path = write(tmp_path / "a.arrow", TABLE, stream=stream, compression="zstd")
    patch(path, number(4 * ROWS), number(claim))
    with pytest.raises(
        InputError, match=rf"a\.arrow`: a record batch takes \d{{10,}} bytes, more than {LIMIT}"
    ) as caught:
        parse_file(path, max_unit_bytes=LIMIT)
    assert "`memory_bytes`" in caught.value.hint


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
def test_a_compressed_buffer_that_really_comes_to_too_much_is_refused(tmp_path: Path, stream: bool):
    table = pa.table({"text": ["x" * (8 << 20)] * 5})
    path = write(tmp_path / "a.arrow", table, stream=stream, compression="zstd")
    assert path.stat().st_size < 20_000
    with pytest.raises(InputError, match=rf"a\.arrow`: a record batch takes 4194\d{{4}} bytes, more than {LIMIT}"):
        parse_file(path, max_unit_bytes=LIMIT)
    assert documents(parse_file(path, max_unit_bytes=2 * LIMIT)) == [["x" * (8 << 20)]] * 5


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
@pytest.mark.parametrize("claim", [1 << 33, 1 << 62, -8])
def test_a_body_that_claims_too_much_is_refused(tmp_path: Path, stream: bool, claim: int):
    path = write(tmp_path / "a.arrow", TABLE, stream=stream)
    reader = pa.ipc.MessageReader.open_stream(path.read_bytes()[0 if stream else 8 :])
    [_, message] = [reader.read_next_message() for _ in range(2)]
    patch(path, number(message.body.size), number(claim))
    if stream and claim > 0:
        reason = rf"the body of a message takes {claim} bytes, more than {LIMIT}"
    else:
        reason = "found the body of a message of -8 bytes" if stream else "found messages that overlap, or lie outside"
    with pytest.raises(InputError, match=rf"a\.arrow`: {reason}"):
        parse_file(path, max_unit_bytes=LIMIT)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
@pytest.mark.parametrize("claim", [1 << 36, 1 << 40])
def test_a_record_batch_of_too_many_rows_is_refused(tmp_path: Path, stream: bool, claim: int):
    path = write(tmp_path / "a.arrow", pa.table({"text": pa.nulls(ROWS)}), stream=stream)
    patch(path, number(ROWS), number(claim))
    with pytest.raises(InputError, match=rf"a\.arrow`: a record batch has {claim} rows, more than {LIMIT // 8}"):
        parse_file(path, max_unit_bytes=LIMIT)


def test_metadata_that_claims_too_much_is_refused(tmp_path: Path):
    path = write(tmp_path / "a.arrow", TABLE, stream=True)
    data = path.read_bytes()
    path.write_bytes(data[:4] + struct.pack("<i", (1 << 31) - 1) + data[8:])
    with pytest.raises(InputError, match=rf"the metadata of a message takes 2147483647 bytes, more than {LIMIT}"):
        parse_file(path, max_unit_bytes=LIMIT)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
def test_dictionaries_that_grow_too_large_piece_by_piece_are_refused(tmp_path: Path, stream: bool):
    words: list[str] = []
    batches = []
    for at in range(12):
        words = [*words, chr(ord("a") + at) * (1 << 20)]
        column = pa.DictionaryArray.from_arrays(pa.array([at], pa.int32()), pa.array(words))
        batches.append(pa.record_batch({"text": column}))
    path = write(tmp_path / "a.arrow", batches, stream=stream, emit_dictionary_deltas=True, compression="zstd")
    with pytest.raises(InputError, match=r"a\.arrow`: the sum of all dictionaries takes \d+ bytes, more than 8388608"):
        parse_file(path, max_unit_bytes=LIMIT // 4)


def test_a_footer_that_names_one_record_batch_many_times_is_refused(tmp_path: Path):
    batch = TABLE.to_batches()[0]
    path = write(tmp_path / "a.arrow", [batch, batch], stream=False)
    data = path.read_bytes()
    reader = pa.ipc.open_file(path)
    assert reader.num_record_batches == 2
    body = number(pa.ipc.read_message(batch.serialize()).body.size)
    first = data.rindex(body, 0, data.rindex(body)) - 16
    second = data.rindex(body) - 16
    path.write_bytes(data[:second] + data[first : first + 8] + data[second + 8 :])
    with pytest.raises(InputError, match=r"a\.arrow`: found messages that overlap, or lie outside the file"):
        parse_file(path)


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}, {"use_legacy_format": True}], ids=str)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
def test_bytes_changed_anywhere_are_an_error_or_do_no_harm(tmp_path: Path, stream: bool, options: dict[str, Any]):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
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
            parse_file(path, max_unit_bytes=LIMIT)
        except InputError as error:
            found = error.message
            assert "a.arrow`" in found
