"""Meetings of all ranks, which fail on all together and never leave one waiting.

There is one meeting per process group of the run, from the first step of all ranks until the group, the process or the
meeting ends. Its thread drives a `Membership`, so a rank that is late because it does something else is known to live.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Generic, TypeVar

from tokenloom.distributed.membership import Decision, Membership, Record, verdict
from tokenloom.distributed.ranks import SILENCE_VARIABLE, Ranks, name_rank, name_ranks, rank_silence_seconds
from tokenloom.errors import BuildError, DivergenceError, TokenloomError
from tokenloom.machine import process_namespace, process_start
from tokenloom.progress import waiting_for

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
_TEXT_CHARACTERS = 2000
_FAREWELL_SECONDS = 0.5
"""How long a rank that ends waits for others to learn of it."""
_LONGEST_WAIT_SECONDS = 5.0
"""How long rank 0 waits for others to read an outcome: no longer even where a call of the store does not return."""
_NOTE_SECONDS = 1.0


class ConsequenceError(BuildError):
    """This rank cannot go on because another one failed, whose own error is the cause."""


class ConnectionLostError(ConsequenceError):
    """A collective failed: some rank of the group died, or gave up and closed its connections."""


class Attempt(Generic[T]):
    """A call, and what came of it: a result or an exception."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.result: T | None = None
        self.error: Exception | None = None
        try:
            self.result = call()
        except Exception as error:  # noqa: BLE001  it is raised again, on every rank
            self.error = error

    @property
    def record(self) -> Record:
        """What a report says about it: nothing if it went well."""
        if self.error is None:
            return {}
        error = self.error
        text = error.message if isinstance(error, TokenloomError) else str(error)
        hint = error.hint if isinstance(error, TokenloomError) else None
        return {"error": f"{type(error).__name__}: {text}"[:_TEXT_CHARACTERS], "hint": hint and hint[:500]}


def all_well(step: str) -> Decision:
    """Returns the decision that fails all ranks with the cause of the lowest rank that failed, if any did.

    An error that "follows" from that of another rank counts only where there is no other.
    """

    def decide(records: list[Record]) -> list[Record]:
        failed = [rank for rank, record in enumerate(records) if "error" in record]
        failed = [rank for rank in failed if "follows" not in records[rank]] or failed
        if failed:
            first = records[failed[0]]
            others = f" (and {name_ranks(failed[1:])} as well)" if len(failed) > 1 else ""
            message = f"{name_rank(failed[0], first['host'])} failed in {step}{others}: {first['error']}"
            raise BuildError(message, hint=first["hint"])
        return [{} for _ in records]

    return decide


def report_of(step: str, host: str, record: Record, attempt: Attempt[Any] | None) -> Record:
    """Returns all that a rank reports."""
    return {"step": step, "host": host, **record, **({} if attempt is None else attempt.record)}


def error_of(answer: Record) -> BuildError | DivergenceError:
    """Returns the error that an answer or a verdict stands for."""
    kind = DivergenceError if answer["failure"] == "DivergenceError" else BuildError
    return kind(answer["message"], hint=answer["hint"])


