"""Rounds of communication between all ranks; a round ends with an answer for each rank, or one error on all ranks.

There is one `Meeting` per process group, from the first step until the group ends, the process ends or a rank is
lost. A thread of the meeting drives a `Membership` and sends heartbeats, so a busy rank does not count as lost.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tokenloom.distributed.membership import Decision, Membership, Record, verdict
from tokenloom.distributed.ranks import SILENCE_VARIABLE, Ranks, current_ranks, name_ranks, rank_silence_seconds
from tokenloom.errors import BuildError, DivergenceError, TokenloomError
from tokenloom.machine import process_namespace, process_start
from tokenloom.progress import waiting_for

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
_TEXT_CHARACTERS = 2000
_LEAVE_SECONDS = 0.5  # an exiting rank waits this long for other ranks to read its last message
_NOTE_SECONDS = 1.0


class ConsequenceError(BuildError):
    """This rank cannot continue because another rank failed; the error of that rank is the cause."""


class ConnectionLostError(ConsequenceError):
    """A collective failed because a rank of the group died or closed its connections."""


@dataclass(frozen=True, slots=True)
class Round:
    """One step of work on all ranks, after which each rank gets an answer, or all ranks raise the same error.

    Attributes:
        step: name of the work in messages; the same on all ranks.
        work: does the work and returns the report of this rank. An exception of `work` is reported to all ranks, and is
            the `__cause__` of this rank's error.
        decide: computes the answer of each rank from the reports of all ranks, or raises; called on the leader only.
    """

    step: str
    work: Callable[[], Record]
    decide: Decision


Rounds = Generator[Round, Record, T]
"""A generator of the rounds of one rank; each `yield` returns the answer of the round."""


class Attempt(Generic[T]):
    """The result or the exception of a call."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.result: T | None = None
        self.error: Exception | None = None
        try:
            self.result = call()
        except Exception as error:  # noqa: BLE001  raised again on every rank
            self.error = error


def report_of(step: str, host: str, attempt: Attempt[Record]) -> Record:
    """Returns the report of a rank: the result or the error of its work."""
    if (error := attempt.error) is None:
        return {"step": step, "host": host, **(attempt.result or {})}
    text, hint = (error.message, error.hint) if isinstance(error, TokenloomError) else (str(error), None)
    failure = {"error": f"{type(error).__name__}: {text}"[:_TEXT_CHARACTERS], "hint": hint and hint[:500]}
    return {"step": step, "host": host, **failure, "follows": isinstance(error, ConsequenceError)}


def error_of(answer: Record) -> BuildError | DivergenceError:
    """Returns the exception that an answer or a verdict describes."""
    kind = DivergenceError if answer["failure"] == "DivergenceError" else BuildError
    return kind(answer["message"], hint=answer["hint"])


