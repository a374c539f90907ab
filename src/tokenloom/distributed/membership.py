"""The protocol by which ranks exchange reports and detect lost ranks, as a state machine without threads or a clock.

The ranks communicate through a key-value store. The last rank leads, because the first rank is usually busy building.
The leader chooses a session name S, the prefix of most keys. A member joins when the leader lists the member's nonce,
so keys of an earlier group have no effect.

| Key | Written by | Value |
|---|---|---|
| `hello/R` | member R, once | the nonce of this member |
| `session` | the leader | the session name and the nonces of the members |
| `S/rank/R` | rank R, at each heartbeat | process, step, last known round and time of this rank |
| `S/reports/N` | all ranks | one line per rank: its report of round N |
| `S/outcome/N` | the first rank that proposes an outcome | the leader's answers, or a verdict that ends the session |

A round has exactly one outcome, so ranks never disagree. A rank that detects a dead or silent rank during a step, or
that exits, proposes a verdict as the outcome of its round. If the leader has already set answers, the answers count.

To use a `Membership`, as `meeting.py` does in a thread: call `attend` with the step, set `decide` and `report` to begin
a round, and call `advance(now)` repeatedly, until `answer` or `verdict` is set. A verdict is final.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from operator import itemgetter
from typing import Any

from tokenloom.distributed.ranks import SILENCE_VARIABLE, Ranks, name_rank, name_ranks
from tokenloom.errors import BuildError, DivergenceError
from tokenloom.forks import cached_property

Record = dict[str, Any]
Decision = Callable[[list[Record]], list[Record]]
"""Computes the answer of each rank from the reports of all ranks (both lists by ascending rank), or raises for all."""

_STORE_HOST = "the host of the store of `torch.distributed`, often rank 0,"
_FROZEN_HINT = (
    "check whether the host is frozen, swapping, unreachable or powered off; if the host is slow, allow more than {:g} "
    f"seconds of silence with `tokenloom.set_rank_silence_seconds` or `{SILENCE_VARIABLE}`"
)
_DEAD_HINT = "read the log of the lost rank, and check whether the system killed it for lack of memory"
_MOST_NAMED = 8

_BEATS_PER_SILENCE = 6  # a rank may miss four heartbeats in a row
_LONGEST_BEAT_SECONDS = 5.0
_SHORTEST_PAUSE_SECONDS = 0.0003
_LONGEST_PAUSE_SECONDS = 0.05
_READS_PER_SECOND = 4000  # of all waiting ranks together; limits the load on the host of the store
_CHECK_SECONDS = 0.2  # interval between checks for lost ranks in a step; longer with many watched ranks
_RECORDS_PER_SECOND = 5000
_READING_SECONDS = 1.0  # rank 0 waits this long for other ranks to read an outcome
_GRACE_SECONDS = 0.5  # a process may end up to this long after its connections end

_ABSENT = "?"  # never a stored value


@dataclass(slots=True)
class _Peer:
    """Another rank that this rank watches, and the last record of that rank."""

    rank: int
    heard: float = 0.0  # time of the peer's last heartbeat, on the clock `_attention`
    text: str | None = None
    record: Record = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{name_rank(self.rank, self.record['host'])} (pid {self.record['pid']})"


@dataclass(eq=False)
class Membership:
    """The state of one rank in the protocol; the module docstring describes how to use this class.

    Attributes:
        ranks: number and host of this rank, and the number of ranks.
        connect: returns torch's store of the group, which carries all messages; a lost store raises `RuntimeError`.
        process: identity of this process as a JSON object, with at least `host` and `pid`.
        is_gone: returns whether the process of another rank is known to have ended.
        nonce: a random string that identifies this `Membership`.
        silence_seconds: time without a heartbeat after which another rank counts as lost.
        now: current time of this rank in seconds, set by `advance`. Ranks need no common clock. A jump of `now`
            counts as at most two heartbeat intervals, so a rank that was frozen does not count other ranks as silent.
        step, report, decide: inputs of the round; `step` is None between steps, `report` is None between rounds.
        answer, verdict: outputs of the round; None until the round ends. A verdict ends the session.
    """

    ranks: Ranks
    connect: Callable[[], Any]
    _: KW_ONLY
    process: Record
    is_gone: Callable[[Record], bool]
    nonce: str
    silence_seconds: float
    now: float
    step: str | None = None
    report: Record | None = None
    decide: Decision = lambda reports: [{} for _ in reports]
    answer: Record | None = None
    verdict: Record | None = None

    def __post_init__(self) -> None:
        self.rank: int = self.ranks.rank
        self.size: int = self.ranks.world_size
        self.is_leader: bool = self.rank == self.size - 1
        self.beat_seconds: float = min(_LONGEST_BEAT_SECONDS, self.silence_seconds / _BEATS_PER_SILENCE)
        watched = range(self.size) if self.is_leader else (self.rank - 1, self.rank + 1, self.size - 1)
        self._peers = {rank: _Peer(rank) for rank in watched if 0 <= rank < self.size and rank != self.rank}
        self._session = self.nonce if self.is_leader else None
        self._nonces: dict[str, str] = {}
        self._has_greeted = self._is_entering = self._is_reported = False
        self._round, self._num_swept = 1, 0
        self._sent: tuple[str, int] | None = None
        self._lost_store: tuple[RuntimeError, float] | None = None
        self._outcome: str | None = None
        # `_attention` is a clock in seconds that limits jumps of `now`. The other attributes are times on this clock.
        self._attention = self._next_check = self._next_beat = self._round_at = self._read_at = 0.0

    @property
    def pause_seconds(self) -> float:
        """Time until the next useful call of `advance`, in seconds."""
        if self.report is None:
            return max(0.0, self._next_check - self._attention)
        longest = max(_LONGEST_PAUSE_SECONDS, self.size / _READS_PER_SECOND)
        return min(max((self._attention - self._round_at) / 8, _SHORTEST_PAUSE_SECONDS), longest)

    @property
    def unreported(self) -> list[int]:
        """The watched ranks that have not reported in this round."""
        return [p.rank for p in self._peers.values() if p.record.get("reported", 0) < self._round]

    # --- calls of the driver -----------------------------------------------------------------------------------------

    def attend(self, step: str) -> None:
        """Begins the step named `step`. During a step, ranks wait for each other and detect lost ranks."""
        self._is_entering |= self.step is None
        self.step = step

    def advance(self, now: float) -> None:
        """Reads and writes the keys that are due at time `now`, without blocking."""
        self._attention += min(max(now - self.now, 0.0), 2 * self.beat_seconds)
        self.now = now
        try:
            if self._outcome is not None:
                self._take(self._outcome)
            if self.verdict is not None:
                return
            if self._is_entering:
                self._is_entering = False
                self._next_check = min(self._next_check, self._attention + _CHECK_SECONDS)
                for peer in self._peers.values():
                    peer.heard = self._attention
            if self._lost_store is not None:
                error, since = self._lost_store
                if not self._judge_deaths() and self._attention > since + _GRACE_SECONDS:
                    message = f"{_STORE_HOST} died or ended during {self._during}: {str(error).splitlines()[0]}"
                    self._give_up(message, "read the log of the process that hosts the store", [0])
                return
            if self._enter():
                self._exchange()
            if self.verdict is None and self._attention >= self._next_check:
                self._check_peers()
        except RuntimeError as error:
            self._lost_store = self._lost_store or (error, self._attention)

    def leave(self, reason: str) -> None:
        """Ends the session on all ranks, because this rank exits."""
        if self.verdict is None and not self._judge_deaths():
            when = "before this step" if self.step is None else f"during {self.step}"
            own = _Peer(self.rank, record=self.process)
            self._give_up(f"{own.name} ended {when}: {reason}", _DEAD_HINT, [self.rank])

    # --- the store ---------------------------------------------------------------------------------------------------

    @cached_property
    def store(self) -> Any:
        return self.connect()

    def _read(self, key: str) -> str | None:
        # The only call that reads a key in one round trip and does not wait for a missing key.
        value: str = self.store.compare_set(key, _ABSENT, _ABSENT).decode()
        return None if value == _ABSENT else value

    def _read_all(self, keys: list[str]) -> list[str]:
        """Returns the values of the keys; an empty list if one of the keys does not exist."""
        return [value.decode() for value in self.store.multi_get(keys)] if keys and self.store.check(keys) else []

    # --- the session and its rounds ----------------------------------------------------------------------------------

    def _key(self, name: str, number: int) -> str:
        return f"{self._session}/{name}/{number}"

    def _enter(self) -> bool:
        """Joins the session; the leader adds new members to the session. Returns whether this rank has joined."""
        if self.is_leader:
            if self._round == 1:
                missing = [rank for rank, peer in self._peers.items() if not peer.record]
                hellos = {str(rank): self._read(f"hello/{rank}") for rank in missing}
                nonces = self._nonces | {rank: nonce for rank, nonce in hellos.items() if nonce is not None}
                if nonces != self._nonces:
                    self._nonces = nonces
                    self.store.set("session", json.dumps({"name": self._session, "nonces": nonces}))
        elif self._session is None:
            if not self._has_greeted:
                self._has_greeted = True
                self.store.set(f"hello/{self.rank}", self.nonce)
            session = json.loads(self._read("session") or "{}")
            if session.get("nonces", {}).get(str(self.rank)) == self.nonce:
                self._session = session["name"]
        return self._session is not None

    def _exchange(self) -> None:
        """Writes the report of this rank; the leader decides the outcome of the round, other ranks read the outcome."""
        if self.report is not None and not self._is_reported:
            line = json.dumps([self.rank, self.report]) + "\n"
            self.store.append(self._key("reports", self._round), line)
            self._is_reported, self._round_at = True, self._attention
        text = self._read(self._key("reports", self._round)) if self.is_leader and self._is_reported else None
        lines = (text or "").splitlines()
        if len(lines) == self.size:
            reports = [report for _, report in sorted(map(json.loads, lines), key=itemgetter(0))]
            texts = [json.dumps(answer) for answer in decided(reports, self.decide)]
            numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
            self._propose({"answers": [json.loads(text) for text in numbers], "of": [numbers[text] for text in texts]})
        elif self._outcome is None and (
            (self._is_reported and not self.is_leader) or self._attention >= self._next_check
        ):
            text = self._read(self._key("outcome", self._round))
            if text is not None:
                self._take(text)
        self._beat()

    def _propose(self, outcome: Record) -> None:
        self._take(self.store.compare_set(self._key("outcome", self._round), "", json.dumps(outcome)).decode())

    def _take(self, text: str) -> None:
        """Ends this round. Rank 0 first waits until other ranks read the outcome, as the store may end with rank 0."""
        if self._outcome is None:
            self._outcome, self._read_at = text, self._attention
        outcome = json.loads(text)
        if self.rank == 0 and self.step is not None and self._is_awaited(outcome):
            return
        self._outcome, self._round_at = None, self._attention
        self._is_reported = False
        self._round += 1
        if "verdict" in outcome:
            self.verdict = outcome["verdict"]
            self._beat()
        else:
            self.report = None
            self.answer = outcome["answers"][outcome["of"][self.rank]]

    def _is_awaited(self, outcome: Record) -> bool:
        """Returns whether to wait for other ranks that have not read an outcome, for at most `_READING_SECONDS`."""
        lost = outcome["verdict"]["lost"] if "verdict" in outcome else []
        keys = [self._key("rank", rank) for rank in range(1, self.size) if rank not in lost]
        with suppress(RuntimeError):  # the outcome is valid even if the store is gone
            found = self._read_all(keys)
            is_read = len(found) == len(keys) and all(json.loads(text)["round"] > self._round for text in found)
            return not is_read and self._attention < self._read_at + _READING_SECONDS
        return False

    # --- heartbeats --------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Writes the record of this rank if the record has changed or a heartbeat is due."""
        doing = "it was between steps"
        if self.step is not None:
            doing = f"it waited for others in {self.step}" if self._is_reported else f"it was at {self.step}"
        if (doing, self._round) != self._sent or self._attention >= self._next_beat:
            self._sent, self._next_beat = (doing, self._round), self._attention + self.beat_seconds
            reported = self._round if self._is_reported else self._round - 1
            record = {"doing": doing, "round": self._round, "reported": reported, "beat": self._attention}
            self.store.set(self._key("rank", self.rank), json.dumps(self.process | record))

    def _check_peers(self) -> None:
        """Deletes old keys; during a step, also reads the records of watched ranks and detects lost ranks."""
        is_idle = self.step is None
        busy_seconds = max(_CHECK_SECONDS, len(self._peers) / _RECORDS_PER_SECOND)
        self._next_check = self._attention + (self.beat_seconds / 2 if is_idle else busy_seconds)
        while self.is_leader and self._num_swept < self._round - 2:  # all ranks have left these rounds
            self._num_swept += 1
            for name in ("reports", "outcome"):
                self.store.delete_key(self._key(name, self._num_swept))
        if self._session is not None and not is_idle:
            lines = {r: self._read(self._key("rank", r)) for r, peer in self._peers.items() if not peer.record}
            known = [rank for rank in self._peers if rank not in lines]
            lines |= dict(zip(known, self._read_all([self._key("rank", rank) for rank in known]), strict=False))
            for rank, text in lines.items():
                peer = self._peers[rank]
                if text is not None and text != peer.text:
                    peer.text, peer.record, peer.heard = text, json.loads(text), self._attention
        if not is_idle and not self._judge_deaths():
            self._judge_silence()

    # --- lost ranks --------------------------------------------------------------------------------------------------

    @property
    def _during(self) -> str:
        return self.step or "the next step"

    def _judge_deaths(self) -> bool:
        """Returns whether the process of a watched rank is known to have ended; if so, ends the session."""
        gone = [peer for peer in self._peers.values() if peer.record and self.is_gone(peer.record)]
        if gone:
            names = ", ".join(peer.name for peer in gone)
            self._give_up(f"{names} died or ended during {self._during}", _DEAD_HINT, [peer.rank for peer in gone])
        return bool(gone)

    def _judge_silence(self) -> None:
        """Ends the session if a rank is silent for too long: the leader judges all ranks, a member judges the leader.

        The error names ranks that have been silent for more than half the timeout.
        """
        silences = {rank: self._attention - peer.heard for rank, peer in self._peers.items()}
        if max(silences.values() if self.is_leader else [silences[self.size - 1]]) <= self.silence_seconds:
            return
        silent = [peer for rank, peer in self._peers.items() if silences[rank] > self.silence_seconds / 2]
        silent = silent if self._session else [self._peers[self.size - 1]]  # the leader never opened a session
        phrases = [
            f"{peer.name} has been silent for {silences[peer.rank]:.1f} s during {self._during}; when last heard, "
            f"{peer.record['doing']}"
            for peer in silent
            if peer.record
        ]
        absent = [peer.rank for peer in silent if not peer.record]
        if absent:
            longest = max(silences[rank] for rank in absent)
            verb = "has" if len(absent) == 1 else "have"
            phrases.append(f"{name_ranks(absent)} {verb} not reached {self._during} within {longest:.1f} s")
        hint = _FROZEN_HINT.format(self.silence_seconds)
        self._give_up("; ".join(phrases[-_MOST_NAMED:]), hint, [peer.rank for peer in silent])

    def judge_stuck_store(self) -> None:
        """Ends the session on this rank; another thread calls this if a call to the store does not return."""
        message = f"{_STORE_HOST} has not answered for {self.silence_seconds:.1f} s during {self._during}"
        self.verdict = verdict(message, _FROZEN_HINT.format(self.silence_seconds))

    def _give_up(self, message: str, hint: str, lost: Sequence[int]) -> None:
        """Ends the session with an error on all ranks, or only on this rank if it lost the store or did not join."""
        found = verdict(message, hint, lost)
        if self._session is not None and self._lost_store is None:
            with suppress(RuntimeError):
                self._propose({"verdict": found})
                return
        self.verdict = found


