"""Reports long waits, and the progress of long work.

Long work opens a `task` and advances the task; code that waits for another process or machine opens `waiting_for`. A
thread passes all open tasks and waits to a reporter. The default reporter logs; `reporting_to` sets another reporter.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from tokenloom.rendering.progress_words import Amounts, Pace, duration, end_line, plain_line

_LOGGER = logging.getLogger(__name__)
_Print = Callable[[str], object]

SILENT_SECONDS = 4.6
"""Seconds without progress before a wait is reported: the reporter checks every 0.4 s, so reports come within 5 s."""

SECONDS_BETWEEN_LINES = 30.0
"""Interval between two log lines about the same task or wait."""

NOTHING_WRITTEN = "nothing was written: run the same command again to start over"
"""A note for `if_stopped`, for work whose output is written completely or not at all."""


class Task:
    """Long work with a progress count; see `task`. Thread-safe.

    Attributes:
        description: name of the work, such as "merge".
        started: start time, in seconds of the monotonic clock.
        before: the amounts when the task was opened.
    """

    __slots__ = ("__weakref__", "_done", "_lock", "_notes", "_num_tokens", "_total", "before", "description", "started")

    def __init__(self, description: str, before: Amounts) -> None:
        self.description: str = description
        self.before: Amounts = before
        self.started: float = time.monotonic()
        self._lock = threading.Lock()
        self._done, self._total = before.done, before.total
        self._num_tokens, self._notes = before.num_tokens, before.notes

    def __call__(self, count: int = 1) -> None:
        """Adds `count` to the amount done."""
        with self._lock:
            self._done += count

    def tell(self, done: int, *, total: int | None = None, num_tokens: int = 0, notes: Sequence[str] = ()) -> None:
        """Sets the amount done, the total, the number of tokens done, and the notes."""
        with self._lock:
            self._done, self._total = done, total
            self._num_tokens, self._notes = num_tokens, tuple(notes)

    def note(self, *notes: str) -> None:
        """Sets the notes, short texts such as "shards 4 of 11"."""
        with self._lock:
            self._notes = notes

    def amounts(self) -> Amounts:
        """Returns the current amounts."""
        with self._lock:
            return Amounts(self.before.unit, self._done, self._total, self._num_tokens, self._notes)


@dataclass(slots=True, eq=False)
class Wait:
    """A wait for another process or machine; see `waiting_for`.

    Attributes:
        what: the text after "waiting for".
        setting: text about a setting to check, such as "AWS_REGION names it".
        note: state of the wait, such as "attempt 2".
        started: start time, in seconds of the monotonic clock.
    """

    what: str
    setting: str | None = None
    note: str = ""
    started: float = field(default_factory=time.monotonic)

    def line(self, seconds: float) -> str:
        """Formats the message about a wait that has lasted `seconds`."""
        more = "; ".join(filter(None, (self.note, self.setting)))
        return f"waiting for {self.what} for {duration(seconds)}" + (f" ({more})" if more else "")


@contextmanager
def task(
    description: str, *, unit: str, total: int | None = None, done: int = 0, num_tokens: int = 0
) -> Iterator[Task]:
    """Opens a task for the `with` block and yields the task; calling the task advances it.

    Args:
        description: name of the work, such as "merge".
        unit: unit of the amounts: "bytes", or a plural such as "documents".
        total: the amount at the end; None if unknown.
        done, num_tokens: the amount and the number of tokens that were done before the task was opened.

    Example:
        >>> with task("merge", unit="bytes", total=20) as advance:
        ...     advance(5)
        ...     advance.amounts().done
        5
    """
    opened = Task(description, Amounts(unit, done, total, num_tokens))
    _board.open(opened)
    is_complete = False
    try:
        yield opened
        is_complete = True
    finally:
        _board.close(opened, is_complete=is_complete)


@contextmanager
def waiting_for(what: str, *, setting: str | None = None) -> Iterator[Wait]:
    """Reports "waiting for `what`" once the `with` block has lasted 5 s and no task advances; yields the `Wait`.

    `setting` is a text about a setting to check, such as "AWS_REGION names it".
    """
    opened = Wait(what, setting)
    _board.open(opened)
    try:
        yield opened
    finally:
        _board.close(opened)


@contextmanager
def if_stopped(words: Callable[[], str]) -> Iterator[None]:
    """If a `KeyboardInterrupt` (Ctrl-C or a signal) ends the `with` block, adds `words()` to the exception as a note.

    Of nested blocks, only the innermost adds a note, such as "6 of 11 shards are done: run the same command again".
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if not getattr(stop, "__notes__", None):
            stop.add_note(words())
        raise


@contextmanager
def reporting_to(reporter: LineReporter) -> Iterator[None]:
    """Passes all tasks and waits of this process to a reporter during the `with` block."""
    before = _board.reporter
    _board.reporter = reporter
    try:
        yield
    finally:
        _board.reporter = before


