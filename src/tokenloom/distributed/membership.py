"""One rank's part in the meetings of a group: a state machine over a key-value store, without threads or a clock.

The last rank leads, because usually the first one builds. All keys of a meeting stand under a session, which the leader
names; a member joins it once the leader lists the nonce that the member wrote, so keys of an earlier group do no harm.

| Key | Written by | Value |
|---|---|---|
| `hello/R` | member R, once | its nonce |
| `session` | the leader | the name of the session, and the nonces of members |
| `S/rank/R` | rank R, at each beat | its process, its step, the last round that it knows, and the number of the beat |
| `S/reports/N` | all | a line from each rank: its report of round N |
| `S/outcome/N` | the first who proposes one | the leader's answers, or a verdict, which ends the meetings of all |

A round has one outcome, so no two ranks disagree about it. A rank in a step that finds another one dead, silent or gone
proposes a verdict as the outcome of its current round; if the leader was faster, the answer counts.

To drive it, in one process or in many (`meeting.py` does so with a thread): set `step` by `attend`, set `report` to
begin a round, and call `advance(now)` again and again. On the leader, `reports` becomes the reports of all, and
`answers` is to be set. The end of a round is an `answer`, or the `verdict`, after which nothing changes any more.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from tokenloom.distributed.ranks import SILENCE_VARIABLE, Ranks, name_rank, name_ranks

Record = dict[str, Any]

_STORE_HOST = "the host of the store of `torch.distributed`, often rank 0,"
_FROZEN_HINT = (
    "it may be frozen, swapped out, cut off or powered off; where it is only late, allow more than {:g} seconds with "
    f"`tokenloom.set_rank_silence_seconds` or `{SILENCE_VARIABLE}`"
)
_DEAD_HINT = "look at the log of the rank that was lost, and whether the system killed it for its memory"
_LARGEST_NUMBER_SHOWN = 8

_BEATS_PER_SILENCE = 6
"""So that a rank that misses four signs of life in a row is not taken for dead."""
_LONGEST_BEAT_SECONDS = 5.0
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


_ABSENT = "?"
"""No value of ours."""


class StoreError(Exception):
    """The store does not answer any more."""


class GroupStore:
    """The store of a process group, over a connection of its own: torch's calls may hold the other one for long.

    No call waits for a key. A `StoreError` says that the store is not there any more.

    Args:
        group: the process group, whose life this does not prolong.
    """

    def __init__(self, group: weakref.ref[Any]) -> None:
        self._group = group
        self._store: Any = None

    def read(self, key: str) -> str | None:
        """Returns the value of a key, or None."""
        # Of all calls that read, only this one waits neither for a key nor for a second answer of the store.
        value = self._call("compare_set", key, _ABSENT, _ABSENT).decode()
        return None if value == _ABSENT else value

    def read_all(self, keys: Sequence[str]) -> list[str] | None:
        """Returns the values of some keys, or None unless all are there."""
        if not keys:
            return []
        return [value.decode() for value in self._call("multi_get", *keys)] if self._call("check", *keys) else None

    def write(self, key: str, text: str) -> None:
        """Sets a key."""
        self._call("set", key, text)

    def append(self, key: str, text: str) -> None:
        """Adds to the value of a key, which may be new."""
        self._call("append", key, text)

    def propose(self, key: str, text: str) -> str:
        """Sets a key unless it is there; returns its value."""
        value: str = self._call("compare_set", key, "", text).decode()
        return value

    def delete(self, key: str) -> None:
        """Removes a key, if it is there."""
        self._call("delete_key", key)

    def close(self) -> None:
        """Ends the connection."""
        self._store = None

    def _call(self, name: str, *words: str) -> Any:
        try:
            if self._store is None:
                if (group := self._group()) is None:
                    message = "the process group has ended"
                    raise StoreError(message)
                # A group that is a backend of its own knows no store; torch does.
                torch_groups = sys.modules["torch.distributed.distributed_c10d"]
                self._store = (group.get_group_store() or torch_groups._get_process_group_store(group)).clone()
            if name in ("check", "multi_get"):
                return getattr(self._store, name)([f"tokenloom/{key}" for key in words])
            return getattr(self._store, name)(f"tokenloom/{words[0]}", *words[1:])
        except RuntimeError as error:
            raise StoreError(str(error).splitlines()[0]) from error


@dataclass(slots=True)
class _Peer:
    """Another rank that this one watches, and what it last wrote; None until it came."""

    rank: int
    heard: float = 0.0
    """When it was last known to live, in seconds of attention."""
    text: str | None = None
    record: Record | None = None

    @property
    def name(self) -> str:
        return f"rank {self.rank}" if self.record is None else name_process(self.rank, self.record)


def name_process(rank: int, process: Record) -> str:
    """Returns the likes of "rank 3 on `node7` (pid 12)"."""
    return f"{name_rank(rank, process['host'])} (pid {process['pid']})"


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
        store: GroupStore,
        *,
        process: Record,
        is_gone: Callable[[Record], bool],
        nonce: str,
        silence_seconds: float,
        now: float,
    ) -> None:
        self.rank: int = ranks.rank
        self.size: int = ranks.world_size
        self.is_leader: bool = self.rank == self.size - 1
        self.silence_seconds = silence_seconds
        self.beat_seconds: float = min(_LONGEST_BEAT_SECONDS, silence_seconds / _BEATS_PER_SILENCE)
        self.step: str | None = None
        self.report: Record | None = None
        self.reports: list[Record] | None = None
        self.answers: list[Record] | None = None
        self.answer: Record | None = None
        self.verdict: Record | None = None
        self.is_awaited: bool = False
        """Whether others may still have to read the last outcome from a store that ends with this rank."""
        self._store = store
        self._process = process
        self._is_gone = is_gone
        self._nonce = nonce
        self._session = nonce if self.is_leader else None
        self._nonces: dict[str, str] = {}
        self._has_greeted = self._is_entering = self._is_reported = False
        self._round = 1
        self._num_swept = self._num_beats = 0
        self._doing: str | None = None
        watched = range(self.size) if self.is_leader else (self.rank - 1, self.rank + 1, self.size - 1)
        self._peers = {rank: _Peer(rank) for rank in watched if 0 <= rank < self.size and rank != self.rank}
        self._lost_store: tuple[StoreError, float] | None = None
        self._now = now
        self._attention = self._next_look = self._next_beat = self._next_refresh = self._round_at = 0.0

    @property
    def pause_seconds(self) -> float:
        """How long to wait before `advance` is worth another call."""
        if self.report is None and not (self.is_awaited and self.step is None):
            return max(0.0, self._next_look - self._attention)
        longest = max(_LONGEST_PAUSE_SECONDS, self.size / _LOOKS_PER_SECOND)
        return min(max((self._attention - self._round_at) / 8, _SHORTEST_PAUSE_SECONDS), longest)

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
            self._give_up(f"{name_process(self.rank, self._process)} ended {when}: {reason}", _DEAD_HINT, [self.rank])

    # --- the session and its rounds ----------------------------------------------------------------------------------

    def _key(self, name: str, number: int) -> str:
        return f"{self._session}/{name}/{number}"

    def _enter(self) -> bool:
        """Returns whether this rank is in the session of the group; the leader lists the nonces of those that come."""
        if self.is_leader:
            if self._round == 1:
                missing = [rank for rank, peer in self._peers.items() if peer.record is None]
                hellos = {str(rank): self._store.read(f"hello/{rank}") for rank in missing}
                nonces = self._nonces | {rank: nonce for rank, nonce in hellos.items() if nonce is not None}
                if nonces != self._nonces:
                    self._nonces = nonces
                    self._store.write("session", json.dumps({"name": self._session, "nonces": nonces}))
        elif self._session is None:
            if not self._has_greeted:
                self._has_greeted = True
                self._store.write(f"hello/{self.rank}", self._nonce)
            session = json.loads(self._store.read("session") or "{}")
            if session.get("nonces", {}).get(str(self.rank)) == self._nonce:
                self._session = session["name"]
        return self._session is not None

    def _exchange(self) -> None:
        """Reports, and takes the outcome of the round."""
        if self.report is not None and not self._is_reported:
            line = json.dumps([self.rank, self.report]) + "\n"
            self._store.append(self._key("reports", self._round), line)
            self._is_reported, self._round_at = True, self._attention
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
        self._beat()

    def _propose(self, outcome: Record) -> None:
        self._take(self._store.propose(self._key("outcome", self._round), json.dumps(outcome)))

    def _take(self, text: str) -> None:
        """Takes the outcome of this round."""
        outcome = json.loads(text)
        self.is_awaited, self._round_at = self.rank == 0 and self.step is not None, self._attention
        self._is_reported = False
        self._round += 1
        if "verdict" in outcome:
            self.verdict = outcome["verdict"]
            self._beat(at_once=True)
        else:
            self.report = self.reports = self.answers = None
            self.answer = outcome["answers"][outcome["of"][self.rank]]

    def _await_readers(self) -> None:
        """Finds out on rank 0, with which the store may end, whether others have read what it has."""
        lost = () if self.verdict is None else self.verdict["lost"]
        found = self._store.read_all([self._key("rank", rank) for rank in range(self.size) if rank not in lost]) or []
        is_read = bool(found) and all(json.loads(text)["round"] >= self._round for text in found)
        self.is_awaited = not is_read and self._attention < self._round_at + _READING_SECONDS

    # --- signs of life -----------------------------------------------------------------------------------------------

    def _beat(self, *, at_once: bool = False) -> None:
        """Says what this rank does, where that is new, and at each beat."""
        doing = "it did something else"
        if self.step is not None:
            doing = f"it waited for others in {self.step}" if self._is_reported else f"it was at {self.step}"
        if at_once or doing != self._doing or self._attention >= self._next_beat:
            self._doing, self._next_beat = doing, self._attention + self.beat_seconds
            self._num_beats += 1
            reported = self._round if self._is_reported else self._round - 1
            record = {"doing": doing, "round": self._round, "reported": reported, "beat": self._num_beats}
            self._store.write(self._key("rank", self.rank), json.dumps(self._process | record))

    def _look(self) -> None:
        """Reads what watched ranks say, and concludes in a step who is lost."""
        is_idle = self.step is None
        self._next_look = self._attention + (self.beat_seconds / 2 if is_idle else _LOOK_SECONDS)
        if self._session is not None:
            while self.is_leader and self._num_swept < self._round - 2:  # keys of rounds that all have left
                self._num_swept += 1
                for name in ("reports", "outcome"):
                    self._store.delete(self._key(name, self._num_swept))
            if not is_idle:
                self._refresh()
        if not is_idle and not self._judge_deaths():
            self._judge_silence()

    def _refresh(self) -> None:
        texts = {r: self._store.read(self._key("rank", r)) for r, peer in self._peers.items() if peer.record is None}
        if self._attention >= self._next_refresh:
            self._next_refresh = self._attention + self.beat_seconds / 2
            known = [rank for rank in self._peers if rank not in texts]
            found = self._store.read_all([self._key("rank", rank) for rank in known]) or []
            texts |= dict(zip(known, found, strict=True))
        for rank, text in texts.items():
            peer = self._peers[rank]
            if text is not None and text != peer.text:
                peer.text, peer.record, peer.heard = text, json.loads(text), self._attention

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
        if max(silences.values() if self.is_leader else [silences[self.size - 1]]) <= self.silence_seconds:
            return
        silent = [peer for rank, peer in self._peers.items() if silences[rank] > self.silence_seconds / 2]
        if self._session is None:  # which only the leader could give
            silent = [self._peers[self.size - 1]]
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
        self.verdict = verdict(message, _FROZEN_HINT.format(self.silence_seconds))

    def _judge_without_store(self, error: StoreError, since: float) -> None:
        """Concludes that the store is gone; names the rank that ended, where its process shows that."""
        if not self._judge_deaths() and self._attention > since + _GRACE_SECONDS:
            message = f"{_STORE_HOST} died or ended during {self._during}: {error}"
            self._give_up(message, "look at the logs of these ranks", [0])

    def _give_up(self, message: str, hint: str, lost: Sequence[int]) -> None:
        """Proposes to end the meetings of all; ends those of this rank where it cannot reach the others."""
        found = verdict(message, hint, lost)
        if self._session is not None and self._lost_store is None:
            with suppress(StoreError):
                self._propose({"verdict": found})
                return
        self.verdict = found


def verdict(message: str, hint: str | None = None, lost: Sequence[int] = ()) -> Record:
    """Returns why the meetings of all ranks end."""
    return {"failure": "BuildError", "message": message, "hint": hint, "lost": list(lost)}