def verdict(message: str, hint: str | None = None, lost: Sequence[int] = ()) -> Record:
    return {"failure": "BuildError", "message": message, "hint": hint, "lost": list(lost)}


def decided(reports: list[Record], decide: Decision) -> list[Record]:
    """Returns the answer of each rank; if the reports fail `_check` or `decide` raises, every answer is the error."""
    try:
        _check(reports)
        return decide(reports)
    except (BuildError, DivergenceError) as error:
        failure = {"failure": type(error).__name__, "message": error.message, "hint": error.hint}
        return [failure] * len(reports)


def _check(reports: list[Record]) -> None:
    """Raises an error if ranks are at different steps or a rank failed; prefers a failure that no other rank caused."""
    steps = holders_of([report["step"] for report in reports])
    if len(steps) > 1:
        found = ", ".join(f"{name_ranks(ranks)} at {step!r}" for step, ranks in list(steps.items())[:8])
        message = f"ranks are at different steps: {found}"
        raise DivergenceError(message, hint="build the same datasets in the same order on all ranks")
    failed = [rank for rank, report in enumerate(reports) if "error" in report]
    failed = [rank for rank in failed if not reports[rank]["follows"]] or failed
    if failed:
        first = reports[failed[0]]
        others = f" (and {name_ranks(failed[1:])} as well)" if len(failed) > 1 else ""
        message = f"{name_rank(failed[0], first['host'])} failed in {first['step']}{others}: {first['error']}"
        raise BuildError(message, hint=first["hint"])


def holders_of(values: Sequence[str | None]) -> dict[str, list[int]]:
    """Returns {value: ranks with this value}, the most common value first; ignores None."""
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            holders.setdefault(value, []).append(rank)
    return dict(sorted(holders.items(), key=lambda item: len(item[1]), reverse=True))
