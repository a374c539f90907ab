"""Journals of replacements: read by whoever comes next, under any path."""

import os
from itertools import count
from pathlib import Path

import pytest
from tests.faults import dies_at
from tests.storage.groups import NAMES, whole
from tests.support import contents

from tokenloom.errors import StorageError
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.journal import journal_path
from tokenloom.storage.output_lock import OutputLock, recover
from tokenloom.storage.publishing import FileGroup, publish_together


def test_a_damaged_journal_is_named(tmp_path):
    Path(journal_path(str(tmp_path / "data.idx"))).write_bytes(b"{")
    with pytest.raises(StorageError, match=r"`.*\.data\.idx\.replacing` is damaged"):
        recover(str(tmp_path / "data.idx"))


def test_a_group_over_two_folders_is_recovered_through_a_link_to_one_of_them(tmp_path):
    places = [tmp_path / name for name in ("deep/down/keys", "tokens")]
    for place in places:
        place.mkdir(parents=True)
    keys = tmp_path / "keys"
    keys.symlink_to(places[0])
    names = [str(places[1] / "data.bin"), str(keys / "data.idx")]

    def write(text):
        files = [PendingFile(name) for name in names]
        for file in files:
            file.write(text)
        with OutputLock(names[-1]):
            one = FileGroup(key=names[-1], files=files, names=names)
            publish_together([one], replace=True, locked=names[-1:])

    write(b"old")
    write(b"new")
    assert contents(places[1]) == {"data.bin": b"new"}
    assert contents(places[0]) == {"data.idx": b"new"}


@pytest.mark.parametrize("name", ["data.idx", "./data.idx", "sub//data.idx", "link/data.idx", "sub/../data.idx"])
def test_a_death_is_recovered_from_under_another_path(tmp_path, monkeypatch, name):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "sub")
    monkeypatch.chdir(tmp_path)
    folder = os.path.dirname(name)

    def publish_there(text):
        files = []
        for each in NAMES:
            files.append(PendingFile(os.path.join(folder, each) if folder else each, durable=False))
            files[-1].write(f"{text} {each}".encode())
        names = [file.path for file in files[:-1]]
        with OutputLock(name):
            one = FileGroup(key=name, files=files, names=[*names, name])
            publish_together([one], replace=True, durable=False, locked=[name])

    for number in count():
        publish_there("old")
        died = dies_at("", number, lambda: publish_there("new"))
        monkeypatch.chdir("/")
        recover(os.path.join(tmp_path.resolve(), "sub" if "sub/" in name and ".." not in name else folder, "data.idx"))
        monkeypatch.chdir(tmp_path)
        found = {path.name: path.read_bytes() for path in Path(folder or ".").iterdir() if path.is_file()}
        found.pop(".data.idx.lock", None)
        assert found in (whole("old"), whole("new")), number
        publish_there("again")
        if not died:
            break
    assert number > 8


def test_a_foreign_journal_is_named(tmp_path):
    (tmp_path / ".data.idx.replacing").write_bytes(b'{"key": 1}')
    with pytest.raises(StorageError, match=r"\.data\.idx\.replacing` is damaged") as error:
        OutputLock(str(tmp_path / "data.idx"))
    assert "look beside it" in error.value.hint
    with pytest.raises(StorageError, match=r"what it left cannot be put in order") as error:
        recover(str(tmp_path / "data.idx"))
    assert (tmp_path / ".data.idx.replacing").exists()
