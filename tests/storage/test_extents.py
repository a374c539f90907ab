import errno
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import StorageError
from tokenloom.storage import extents
from tokenloom.storage.extents import Extents, ExtentSource, record_file

PAGE = 65536
SIZES = [5, 0, PAGE, PAGE + 3, 0, 1]
RESTORE = "`all.catalogue` lists this file; restore the file, or write `all.catalogue` again"


def write_files(folder, rng):
    for number, size in enumerate(SIZES):
        (folder / f"{number}.bin").write_bytes(rng.bytes(size))
    return [record_file(str(folder / f"{number}.bin")) for number in range(len(SIZES))]


@pytest.fixture
def files(tmp_path, rng):
    return write_files(tmp_path, rng)


@pytest.fixture(scope="module")
def kept_files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("extents"), np.random.default_rng(0))


def source_of(files, *, mmap=True):
    extents = Extents.aligned([file.num_bytes for file in files], alignment=PAGE)
    return ExtentSource(files, extents, recorded_in="all.catalogue", mmap=mmap)


def whole_of(files, extents):
    whole = np.zeros(extents.num_bytes, dtype=np.uint8)
    for file, start in zip(files, extents.starts, strict=True):
        content = np.fromfile(file.path, dtype=np.uint8)
        whole[start : start + len(content)] = content
    return whole


def test_parts_begin_at_multiples_and_empty_ones_take_no_room():
    extents = Extents.aligned(SIZES, alignment=PAGE)
    assert extents.starts.tolist() == [0, 5, PAGE, 2 * PAGE, 3 * PAGE + 3, 4 * PAGE]
    assert extents.num_bytes == 4 * PAGE + 1
    assert extents.num_held_bytes == sum(SIZES)
    extents = Extents.aligned([5, 0, 7], alignment=16)  # pieces leave gaps out
    assert list(extents.pieces(0, 23)) == [(0, 0, 5), (2, 0, 7)]
    assert list(extents.pieces(3, 14)) == [(0, 3, 2), (2, 0, 1)]
    assert list(extents.pieces(6, 8)) == []
    assert [extents.held_before(offset) for offset in (0, 3, 5, 16, 18, 23)] == [0, 3, 5, 5, 7, 12]


@pytest.mark.parametrize("mmap", [True, False])
@given(data=st.data())
def test_every_range_reads_as_the_whole_does(kept_files, mmap, data):
    source = source_of(kept_files, mmap=mmap)
    whole = whole_of(kept_files, source.extents)
    interesting = sorted({0, 5, PAGE - 1, PAGE, 2 * PAGE, 3 * PAGE + 2, 3 * PAGE + 3, 4 * PAGE, 4 * PAGE + 1})
    ends = st.sampled_from(interesting) | st.integers(0, len(whole))
    ranges = [sorted(pair) for pair in data.draw(st.lists(st.tuples(ends, ends), max_size=5))]
    offsets, lengths = [start for start, _ in ranges], [stop - start for start, stop in ranges]
    for (start, stop), found in zip(ranges, source.read_many(offsets, lengths), strict=True):
        assert np.array_equal(found, whole[start:stop])
        assert np.array_equal(source.read(start, stop - start), whole[start:stop])


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, 4 * PAGE + 2), (4 * PAGE + 1, 1), (3, -1)])
def test_a_range_outside_is_refused(files, offset, length):
    for mmap in (True, False):
        with pytest.raises(StorageError, match=r"out of range: `all\.catalogue` has"):
            source_of(files, mmap=mmap).read(offset, length)


@pytest.mark.parametrize("mmap", [True, False])
def test_a_missing_file_is_named(files, mmap):
    os.unlink(files[2].path)
    source = source_of(files, mmap=mmap)
    with pytest.raises(StorageError) as caught:
        source.read(PAGE, 1)
    assert caught.value.message == f"cannot open `{files[2].path}`: No such file or directory"
    assert caught.value.hint == RESTORE
    assert list(source.problems()) == [caught.value.message]


@pytest.mark.parametrize(("mmap", "size"), [(True, 0), (False, PAGE - 1), (True, PAGE + 1), (False, 3 * PAGE)])
def test_a_file_of_another_size_is_named(files, mmap, size):
    os.truncate(files[2].path, size)
    source = source_of(files, mmap=mmap)
    with pytest.raises(StorageError) as caught:
        source.check()
    path, expected = files[2].path, f"expected {PAGE} bytes, found {size}"
    assert caught.value.message == f"`{path}` is not the file that `all.catalogue` was written for: {expected}"
    assert caught.value.hint == RESTORE


@pytest.mark.parametrize("read", ["read", "check"])
def test_files_are_compared_before_memory_is_asked_for(files, read):
    large = [replace(file, num_bytes=2**50) if file.num_bytes == PAGE else file for file in files]
    source = source_of(large, mmap=False)
    begin = int(source.extents.starts[2])
    with pytest.raises(StorageError, match=f"expected {2**50} bytes, found {PAGE}"):
        source.read(begin - 1, 2**50) if read == "read" else source.check(np.array([begin, begin + 2**49]))


def test_too_many_mappings_are_explained(files, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory", files[4].path)

    monkeypatch.setattr(extents, "map_extents", refuse)
    with pytest.raises(StorageError) as caught:
        source_of(files).read(0, 1)
    assert caught.value.message == f"cannot open `{files[4].path}`: Cannot allocate memory"
    ways = "raise vm.max_map_count, merge datasets, or set `mmap_bin_files=False`"
    assert caught.value.hint == f"`all.catalogue` takes up to 12 mappings: {ways}"
    assert len(source_of(files, mmap=False).read(0, 5)) == 5


def test_mappings_go_with_the_last_view(tmp_path, files):
    def mapped():
        with open("/proc/self/maps") as maps:
            return sum(f"{tmp_path}/" in line for line in maps)

    source = source_of(files)
    view = source.read(0, 3)
    assert mapped() == sum(size > 0 for size in SIZES)
    del source
    assert view.tolist() == np.fromfile(files[0].path, dtype=np.uint8)[:3].tolist()
    del view
    assert mapped() == 0
