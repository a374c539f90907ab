"""Meetings of all ranks, which fail on all together and never leave one waiting.

Every rank reports to one rank, which answers each. Reports travel by one gather and answers point to point, so that
each connection which can break has somebody waiting on it: the collecting rank notices any rank that dies, all others
notice the collecting rank, and the one answer that is always sent names the dead. (A ring, which `all_gather` is, tells
the two neighbours only: the others wait for ever.) The collecting rank is the last one because the building rank is
usually the first, and who builds for an hour notices nothing. Who has its answer gives thanks, by a second gather that
the collecting rank begins together with the first: so something is expected from every rank until the end, and the
death of one that has reported is noticed while others keep all waiting.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Generic, TypeVar

from tokenloom.distributed.ranks import Ranks, name_rank, name_ranks
from tokenloom.errors import BuildError, DivergenceError, TokenloomError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Record = dict[str, Any]
Decision = Callable[[list[Record]], list[Record]]
"""Makes the answers from the reports, both by rank, or raises what all ranks are to raise."""

_PATIENCE = timedelta(days=7)
"""How long a rank waits for others that live: longer than any build. torch's default is half an hour."""

_RECORD_BYTES = 8192
"""The size of each report and answer; with 4096 ranks the collecting rank holds 32 MB for a moment."""

_TEXT_CHARACTERS = 2000
_ANSWER_TAG = 7_410_001
_PROBE_TAG = 7_410_002  # nobody receives it

_WILL = "tokenloom/lost"

_SHORTEST_PAUSE_SECONDS = 0.0001
_LONGEST_PAUSE_SECONDS = 0.02

_FAREWELL_SECONDS = 0.5
"""What the bearer of bad news waits before it raises, since a process that ends cuts its messages off."""


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


def _same_step(records: Sequence[Record]) -> None:
    steps: dict[str, list[int]] = {}
    for rank, record in enumerate(records):
        steps.setdefault(record["step"], []).append(rank)
    if len(steps) > 1:
        found = ", ".join(f"{name_ranks(ranks)} at {step!r}" for step, ranks in list(steps.items())[:8])
        message = f"ranks are at different steps: {found}"
        raise DivergenceError(message, hint="all ranks must build the same datasets in the same order")


