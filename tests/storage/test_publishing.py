import errno
import os
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from tests.faults import dies_at, failing
from tests.support import contents

from tokenloom.errors import OutputBusyError, OutputExistsError, StorageError
from tokenloom.progress import Task, Wait, reporting_to
from tokenloom.storage import publishing
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.storage.objects import filling
from tokenloom.storage.publishing import FileGroup, OutputLock, publish_together, recover

NAMES = ("data.bin", "data.extra", "data.idx")


def whole(text, names=NAMES):
    return {name: f"{text} {name}".encode() for name in names}


def shown(folder):
    return {name: data for name, data in contents(folder).items() if not name.endswith((".lock", ".tmp"))}


def group(folder, text, names=NAMES):
    files = []
    for name in names:
        file = PendingFile(folder / name, durable=False)
        file.write(f"{text} {name}".encode())
        files.append(file)
    return FileGroup(key=str(folder / names[-1]), files=files, names=[str(folder / name) for name in NAMES])


def publish(folder, text, *, replace=True, names=NAMES):
    publish_group(group(folder, text, names), replace=replace)


def publish_group(one, *, replace=True):
    with OutputLock(one.key):
        publish_together([one], replace=replace, locked=[one.key])


def test_files_appear_together_and_are_replaced_as_a_whole(tmp_path):
    publish(tmp_path, "old", replace=False)
    assert contents(tmp_path) == whole("old")
    publish(tmp_path, "new", names=("data.bin", "data.idx"))
    assert contents(tmp_path) == whole("new", ("data.bin", "data.idx"))


def test_what_is_there_is_not_replaced_unasked(tmp_path):
    (tmp_path / "data.extra").write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match=r"(?s)`.*data\.extra` exists already.*hint: .*overwrite"):
        publish(tmp_path, "new", replace=False)
    assert contents(tmp_path) == {"data.extra": b"mine"}


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
@pytest.mark.parametrize("old", [True, False])
def test_a_failure_at_any_call_leaves_old_or_new(tmp_path, error, old):
    for number in count():
        if old:
            publish(tmp_path, "old")
        before = shown(tmp_path)
        with failing(tmp_path, number, error) as was_reached:
            try:
                publish(tmp_path, "new")
            except (OSError, KeyboardInterrupt):
                assert was_reached()
                recover(str(tmp_path / "data.idx"))
                after = shown(tmp_path)
                assert after in (before, whole("new")), number  # new, if it was late
                OutputLock(str(tmp_path / "data.idx")).release()
            else:
                if was_reached():  # of the clean-up at the end, which the next writer goes on with
                    recover(str(tmp_path / "data.idx"))
        if not was_reached():
            break
        after = shown(tmp_path)
        assert after in (before, whole("new")), number
        for path in tmp_path.iterdir():
            path.unlink()
    assert number > 8
    assert contents(tmp_path) == whole("new")


STEPS = [
    pytest.param(True, 3, id="replaced"),
    pytest.param(True, 1, marks=pytest.mark.slow, id="replaced-every"),
    pytest.param(False, 1, marks=pytest.mark.slow, id="new-every"),
]
"""Whether there are old files, and from which call to which next one a writer dies."""


@pytest.mark.parametrize(("old", "step"), STEPS)
def test_a_death_at_any_call_leaves_old_or_new(tmp_path, old, step):
    for number in count(0, step):
        if old:
            publish(tmp_path, "old")
        before = shown(tmp_path)
        died = dies_at(tmp_path, number, lambda: publish(tmp_path, "new"))
        if (tmp_path / "data.idx").exists():  # whoever knows of no journal finds files of one side, or no index
            visible = {name: data for name, data in contents(tmp_path).items() if name[0] != "."}
            assert visible in (whole("old"), whole("new")), number
        recover(str(tmp_path / "data.idx"))
        found = shown(tmp_path)
        assert found in (before, whole("new")), number
        publish(tmp_path, "again")
        assert shown(tmp_path) == whole("again"), number
        if not died:
            break
        for path in tmp_path.iterdir():
            path.unlink()
    assert number > 8


