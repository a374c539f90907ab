"""Meetings of all ranks, which fail on all together and never leave one waiting.

There is one meeting per process group, from its first step until the group, the process or the meeting ends. Its thread
drives a `Membership`, so a rank that is busy elsewhere is known to live.
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
_FAREWELL_SECONDS = 0.5
"""Time that a rank that ends waits for others to learn of it."""
_NOTE_SECONDS = 1.0


class ConsequenceError(BuildError):
    """This rank cannot continue because another one failed, whose error is the cause."""


class ConnectionLostError(ConsequenceError):
    """A collective failed: a rank of the group died, or gave up and closed its connections."""


@dataclass(frozen=True, slots=True)
class Round:
    """Work of a rank and its report to all; ends with an answer, or an error on all ranks alike.

    Attributes:
        step: name of the work in messages; the same on all ranks.
        work: returns this rank's report. Its error is reported too, and becomes the cause of the one that is raised.
        decide: makes the answers from the reports, by rank, or raises; called on the leading rank only.
    """

    step: str
    work: Callable[[], Record]
    decide: Decision


Rounds = Generator[Round, Record, T]
"""The rounds of a rank; each `yield` returns the answer."""


class Attempt(Generic[T]):
    """The result or the exception of a call."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.result: T | None = None
        self.error: Exception | None = None
        try:
            self.result = call()
        except Exception as error:  # noqa: BLE001  it is raised again, on every rank
            self.error = error


def report_of(step: str, host: str, attempt: Attempt[Record]) -> Record:
    """Returns a rank's report: the result of its work, or its error."""
    if (error := attempt.error) is None:
        return {"step": step, "host": host, **(attempt.result or {})}
    text, hint = (error.message, error.hint) if isinstance(error, TokenloomError) else (str(error), None)
    told = {"error": f"{type(error).__name__}: {text}"[:_TEXT_CHARACTERS], "hint": hint and hint[:500]}
    return {"step": step, "host": host, **told, "follows": isinstance(error, ConsequenceError)}


def error_of(answer: Record) -> BuildError | DivergenceError:
    """Returns the error of an answer or a verdict."""
    kind = DivergenceError if answer["failure"] == "DivergenceError" else BuildError
    return kind(answer["message"], hint=answer["hint"])


class Meeting:
    """The rounds of all ranks of a process group; see `current_meeting`."""

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
        self._reason: str | None = None  # for leaving
        self._on_loss: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="tokenloom-ranks", daemon=True)
        self._thread.start()
        atexit.register(self.close, "its process ended")
        threading.Thread(target=self._watch_store, name="tokenloom-store", daemon=True).start()

    @property
    def is_current(self) -> bool:
        """Whether this is the meeting of the current default process group."""
        group = self._group()
        return group is not None and group is self._dist.group.WORLD

    def take(self, rounds: Rounds[T], *, on_loss: Callable[[], None] = lambda: None) -> T:
        """Runs the rounds of this rank; returns their result.

        Args:
            rounds: ends with an error if a round fails.
            on_loss: called if the meeting ends before the rounds do, because a rank is lost; perhaps from another
                thread, perhaps twice.
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
        except BaseException as error:  # others must not wait for a rank that was interrupted
            self.close(type(error).__name__)
            raise
        finally:
            self._on_loss = lambda: None
            if self._member.verdict is not None:
                on_loss()
            self._member.step = None

    def meet(self, each: Round) -> Record:
        """Does the work of a round, and returns the answer to its report; raises on all ranks if any rank failed."""
        member = self._member
        member.attend(each.step)
        self._wake.set()
        attempt = Attempt(each.work)
        member.answer, member.decide = None, each.decide
        member.report = report_of(each.step, member.ranks.host, attempt)
        # Only one rank says for whom all wait: a thousand would say the same.
        waiting = waiting_for("other ranks", setting=f"{SILENCE_VARIABLE} bounds their silence")
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
        """Ends the meeting of all ranks; waits briefly for them to learn of it."""
        self._reason = self._reason or reason
        self._wake.set()
        self._thread.join(2 * _FAREWELL_SECONDS)

    def _connect(self) -> Any:
        """Returns the store over a connection of its own: torch's calls may block the other one."""
        if (group := self._group()) is None:
            raise RuntimeError("the process group has ended")
        torch_groups = sys.modules["torch.distributed.distributed_c10d"]
        # A group that is its own backend knows no store; torch does.
        store = group.get_group_store() or torch_groups._get_process_group_store(group)
        return torch_groups.PrefixStore("tokenloom", store.clone())

    # --- the threads -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        member = self._member
        try:
            while (
                member.verdict is None and not self._reason and self.is_current and threading.main_thread().is_alive()
            ):
                member.advance(time.monotonic())
                self._num_turns += 1
                if member.answer is not None or member.step is None:
                    self._changed.set()
                if member.verdict is None:
                    self._wake.wait(member.pause_seconds)
                self._wake.clear()
        except Exception as error:
            logger.exception("the meeting of ranks broke")
            self._reason = f"{type(error).__name__}: {error}"
        with suppress(RuntimeError):
            self._part()
        self._end()
        with suppress(AttributeError):  # it may never have been connected
            del member.store

    def _part(self) -> None:
        """Announces that this rank leaves."""
        member = self._member
        stop = time.monotonic() + (0 if member.step is None else _FAREWELL_SECONDS)
        # A group that ends between steps may have taken the store with it, whose client complains in many lines.
        while member.verdict is None and (self.is_current or member.step is not None):
            member.leave(self._reason or "its process or its process group ended")
            member.advance(time.monotonic())
            if time.monotonic() > stop:
                break
            time.sleep(_FAREWELL_SECONDS / 50)

    def _watch_store(self) -> None:
        """Ends the meeting if a call of the store does not return, as on a frozen host."""
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
        member.verdict = member.verdict or verdict(f"rank {member.rank} ended its meetings: {self._reason}")
        self._changed.set()
        self._on_loss()


def _this_process(host: str) -> Record:
    """Returns the identity of this process, by which ranks on its host see its end."""
    process: Record = {"host": host, "pid": os.getpid(), "namespace": None}
    with suppress(OSError):  # only Linux says
        process |= {"namespace": process_namespace(), "start": process_start(os.getpid())}
    return process


def _has_ended(namespace: str | None, process: Record) -> bool:
    """Whether a process of this namespace has ended."""
    is_beside = namespace is not None and process["namespace"] == namespace
    return is_beside and process_start(process["pid"]) != process["start"]


_meeting: Meeting | None = None


def current_meeting() -> Meeting | None:
    """Returns the meeting of the process group, made on first use; None if this process is alone."""
    global _meeting
    ranks = current_ranks()
    if ranks is None or ranks.world_size == 1:
        return None
    if _meeting is None or not _meeting.is_current:
        if _meeting is not None:
            _meeting.close("its process group ended")
        _meeting = Meeting(ranks)
    return _meeting


def _leave_to_parent() -> None:
    """Forgets the meeting in a fork, where `atexit` keeps it: closing its store would end a file store for all."""
    global _meeting
    _meeting = None


os.register_at_fork(after_in_child=_leave_to_parent)