class Meeting:
    """Brings the reports of all ranks to one of them, which answers each.

    Groups that it must stay `apart_from` are those whose connections may be closed before the meeting.

    Raises:
        BuildError: some rank did not come.
    """

    def __init__(self, ranks: Ranks, *, apart_from: Sequence[Any] = ()) -> None:
        self._dist = sys.modules["torch.distributed"]
        self._torch = sys.modules["torch"]
        self._ranks = ranks
        self._collector = ranks.world_size - 1
        self._hosts: dict[int, str] = {}
        """Known after the first report, on the collecting rank."""
        self.lost_a_rank = False
        """Whether the last report failed because a rank died: then others may have had their answer and gone on."""
        try:
            self._group = _gloo_group(self._dist, apart_from)
        except RuntimeError as error:
            message = f"the ranks could not be connected: {error}"
            raise BuildError(message, hint="look for the first error in the logs of all ranks") from error

    def report(self, step: str, record: Record, decide: Decision, attempt: Attempt[Any] | None = None) -> Record:
        """Returns the answer to this rank's report, or raises what `decide` raised, on all ranks alike.

        Args:
            step: must be the same on all ranks.
            record: what this rank reports.
            decide: makes the answers from the reports, by rank; called on the collecting rank only.
            attempt: what this rank has done; its error is reported, and is the cause of the error that comes back.
        """
        record = {"step": step, "host": self._ranks.host, **record, **({} if attempt is None else attempt.record)}
        answer = self._collect(record, decide) if self._ranks.rank == self._collector else self._consult(record, step)
        self.lost_a_rank = "lost" in answer
        if "failure" not in answer:
            return answer
        kind = DivergenceError if answer["failure"] == "DivergenceError" else BuildError
        raise kind(answer["message"], hint=answer["hint"]) from (None if attempt is None else attempt.error)

    def _collect(self, record: Record, decide: Decision) -> Record:
        reports, received = self._gather(self._encode(record))
        thanks, _ = self._gather(self._bytes(1))
        try:
            _wait_for(reports, unless_failed=thanks)
            answers = self._answer([_decode(tensor) for tensor in received], decide)
            sent: list[Any] = []
            for rank in range(self._collector):
                with suppress(RuntimeError):  # its thanks will be missing
                    sent.append(self._send(self._encode(answers[rank]), rank, _ANSWER_TAG))
            thanks.wait(_PATIENCE)
        except RuntimeError as error:  # after the answers, others may have gone on; their next meeting fails
            answer = self._tell_of_the_lost(record["step"], error)
            self._break_off()
            return answer
        except BaseException:
            self._break_off()
            raise
        return answers[self._collector]

    def _answer(self, records: list[Record], decide: Decision) -> list[Record]:
        self._hosts = {rank: report["host"] for rank, report in enumerate(records)}
        try:
            _same_step(records)
            return decide(records)
        except (BuildError, DivergenceError) as error:
            failure = {"failure": type(error).__name__, "message": error.message, "hint": error.hint}
            return [failure] * self._ranks.world_size

    def _consult(self, record: Record, step: str) -> Record:
        try:
            self._gather(self._encode(record))[0].wait(_PATIENCE)
            answer = self._bytes(_RECORD_BYTES)
            self._dist.irecv(answer, self._collector, group=self._group, tag=_ANSWER_TAG).wait(_PATIENCE)
            decoded = _decode(answer)
            if "lost" not in decoded:
                self._gather(self._bytes(1))[0].wait(_PATIENCE)
        except RuntimeError as error:
            return self._read_will(step, error)
        return decoded

    def _read_will(self, step: str, error: RuntimeError) -> Record:
        """Returns what the collecting rank left before it broke off all connections; a killed one leaves nothing."""
        who, hint = f"rank {self._collector} died or ended", "look at the log of that rank"
        try:
            store = self._group.get_group_store()
            if store.check([_WILL]):
                will: Record = json.loads(store.get(_WILL))
                return will
        except RuntimeError:  # then it is likely that the death of its host made the collecting rank break off
            who = f"rank {self._collector} or the host of the store of `torch.distributed`, often rank 0, died or ended"
            hint = "look at the logs of these ranks"
        message, hint = f"{who} during {step}", f"{hint}; torch says: {error}"
        return {"failure": "BuildError", "lost": [], "message": message, "hint": hint}

    def _tell_of_the_lost(self, step: str, error: RuntimeError) -> Record:
        """Returns the answer that all ranks get which can be reached.

        It is sent to those that wait for an answer, and left in the store for those that come later: their reports
        cannot be received any more, and block the connection.
        """
        sent: list[Any] = []
        lost: list[int] = []
        for rank in range(self._collector):
            try:  # a message to a broken connection fails at once, one to a rank that works elsewhere just lies there
                sent.append(self._send(self._bytes(1), rank, _PROBE_TAG))
            except RuntimeError:
                lost.append(rank)
        alive = [rank for rank in range(self._ranks.world_size) if rank not in lost]
        names = [name_rank(rank, self._hosts[rank]) if rank in self._hosts else f"rank {rank}" for rank in lost]
        who = f"{', '.join(names)} died or ended" if lost else f"the connection to a rank failed ({error})"
        answer = {
            "failure": "BuildError",
            "lost": lost,
            "message": f"{who} during {step}; {name_ranks(alive)} could still be reached",
            "hint": "look at the log of the rank that was lost, and whether the system killed it for its memory",
        }
        with suppress(RuntimeError):  # the store, too, may have died with that rank
            self._group.get_group_store().set(_WILL, json.dumps(answer))
        for rank in alive[:-1]:
            with suppress(RuntimeError):
                sent.append(self._send(self._encode(answer), rank, _ANSWER_TAG))
        time.sleep(_FAREWELL_SECONDS)
        return answer

    def _break_off(self) -> None:
        """Closes all connections of the group, by a receive that times out.

        Otherwise what is still expected from a rank that builds would keep this process from ending.
        """
        for rank in range(self._collector):
            with suppress(RuntimeError):
                work = self._dist.irecv(self._bytes(1), rank, group=self._group, tag=_PROBE_TAG)
                work.wait(timedelta(milliseconds=1))

    def _gather(self, mine: Any) -> tuple[Any, list[Any]]:
        """Returns what is under way, and the tensors that it fills on the collecting rank."""
        is_collector = self._ranks.rank == self._collector
        received = [self._bytes(len(mine)) for _ in range(self._ranks.world_size if is_collector else 0)]
        options = self._dist.GatherOptions()
        options.rootRank = self._collector
        options.timeout = _PATIENCE
        return self._group.gather([received] if is_collector else [], [mine], options), received

    def _send(self, message: Any, rank: int, tag: int) -> tuple[Any, Any]:
        """Returns what is under way, and the bytes, which must live until then."""
        return self._dist.isend(message, rank, group=self._group, tag=tag), message

    def _bytes(self, count: int) -> Any:
        return self._torch.zeros(count, dtype=self._torch.uint8, device="cpu")

    def _encode(self, record: Record) -> Any:
        """Returns uint8[_RECORD_BYTES]: JSON, filled up with zeros; the longest texts are cut if it must be."""
        while len(data := json.dumps(record).encode()) > _RECORD_BYTES:
            longest = max(record, key=lambda name: len(record[name]) if isinstance(record[name], str) else 0)
            record = {**record, longest: record[longest][: len(record[longest]) // 2] + "…"}
        message = self._torch.frombuffer(bytearray(data.ljust(_RECORD_BYTES, b"\0")), dtype=self._torch.uint8)
        return message.clone()  # memory of torch's own: a gloo thread that frees it last must not need Python


_own_group: Any = None


def _wait_for(work: Any, *, unless_failed: Any) -> None:
    """Waits for a collective; raises what it, or the other one, raised."""
    pause = _SHORTEST_PAUSE_SECONDS
    while not work.is_completed():
        if unless_failed.is_completed():
            unless_failed.wait()
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    work.wait()


def _decode(tensor: Any) -> Record:
    record: Record = json.loads(bytes(tensor.tolist()).rstrip(b"\0"))
    return record


def _gloo_group(dist: Any, apart_from: Sequence[Any]) -> Any:
    """Returns the default group if it may be used and carries CPU tensors by gloo, else our own, made on first use.

    Not a group of our own in any case: making one waits for every rank without noticing those that died.
    """
    global _own_group
    if "cpu:gloo" in dist.get_backend_config().split(",") and dist.group.WORLD not in apart_from:
        return dist.group.WORLD
    if _own_group is not None:
        with suppress(KeyError):  # it went with the default group that it was made beside
            dist.get_process_group_ranks(_own_group)
            return _own_group
    _own_group = dist.new_group(backend="gloo")
    atexit.register(_let_go_of_own_group)
    return _own_group


def _let_go_of_own_group() -> None:
    """Ends the threads of the group while Python still runs: one that lives on until later may abort the process."""
    global _own_group
    _own_group = None