def test_what_cannot_be_replaced_stays(tmp_path, monkeypatch):
    publish(tmp_path, "old")
    real = publishing.remove_file

    def remove(path):
        if path.endswith("/data.idx"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        real(path)

    monkeypatch.setattr(publishing, "remove_file", remove)
    with pytest.raises(StorageError, match=r"cannot replace `.*data\.idx`: Operation not permitted"):
        publish(tmp_path, "new")
    assert contents(tmp_path) == whole("old")


def test_several_groups_are_undone_together(tmp_path):
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
        publish(folder, "old")
    last = group(folders[2], "new")
    last.files[1].discard()
    with pytest.raises(StorageError, match="already published or discarded"):
        publish_together([group(folders[0], "new"), group(folders[1], "new"), last], replace=True)
    assert [contents(folder) for folder in folders] == [whole("old")] * 3


@pytest.mark.parametrize("opened", ["by readers", "by a writer"])
@pytest.mark.parametrize(("old", "step"), STEPS)
def test_several_groups_die_together(tmp_path, old, step, opened):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()

    def publish_all(text):
        groups = [group(folder, text) for folder in folders]
        with OutputLock(groups[0].key):  # the second has none
            publish_together(groups, replace=True, locked=[groups[0].key])

    def found():
        keys = [str(folder / "data.idx") for folder in first_opened]
        if opened == "by readers":
            for key in keys:
                recover(key)
        else:
            for lock in [OutputLock(key) for key in keys]:  # as a writer of both, which holds the first already
                lock.release()
        return [shown(folder) for folder in folders]

    sides = set()
    for number in count(0, step):
        first_opened = folders if number % 2 else folders[::-1]
        if old:
            publish_all("old")
        died = dies_at(tmp_path, number, lambda: publish_all("new"))
        after = found()
        assert after in ([whole("old") if old else {}] * 2, [whole("new")] * 2), number
        sides.add("data.bin" in after[0] and after[0]["data.bin"] == whole("new")["data.bin"])
        if not died:
            break
        for path in tmp_path.glob("*/*"):
            path.unlink()
    assert sides == {True, False}
    assert number > 20


def test_no_reader_undoes_a_group_without_a_lock_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(publishing, "_BRIEF_SECONDS", 0.1)
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    groups = [group(folder, "new") for folder in folders]
    original, seen = publishing._finish, []

    def finish(journal, **options):
        for each in groups if not seen else ():
            for take in (recover, OutputLock):
                with pytest.raises(OutputBusyError, match=r"data\.idx` is being written by process"):
                    take(each.key)
            seen.append(each.key)
        original(journal, **options)

    monkeypatch.setattr(publishing, "_finish", finish)
    with OutputLock(groups[0].key):
        publish_together(groups, replace=False, locked=[groups[0].key])
    assert len(seen) == 2
    assert [contents(folder) for folder in folders] == [whole("new")] * 2


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
        publish_group(FileGroup(key=names[-1], files=files, names=names))

    write(b"old")
    write(b"new")
    assert contents(places[1]) == {"data.bin": b"new"}
    assert contents(places[0]) == {"data.idx": b"new"}


SPELLINGS = ("./data.idx", "sub//data.idx", "link/data.idx", "sub/../data.idx")
SLOW_SPELLINGS = [pytest.param(name, 1, marks=pytest.mark.slow) for name in SPELLINGS]


@pytest.mark.parametrize(("name", "step"), [("data.idx", 7), ("link/data.idx", 4), *SLOW_SPELLINGS])
def test_a_death_is_recovered_from_under_another_path(tmp_path, monkeypatch, name, step):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "sub")
    monkeypatch.chdir(tmp_path)
    folder = os.path.dirname(name)

    def publish_there(text):
        files = []
        for each in NAMES:
            files.append(PendingFile(os.path.join(folder, each) if folder else each, durable=False))
            files[-1].write(f"{text} {each}".encode())
        publish_group(FileGroup(key=name, files=files, names=[*(file.path for file in files[:-1]), name]))

    for number in count(0, step):
        publish_there("old")
        died = dies_at("", number, lambda: publish_there("new"))
        monkeypatch.chdir("/")
        recover(os.path.join(tmp_path.resolve(), "sub" if "sub/" in name and ".." not in name else folder, "data.idx"))
        monkeypatch.chdir(tmp_path)
        found = {path.name: path.read_bytes() for path in Path(folder or ".").iterdir() if path.is_file()}
        found = {name: data for name, data in found.items() if not name.endswith((".lock", ".tmp"))}
        assert found in (whole("old"), whole("new")), number
        publish_there("again")
        if not died:
            break
    assert number > 8


def test_a_foreign_journal_is_named(tmp_path):
    (tmp_path / ".data.idx.replacing").write_bytes(b'{"key": 1}')
    with pytest.raises(StorageError, match=r"\.data\.idx\.replacing`: the journal is damaged") as error:
        OutputLock(str(tmp_path / "data.idx"))
    assert "check the files beside the journal" in error.value.hint
    with pytest.raises(StorageError, match=r"the replacement cannot be finished") as error:
        recover(str(tmp_path / "data.idx"))
    assert (tmp_path / ".data.idx.replacing").exists()


class Watcher:
    seconds_between_looks = 0.001

    def __init__(self) -> None:
        self.waits: set[str] = set()
        self.has_seen = threading.Event()

    def look(self, tasks: Sequence[Task], waits: Sequence[Wait]) -> None:
        if waits:
            self.waits |= {each.what for each in waits}
            self.has_seen.set()

    def end(self, task: Task, *, is_complete: bool) -> None:
        pass


def test_who_waits_for_a_file_that_another_makes_says_so(tmp_path: Path):
    path = str(tmp_path / "copy")
    watcher = Watcher()
    found = []

    def fill_too() -> None:
        with filling(path) as part:
            found.append(part)

    with reporting_to(watcher):
        with filling(path) as part:
            assert part is not None
            thread = threading.Thread(target=fill_too)
            thread.start()
            assert watcher.has_seen.wait(20)
        thread.join(20)
    assert watcher.waits == {f"`{path}`, which another process is making"}
    assert len(found) == 1