class Meeting:
    """The connection of this rank to all other ranks of a process group; see `current_meeting`."""

    def __init__(self, ranks: Ranks) -> None:
        self._dist = sys.modules["torch.distributed"]
        self._group = weakref.ref(self._dist.group.WORLD)
        process = _this_process(ranks.host)
        self._member = Membership(
            ranks,
            self._connect,
            process=process,
            is_gone=partial(_has_ended, process["namespace"]),
            nonce=secrets.token_hex(8),
            silence_seconds=rank_silence_seconds(),
            now=time.monotonic(),
        )
        self._wake, self._changed, self._is_over = threading.Event(), threading.Event(), threading.Event()
        self._num_turns = 0
        self._reason: str | None = None  # why this rank leaves
        self._on_loss: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="tokenloom-ranks", daemon=True)
        self._thread.start()
        atexit.register(self.close, "its process ended")
        threading.Thread(target=self._watch_store, name="tokenloom-store", daemon=True).start()

    @property
    def is_current(self) -> bool:
        """Whether this meeting belongs to the current default process group."""
        group = self._group()
        return group is not None and group is self._dist.group.WORLD

    def take(self, rounds: Rounds[T], *, on_loss: Callable[[], None] = lambda: None) -> T:
        """Runs the rounds that the generator `rounds` yields; returns the return value of the generator.

        If a rank is lost during the rounds, `on_loss` is called, possibly twice and possibly by another thread.
        """
        if self._member.verdict is not None:
            raise error_of(self._member.verdict)
        self._on_loss = on_loss
        try:
            each = next(rounds)
            while True:
                each = rounds.send(self.meet(each))
        except StopIteration as end:
            result: T = end.value
            return result
        except (BuildError, DivergenceError):
            raise
        except BaseException as error:  # an interrupt: leave, so that no other rank waits for this rank
            self.close(type(error).__name__)
            raise
        finally:
            self._on_loss = lambda: None
            if self._member.verdict is not None:
                on_loss()
            self._member.step = None

    def meet(self, each: Round) -> Record:
        """Runs a round and returns the answer for this rank; if the work of a rank failed, all ranks raise."""
        member = self._member
        member.attend(each.step)
        self._wake.set()
        attempt = Attempt(each.work)
        member.answer, member.decide = None, each.decide
        member.report = report_of(each.step, member.ranks.host, attempt)
        # Only the leader reports the wait, because all ranks would log the same line.
        waiting = waiting_for("other ranks", setting=f"{SILENCE_VARIABLE} limits how long a rank may be silent")
        with waiting if member.is_leader else nullcontext() as wait:
            while (answer := member.verdict if member.answer is None else member.answer) is None:
                if wait is not None:
                    wait.note = f"{name_ranks(member.unreported)} at {member.step}"
                self._wake.set()
                self._changed.wait(_NOTE_SECONDS)
                self._changed.clear()
        if "failure" in answer:
            raise error_of(answer) from attempt.error
        return answer

    def close(self, reason: str) -> None:
        """Ends the meeting on all ranks; waits a short time, so that other ranks can read the reason."""
        self._reason = self._reason or reason
        self._wake.set()
        self._thread.join(2 * _LEAVE_SECONDS)

    def _connect(self) -> Any:
        """Returns the group's store over a new connection, because calls of torch may block the existing connection."""
        if (group := self._group()) is None:
            raise RuntimeError("the process group has ended")
        torch_groups = sys.modules["torch.distributed.distributed_c10d"]
        # For a group that is its own backend, `get_group_store` returns no store.
        store = group.get_group_store() or torch_groups._get_process_group_store(group)
        return torch_groups.PrefixStore("tokenloom", store.clone())

    # --- the threads -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        member = self._member
        try:
            while not (member.verdict or self._reason) and self.is_current and threading.main_thread().is_alive():
                member.advance(time.monotonic())
                self._num_turns += 1
                if member.answer is not None or member.step is None:
                    self._changed.set()
                if member.verdict is None:
                    self._wake.wait(member.pause_seconds)
                self._wake.clear()
        except Exception as error:
            logger.exception("the thread that connects the ranks failed")
            self._reason = f"{type(error).__name__}: {error}"
        with suppress(RuntimeError):
            self._leave()
        self._end()
        with suppress(AttributeError):  # the store was never connected
            del member.store

    def _leave(self) -> None:
        """Ends the session on all ranks, because this rank leaves; gives up after `_LEAVE_SECONDS`."""
        member = self._member
        stop = time.monotonic() + (0 if member.step is None else _LEAVE_SECONDS)
        # If the group ended between steps, its store may be gone, and each call of the store would log many lines.
        while member.verdict is None and (self.is_current or member.step is not None):
            member.leave(self._reason or "its process or its process group ended")
            member.advance(time.monotonic())
            if time.monotonic() > stop:
                break
            time.sleep(_LEAVE_SECONDS / 50)

    def _watch_store(self) -> None:
        """Ends the meeting if a call to the store does not return, for example because the store's host is frozen."""
        member, turns, num_stuck = self._member, -1, 0
        while not self._is_over.wait(member.beat_seconds):
            num_stuck = num_stuck + 1 if turns == self._num_turns else 0
            turns = self._num_turns
            if num_stuck * member.beat_seconds > member.silence_seconds and member.step is not None:
                member.judge_stuck_store()
                self._end()

    def _end(self) -> None:
        member = self._member
        self._is_over.set()
        member.verdict = member.verdict or verdict(f"rank {member.rank} has left: {self._reason}")
        self._changed.set()
        self._on_loss()


def _this_process(host: str) -> Record:
    """Returns the identity of this process, by which other ranks on its host detect that it has ended."""
    process: Record = {"host": host, "pid": os.getpid(), "namespace": None}
    with suppress(OSError):  # not Linux
        process |= {"namespace": process_namespace(), "start": process_start(os.getpid())}
    return process


def _has_ended(namespace: str | None, process: Record) -> bool:
    """Returns whether a process is known to have ended; always False for a process in another PID namespace."""
    is_visible = namespace is not None and process["namespace"] == namespace
    return is_visible and process_start(process["pid"]) != process["start"]


_meeting: Meeting | None = None


def current_meeting() -> Meeting | None:
    """Returns the meeting of the process group, created on first use; None without a group or with a single rank."""
    global _meeting
    ranks = current_ranks()
    if ranks is None or ranks.world_size == 1:
        return None
    if _meeting is None or not _meeting.is_current:
        if _meeting is not None:
            _meeting.close("its process group ended")
        _meeting = Meeting(ranks)
    return _meeting


def _forget_meeting() -> None:
    global _meeting
    _meeting = None  # not closed: closing the meeting would end a file store for all ranks


os.register_at_fork(after_in_child=_forget_meeting)
