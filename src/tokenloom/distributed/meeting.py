"""Meetings of all ranks, which fail on all together and never leave one waiting.

Every rank reports to one rank, which answers each. Reports travel by one gather and answers point to point, so that
each connection which can break has somebody waiting on it: the collecting rank notices any rank that dies, all others
notice the collecting rank, and the one answer that is always sent names the dead. (A ring, which `all_gather` is, tells
the two neighbours only: the others wait for ever.) The collecting rank is the last one because the building rank is
usually the first, and who builds for an hour notices nothing.
"""

from __future__ import annotations

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
    """Returns the decision that fails all ranks with the cause of the lowest rank that failed, if any did."""

    def decide(records: list[Record]) -> list[Record]:
        failed = [rank for rank, record in enumerate(records) if "error" in record]
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

    Raises:
        BuildError: some rank did not come.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._dist = sys.modules["torch.distributed"]
        self._torch = sys.modules["torch"]
        self._ranks = ranks
        self._collector = ranks.world_size - 1
        try:
            self._group = _gloo_group(self._dist)
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
        if "failure" not in answer:
            return answer
        kind = DivergenceError if answer["failure"] == "DivergenceError" else BuildError
        raise kind(answer["message"], hint=answer["hint"]) from (None if attempt is None else attempt.error)

    def _collect(self, record: Record, decide: Decision) -> Record:
        others = range(self._collector)
        try:
            records = self._gather(record)
        except RuntimeError as error:
            return self._tell_of_the_lost(record["step"], error)
        try:
            _same_step(records)
            answers = decide(records)
        except (BuildError, DivergenceError) as error:
            failure = {"failure": type(error).__name__, "message": error.message, "hint": error.hint}
            answers = [failure] * self._ranks.world_size
        sent = [self._send(rank, answers[rank]) for rank in others]
        for rank, (work, _) in zip(others, sent, strict=True):
            try:
                work.wait(_PATIENCE)
            except RuntimeError:
                logger.warning("rank %d ended during %s", rank, record["step"])  # the next meeting will tell all
        return answers[self._collector]

    def _consult(self, record: Record, step: str) -> Record:
        try:
            self._gather(record)
            answer = self._torch.zeros(_RECORD_BYTES, dtype=self._torch.uint8)
            self._dist.irecv(answer, self._collector, group=self._group, tag=_ANSWER_TAG).wait(_PATIENCE)
        except RuntimeError as error:
            message = f"rank {self._collector}, which collects the reports of all, was lost during {step}"
            hint = f"it died, or it ended after another rank died; look at its log first. torch says: {error}"
            raise BuildError(message, hint=hint) from error
        return _decode(answer)

    def _gather(self, record: Record) -> list[Record]:
        """Returns the records of all ranks on the collecting rank, and nothing elsewhere."""
        torch, is_collector = self._torch, self._ranks.rank == self._collector
        mine = self._encode(record)
        count = self._ranks.world_size if is_collector else 0
        received = [torch.zeros(_RECORD_BYTES, dtype=torch.uint8) for _ in range(count)]
        options = self._dist.GatherOptions()
        options.rootRank = self._collector
        options.timeout = _PATIENCE
        self._group.gather([received] if is_collector else [], [mine], options).wait(_PATIENCE)
        return [_decode(tensor) for tensor in received]

    def _send(self, rank: int, record: Record) -> tuple[Any, Any]:
        """Returns what is under way, and the bytes, which must live until then."""
        message = self._encode(record)
        return self._dist.isend(message, rank, group=self._group, tag=_ANSWER_TAG), message

    def _tell_of_the_lost(self, step: str, error: RuntimeError) -> Record:
        """Returns the answer that was sent to all ranks which can be reached."""
        lost: list[int] = []
        nothing = self._torch.zeros(1, dtype=self._torch.uint8)
        for rank in range(self._collector):
            try:  # a message to a broken connection fails at once, one to a rank that works elsewhere just lies there
                _undelivered.append((self._dist.isend(nothing, rank, group=self._group, tag=_PROBE_TAG), nothing))
            except RuntimeError:
                lost.append(rank)
        alive = [rank for rank in range(self._ranks.world_size) if rank not in lost]
        who = f"{name_ranks(lost)} died or ended" if lost else f"the connection to a rank failed ({error})"
        answer = {
            "failure": "BuildError",
            "message": f"{who} during {step}; {name_ranks(alive)} could still be reached",
            "hint": "look at the log of the rank that was lost, and whether the system killed it for its memory",
        }
        for rank in alive[:-1]:
            with suppress(RuntimeError):
                _undelivered.append(self._send(rank, answer))
        time.sleep(_FAREWELL_SECONDS)
        return answer

    def _encode(self, record: Record) -> Any:
        """Returns uint8[_RECORD_BYTES]: JSON, filled up with zeros; the longest texts are cut if it must be."""
        while len(data := json.dumps(record).encode()) > _RECORD_BYTES:
            longest = max(record, key=lambda name: len(record[name]) if isinstance(record[name], str) else 0)
            record = {**record, longest: record[longest][: len(record[longest]) // 2] + "…"}
        return self._torch.frombuffer(bytearray(data.ljust(_RECORD_BYTES, b"\0")), dtype=self._torch.uint8)


_undelivered: list[tuple[Any, Any]] = []
"""Messages to ranks that are still working; their bytes must live as long as they may be fetched."""

_own_group: Any = None


def _decode(tensor: Any) -> Record:
    record: Record = json.loads(bytes(tensor.tolist()).rstrip(b"\0"))
    return record


def _gloo_group(dist: Any) -> Any:
    """Returns the default group if it carries CPU tensors by gloo, else a group of our own, made on first use.

    Not a group of our own in any case: making one waits for every rank without noticing those that died.
    """
    global _own_group
    if "cpu:gloo" in dist.get_backend_config().split(","):
        return dist.group.WORLD
    if _own_group is not None:
        with suppress(KeyError):  # it went with the default group that it was made beside
            dist.get_process_group_ranks(_own_group)
            return _own_group
    _own_group = dist.new_group(backend="gloo")
    return _own_group
