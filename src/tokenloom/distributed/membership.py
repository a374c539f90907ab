"""One rank's part in the meetings of a group: a state machine over a key-value store, without threads or a clock.

The last rank leads, because usually the first one builds. All keys of a meeting stand under a session, which the leader
names; a member joins it once the leader lists the nonce that the member wrote, so keys of an earlier group do no harm.

| Key | Written by | Value |
|---|---|---|
| `hello/R` | member R, once | its nonce, and for how long it lets others be silent |
| `session` | the leader | the name of the session, and the nonces of members |
| `S/rank/R` | rank R | its process, its step, the last round that it knows, and the last roll call that it answers |
| `S/roll` | whoever waits | the number of a roll call, which each rank answers in `S/rank/R` |
| `S/reports/N` | all | a line from each rank: its report of round N |
| `S/outcome/N` | the first who proposes one | the leader's answers, or a verdict, which ends the meetings of all |

A round has one outcome, so no two ranks disagree about it. Who finds a rank dead, silent or gone while it is in a step
proposes a verdict as the outcome of its current round; if the leader was faster, the answer counts.

To drive it, in one process or in many (`meeting.py` does so with a thread): set `step` by `attend`, set `report` to
begin a round, and call `advance(now)` again and again. On the leader, `reports` becomes the reports of all, and
`answers` is to be set. The end of a round is an `answer`, or the `verdict`, after which nothing changes any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

from tokenloom.distributed.ranks import Ranks, name_rank, name_ranks
from tokenloom.distributed.silence import SILENCE_VARIABLE, beat_seconds

Record = dict[str, Any]

_STORE_HOST = "the host of the store of `torch.distributed`, often rank 0,"

_FROZEN_HINT = (
    "it may be frozen, swapped out, cut off or powered off; where it is only late, allow more than {:g} seconds with "
    f"`tokenloom.set_rank_silence_seconds` or `{SILENCE_VARIABLE}`"
)
_DEAD_HINT = "look at the log of the rank that was lost, and whether the system killed it for its memory"
_LARGEST_NUMBER_SHOWN = 8

_SHORTEST_PAUSE_SECONDS = 0.0003
_LONGEST_PAUSE_SECONDS = 0.05
_LOOKS_PER_SECOND = 4000
"""What the host of the store has to serve while all ranks wait."""
_LOOK_SECONDS = 0.2
"""How often a rank in a step looks for lost ranks."""
_READING_SECONDS = 1.0
"""How long others may take to read an outcome."""
_GRACE_SECONDS = 0.5
"""How long the end of a process may take to show after the end of its connections."""


class StoreError(Exception):
    """The store does not answer any more."""


class Store(Protocol):
    """A key-value store that all ranks of a group share; no call waits for a key.

    Raises:
        StoreError: the store is not there any more.
    """

    def read(self, key: str) -> str | None:
        """Returns the value of a key, or None."""

    def read_all(self, keys: Sequence[str]) -> list[str] | None:
        """Returns the values of some keys, or None unless all are there."""

    def write(self, key: str, text: str) -> None:
        """Sets a key."""

    def append(self, key: str, text: str) -> None:
        """Adds to the value of a key, which may be new."""

    def propose(self, key: str, text: str) -> str:
        """Sets a key unless it is there; returns its value."""

    def delete(self, key: str) -> None:
        """Removes a key, if it is there."""


@dataclass(slots=True)
class Peer:
    """Another rank that this one watches."""

    rank: int
    heard: float = 0.0
    """When it was last known to live, in seconds of attention."""
    text: str | None = None
    record: Record | None = None
    """What it last wrote; None until it came."""

    @property
    def name(self) -> str:
        """The likes of "rank 3 on `node7` (pid 12)"."""
        return f"rank {self.rank}" if self.record is None else name_of(self.rank, self.record)


def name_of(rank: int, record: Record) -> str:
    """Returns the likes of "rank 3 on `node7` (pid 12)"."""
    return f"{name_rank(rank, record['host'])} (pid {record['pid']})"


class Membership:
    """The part of one rank; see the module for how to drive it.

    Args:
        ranks: this rank.
        store: shared by all ranks of the group.
        process: what tells this process from others, in values of JSON: at least its `host` and `pid`.
        is_gone: whether the process of another rank is known to have ended.
        nonce: random.
        silence_seconds: how long another rank may be silent while somebody waits for it.
        now: this rank's clock. It need not agree with that of any other, and may jump: a time in which this rank was
            not there (frozen, suspended, behind a lock) is not counted as silence of others.
    """

    def __init__(
        self,
        ranks: Ranks,
        store: Store,
        *,
        process: Record,
        is_gone: Callable[[Record], bool],
        nonce: str,
        silence_seconds: float,
        now: float,
    ) -> None:
        self.rank: int = ranks.rank
        self.size: int = ranks.world_size
        self.leader: int = self.size - 1
        self.silence_seconds = silence_seconds
        self.beat_seconds: float = beat_seconds(silence_seconds)
        self.step: str | None = None
        self.report: Record | None = None
        self.reports: list[Record] | None = None
        self.answers: list[Record] | None = None
        self.answer: Record | None = None
        self.verdict: Record | None = None
        self._store = store
        self._process = process
        self._is_gone = is_gone
        self._nonce = nonce
        self._session = nonce if self.is_leader else None
        self._nonces: dict[str, str] = {}
        self._silences = {silence_seconds: self.rank}
        self._round = 1
        self.is_awaited: bool = False
        """Whether others may still have to read the last outcome from a store that ends with this rank."""
        self._num_swept = 0
        self._is_entering = self._is_reported = False
        self._roll: str | None = None
        self._written: Record | None = None
        watched = range(self.size) if self.is_leader else (self.rank - 1, self.rank + 1, self.leader)
        self._peers = {rank: Peer(rank) for rank in watched if 0 <= rank < self.size and rank != self.rank}
        self._lost_store: tuple[StoreError, float] | None = None
        self._now = now
        self._attention = self._next_look = self._next_refresh = 0.0
        self._reported_at = self._ended_at = self._rolled_at = 0.0

    @property
    def is_leader(self) -> bool:
        """Whether this rank answers the reports of all."""
        return self.rank == self.leader

    @property
    def pause_seconds(self) -> float:
        """How long to wait before `advance` is worth another call."""
        if self.report is None and not (self.is_awaited and self.step is None):
            return max(0.0, self._next_look - self._attention)
        waited = self._attention - (self._reported_at if self.report is not None else self._ended_at)
        longest = max(_LONGEST_PAUSE_SECONDS, self.size / _LOOKS_PER_SECOND)
        return min(max(waited / 8, _SHORTEST_PAUSE_SECONDS), longest)

    @property
    def missing(self) -> list[int]:
        """The watched ranks that have not come."""
        return [peer.rank for peer in self._peers.values() if peer.record is None]

    @property
    def unreported(self) -> list[int]:
        """The watched ranks that had not reported in this round when they were last heard."""
        return [p.rank for p in self._peers.values() if p.record is None or p.record["reported"] < self._round]

    # --- what the rank does ------------------------------------------------------------------------------------------

    def attend(self, step: str) -> None:
        """Begins a step in which other ranks may wait for this one, and this one for others."""
        self._is_entering |= self.step is None
        self.step = step

    def advance(self, now: float) -> None:
        """Reads and writes what is due, without waiting."""
        self._attention += min(max(now - self._now, 0.0), 2 * self.beat_seconds)
        self._now = now
        try:
            if self.is_awaited and (self.step is None or self.verdict is not None):
                self._await_readers()
            if self.verdict is not None:
                return
            if self._is_entering:
                self._is_entering = False
                self._next_look = min(self._next_look, self._attention + _LOOK_SECONDS)
                for peer in self._peers.values():
                    peer.heard = self._attention
            if self._lost_store is not None:
                self._judge_without_store(*self._lost_store)
                return
            if self._enter():
                self._exchange()
            if self.verdict is None and self._attention >= self._next_look:
                self._look()
        except StoreError as error:
            self.is_awaited = False
            self._lost_store = self._lost_store or (error, self._attention)

    def leave(self, reason: str) -> None:
        """Ends the meetings of all, because this rank ends."""
        if self.verdict is None and not self._judge_deaths():
            when = "before this step" if self.step is None else f"during {self.step}"
            self._give_up(f"{name_of(self.rank, self._process)} ended {when}: {reason}", _DEAD_HINT, [self.rank])

    # --- the session and its rounds ----------------------------------------------------------------------------------

    def _key(self, name: str, *numbers: int) -> str:
        return "/".join([f"{self._session}/{name}", *map(str, numbers)])

    def _enter(self) -> bool:
        """Returns whether this rank is in the session of the group."""
        if self.is_leader:
            if self._round == 1:
                self.admit()
        elif self._session is None:
            if self._written is None:
                self._written = {"nonce": self._nonce, "silence": self.silence_seconds}
                self._store.write(f"hello/{self.rank}", json.dumps(self._written))
            session = json.loads(self._store.read("session") or "{}")
            if session.get("nonces", {}).get(str(self.rank)) == self._nonce:
                self._session = session["name"]
        return self._session is not None

    def admit(self) -> None:
        """Lists the nonces of members; what an earlier group left of one is replaced once that member comes."""
        hellos = {rank: json.loads(self._store.read(f"hello/{rank}") or "{}") for rank in self.missing}
        nonces = self._nonces | {str(rank): hello["nonce"] for rank, hello in hellos.items() if hello}
        if nonces != self._nonces:
            self._nonces = nonces
            self._store.write("session", json.dumps({"name": self._session, "nonces": nonces}))
        self._silences |= {hello["silence"]: rank for rank, hello in hellos.items() if hello}
        if len(nonces) == self.leader and len(self._silences) > 1 and self.verdict is None:
            given = ", ".join(f"{seconds:g} on rank {rank}" for seconds, rank in self._silences.items())
            message = f"ranks differ in the seconds that a rank may be silent: {given}"
            hint = f"set the same on all ranks with `tokenloom.set_rank_silence_seconds` or `{SILENCE_VARIABLE}`"
            self._give_up(message, hint, [], failure="DivergenceError")

    def _exchange(self) -> None:
        """Reports, and takes the outcome of the round."""
        if self.report is not None and not self._is_reported:
            line = json.dumps([self.rank, self.report]) + "\n"
            self._store.append(self._key("reports", self._round), line)
            self._is_reported, self._reported_at = True, self._attention
        if self.is_leader and self._is_reported and self.reports is None:
            lines = (self._store.read(self._key("reports", self._round)) or "").splitlines()
            if len(lines) == self.size:
                self.reports = [report for _, report in sorted(map(json.loads, lines), key=itemgetter(0))]
        if self.answers is not None:
            texts = [json.dumps(answer) for answer in self.answers]
            numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
            self._propose({"answers": [json.loads(text) for text in numbers], "of": [numbers[text] for text in texts]})
        elif (self._is_reported and not self.is_leader) or self._attention >= self._next_look:
            text = self._store.read(self._key("outcome", self._round))
            if text is not None:
                self._take(text)
        self._write_record()

    def _propose(self, outcome: Record) -> None:
        self._take(self._store.propose(self._key("outcome", self._round), json.dumps(outcome)))

    def _take(self, text: str) -> None:
        """Takes the outcome of this round."""
        outcome = json.loads(text)
        self.is_awaited, self._ended_at = self.rank == 0 and self.step is not None, self._attention
        self._is_reported = False
        self._round += 1
        if "verdict" in outcome:
            self.verdict = outcome["verdict"]
            self._write_record(anyway=True)
        else:
            self.report = self.reports = self.answers = None
            self.answer = outcome["answers"][outcome["of"][self.rank]]

    def _await_readers(self) -> None:
        """Finds out on rank 0, with which the store may end, whether others have read what it has."""
        lost = () if self.verdict is None else self.verdict["lost"]
        found = self._store.read_all([self._key("rank", rank) for rank in range(self.size) if rank not in lost]) or []
        is_read = bool(found) and all(json.loads(text)["round"] >= self._round for text in found)
        self.is_awaited = not is_read and self._attention < self._ended_at + _READING_SECONDS

    # --- signs of life -----------------------------------------------------------------------------------------------

    def _write_record(self, *, anyway: bool = False) -> None:
        """Says what this rank does, and answers the last roll call."""
        doing = "it did something else"
        if self.step is not None:
            doing = f"it waited for others in {self.step}" if self._is_reported else f"it was at {self.step}"
        if anyway or self._written is None or doing != self._written.get("doing"):
            reported = self._round if self._is_reported else self._round - 1
            self._written = {"roll": self._roll, "doing": doing, "round": self._round, "reported": reported}
            self._store.write(self._key("rank", self.rank), json.dumps(self._process | self._written))

    def _look(self) -> None:
        """Answers a roll call; in a step also calls one, reads what others answer, and concludes who is lost."""
        is_idle = self.step is None
        self._next_look = self._attention + (self.beat_seconds / 2 if is_idle else _LOOK_SECONDS)
        if self._session is not None:
            roll = self._store.read(self._key("roll"))
            if roll == self._roll and not is_idle and self._attention - self._rolled_at >= self.beat_seconds:
                roll = f"{self.rank} {self._attention:.3f}"
                self._store.write(self._key("roll"), roll)
            if roll != self._roll:
                self._roll, self._rolled_at = roll, self._attention
                self._write_record(anyway=True)
            self._sweep()
            self._refresh()
        if not is_idle and not self._judge_deaths():
            self._judge_silence()

    def _sweep(self) -> None:
        """Removes the keys of rounds that all have left."""
        while self.is_leader and self._num_swept < self._round - 2:
            self._num_swept += 1
            for name in ("reports", "outcome"):
                self._store.delete(self._key(name, self._num_swept))

    def _refresh(self) -> None:
        """Reads what watched ranks say."""
        texts = {rank: self._store.read(self._key("rank", rank)) for rank in self.missing}
        if self._attention >= self._next_refresh:
            self._next_refresh = self._attention + self.beat_seconds / 2
            known = [rank for rank in self._peers if rank not in texts]
            found = self._store.read_all([self._key("rank", rank) for rank in known]) or []
            texts |= dict(zip(known, found, strict=True))
        for rank, text in texts.items():
            peer = self._peers[rank]
            if text is not None and text != peer.text:
                peer.text, peer.record, peer.heard = text, json.loads(text), self._attention
            if peer.record is not None and peer.record["roll"] == self._roll:
                peer.heard = self._attention

    # --- conclusions -------------------------------------------------------------------------------------------------

    @property
    def _during(self) -> str:
        return self.step or "the next step"

    def _judge_deaths(self) -> bool:
        """Concludes if a watched process has ended; returns whether one has."""
        gone = [peer for peer in self._peers.values() if peer.record is not None and self._is_gone(peer.record)]
        if gone:
            names = ", ".join(peer.name for peer in gone)
            self._give_up(f"{names} died or ended during {self._during}", _DEAD_HINT, [peer.rank for peer in gone])
        return bool(gone)

    def _judge_silence(self) -> None:
        """Concludes if a watched rank is silent; names those too that soon will be. Members leave it to the leader."""
        silences = {rank: self._attention - peer.heard for rank, peer in self._peers.items()}
        if max(silences.values() if self.is_leader else [silences[self.leader]]) <= self.silence_seconds:
            return
        silent = [peer for rank, peer in self._peers.items() if silences[rank] > self.silence_seconds / 2]
        if self._session is None:  # which only the leader could give
            silent = [self._peers[self.leader]]
        phrases = [
            f"{peer.name} has been silent for {silences[peer.rank]:.1f} s during {self._during}; when last heard, "
            f"{peer.record['doing']}"
            for peer in silent
            if peer.record is not None
        ]
        absent = [peer.rank for peer in silent if peer.record is None]
        if absent:
            have = "has" if len(absent) == 1 else "have"
            longest = max(silences[rank] for rank in absent)
            lack = f"{have} not come to {self._during} within {longest:.1f} s, nor given a sign of life"
            phrases.append(f"{name_ranks(absent)} {lack}")
        hint = _FROZEN_HINT.format(self.silence_seconds)
        self._give_up("; ".join(phrases[-_LARGEST_NUMBER_SHOWN:]), hint, [peer.rank for peer in silent])

    def judge_stuck_store(self) -> None:
        """Concludes that the store does not answer; for whoever sees that `advance` does not return."""
        message = f"{_STORE_HOST} has not answered for {self.silence_seconds:.1f} s during {self._during}"
        hint = _FROZEN_HINT.format(self.silence_seconds)
        self.verdict = {"failure": "BuildError", "message": message, "hint": hint, "lost": []}

    def _judge_without_store(self, error: StoreError, since: float) -> None:
        """Concludes that the store is gone; names the rank that ended, where its process shows that."""
        if not self._judge_deaths() and self._attention > since + _GRACE_SECONDS:
            message = f"{_STORE_HOST} died or ended during {self._during}: {error}"
            self._give_up(message, "look at the logs of these ranks", [0])

    def _give_up(self, message: str, hint: str, lost: Sequence[int], *, failure: str = "BuildError") -> None:
        """Proposes to end the meetings of all; ends those of this rank where it cannot reach the others."""
        verdict = {"failure": failure, "message": message, "hint": hint, "lost": list(lost)}
        if self._session is not None and self._lost_store is None:
            with suppress(StoreError):
                self._propose({"verdict": verdict})
                return
        self.verdict = verdict
