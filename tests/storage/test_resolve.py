"""Objects by their names: found, listed, removed, and read as streams and files."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import (
    exists,
    names_in,
    objects_below,
    open_stream,
    remove,
    size_of,
)


def test_objects_are_found_listed_and_removed(bucket):
    for key in ("a/x.bin", "a/x.idx", "a/deeper/y.bin", "top"):
        bucket.put(key, b"12345")
    assert names_in(bucket.url("a")) == names_in(bucket.url("a/")) == ["x.bin", "x.idx"]
    assert names_in(f"s3://{bucket.name}") == ["top"]
    assert (exists(bucket.url("top")), exists(bucket.url("a")), size_of(bucket.url("top"))) == (True, False, 5)
    found = objects_below(bucket.url("a/"))
    assert list(found) == [bucket.url("a/deeper/y.bin"), bucket.url("a/x.bin"), bucket.url("a/x.idx")]
    assert {path: RemoteFile(path).version for path in found} == found
    assert (len(objects_below(f"s3://{bucket.name}/")), objects_below(bucket.url("none/"))) == (4, {})
    remove(bucket.url("top"))
    remove(bucket.url("top"))
    assert not exists(bucket.url("top"))


def test_a_stream_reads_ahead_to_the_end(bucket, rng):
    data = rng.integers(0, 256, size=(9 << 20) + 5, dtype=np.uint8).tobytes()
    stream = open_stream(bucket.put("text", data), buffer_bytes=1 << 16)
    with stream:
        assert stream.peek(4)[:4] == data[:4]
        assert stream.read(100) == data[:100]
        assert stream.tell() == 100
        assert stream.read() == data[100:]
        assert stream.read(1) == b""
        with pytest.raises(io.UnsupportedOperation):
            stream.seek(1 << 20)
    stream = open_stream(bucket.put("empty", b""), buffer_bytes=1 << 16)
    with stream:
        assert stream.read() == b""


@pytest.mark.slow
@pytest.mark.parametrize(("start", "stop"), [(0, 100), (5 << 20, (5 << 20) + 10), (100, 9 << 20), (0, None)])
def test_a_stream_may_begin_anywhere_and_go_on_behind_its_stop(bucket, rng, start, stop):
    data = rng.integers(0, 256, size=(9 << 20) + 5, dtype=np.uint8).tobytes()
    stream = open_stream(bucket.put("text", data), buffer_bytes=1 << 16, start=start, stop=stop)
    with stream:
        assert stream.tell() == start
        assert stream.read() == data[start:]
