"""Tasks and waits: what is counted, who looks on, and which lines a log gets."""

import os
import threading
from collections.abc import Sequence

import pytest

from tests.support import wait_until
from tokenloom.progress import LineReporter, Task, Wait, if_stopped, reporting_to, task, waiting_for
from tokenloom.rendering.progress_words import Amounts


class Watcher:
    """A reporter that keeps what it is shown, and says when it has seen something."""

    seconds_between_looks = 0.001

    def __init__(self) -> None:
        self.seen: list[tuple[list[str], list[str]]] = []
        self.ended: list[tuple[str, bool]] = []
        self.has_looked = threading.Event()

    def look(self, tasks: Sequence[Task], waits: Sequence[Wait]) -> None:
        self.seen.append(([each.description for each in tasks], [each.what for each in waits]))
        self.has_looked.set()

    def end(self, task: Task, *, is_complete: bool) -> None:
        self.ended.append((task.description, is_complete))

    def next(self) -> tuple[list[str], list[str]]:
        """Returns what the next look finds."""
        for _ in range(2):  # the first may have begun before
            self.has_looked.clear()
            assert self.has_looked.wait(300)
        return self.seen[-1]


class Log:
    """A line reporter with a clock that is set by hand."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now = 1000.0
        warn = lambda line: self.lines.append(f"! {line}")  # noqa: E731
        self.reporter = LineReporter(self.lines.append, warn, clock=lambda: self.now)


def test_a_task_counts_what_threads_say():
    with task("merge", unit="bytes", total=4000) as advance:
        threads = [threading.Thread(target=lambda: [advance(1) for _ in range(1000)]) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert advance.amounts() == Amounts("bytes", 4000, 4000)


def test_a_reporter_sees_what_is_open_from_every_thread():
    watcher = Watcher()
    with reporting_to(watcher), task("outer", unit="files"):
        with task("inner", unit="bytes"), waiting_for("a lock"):
            assert watcher.next() == (["outer", "inner"], ["a lock"])
        assert watcher.next() == (["outer"], [])
        release, is_open = threading.Event(), threading.Event()

        def work() -> None:
            with waiting_for("a server"):
                is_open.set()
                release.wait(300)

        thread = threading.Thread(target=work)
        thread.start()
        assert is_open.wait(300)
        assert watcher.next() == (["outer"], ["a server"])
        release.set()
        thread.join()
    assert watcher.ended == [("inner", True), ("outer", True)]


def test_a_task_that_fails_ends_incomplete():
    watcher = Watcher()
    with reporting_to(watcher), pytest.raises(ValueError, match="no"), task("merge", unit="bytes"):
        raise ValueError("no")
    assert watcher.ended == [("merge", False)]


def threads_that_look() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "tokenloom-progress"]


def test_the_thread_ends_when_nothing_is_open():
    wait_until(lambda: not threads_that_look())  # that of an earlier test may still be at its end
    watcher = Watcher()
    with reporting_to(watcher):
        with task("merge", unit="bytes"):
            watcher.next()
            [thread] = threads_that_look()
        thread.join(300)
        assert not thread.is_alive()
        with waiting_for("a lock"):
            assert watcher.next() == ([], ["a lock"])


def test_a_fork_has_nothing_open():
    with task("merge", unit="bytes"):
        process = os.fork()
        if process == 0:
            watcher = Watcher()
            with reporting_to(watcher), waiting_for("a lock"):
                os._exit(0 if watcher.next() == ([], ["a lock"]) else 1)
        assert os.waitpid(process, 0)[1] == 0


def test_a_log_gets_a_line_every_half_minute_and_one_at_the_end():
    log = Log()
    merge = Task("merge", Amounts("bytes", 0, 10_000))
    merge.started = log.now
    for second in range(100):
        log.now = 1000.0 + second
        log.reporter.look([merge], [])
        merge(100)
    log.now = 1100.0
    log.reporter.end(merge, is_complete=True)
    assert log.lines == [
        "merge: 30 % (3 of 10 kB), 1 min 10 s left, 100 B/s",
        "merge: 60 % (6 of 10 kB), 40 s left, 100 B/s",
        "merge: 90 % (9 of 10 kB), 10 s left, 100 B/s",
        "merge: done, 10 kB in 1 min 40 s, 100 B/s",
    ]


def test_a_wait_is_told_after_five_seconds_and_every_thirty():
    log = Log()
    wait = Wait("an answer of `http://localhost:9`", "AWS_ENDPOINT_URL names it")
    wait.started = log.now
    for second in range(70):
        log.now = 1000.0 + second
        wait.note = f"attempt {1 + second // 10}"
        log.reporter.look([], [wait])
    assert log.lines == [
        "! waiting for an answer of `http://localhost:9` for 5 s (attempt 1; AWS_ENDPOINT_URL names it)",
        "! waiting for an answer of `http://localhost:9` for 35 s (attempt 4; AWS_ENDPOINT_URL names it)",
        "! waiting for an answer of `http://localhost:9` for 1 min 5 s (attempt 7; AWS_ENDPOINT_URL names it)",
    ]


def test_a_stop_is_told_what_is_done():
    with pytest.raises(KeyboardInterrupt) as stop, if_stopped(lambda: "outer"), if_stopped(lambda: "inner"):
        raise KeyboardInterrupt
    assert stop.value.__notes__ == ["inner"]
    with pytest.raises(ValueError, match="no") as error, if_stopped(lambda: "outer"):
        raise ValueError("no")
    assert not hasattr(error.value, "__notes__")
