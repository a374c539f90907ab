"""Arrays of HDF5 files: what lies in one piece is mapped, what is damaged is named, what is written appears whole."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from tokenloom.errors import ChangedFileError, MissingExtraError, StorageError
from tokenloom.kernels import Watch
from tokenloom.retro.hdf5 import file_of, hdf5_in, open_array, write_arrays
from tokenloom.storage.atomic import PendingFile

ROWS = np.arange(20, dtype=np.int64).reshape(4, 5)


@pytest.fixture
def path(tmp_path):
    path = os.fspath(tmp_path / "rows.hdf5")
    with h5py.File(path, "w") as file:
        file.create_dataset("rows", data=ROWS)
    return path


def test_what_lies_in_one_piece_is_a_view_of_the_file(path):
    array = open_array(path, "rows", shape=(None, 5))
    assert array.tolist() == ROWS.tolist()
    assert not array.flags.writeable
    assert not array.flags.owndata
    with open(path, "r+b") as stream:  # nobody does that; it shows that no copy was made
        stream.seek(stream.read().index(ROWS.tobytes()))
        stream.write(np.int64(77).tobytes())
    assert array[0, 0] == 77


@pytest.mark.parametrize(
    "how",
    [
        {"compression": "gzip"},
        {"chunks": (2, 5)},
        {"dtype": ">u4"},
        {"dtype": "u1"},
        {"fillvalue": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("userblock_size", [0, 512])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_however_it_was_stored_it_is_the_same(tmp_path, how, userblock_size, libver):
    path = os.fspath(tmp_path / "other.hdf5")
    with h5py.File(path, "w", userblock_size=userblock_size, libver=libver) as file:
        file.create_dataset("before", data=b"x" * 3)
        file.create_dataset("rows", data=ROWS, **how)
    assert open_array(path, "rows", shape=(4, 5)).tolist() == ROWS.tolist()


def test_an_array_without_rows_is_one(tmp_path):
    path = os.fspath(tmp_path / "empty.hdf5")
    write_arrays(path, {"rows": np.empty((0, 5), dtype=np.uint32)})
    array = open_array(path, "rows", shape=(None, 5))
    assert (array.shape, array.dtype) == ((0, 5), np.uint32)


def test_a_small_array_in_the_header_is_read(tmp_path):
    path = os.fspath(tmp_path / "compact.hdf5")
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(ROWS.shape)
        stored = h5py.h5d.create(file.id, b"rows", h5py.h5t.NATIVE_INT64, space, properties)
        stored.write(h5py.h5s.ALL, h5py.h5s.ALL, ROWS)
    assert open_array(path, "rows", shape=(None, 5)).tolist() == ROWS.tolist()


def test_what_h5py_has_opened_names_its_file(path):
    with h5py.File(path) as file:
        assert file_of(file["rows"]) == path
    assert file_of(ROWS) is None


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("other", (None, 5), "expected an array `other`, found `rows`"),
        ("rows", (None, 4), r"expected `rows` to be integers[n, 4], found int64[4, 5]"),
        ("rows", (3, None), r"expected `rows` to be integers[3, n], found int64[4, 5]"),
        ("rows", (None,), r"expected `rows` to be integers[n], found int64[4, 5]"),
    ],
)
def test_another_array_is_refused(path, name, shape, said):
    with pytest.raises(StorageError, match=f"^{re.escape(f'`{path}`: {said}')}\nhint: "):
        open_array(path, name, shape=shape)


def test_what_is_no_array_of_integers_of_this_file_is_refused(tmp_path, path):
    other = os.fspath(tmp_path / "other.hdf5")
    layout = h5py.VirtualLayout(shape=(4, 5), dtype="i8")
    layout[:] = h5py.VirtualSource(path, "rows", shape=(4, 5))
    with h5py.File(other, "w") as file:
        file["soft"] = h5py.SoftLink("/unwritten")
        file["away"] = h5py.ExternalLink(path, "/rows")
        file.create_group("group")
        file.create_dataset("unwritten", (3, 5), dtype="i8")
        file.create_dataset("floats", data=np.zeros((4, 5)))
        file.create_dataset("nothing", data=h5py.Empty("i8"))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("raw", (4, 5), dtype="i8", external=[(path, 0, 160)])
    expected = {
        "soft": "found a group or a link",
        "away": "found a group or a link",
        "group": "found a group or a link",
        "unwritten": "found none: they were never written",
        "floats": r"found float64\[4, 5\]",
        "nothing": r"found int64\[\]",
        "virtual": "found one that lies in other files",
        "raw": "found one that lies in other files",
    }
    for name, said in expected.items():
        with pytest.raises(StorageError, match=rf"^`{re.escape(other)}`: expected .*`{name}`.*{said}\n"):
            open_array(other, name, shape=(None, 5))


def test_a_truncated_file_is_an_error_wherever_it_ends(path, rng):
    whole = Path(path).read_bytes()
    with h5py.File(path) as file:
        last = file["rows"].id.get_offset() + ROWS.nbytes
    for size in {0, 1, 8, 100, last - 1, *rng.integers(0, last, size=20).tolist()}:
        Path(path).write_bytes(whole[:size])
        with pytest.raises(StorageError, match=re.escape(f"`{path}`")):
            open_array(path, "rows", shape=(None, 5))


def test_damage_of_any_byte_gives_an_array_of_that_shape_or_a_storage_error(path, rng):
    whole = bytearray(Path(path).read_bytes())
    for place in rng.integers(0, len(whole), size=60).tolist():
        damaged = whole.copy()
        damaged[place] ^= int(rng.integers(1, 256))
        Path(path).write_bytes(damaged)
        try:
            array = open_array(path, "rows", shape=(None, 5))
        except StorageError:
            continue
        assert array.shape[1] == 5


@pytest.mark.parametrize("userblock_size", [0, 512, 2048])
def test_free_places_that_lead_back_to_themselves_are_an_error(tmp_path, userblock_size):
    path = tmp_path / "ring.hdf5"
    with h5py.File(path, "w", userblock_size=userblock_size) as file:
        file.create_dataset("rows", data=ROWS)
    data = bytearray(path.read_bytes())
    heap = data.index(b"HEAP")
    [free, names] = np.frombuffer(data[heap + 16 : heap + 32], dtype="<u8").tolist()
    place = userblock_size + names + free  # of the next one, of which there is none
    assert open_array(os.fspath(path), "rows", shape=(4, 5)).tolist() == ROWS.tolist()
    assert data[place : place + 8] == np.uint64(1).tobytes()
    data[place : place + 8] = np.uint64(free).tobytes()
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"^cannot read `rows` of `.*ring.hdf5`: its free places lead back"):
        open_array(os.fspath(path), "rows", shape=(4, 5))


def test_what_is_missing_or_no_file_is_an_error(tmp_path):
    with pytest.raises(StorageError, match=r"^cannot open `.*absent.hdf5`: No such file or directory$"):
        open_array(os.fspath(tmp_path / "absent.hdf5"), "rows", shape=(None, 5))
    with pytest.raises(StorageError, match="Is a directory"):
        open_array(os.fspath(tmp_path), "rows", shape=(None, 5))
    (tmp_path / "text.hdf5").write_text("no HDF5 file at all")
    with pytest.raises(StorageError, match=r"^cannot read `rows` of `.*text.hdf5`: .*file signature not found"):
        open_array(os.fspath(tmp_path / "text.hdf5"), "rows", shape=(None, 5))


def test_a_file_truncated_while_it_is_mapped_is_found_out(tmp_path):
    path = os.fspath(tmp_path / "large.hdf5")
    write_arrays(path, {"rows": np.ones((20_000, 5), dtype=np.int64)})
    array = open_array(path, "rows", shape=(None, 5))
    watch = Watch([array])
    os.truncate(path, 4096)
    assert array[-1, -1] == 0
    with pytest.raises(ChangedFileError, match="was truncated while it was mapped"):
        watch.check()


def test_what_is_written_is_read_by_h5py(tmp_path, rng):
    path = os.fspath(tmp_path / "new.hdf5")
    arrays = {"rows": rng.integers(0, 9, (7, 5)), "more": rng.integers(0, 9, 3, dtype=np.uint64)}
    write_arrays(path, arrays)
    with h5py.File(path) as file:
        assert {name: file[name][()].tolist() for name in file} == {n: a.tolist() for n, a in arrays.items()}
    assert os.listdir(tmp_path) == ["new.hdf5"]


def test_numbers_of_another_kind_are_an_error(tmp_path):
    path = os.fspath(tmp_path / "new.hdf5")
    write_arrays(path, {"rows": ROWS, "floats": np.ones((2, 3), dtype=np.float32)})
    assert open_array(path, "floats", shape=(None, 3), kind="floats").tolist() == [[1.0] * 3] * 2
    with pytest.raises(StorageError, match=r"expected `rows` to be floats\[n, 5\], found"):
        open_array(path, "rows", shape=(None, 5), kind="floats")
    with pytest.raises(StorageError, match=r"expected `floats` to be integers\[n, 3\], found float32\[2, 3\]"):
        open_array(path, "floats", shape=(None, 3))


def test_equal_arrays_give_equal_bytes(tmp_path):
    paths = [os.fspath(tmp_path / name) for name in ("one.hdf5", "two.hdf5")]
    for path in paths:
        write_arrays(path, {"rows": ROWS})
    assert Path(paths[0]).read_bytes() == Path(paths[1]).read_bytes()


def test_a_file_whose_writer_fails_does_not_appear(tmp_path):
    path = os.fspath(tmp_path / "new.hdf5")
    with pytest.raises(TypeError), PendingFile(path) as pending, hdf5_in(pending) as file:
        file.create_dataset("rows", data=object())
    assert os.listdir(tmp_path) == []


def test_without_h5py_the_extra_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    for ask in (lambda: open_array(path, "rows", shape=(None, 5)), lambda: write_arrays(path, {"rows": ROWS})):
        with pytest.raises(
            MissingExtraError, match=r"`h5py` is not installed\nhint: run `pip install tokenloom\[retro\]`"
        ):
            ask()


def test_where_nothing_can_be_written_is_an_error(tmp_path):
    with pytest.raises(StorageError, match=r"cannot create `.*/absent/new.hdf5`: No such file or directory"):
        write_arrays(os.fspath(tmp_path / "absent" / "new.hdf5"), {"rows": ROWS})
