"""Outputs of tasks: files that appear together with a manifest, whatever fails, dies, or happens at once."""

from __future__ import annotations

import errno
import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults import dies_at, failing

from tokenloom.errors import OutputExistsError, StorageError
from tokenloom.retro.output import (
    MANIFEST,
    FileRecord,
    NewOutput,
    OutputManifest,
    crc32_of,
    finished_output,
    same_output,
)
from tokenloom.storage.output_lock import OutputLock

IDENTITY = {"of": [1, 2]}


def publish(folder: Path, *texts: str, identity: object = None, overwrite: bool = False) -> OutputManifest:
    """Makes files 0.txt, 1.txt, … with these texts appear."""
    with NewOutput(os.fspath(folder), "texts", ending=".txt") as output:
        for number, text in enumerate(texts):
            output.file(f"{number}.txt").write(text.encode())
        return output.publish(IDENTITY if identity is None else identity, {"n": len(texts)}, overwrite=overwrite)


def files_of(folder: Path) -> dict[str, str]:
    found = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    return {name: text for name, text in found.items() if name != MANIFEST}


def test_a_manifest_says_what_is_there(tmp_path: Path):
    manifest = publish(tmp_path, "one", "")
    assert json.loads((tmp_path / MANIFEST).read_text()) == {
        "version": 1,
        "task": "texts",
        "identity": {"of": [1, 2]},
        "counts": {"n": 2},
        "files": [
            {"name": "0.txt", "num_bytes": 3, "crc32": "7a6c86f1"},
            {"name": "1.txt", "num_bytes": 0, "crc32": "00000000"},
        ],
        "blocks": [],
    }
    assert OutputManifest.read(os.fspath(tmp_path)) == manifest
    assert files_of(tmp_path) == {"0.txt": "one", "1.txt": ""}
    assert crc32_of(os.fspath(tmp_path / "0.txt")) == 0x7A6C86F1
    assert same_output(os.fspath(tmp_path), "texts", {"of": (1, 2)}) == manifest


def test_it_is_the_same_only_where_nothing_differs(tmp_path: Path):
    manifest = publish(tmp_path, "one")
    folder = os.fspath(tmp_path)
    assert same_output(folder, "texts", IDENTITY) == manifest
    assert same_output(folder, "lines", IDENTITY) is None
    assert same_output(folder, "texts", {**IDENTITY, "more": 1}) is None
    assert same_output(os.fspath(tmp_path / "none"), "texts", IDENTITY) is None
    assert same_output(folder, "texts", IDENTITY, manifest="other.json") is None
    (tmp_path / "0.txt").write_text("on")
    assert same_output(folder, "texts", IDENTITY) is None
    (tmp_path / "0.txt").unlink()
    assert same_output(folder, "texts", IDENTITY) is None


def test_a_digest_follows_from_all_that_was_made_and_of_what(tmp_path: Path):
    one = publish(tmp_path / "1", "one")
    assert one.digest == publish(tmp_path / "2", "one").digest
    found = OutputManifest.read(os.fspath(tmp_path / "1"))
    assert found is not None
    assert found.digest == one.digest
    others = [publish(tmp_path / "3", "two"), publish(tmp_path / "4", "one", identity={"of": [1, 3]})]
    assert len({one.digest, *(each.digest for each in others)}) == 3


def visible(folder: Path) -> dict[str, str]:
    return {name: text for name, text in files_of(folder).items() if not name.startswith(".")}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"version": 2}', '{"version": 1, "task": 3}', '{"version": 1, "task": "texts"}']
)
def test_what_is_no_manifest_is_told(tmp_path: Path, text: str):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(StorageError, match=r"manifest\.json` is no manifest") as caught:
        OutputManifest.read(os.fspath(tmp_path))
    assert caught.value.hint == "remove it, and make the output again with `overwrite=True`"


def test_what_is_there_is_replaced_only_when_it_may_be_and_then_as_a_whole(tmp_path: Path):
    publish(tmp_path, "a", "b", "c")
    with pytest.raises(OutputExistsError, match=r"`.*0\.txt` exists, and was made with other settings"):
        publish(tmp_path, "new", identity={"of": "else"})
    assert files_of(tmp_path) == {"0.txt": "a", "1.txt": "b", "2.txt": "c"}
    publish(tmp_path, "new", identity={"of": "else"}, overwrite=True)
    assert files_of(tmp_path) == {"0.txt": "new"}
    assert sorted(os.listdir(tmp_path)) == ["0.txt", MANIFEST]


