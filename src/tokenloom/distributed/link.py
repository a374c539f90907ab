"""The connections of this process to the other ranks, and the thread that gives and hears signs of life.

There is one link per process group of the run, from the first meeting until the group ends, the process ends, or the
meetings do. So a rank that is late because it works on something else is known to live.
"""

from __future__ import annotations

import atexit
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tokenloom.distributed.ranks import Ranks, name_ranks
from tokenloom.distributed.rendezvous import (
    Aside,
    StoreError,
    advertisement,
    find_collector,
    is_greeting,
    open_listener,
    publish,
)
from tokenloom.distributed.seat import Record, Seat
from tokenloom.distributed.silence import SILENCE_VARIABLE, rank_silence_seconds
from tokenloom.distributed.torch_side import TorchSide
from tokenloom.distributed.wire import LARGEST_MESSAGE_BYTES, ForeignMessageError, Wire
from tokenloom.errors import BuildError, DivergenceError
from tokenloom.progress import waiting_for

logger: logging.Logger = logging.getLogger(__name__)

_FAREWELL_SECONDS = 0.5
"""How long the last words may take to arrive before connections are closed."""

_PROBE_SECONDS = 0.2
"""How often those who have not come are looked for in the process group."""


def error_of(answer: Record) -> BuildError | DivergenceError:
    """Returns the error that an answer or a verdict stands for."""
    kind = DivergenceError if answer["failure"] == "DivergenceError" else BuildError
    return kind(answer["message"], hint=answer["hint"])


_STORE_HOST = "the host of the store of `torch.distributed`, often rank 0,"


