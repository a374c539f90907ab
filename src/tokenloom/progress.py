"""How far long work is, and what is waited for.

Work that may take long opens a `task` and advances it; whoever waits for others opens `waiting_for`. Both only count. A
thread of this module looks at them from time to time, for as long as any is open, and hands them to the reporter: the
one that the command line installed (`reporting_to`), else one that logs.
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

SILENT_SECONDS = 4.6
"""After so long without a sign of progress it is said what is waited for: within 5 s, as it is looked often enough."""

SECONDS_BETWEEN_LINES = 30.0
"""How often a log says how far work is, and what is still waited for."""

NOTHING_WRITTEN = "nothing was written: run the same command again to begin anew"
"""What is left of work that is written whole or not at all; see `if_stopped`."""


class Task:
    """Work that may take long; advanced by whoever does it, from any thread. See `task`.

    Attributes:
        description: what is done, in a few words.
        started: when it began, by the monotonic clock.
        before: what was done when it began.
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
        """Says that so much more is done."""
        with self._lock:
            self._done += count

    def tell(self, done: int, *, total: int | None = None, num_tokens: int = 0, notes: Sequence[str] = ()) -> None:
        """Says how far it is, all in all; what was said before is forgotten."""
        with self._lock:
            self._done, self._total = done, total
            self._num_tokens, self._notes = num_tokens, tuple(notes)

    def note(self, *notes: str) -> None:
        """Says what else is to know now, such as the part that is worked on."""
        with self._lock:
            self._notes = notes

    def amounts(self) -> Amounts:
        """Returns how far it is."""
        with self._lock:
            return Amounts(self.before.unit, self._done, self._total, self._num_tokens, self._notes)


@dataclass(slots=True, eq=False)
class Wait:
    """Something that is waited for; see `waiting_for`.

    Attributes:
        what: what is waited for, in words that follow "waiting for".
        setting: what names it or bounds the wait, in words; None if nothing does.
        note: what was found so far, such as the number of attempts; "" for nothing.
        started: when it began, by the monotonic clock.
    """

    what: str
    setting: str | None = None
    note: str = ""
    started: float = field(default_factory=time.monotonic)

    def line(self, seconds: float) -> str:
        """Returns it in words, of that it has lasted so long."""
        more = "; ".join(filter(None, (self.note, self.setting)))
        return f"waiting for {self.what} for {duration(seconds)}" + (f" ({more})" if more else "")


@contextmanager
def task(
    description: str, *, unit: str, total: int | None = None, done: int = 0, num_tokens: int = 0
) -> Iterator[Task]:
    """Opens a task for as long as the `with` block lasts; yields what advances it.

    Args:
        description: what is done, in a few words: "merge", "index of `data/wiki`".
        unit: what is counted: "bytes", or things in the plural, such as "documents".
        total: how much there is; None if that is not known.
        done, num_tokens: how much of it was done before, and how many tokens were made.

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
    """Says what is waited for, where the `with` block lasts longer than 5 s and no task advances meanwhile.

    That is such as "`data.lock`, held by process 12". `setting` names it, or bounds the wait: "AWS_REGION names it".
    """
    opened = Wait(what, setting)
    _board.open(opened)
    try:
        yield opened
    finally:
        _board.close(opened)


@contextmanager
def if_stopped(words: Callable[[], str]) -> Iterator[None]:
    """Adds what is done, and how to go on, to a Ctrl-C or another signal that ends the `with` block, as a note.

    Of several around each other the innermost knows most: the others add nothing. `words` returns the like of "6 of 11
    shards are done: run the same command again to go on".
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if not getattr(stop, "__notes__", None):
            stop.add_note(words())
        raise


@contextmanager
def reporting_to(reporter: LineReporter) -> Iterator[None]:
    """Shows all tasks and waits of this process by a reporter, for as long as the `with` block lasts."""
    before = _board.reporter
    _board.reporter = reporter
    try:
        yield
    finally:
        _board.reporter = before


class LineReporter:
    """Reports tasks and waits as lines: of the outermost task one every 30 s, and one at its end if it took that long.

    Each wait is told after 5 s, and then every 30 s, once however many wait for the same; not while a task advances,
    since what waits then is not what all wait for.

    Called by one thread at a time, and raises nothing.

    Args:
        say, warn: take a line of how far work is, and one of a wait.
        clock: the monotonic clock.

    Attributes:
        seconds_between_looks: how often `look` is called.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        warn: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds_between_looks: float = 0.4
        self._say, self._warn = say, warn
        self._clock = clock
        self._paces: WeakKeyDictionary[Task, Pace] = WeakKeyDictionary()
        self._advances: WeakKeyDictionary[Task, tuple[int, float]] = WeakKeyDictionary()
        self._due: WeakKeyDictionary[Task, float] = WeakKeyDictionary()
        self._waits_due: dict[str, float] = {}

    def look(self, tasks: Sequence[Task], waits: Sequence[Wait]) -> None:
        """Is called from time to time with all that is open, the oldest first."""
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
        """Is called when a task ends; `is_complete` is false where an error or a signal ended it."""
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
        """Returns when a task was first seen to be where it is; minus infinity if it never left its beginning."""
        done = task.amounts().done
        seen, at = self._advances.get(task, (task.before.done, -float("inf")))
        self._advances[task] = done, at if seen == done else now
        return self._advances[task][1]


class _Board:
    """What is open, and the thread that shows it."""

    def __init__(self) -> None:
        self.reporter: LineReporter = LineReporter(_LOGGER.info, _LOGGER.warning)
        self.clear()

    def clear(self) -> None:
        """Forgets what is open; a fork has neither that nor the thread."""
        # Garbage collection may close what is open, in a thread that holds these already.
        self._lock = threading.RLock()
        self._reporting = threading.RLock()  # held while the reporter is called, so that it is by one thread at a time
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
        """Looks, until nothing is open at a look: threads that are idle are in the way of forks."""
        while True:
            time.sleep(self.reporter.seconds_between_looks)
            with self._reporting:
                with self._lock:
                    found = list(self._open.values())
                    if not found:
                        self._thread = None
                        return
                self.reporter.look(
                    [each for each in found if isinstance(each, Task)],
                    [each for each in found if isinstance(each, Wait)],
                )


_board = _Board()
os.register_at_fork(after_in_child=_board.clear)