@pytest.mark.parametrize("left", [None, "on"])
def test_a_file_of_the_same_that_is_gone_or_cut_is_named(tmp_path: Path, left: str | None):
    publish(tmp_path, "one", "two")
    (tmp_path / "0.txt").unlink()
    if left is not None:
        (tmp_path / "0.txt").write_text(left)
    expected = r"`.*0\.txt`, a file of the finished texts, is missing or of another size"
    with pytest.raises(OutputExistsError, match=expected):
        publish(tmp_path, "one", "two")
    with pytest.raises(OutputExistsError, match=expected):
        finished_output(os.fspath(tmp_path), "texts", IDENTITY, ending=".txt", overwrite=False)
    publish(tmp_path, "one", "two", overwrite=True)
    assert files_of(tmp_path) == {"0.txt": "one", "1.txt": "two"}


def test_files_of_another_program_with_the_same_ending_are_in_the_way(tmp_path: Path):
    (tmp_path / "theirs.txt").write_text("theirs")
    (tmp_path / "theirs.md").write_text("theirs")
    with pytest.raises(OutputExistsError, match="or by something else"):
        publish(tmp_path, "ours")
    assert sorted(os.listdir(tmp_path)) == ["theirs.md", "theirs.txt"]
    publish(tmp_path, "ours", overwrite=True)
    assert files_of(tmp_path) == {"0.txt": "ours", "theirs.md": "theirs"}


def test_the_same_that_another_process_made_meanwhile_stays(tmp_path: Path):
    with NewOutput(os.fspath(tmp_path), "texts", ending=".txt") as slow:
        slow.file("0.txt").write(b"one")
        first = publish(tmp_path, "one")
        inode = (tmp_path / "0.txt").stat().st_ino
        assert slow.publish(IDENTITY, {"n": 1}, overwrite=False) == first
    assert (tmp_path / "0.txt").stat().st_ino == inode
    assert sorted(os.listdir(tmp_path)) == ["0.txt", MANIFEST]


def test_whoever_publishes_waits_for_whom_is_at_it(tmp_path: Path):
    lock = OutputLock(os.fspath(tmp_path / MANIFEST))
    thread = threading.Thread(target=publish, args=(tmp_path, "one"))
    thread.start()
    lock.release()
    thread.join()
    assert files_of(tmp_path) == {"0.txt": "one"}


def test_a_file_is_taken_over_with_its_bytes(tmp_path: Path):
    source = tmp_path / "part"
    source.write_text("part")
    with NewOutput(os.fspath(tmp_path / "out"), "texts") as output:
        output.take(os.fspath(source), "deep/0.txt", crc32=crc32_of(os.fspath(source)))
        manifest = output.publish(IDENTITY, {}, overwrite=False)
    assert manifest.files == (FileRecord(name="deep/0.txt", num_bytes=4, crc32=crc32_of(os.fspath(source))),)
    source.unlink()
    assert (tmp_path / "out" / "deep" / "0.txt").read_text() == "part"


def test_a_disk_that_is_full_at_any_call_leaves_what_was_there(tmp_path: Path):
    publish(tmp_path, "old", "old")
    num_failures = 0
    while True:
        full = OSError(errno.ENOSPC, "No space left on device")
        with failing(tmp_path, num_failures, full) as reached, suppress(StorageError):
            publish(tmp_path, "new", identity={"of": "new"}, overwrite=True)
        if not reached():
            break
        num_failures += 1
        if same_output(os.fspath(tmp_path), "texts", {"of": "new"}) is not None:  # only what was old could not go
            publish(tmp_path, "old", "old", overwrite=True)
        assert same_output(os.fspath(tmp_path), "texts", IDENTITY) is not None
        assert visible(tmp_path) == {"0.txt": "old", "1.txt": "old"}
    assert num_failures > 5
    assert files_of(tmp_path) == {"0.txt": "new"}


def test_a_full_disk_is_called_so(tmp_path: Path):
    with failing(tmp_path, 0, OSError(errno.ENOSPC, "No space left on device")), pytest.raises(StorageError) as caught:
        publish(tmp_path / "out", "new")
    assert caught.value.hint == "the disk is full; free some space, or write elsewhere"


def test_a_death_at_any_call_leaves_the_old_or_the_new(tmp_path: Path):
    num_deaths, kinds = 0, set()
    while True:
        folder = tmp_path / str(num_deaths)
        publish(folder, "old", "old")
        died = dies_at(folder, num_deaths, lambda at=folder: publish(at, "new", identity={"of": "new"}, overwrite=True))
        is_new = same_output(os.fspath(folder), "texts", {"of": "new"}) is not None
        is_old = same_output(os.fspath(folder), "texts", IDENTITY) is not None
        assert is_new != is_old
        expected = {"0.txt": "new"} if is_new else {"0.txt": "old", "1.txt": "old"}
        assert visible(folder) == expected
        if not died:
            break
        kinds.add(is_new)
        publish(folder, "new", identity={"of": "new"}, overwrite=True)
        assert files_of(folder) == {"0.txt": "new"}
        num_deaths += 1
    assert kinds == {False, True}
