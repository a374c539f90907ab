"""Indices of many datasets in one file: the same as in files of their own, and trusted as little."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.support import equal_samples, make_config, write_corpus

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.errors import ConfigError, StorageError
from tokenloom.order import index_packs
from tokenloom.order.cache import DESCRIPTION
from tokenloom.order.index_packs import PackWriter, pack_writer, packed_file, packing, unpack_indices


@pytest.fixture
def prefixes(tmp_path: Path) -> list[str]:
    return [write_corpus(tmp_path / f"c{n}", [[n * 10 + i] * (5 + i) for i in range(10)]) for n in range(4)]


def build(prefixes: list[str], cache: Path, **settings):
    config = make_config(None, blend=prefixes, split="90,10,0", path_to_cache=str(cache), **settings)
    return BlendedMegatronDatasetBuilder(GPTDataset, (30, 4, None), lambda: True, config).build()[:2]


def same(one, other) -> bool:
    return all(equal_samples(a[k], b[k]) for a, b in zip(one, other, strict=True) for k in range(max(len(a), len(b))))


def files_in(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.iterdir() if path.is_file()}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_build_writes_one_file_which_is_read_with_or_without_the_setting(prefixes, tmp_path, threads):
    plain = build(prefixes, tmp_path / "plain")
    packed = build(prefixes, tmp_path / "packed", packed_cache=True, num_dataset_builder_threads=threads)
    assert same(packed, plain)
    assert files_in(tmp_path / "packed") == {}
    [pack] = (tmp_path / "packed" / "packs").iterdir()
    before = pack.stat().st_mtime_ns
    for settings in ({}, {"packed_cache": True}, {"fast_cache_load": True}, {"defer_npy_index_mmap": True}):
        again = build(prefixes, tmp_path / "packed", **settings)
        assert same(again, plain)
        assert same(pickle.loads(pickle.dumps(again)), plain)
    assert [path.name for path in (tmp_path / "packed" / "packs").iterdir()] == [pack.name]
    assert pack.stat().st_mtime_ns == before


def test_unpacked_files_are_those_that_are_written_without_a_pack(prefixes, tmp_path):
    build(prefixes, tmp_path / "plain")
    build(prefixes, tmp_path / "packed", packed_cache=True)
    expected = files_in(tmp_path / "plain")
    assert unpack_indices(str(tmp_path / "packed")) == len(expected)
    assert unpack_indices(str(tmp_path / "packed")) == 0
    assert files_in(tmp_path / "packed") == expected


def test_another_build_adds_a_pack_of_what_is_missing(prefixes, tmp_path):
    build(prefixes[:2], tmp_path / "cache", packed_cache=True)
    more = build(prefixes, tmp_path / "cache", packed_cache=True)
    assert len(list((tmp_path / "cache" / "packs").iterdir())) == 2
    assert same(build(prefixes, tmp_path / "cache", fast_cache_load=True), more)


def test_large_arrays_have_files_of_their_own(prefixes, tmp_path, monkeypatch):
    plain = build(prefixes, tmp_path / "plain")
    monkeypatch.setattr("tokenloom.order.cache.MOST_BYTES", 40)
    monkeypatch.setattr("tokenloom.order.npy_files._SMALL_BYTES", 20)
    assert same(build(prefixes, tmp_path / "packed", packed_cache=True), plain)
    found = files_in(tmp_path / "packed")
    assert {name.rpartition(".")[2] for name in found} == {"npy"}
    assert all(len(data) > 40 + 128 for data in found.values())
    assert same(build(prefixes, tmp_path / "packed", fast_cache_load=True), plain)


def test_arrays_in_a_pack_are_mapped_and_checked(prefixes, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tokenloom.order.npy_files._SMALL_BYTES", 20)
    plain = build(prefixes, tmp_path / "plain")
    assert same(build(prefixes, tmp_path / "packed", packed_cache=True), plain)
    [pack] = (tmp_path / "packed" / "packs").iterdir()
    whole = pack.read_bytes()
    place = whole.index(b"NUMPY") + 127 + 1  # a number of the first array
    damaged = bytearray(whole)
    damaged[place] ^= 1
    pack.unlink()
    pack.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert same(build(prefixes, tmp_path / "packed"), plain)
    assert "cached index is rebuilt" in caplog.text


@pytest.mark.parametrize("cut", [0, 1, 20, 40, -1])
def test_what_is_no_pack_is_passed_over(prefixes, tmp_path, cut, caplog):
    plain = build(prefixes, tmp_path / "plain")
    build(prefixes, tmp_path / "packed", packed_cache=True)
    [pack] = (tmp_path / "packed" / "packs").iterdir()
    data = pack.read_bytes()
    pack.unlink()
    pack.write_bytes(data[:cut])
    with caplog.at_level(logging.WARNING):
        assert same(build(prefixes, tmp_path / "packed"), plain)
    assert "is no pack of indices, and is passed over" in caplog.text


def test_files_are_found_before_they_appear_and_only_whole_entries_do(tmp_path):
    folder = str(tmp_path)

    def write() -> None:
        writer = pack_writer(folder)
        assert isinstance(writer, PackWriter)
        assert pack_writer(str(tmp_path / "other")) is None
        writer.add("one", "a.npy", b"bytes")
        writer.add("one", DESCRIPTION, b"")
        writer.add("two", "a.npy", b"others")
        assert packed_file(folder, "two", "a.npy").data.tobytes() == b"others"
        assert packed_file(folder, "two", "b.npy") is None
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), packing(folder, last=DESCRIPTION):
        write()
    assert pack_writer(folder) is None
    assert packed_file(folder, "one", "a.npy").data.tobytes() == b"bytes"
    assert packed_file(folder, "one", "a.npy").data.ctypes.data % 64 == 0
    assert packed_file(folder, "one", DESCRIPTION).data.tobytes() == b""
    assert packed_file(folder, "two", "a.npy") is None


def test_nothing_is_written_where_nothing_is_packed(tmp_path):
    with packing(str(tmp_path), last=DESCRIPTION):
        pass
    with packing(None, last=DESCRIPTION):
        assert pack_writer(str(tmp_path)) is None
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "packs").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot create `.*packs/"), packing(str(tmp_path), last=DESCRIPTION):
        pack_writer(str(tmp_path)).add("one", DESCRIPTION, b"")


@pytest.mark.parametrize("folder", [None, "s3://bucket/indices"])
def test_a_pack_needs_a_local_folder(folder):
    with pytest.raises(ConfigError, match="expected a local folder as `path_to_cache` with `packed_cache`, found"):
        make_config(None, blend=["a"], split="1,0,0", path_to_cache=folder, packed_cache=True)


def test_packs_of_another_process_are_seen(tmp_path):
    assert packed_file(str(tmp_path), "one", "a") is None
    with packing(str(tmp_path), last="a"):
        pack_writer(str(tmp_path)).add("one", "a", b"x")
    assert os.listdir(tmp_path / "packs")
    index_packs._known.clear()
    assert packed_file(str(tmp_path), "one", "a").data.tobytes() == b"x"
    assert np.array_equal(packed_file(str(tmp_path), "one", "a").data, [120])
