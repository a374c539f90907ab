"""Processes of a simulation: threads of which one runs at a time, until its next system call.

One random generator decides everything: which process continues, which call fails, which process dies, freezes or
wakes. So a seed reproduces a run.
"""

from __future__ import annotations

import errno
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.simulation.disk import Disk, Inode, OpenFile, failure

MOST_STEPS = 30_000
"""Limit of system calls of a run; a run usually has hundreds, so more indicate an endless loop."""
MOST_SECONDS = 100_000.0


class _Turn:
    """A binary semaphore, as a lock at half the cost."""

    def __init__(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self.acquire, self.release = lock.acquire, lock.release


class CrashError(BaseException):
    """Ends a simulated process immediately; error handlers of the code under test must not catch it."""


class FailedError(AssertionError):
    """A guarantee of the scenario does not hold."""


@dataclass(kw_only=True)
class Faults:
    """The probabilities of events at each system call."""

    switch: float = 0.3
    crash: float = 0.0
    error: float = 0.0
    freeze: float = 0.0
    power: float = 0.0
    num_errors_left: int = 2
    num_crashes_left: int = 3

    @classmethod
    def drawn(cls, rng: random.Random) -> Faults:
        return cls(
            switch=rng.choice((0.02, 0.1, 0.3, 0.7)),
            crash=rng.choice((0.0, 0.003, 0.01, 0.05)),
            error=rng.choice((0.0, 0.0, 0.005, 0.02, 0.1)),
            freeze=rng.choice((0.0, 0.0, 0.01, 0.05)),
            power=rng.choice((0.0, 0.0, 0.002, 0.01)),
            num_errors_left=rng.randrange(1, 4),
            num_crashes_left=rng.randrange(1, 4),
        )


class Actor:
    def __init__(self, name: str, pid: int, work: Callable[[], Any]) -> None:
        self.name, self.pid, self.work = name, pid, work
        self.turn = _Turn()
        self.thread = 0
        self.is_dead = self.is_done = False
        self.blocked: Callable[[], bool] | None = None
        self.wakes = self.thaws = 0.0  # the ends of its sleep and of its frozen time
        self.files: dict[int, OpenFile] = {}
        self.touched: list[tuple[Inode, float]] = []  # files that its thread touches, and the interval
        self.outcome: Any = None
        self.error: str | None = None
        self.error_kind: type[BaseException] | None = None

    @property
    def succeeded(self) -> bool:
        return self.is_done and not self.is_dead and self.error is None

    def __str__(self) -> str:
        fate = "died" if self.is_dead else self.error or "succeeded"
        return f"{self.name} {fate}"


class World:
    def __init__(self, seed: str, *, tells: bool = False) -> None:
        self.rng = random.Random(seed)
        self.disk = Disk()
        self.now = 1000.0
        self.faults = Faults()
        self.trace: list[str] | None = [] if tells else None
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.watch: Callable[[], None] | None = None  # checks the disk after every step
        self.failed: FailedError | None = None
        self.lost_power = False
        self.num_boots = 0
        self.num_steps = 0
        self.num_crashes = self.num_errors = 0
        self.next_descriptor = 1_000_000
        self._end = _Turn()

    def tell(self, text: str) -> None:
        if self.trace is not None:
            name = "-" if self.current is None else self.current.name
            self.trace.append(f"{self.num_steps:5d} {self.now:10.3f}  {name:<10} {text}")

    def run(self, works: dict[str, Callable[[], Any]], faults: Faults | None = None) -> list[Actor]:
        self.num_boots += 1
        self.faults, self.lost_power = faults or Faults(), False
        self.actors = [
            Actor(name, 1000 * self.num_boots + number, work) for number, (name, work) in enumerate(works.items())
        ]
        for actor in self.actors:
            _Worker.begin(lambda actor=actor: self._live(actor))
        self._hand_over()
        self._end.acquire()
        self.current = None
        if self.failed is not None:
            raise self.failed
        return self.actors

    def _live(self, actor: Actor) -> None:
        actor.turn.acquire()
        actor.thread = threading.get_ident()
        try:
            if not actor.is_dead:
                actor.outcome = actor.work()
        except CrashError:
            pass
        except FailedError as error:
            self._fail(error)
        except BaseException as error:  # noqa: BLE001 - how a process ends is what scenarios look at
            actor.error, actor.error_kind = f"{type(error).__name__}: {error}", type(error)
            del error
        if not actor.is_dead:
            self.tell(f"ends: {actor.error or 'success'}")
            self.close_all(actor)
        actor.is_done = True
        self._hand_over()

    def _hand_over(self) -> None:
        chosen = self._choose()
        if chosen is None:
            self._end.release()
        else:
            self.current = chosen
            chosen.turn.release()

    def _choose(self) -> Actor | None:
        living = [actor for actor in self.actors if not actor.is_done]
        for actor in living:
            if actor.is_dead:
                return actor  # to end its thread
        while living:
            ready = [actor for actor in living if self._is_ready(actor)]
            if ready:
                return ready[0] if len(ready) == 1 else self.rng.choice(ready)
            moments = [moment for actor in living for moment in (actor.wakes, actor.thaws) if moment > self.now]
            if not moments or self.now > MOST_SECONDS:
                names = ", ".join(actor.name for actor in living)
                self._fail(FailedError(f"deadlock: these never end: {names}"))
                return living[0]
            self.now = min(moments)
        return None

    def _is_ready(self, actor: Actor) -> bool:
        if max(actor.wakes, actor.thaws) > self.now:
            return False
        return actor.blocked is None or actor.blocked()

    def call(self, text: str, *errors: int) -> None:
        """Starts a system call, traced as `text`: other processes may run first, and it may fail with `errors`."""
        actor = self.current
        if actor is None or actor.is_dead or actor.thread != threading.get_ident():  # a thread of an earlier test
            raise CrashError
        self.num_steps += 1
        self.now += 0.0005
        if self.num_steps > MOST_STEPS:
            self._fail(FailedError(f"no end after {MOST_STEPS} system calls"))
            raise CrashError
        faults, rng = self.faults, self.rng
        if rng.random() < faults.switch:
            self._yield(actor)
        chance = rng.random()
        if chance < faults.crash and faults.num_crashes_left:
            faults.num_crashes_left -= 1
            self.tell(f"DIES before {text}")
            self.num_crashes += 1
            self._kill(actor)
            raise CrashError
        if chance > 1 - faults.freeze:
            actor.thaws = self.now + rng.choice((0.1, 5.0, 100.0))
            self.tell(f"is FROZEN for {actor.thaws - self.now:.0f} s before {text}")
            self._yield(actor)
        chance = rng.random()
        if chance < faults.power:
            self._lose_power()
            raise CrashError
        if errors and chance > 1 - faults.error and faults.num_errors_left:
            faults.num_errors_left -= 1
            self.num_errors += 1
            number = rng.choice(errors)
            self.tell(f"{text} FAILS: {errno.errorcode[number]}")
            raise failure(number, text)
        if self.trace is not None:
            self.tell(text)

    def changed(self) -> None:
        if self.watch is not None:
            try:
                self.watch()
            except FailedError as error:
                self._fail(error)
                raise CrashError from None

    def wait(self, is_over: Callable[[], bool] | None, *, seconds: float = 0.0) -> None:
        actor = self.current
        assert actor is not None
        actor.blocked, actor.wakes = is_over, self.now + seconds
        self._yield(actor)
        actor.blocked = None

    def _yield(self, actor: Actor) -> None:
        chosen = self._choose()
        if chosen is not None and chosen is not actor:
            self.current = chosen
            chosen.turn.release()
            actor.turn.acquire()
        if actor.is_dead:
            raise CrashError

    def _lose_power(self) -> None:
        self.tell("THE POWER IS LOST")
        self.lost_power = True
        for actor in self.actors:
            if not actor.is_done:
                self._kill(actor)
        self.disk.lose_power(self.rng)

    def _kill(self, actor: Actor) -> None:
        actor.is_dead = True
        self.close_all(actor)

    def _fail(self, error: FailedError) -> None:
        self.tell(f"BROKEN: {error}")
        self.failed = self.failed or error
        for actor in self.actors:
            if not actor.is_done:
                self._kill(actor)

    def close_all(self, actor: Actor) -> None:
        for opened in set(actor.files.values()):
            opened.lock = None
            self.disk.closed(opened.inode)
        actor.files.clear()


class _Worker(threading.Thread):
    """A reusable thread, since starting a thread takes as long as many system calls."""

    idle: ClassVar[deque[_Worker]] = deque()

    def __init__(self) -> None:
        super().__init__(daemon=True, name="simulated")
        self._work: Callable[[], None] | None = None
        self._given = _Turn()
        self.start()

    @classmethod
    def begin(cls, work: Callable[[], None]) -> None:
        worker = cls.idle.pop() if cls.idle else cls()
        worker._work = work
        worker._given.release()

    def run(self) -> None:
        while True:
            self._given.acquire()
            work, self._work = self._work, None
            work()
            del work
            self.idle.append(self)