class Meeting:
    """The steps of all ranks of a process group; see `meeting_of`.

    Args:
        ranks: this rank.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._dist = sys.modules["torch.distributed"]
        self._group = weakref.ref(self._dist.group.WORLD)
        self._ranks = ranks
        process = _this_process(ranks.host)
        self._member = Membership(
            ranks,
            self._connect,
            process=process,
            is_gone=lambda other: _has_ended(other, process["namespace"]),
            nonce=secrets.token_hex(8),
            silence_seconds=rank_silence_seconds(),
            now=time.monotonic(),
        )
        self._wake, self._changed, self._is_over = threading.Event(), threading.Event(), threading.Event()
        self._num_turns = 0
        self._reason: str | None = None
        """Why this rank leaves; None as long as it stays."""
        self._on_loss: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="tokenloom-ranks", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch_store, name="tokenloom-store", daemon=True).start()

    @property
    def is_current(self) -> bool:
        """Whether this is the meeting of the default process group of now."""
        group = self._group()
        return group is not None and group is self._dist.group.WORLD

    @contextmanager
    def attended(self, step: str, *, on_loss: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Takes part in a step, within a `with` statement: others may wait for this rank, and it for them.

        Args:
            step: says in messages what is done.
            on_loss: called from another thread where the meeting ends before the step does, because a rank is lost.

        Raises:
            BuildError: the meeting of these ranks has ended before.
        """
        if self._member.verdict is not None:
            raise error_of(self._member.verdict)
        self._on_loss = on_loss
        try:
            self.begin(step)
            yield
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
            stop = time.monotonic() + _LONGEST_WAIT_SECONDS
            while self._member.is_awaited and self._thread.is_alive() and time.monotonic() < stop:
                self._wait()

    def begin(self, step: str) -> None:
        """Says what this rank does from now on."""
        self._member.attend(step)
        self._wake.set()

    def report(self, step: str, record: Record, decide: Decision, attempt: Attempt[Any] | None = None) -> Record:
        """Returns the answer to this rank's report, or raises what `decide` raised, on all ranks alike.

        Args:
            step: must be the same on all ranks.
            record: what this rank reports.
            decide: makes the answers from the reports, by rank; called on the leading rank only.
            attempt: what this rank has done; its error is reported, and is the cause of the error that comes back.
        """
        member = self._member
        member.attend(step)
        member.answer, member.decide = None, decide
        member.report = report_of(step, self._ranks.host, record, attempt)
        # Only one rank says for whom all wait: a thousand would say the same.
        waiting = waiting_for("other ranks", setting=f"{SILENCE_VARIABLE} bounds their silence")
        with waiting if member.is_leader else nullcontext() as wait:
            while member.answer is None and member.verdict is None:
                if wait is not None:
                    wait.note = f"{name_ranks(member.unreported)} at {member.step}"
                self._wait()
            answer = member.verdict if member.answer is None else member.answer
        assert answer is not None
        if "failure" in answer:
            raise error_of(answer) from (None if attempt is None else attempt.error)
        return answer

    def close(self, reason: str) -> None:
        """Ends the meeting of all ranks; waits for them to learn of it, but not for long."""
        self._reason = self._reason or reason
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * _FAREWELL_SECONDS)

    def _wait(self) -> None:
        """Waits until the thread has news, or a little."""
        self._wake.set()
        self._changed.wait(_NOTE_SECONDS)
        self._changed.clear()  # news that comes from now on are not missed: the caller looks before it waits again

    def _connect(self) -> Any:
        """Returns the store over a connection of its own: torch's calls may hold the other one for long."""
        if (group := self._group()) is None:
            message = "the process group has ended"
            raise RuntimeError(message)
        torch_groups = sys.modules["torch.distributed.distributed_c10d"]
        # A group that is a backend of its own knows no store; torch does.
        store = group.get_group_store() or torch_groups._get_process_group_store(group)
        return torch_groups.PrefixStore("tokenloom", store.clone())

    # --- the threads -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            logger.exception("the meeting of ranks broke")
            self._reason = f"{type(error).__name__}: {error}"
        with suppress(RuntimeError):
            self._part()
        self._end()
        self._member.disconnect()

    def _turn(self) -> bool:
        """Goes on as far as possible; returns whether there is to be another turn."""
        member = self._member
        member.advance(time.monotonic())
        self._num_turns += 1
        if member.answer is not None or member.step is None:
            self._changed.set()
        if member.verdict is None and (pause := member.pause_seconds) > 0:
            self._wake.wait(pause)
        self._wake.clear()
        stays = self._reason is None and self.is_current and threading.main_thread().is_alive()
        return stays and member.verdict is None

    def _part(self) -> None:
        """Tells other ranks that this one leaves."""
        member, stop = self._member, time.monotonic() + (0 if self._member.step is None else _FAREWELL_SECONDS)
        # A group that ends between steps may have taken the store with it, whose client complains in many lines.
        is_heard = self.is_current or member.step is not None
        while member.verdict is None and is_heard:
            member.leave(self._reason or "its process or its process group ended")
            is_heard = time.monotonic() < stop
            member.advance(time.monotonic())
        self._end()
        while member.is_awaited:
            time.sleep(member.pause_seconds)
            member.advance(time.monotonic())
        self._changed.set()

    def _watch_store(self) -> None:
        """Ends the meeting where a call of the store does not return, as where its host is frozen."""
        member, stuck_seconds, turns, now = self._member, 0.0, -1, time.monotonic()
        while not self._is_over.wait(member.beat_seconds):
            before, now = now, time.monotonic()
            elapsed = min(now - before, 2 * member.beat_seconds)
            stuck_seconds = stuck_seconds + elapsed if turns == self._num_turns else 0.0
            turns = self._num_turns
            if stuck_seconds > member.silence_seconds and member.step is not None:
                member.judge_stuck_store()
                self._end()

    def _end(self) -> None:
        if self._is_over.is_set():
            return
        self._is_over.set()
        if self._member.verdict is None:
            self._member.verdict = verdict(f"rank {self._ranks.rank} ended its meetings: {self._reason}")
        self._changed.set()
        self._on_loss()


def _this_process(host: str) -> Record:
    """Returns what other ranks need to name this process, and to see its end where they run beside it."""
    process: Record = {"host": host, "pid": os.getpid(), "namespace": None}
    with suppress(OSError):  # only Linux says
        process |= {"namespace": process_namespace(), "start": process_start(os.getpid())}
    return process


def _has_ended(process: Record, namespace: str | None) -> bool:
    """Whether a process is known to have ended: it must be in this namespace."""
    is_beside = namespace is not None and process["namespace"] == namespace
    return is_beside and process_start(process["pid"]) != process["start"]


_meeting: Meeting | None = None
_inherited: list[Meeting] = []


def meeting_of(ranks: Ranks) -> Meeting:
    """Returns the meeting of the process group of the run, made on first use."""
    global _meeting
    if _meeting is None or not _meeting.is_current:
        if _meeting is not None:
            _meeting.close("its process group ended")
        _meeting = Meeting(ranks)
    return _meeting


def _close_meeting() -> None:
    if _meeting is not None:
        _meeting.close("its process ended")


def _forget_meeting() -> None:
    """Leaves the meeting to the parent; to end its store here would say in a file that the parent has ended."""
    global _meeting
    if _meeting is not None:
        _inherited.append(_meeting)
        _meeting = None


atexit.register(_close_meeting)
os.register_at_fork(after_in_child=_forget_meeting)