class LineReporter:
    """A reporter that prints lines about long waits, and about the oldest open task: every 30 s, and when it ends.

    A wait is reported after 5 s, then every 30 s, but not while a task advances. Waits for the same thing share a line.
    Not thread-safe. `say` prints lines about tasks, `warn` lines about waits; `clock` returns the time in seconds.
    """

    def __init__(self, say: _Print, warn: _Print, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds_between_looks: float = 0.4  # interval between two calls of `look`
        self._say, self._warn, self._clock = say, warn, clock
        self._paces: WeakKeyDictionary[Task, Pace] = WeakKeyDictionary()
        self._advances: WeakKeyDictionary[Task, tuple[int, float]] = WeakKeyDictionary()
        self._due: WeakKeyDictionary[Task, float] = WeakKeyDictionary()
        self._waits_due: dict[str, float] = {}

    def look(self, tasks: Sequence[Task], waits: Sequence[Wait]) -> None:
        """Prints the due lines about the open tasks and waits; both arguments are sorted from oldest to newest."""
        now = self._clock()
        self._report_waits(tasks, waits, now)
        if not tasks:
            return
        task, *inner = tasks
        amounts = task.amounts()
        pace = self._paces.setdefault(task, Pace(task.started, task.before))
        pace.add(now, amounts)
        if self._is_due(task, now):
            last = plain_line(inner[-1].description, inner[-1].amounts()) if inner else ""
            self._say(plain_line(task.description, amounts, pace.speed(), inner=last))

    def end(self, task: Task, *, is_complete: bool) -> None:
        """Prints the last line of a task that took 30 s or more, unless an error or a signal ended the task."""
        seconds = self._clock() - task.started
        if is_complete and task in self._due and seconds >= SECONDS_BETWEEN_LINES:
            self._say(end_line(task.description, task.amounts(), seconds, before=task.before))

    def _is_due(self, task: Task, now: float) -> bool:
        due = self._due.setdefault(task, task.started + SECONDS_BETWEEN_LINES)
        if now >= due:
            self._due[task] = now + SECONDS_BETWEEN_LINES
        return now >= due

    def _report_waits(self, tasks: Sequence[Task], waits: Sequence[Wait], now: float) -> None:
        last_advance = max((self._last_advance(each, now) for each in tasks), default=-float("inf"))
        oldest: dict[str, Wait] = {}
        for wait in waits:
            oldest.setdefault(wait.what, wait)
        self._waits_due = {what: due for what, due in self._waits_due.items() if what in oldest}
        for wait in oldest.values() if now - last_advance >= SILENT_SECONDS else ():
            seconds = now - wait.started
            if seconds >= SILENT_SECONDS and now >= self._waits_due.get(wait.what, now):
                self._waits_due[wait.what] = now + SECONDS_BETWEEN_LINES
                self._warn(wait.line(seconds))

    def _last_advance(self, task: Task, now: float) -> float:
        """Returns the time when the task was last seen to advance; minus infinity if the task never advanced."""
        done = task.amounts().done
        seen, at = self._advances.get(task, (task.before.done, -float("inf")))
        self._advances[task] = done, at if seen == done else now
        return self._advances[task][1]


class _Board:
    """The open tasks and waits of this process, and the thread that reports them."""

    def __init__(self) -> None:
        self.reporter: LineReporter = LineReporter(_LOGGER.info, _LOGGER.warning)
        self.clear()

    def clear(self) -> None:
        """Forgets all tasks and waits; a forked child must call this, because the child has no reporting thread."""
        self._lock = threading.RLock()  # reentrant: garbage collection may close a task in the thread with the lock
        self._reporting = threading.RLock()  # held while the reporter is called
        self._open: dict[int, Task | Wait] = {}
        self._thread: threading.Thread | None = None

    def open(self, opened: Task | Wait) -> None:
        with self._lock:
            self._open[id(opened)] = opened
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="tokenloom-progress", daemon=True)
                with suppress(RuntimeError):  # the interpreter is shutting down
                    thread.start()
                    self._thread = thread

    def close(self, opened: Task | Wait, *, is_complete: bool = False) -> None:
        with self._lock:
            self._open.pop(id(opened), None)
        if isinstance(opened, Task):
            with self._reporting:
                self.reporter.end(opened, is_complete=is_complete)

    def _watch(self) -> None:
        """The reporting thread; ends if no task or wait is open, because an idle thread makes forks unsafe."""
        while True:
            time.sleep(self.reporter.seconds_between_looks)
            with self._reporting:
                with self._lock:
                    found = list(self._open.values())
                    if not found:
                        self._thread = None
                        return
                tasks = [each for each in found if isinstance(each, Task)]
                self.reporter.look(tasks, [each for each in found if isinstance(each, Wait)])


_board = _Board()
os.register_at_fork(after_in_child=_board.clear)
