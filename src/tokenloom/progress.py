"""Progress of long work, and waits.

Long work opens a `task` and advances it; code that waits for others opens `waiting_for`. Both only count. While any is
open, a thread passes them to the reporter: that of the command line (`reporting_to`), else one that logs.
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
"""Time without progress before a wait is reported: with the time between looks, less than 5 s."""

SECONDS_BETWEEN_LINES = 30.0
"""Time between two lines of a log about one task or wait."""

NOTHING_WRITTEN = "nothing was written: run the same command again to begin anew"
"""For `if_stopped`, of work that is written whole or not at all."""


class Task:
    """Long work, advanced from any thread; see `task`.

    Attributes:
        description: the work, in a few words.
        started: its start, by the monotonic clock.
        before: the amounts at its start.
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
        """Adds to the amount done."""
        with self._lock:
            self._done += count

    def tell(self, done: int, *, total: int | None = None, num_tokens: int = 0, notes: Sequence[str] = ()) -> None:
        """Replaces all amounts."""
        with self._lock:
            self._done, self._total = done, total
            self._num_tokens, self._notes = num_tokens, tuple(notes)

    def note(self, *notes: str) -> None:
        """Replaces the notes, such as the current part."""
        with self._lock:
            self._notes = notes

    def amounts(self) -> Amounts:
        """Returns the current amounts."""
        with self._lock:
            return Amounts(self.before.unit, self._done, self._total, self._num_tokens, self._notes)


@dataclass(slots=True, eq=False)
class Wait:
    """A wait; see `waiting_for`.

    Attributes:
        what: the words after "waiting for".
        setting: the setting that names it or limits the wait, if any.
        note: the state, such as the number of attempts.
        started: its start, by the monotonic clock.
    """

    what: str
    setting: str | None = None
    note: str = ""
    started: float = field(default_factory=time.monotonic)

    def line(self, seconds: float) -> str:
        """Returns the message of a wait of so many seconds."""
        more = "; ".join(filter(None, (self.note, self.setting)))
        return f"waiting for {self.what} for {duration(seconds)}" + (f" ({more})" if more else "")


@contextmanager
def task(
    description: str, *, unit: str, total: int | None = None, done: int = 0, num_tokens: int = 0
) -> Iterator[Task]:
    """Opens a task in the `with` block; yields it, to be advanced.

    Args:
        description: the work, in a few words: "merge", "index of `data/wiki`".
        unit: "bytes", or a plural such as "documents".
        total: the whole amount; None if unknown.
        done, num_tokens: the amount and the tokens done before.

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
    """Reports a wait such as "`data.lock`, held by process 12", if the `with` block lasts 5 s and no task advances.

    `setting` says what names it or limits the wait, such as "AWS_REGION names it".
    """
    opened = Wait(what, setting)
    _board.open(opened)
    try:
        yield opened
    finally:
        _board.close(opened)


@contextmanager
def if_stopped(words: Callable[[], str]) -> Iterator[None]:
    """Adds a note to the Ctrl-C or signal that ends the `with` block; of nested blocks, only the innermost does.

    `words` returns the note, such as "6 of 11 shards are done: run the same command again to go on".
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if not getattr(stop, "__notes__", None):
            stop.add_note(words())
        raise


@contextmanager
def reporting_to(reporter: LineReporter) -> Iterator[None]:
    """Passes all tasks and waits of this process to a reporter, in the `with` block."""
    before = _board.reporter
    _board.reporter = reporter
    try:
        yield
    finally:
        _board.reporter = before


class LineReporter:
    """Reports as lines: of the outermost task every 30 s and at its end, of each wait after 5 s and then every 30 s.

    Equal waits are reported once, and none while a task advances. Called by one thread at a time; raises nothing.

    Args:
        say, warn: print a line of a task, and of a wait.
        clock: the monotonic clock.

    Attributes:
        seconds_between_looks: time between two calls of `look`.
    """

    def __init__(self, say: _Print, warn: _Print, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds_between_looks: float = 0.4
        self._say, self._warn, self._clock = say, warn, clock
        self._paces: WeakKeyDictionary[Task, Pace] = WeakKeyDictionary()
        self._advances: WeakKeyDictionary[Task, tuple[int, float]] = WeakKeyDictionary()
        self._due: WeakKeyDictionary[Task, float] = WeakKeyDictionary()
        self._waits_due: dict[str, float] = {}

    def look(self, tasks: Sequence[Task], waits: Sequence[Wait]) -> None:
        """Takes all that is open, the oldest first; called every `seconds_between_looks`."""
        now = self._clock()
        self._look_at_waits(tasks, waits, now)
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
        """Takes a task that has ended; `is_complete` is false after an error or a signal."""
        seconds = self._clock() - task.started
        if is_complete and task in self._due and seconds >= SECONDS_BETWEEN_LINES:
            self._say(end_line(task.description, task.amounts(), seconds, before=task.before))

    def _is_due(self, task: Task, now: float) -> bool:
        due = self._due.setdefault(task, task.started + SECONDS_BETWEEN_LINES)
        if now >= due:
            self._due[task] = now + SECONDS_BETWEEN_LINES
        return now >= due

    def _look_at_waits(self, tasks: Sequence[Task], waits: Sequence[Wait], now: float) -> None:
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
        """Returns the time of the last advance that was seen; minus infinity if none was."""
        done = task.amounts().done
        seen, at = self._advances.get(task, (task.before.done, -float("inf")))
        self._advances[task] = done, at if seen == done else now
        return self._advances[task][1]


class _Board:
    """All open tasks and waits, and the thread that reports them."""

    def __init__(self) -> None:
        self.reporter: LineReporter = LineReporter(_LOGGER.info, _LOGGER.warning)
        self.clear()

    def clear(self) -> None:
        """Starts empty; a fork has no thread."""
        self._lock = threading.RLock()  # reentrant: garbage collection may close tasks in a thread that holds it
        self._reporting = threading.RLock()  # held while the reporter is called
        self._open: dict[int, Task | Wait] = {}
        self._thread: threading.Thread | None = None

    def open(self, opened: Task | Wait) -> None:
        with self._lock:
            self._open[id(opened)] = opened
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="tokenloom-progress", daemon=True)
                with suppress(RuntimeError):  # as the interpreter ends
                    thread.start()
                    self._thread = thread

    def close(self, opened: Task | Wait, *, is_complete: bool = False) -> None:
        with self._lock:
            self._open.pop(id(opened), None)
        if isinstance(opened, Task):
            with self._reporting:
                self.reporter.end(opened, is_complete=is_complete)

    def _watch(self) -> None:
        """Reports until nothing is open; an idle thread would be in the way of forks."""
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