class Link:
    """Connections to the collector, or on that rank to all, and their thread.

    Args:
        ranks: this rank.
        torch_side: the process group, and its store.
        number: number of the process group in this process; the same on all ranks.
    """

    def __init__(self, ranks: Ranks, torch_side: TorchSide, number: int) -> None:
        self._ranks = ranks
        self._torch = torch_side
        self._key = f"tokenloom/ranks/{number}"
        self._changed = threading.Condition()
        """Guards the seat and the wires."""
        silence = rank_silence_seconds()
        self._seat = Seat(ranks, pid=os.getpid(), silence_seconds=silence, now=time.monotonic())
        self._wires: dict[int, Wire] = {}
        self._on_verdict: Callable[[], None] = lambda: None
        self._is_closing = False
        self._listened = self._probed = time.monotonic()
        """Before which everything that arrived was heard."""
        self._listen_until = 0.0
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._advertised: Record | None = None
        self._listener: socket.socket | None = None
        self._selector.register(self._woken, selectors.EVENT_READ)
        if self._seat.is_collector:
            self._listener = open_listener(ranks.world_size)
            self._listener.settimeout(0)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._aside: Aside | None = Aside(self._advertise, self._wake)
        else:
            self._aside = Aside(self._find_collector, self._wake)
        self._thread = threading.Thread(target=self._run, name="tokenloom-ranks", daemon=True)
        self._thread.start()

    # --- what the ranks do -------------------------------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether the process group is still there; meetings may have ended."""
        return self._torch.is_current

    @contextmanager
    def attended(self, step: str, on_verdict: Callable[[], None]) -> Iterator[None]:
        """Takes part in a step, within a `with` statement.

        Args:
            step: says in messages what is done.
            on_verdict: called from the thread of the link where meetings end before the step does.
        """
        with self._changed:
            if self._seat.verdict is not None:
                raise error_of(self._seat.verdict)
            self._on_verdict = on_verdict
            self._seat.attend(step)
            self._deliver()
        try:
            yield
        finally:
            with self._changed:
                self._on_verdict = lambda: None
                self._seat.leave_step()

    def begin(self, step: str) -> None:
        """Says what this rank does from now on."""
        with self._changed:
            self._seat.attend(step)
            self._deliver()

    def report(self, record: Record) -> Record | None:
        """Reports, and returns the answer; on the collector None, once all have reported."""
        with self._changed:
            self._seat.report(record)
            self._deliver()
            if self._seat.is_collector:
                return None
            while (answer := self._seat.answer()) is None and self._seat.verdict is None:
                self._changed.wait()
            return self._seat.verdict if answer is None else answer  # who has answered may have ended since

    def reports(self) -> list[Record] | Record:
        """Returns the reports of all ranks, or the verdict; on the collector."""
        with self._changed:
            if time.monotonic() - self._listened > 2 * self._seat.beat_seconds:
                self._hear_all()
            # Only this rank says for whom all wait: a thousand would say the same.
            with waiting_for("other ranks", setting=f"{SILENCE_VARIABLE} bounds their silence") as wait:
                while self._seat.verdict is None:
                    if (reports := self._seat.reports()) is not None:
                        return reports
                    wait.note = f"{name_ranks(self._seat.unreported)} at {self._seat.step}"
                    self._changed.wait()
            return self._seat.verdict

    def answer_all(self, answers: Sequence[Record]) -> Record:
        """Answers all; returns the collector's own answer."""
        with self._changed:
            answer = self._seat.answer_all(answers)
            self._deliver()
        return answer

    def _hear_all(self) -> None:
        """Waits until what has arrived by now was heard: others may have given up who was frozen."""
        self._listen_until = time.monotonic()
        self._wake()
        while self._seat.verdict is None and self._listened < self._listen_until:
            self._changed.wait()

    def close(self) -> None:
        """Ends the connections, for good; waits for last words to arrive, but not for long."""
        with self._changed:
            self._is_closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * _FAREWELL_SECONDS)

    def forget(self) -> None:
        """Lets go of the connections in a forked child, where they would hide the death of the parent."""
        for wire in list(self._wires.values()):
            wire.close()
        for resource in (self._listener, self._woken, self._waker, self._selector):
            if resource is not None:
                with suppress(OSError, RuntimeError):
                    resource.close()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            logger.exception("the link to other ranks broke")
            with self._changed:
                self._seat.give_up(f"rank {self._ranks.rank} lost its link to others: {error}", "this is a bug")
                self._deliver()
        with self._changed:
            if self._seat.verdict is None:
                self._seat.give_up(f"rank {self._ranks.rank} ended its meetings", "it was interrupted, or ended")
                self._seat.outbox.clear()
                self._seat.say_goodbye()
            self._deliver()
            on_verdict = self._on_verdict
        on_verdict()
        self._part()

    def _turn(self) -> bool:
        """Waits for messages, or the time of the next sign of life; returns whether there is to be another turn."""
        pause = min(self._seat.beat_seconds, _PROBE_SECONDS) if self._seat.missing else self._seat.beat_seconds
        began = time.monotonic()
        events = self._selector.select(0 if self._listened < self._listen_until else pause)
        with self._changed:
            for key, _ in events:
                self._serve(key)
            self._use_rendezvous()
            self._probe_the_missing()
            self._seat.tick(time.monotonic())
            if self._listened < self._listen_until <= began:
                self._changed.notify_all()
            self._listened = began
            self._deliver()
            verdict, is_closing = self._seat.verdict, self._is_closing
        if verdict is not None:
            return False
        return not is_closing and self.is_current and threading.main_thread().is_alive()

    def _serve(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._woken:
            with suppress(BlockingIOError):
                self._woken.recv(1 << 12)
        elif key.fileobj is self._listener:
            self._accept()
        else:
            self._read(key.data)

    def _accept(self) -> None:
        assert self._listener is not None
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._watch(Wire(connection))

    def _read(self, wire: Wire) -> None:
        try:
            if wire.has_unsent:
                wire.flush()
                self._selector.modify(wire.socket, _events_of(wire), wire)
            for message in wire.receive():
                if wire.rank is None:
                    self._admit(wire, message)
                else:
                    self._seat.hear(wire.rank, message)
        except ForeignMessageError:
            wire.is_open = False
        if not wire.is_open:
            self._selector.unregister(wire.socket)
            wire.close()
            if wire.rank is not None:
                self._seat.lose(wire.rank)

    def _admit(self, wire: Wire, message: Record) -> None:
        """Takes a connection for that of the rank that its first message names."""
        if self._advertised is None or not is_greeting(message, self._advertised, self._seat.collector):
            raise ForeignMessageError
        rank: int = message["rank"]
        if rank in self._wires:
            raise ForeignMessageError
        wire.send({"welcome": self._advertised["secret"]})
        self._seat_at(rank, wire)
        if not self._seat.missing and self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _seat_at(self, rank: int, wire: Wire) -> None:
        wire.largest_bytes = LARGEST_MESSAGE_BYTES
        wire.rank = rank
        self._wires[rank] = wire
        self._seat.arrive(rank)

    def _watch(self, wire: Wire) -> None:
        self._selector.register(wire.socket, selectors.EVENT_READ, wire)

    # --- the beginning -----------------------------------------------------------------------------------------------

    def _advertise(self, _: Callable[[], bool]) -> None:
        assert self._listener is not None
        store = self._torch.store
        self._advertised = advertisement(self._listener, self._ranks.host, store)
        publish(store, self._key, self._advertised)

    def _find_collector(self, is_wanted: Callable[[], bool]) -> Wire | Record | None:
        return find_collector(
            self._torch.store, self._key, host=self._ranks.host, rank=self._ranks.rank, is_wanted=is_wanted
        )

    def _use_rendezvous(self) -> None:
        aside = self._aside
        if aside is None or not aside.is_done:
            is_stuck = aside is not None and aside.stuck_seconds > self._seat.silence_seconds / 2
            self._seat.obstacle = _STORE_HOST if is_stuck else None
            return
        self._aside = None
        if isinstance(aside.error, StoreError):
            self._seat.give_up(f"{_STORE_HOST} died or ended: {aside.error}", "look at the logs of these ranks", [0])
        elif aside.error is not None:
            raise aside.error
        elif isinstance(aside.result, Wire):
            self._watch(aside.result)
            self._seat_at(self._seat.collector, aside.result)
            self._read(aside.result)  # what arrived together with the welcome
        elif isinstance(aside.result, dict):
            self._seat.verdict = aside.result

    def _probe_the_missing(self) -> None:
        if (missing := self._seat.missing) and time.monotonic() >= self._probed + _PROBE_SECONDS:
            self._probed = time.monotonic()
            for rank in sorted(missing):
                if self._torch.is_dead(rank):
                    self._seat.lose(rank)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Sends what the seat has to say, and wakes who waits."""
        outbox = self._seat.outbox
        while outbox:
            rank, message = outbox.popleft()
            wire = self._wires[rank]
            if wire.is_open:
                wire.send(message)
                if wire.has_unsent:
                    self._selector.modify(wire.socket, _events_of(wire), wire)
        if self._seat.has_news:
            self._changed.notify_all()
        if self._seat.verdict is not None:
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"\0")

    def _part(self) -> None:
        """Lets last words arrive, and closes everything."""
        if self._aside is not None:
            self._aside.give_up()
        if self._seat.is_collector and self._seat.missing:  # who comes late finds nobody, but why
            store, verdict = self._torch.store, self._seat.verdict
            if store is not None and verdict is not None:
                Aside(lambda _: publish(store, self._key, verdict), lambda: None)
        wires, stop = set(self._wires.values()), time.monotonic() + _FAREWELL_SECONDS
        for wire in wires:
            wire.end_sending()
        while any(wire.is_open for wire in wires) and time.monotonic() < stop:
            for key, _ in self._selector.select(_FAREWELL_SECONDS / 10):
                if key.data in wires and key.data.is_open:
                    with suppress(ForeignMessageError):
                        key.data.receive()
        with self._changed:
            self.forget()


def _events_of(wire: Wire) -> int:
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if wire.has_unsent else 0)


_link: Link | None = None
_num_links = 0


def link_of(ranks: Ranks) -> Link:
    """Returns the link of the process group of the run, made on first use."""
    global _link, _num_links
    if _link is not None and _link.is_current:
        return _link
    if _link is not None:
        _link.close()
    _num_links += 1
    _link = Link(ranks, TorchSide(), _num_links)
    return _link


def _close_link() -> None:
    if _link is not None:
        _link.close()


def _forget_link() -> None:
    global _link
    if _link is not None:
        _link.forget()
        _link = None


atexit.register(_close_link)
os.register_at_fork(after_in_child=_forget_link)
