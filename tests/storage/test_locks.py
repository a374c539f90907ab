"""Locks that others wait for: who waits says so."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from tokenloom.progress import Task, Wait, reporting_to
from tokenloom.storage.locks import filling, waiting_for


class Watcher:
    """A reporter that keeps what is waited for."""

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
    assert watcher.waits == {f"`{path}`, which another process makes"}
    assert len(found) == 1


def test_who_waits_in_steps_says_so_and_may_stop(tmp_path: Path):
    path = str(tmp_path / "lock")
    watcher = Watcher()
    with reporting_to(watcher), waiting_for(path, lambda _: False) as is_locked:
        assert is_locked
        with waiting_for(path, lambda _: watcher.has_seen.wait(20)) as is_locked_twice:
            assert not is_locked_twice
    assert watcher.waits == {f"`{path}`, which another process holds"}