def test_one_writer_at_a_time(tmp_path):
    key = str(tmp_path / "data.idx")
    with OutputLock(key):
        with pytest.raises(OutputBusyError, match=rf"`.*data\.idx` is being written by process {os.getpid()} on "):
            OutputLock(key)
        with ThreadPoolExecutor() as pool, pytest.raises(OutputBusyError):
            pool.submit(OutputLock, key).result()
    with OutputLock(key):
        pass
    assert os.listdir(tmp_path) == []


def test_a_fork_does_not_let_go_of_the_lock_but_that_of_a_dead_process_is_free(tmp_path):
    key = str(tmp_path / "data.idx")
    lock = OutputLock(key)
    assert in_fork(lock.release) == in_fork(lock.__del__) == 0
    with pytest.raises(OutputBusyError):
        OutputLock(key)
    lock.release()
    kept = []
    assert in_fork(lambda: kept.append(OutputLock(key))) == 0
    assert os.listdir(tmp_path) != []
    with OutputLock(key):
        pass
    assert os.listdir(tmp_path) == []


def test_a_writer_waits_a_moment_for_a_lock(tmp_path):
    key = str(tmp_path / "data.idx")
    reader = OutputLock(key)
    timer = threading.Timer(0.1, reader.release)
    timer.start()
    OutputLock(key).release()
    timer.join()
    assert os.listdir(tmp_path) == []


def test_nothing_has_the_name_before_publish(tmp_path):
    pending = PendingFile(tmp_path / "data.bin")
    pending.write(b"abc")
    pending.sync()
    assert contents(tmp_path) == {os.path.basename(pending.readable_path): b"abc"}
    assert pending.readable_path != str(tmp_path / "data.bin")
    pending.publish()
    assert contents(tmp_path) == {"data.bin": b"abc"}
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "data.bin").stat().st_mode) == 0o666 & ~mask


def test_an_exception_or_discard_leaves_the_old_file_which_publish_replaces(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"old")
    with pytest.raises(TypeError), PendingFile(tmp_path / "data.bin") as pending:
        pending.write("no bytes")
    assert contents(tmp_path) == {"data.bin": b"old"}
    pending = PendingFile(tmp_path / "data.bin")
    pending.write(b"abc")
    pending.discard()
    pending.discard()
    assert contents(tmp_path) == {"data.bin": b"old"}
    with PendingFile(tmp_path / "data.bin") as pending:
        pending.write(b"new")
        assert (tmp_path / "data.bin").read_bytes() == b"old"
    assert contents(tmp_path) == {"data.bin": b"new"}


@pytest.mark.parametrize("end", ["publish", "discard"])
def test_writing_after_the_end_is_an_error(tmp_path, end):
    pending = PendingFile(tmp_path / "data.bin")
    getattr(pending, end)()
    with pytest.raises(StorageError, match=r"data\.bin`: was already published or discarded"):
        pending.write(b"abc")
    with pytest.raises(StorageError, match="already published or discarded"):
        pending.publish()


def test_two_writers_of_one_path_do_not_meet_and_the_last_wins_whole(tmp_path):
    first, second = PendingFile(tmp_path / "data.bin"), PendingFile(tmp_path / "data.bin")
    first.write(b"first")
    second.write(b"2")
    second.publish()
    assert (tmp_path / "data.bin").read_bytes() == b"2"
    first.publish()
    assert contents(tmp_path) == {"data.bin": b"first"}


def in_fork(action):
    """Runs `action` in a forked child that ends as Python programs end; returns the exit status."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_cannot_write_or_publish_nor_removes_the_file_nor_writes_buffered_bytes_twice(tmp_path):
    pending = PendingFile(tmp_path / "data.bin")
    pending.write(b"hello")  # still in the buffer, of which the fork gets a copy

    def child():
        for use in (lambda: pending.write(b"child"), pending.publish):
            with pytest.raises(StorageError, match=rf"process {os.getppid()} opened it"):
                use()
        pending.__del__()

    assert in_fork(child) == 0
    assert not (tmp_path / "data.bin").exists()
    pending.write(b" world")
    pending.publish()
    assert contents(tmp_path) == {"data.bin": b"hello world"}


def test_a_missing_folder_and_a_folder_in_the_way_are_named_and_nothing_is_left(tmp_path):
    with pytest.raises(StorageError, match=r"cannot create `.*absent/data\.bin`: No such file or directory"):
        PendingFile(tmp_path / "absent" / "data.bin")
    (tmp_path / "data.bin").mkdir()
    pending = PendingFile(tmp_path / "data.bin")
    with pytest.raises(StorageError, match=r"cannot publish `.*data\.bin`: Is a directory"):
        pending.publish()
    assert os.listdir(tmp_path) == ["data.bin"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_hint(code):
    with pytest.raises(StorageError) as caught, storage_errors("write", "x.bin"):
        raise OSError(code, os.strerror(code))
    expected = f"cannot write `x.bin`: {os.strerror(code)}\nhint: delete files on the disk, or write to another disk"
    assert str(caught.value) == expected
    assert isinstance(caught.value.__cause__, OSError)
