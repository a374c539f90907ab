"""What one rank says, hears and concludes in meetings, without sockets, threads or a clock: a state machine.

Every rank reports to one, the collector, which answers each. All ranks are connected to the collector only. Each side
of a connection gives a sign of life every `beat_seconds`, and takes the end of a connection for the death of the other.
Who finds another rank dead or silent, while anyone waits for it, tells all others why: the verdict, which ends the
meetings of this process group for all. The collector is the last rank, because usually the first one builds.

To drive it, in one process or in many (`link.py` does so with sockets and a thread):

1. Make a `Seat` per rank. `arrive(peer)` when the connection to a peer stands: on the collector with each member, on a
   member with the collector. `lose(peer)` when it ends, `hear(peer, message)` with what the other side put into its
   `outbox`, in that order, any time later. Messages are JSON.
2. Call `tick(now)` every `beat_seconds` or more often, after all that has arrived was heard. `now` is this rank's own
   clock: it need not agree with that of any other, and may jump ahead, which never counts as the silence of others.
3. `attend(step)` when the rank enters a call in which others wait for it, `leave_step()` when it leaves. A round begins
   with `report(record)`. On a member, `answer()` is the collector's answer when it is there. On the collector,
   `reports()` is what all ranks reported when it is complete, by rank, and `answer_all` answers them.
4. After each call, deliver what is in `outbox`, and look at `verdict`: once it is set, nothing changes any more.
   Deliver the last messages, then end all connections.

`building.build_steps` is what the ranks do in these rounds, a generator that says what is to be done or reported next;
`meeting.report_of` and `meeting.decided` make of that what is reported and answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.distributed.ranks import Ranks, name_rank, name_ranks
from tokenloom.distributed.silence import SILENCE_VARIABLE, beat_seconds

Record = dict[str, Any]

_FROZEN_HINT = (
    "it may be frozen, swapped out, cut off or powered off; where it is only late, allow more than {:g} seconds with "
    f"`tokenloom.set_rank_silence_seconds` or `{SILENCE_VARIABLE}`"
)
_LARGEST_NUMBER_SHOWN = 8
_DEAD_HINT = "look at the log of the rank that was lost, and whether the system killed it for its memory"


@dataclass(slots=True)
class Peer:
    """What is known of another rank."""

    rank: int
    heard: float
    """When it was last heard, in seconds of attention."""
    name: str
    step: str | None = None
    """What it last said it was doing; None until it came."""
    is_connected: bool = False
    is_lost: bool = False
    has_left: bool = False
    """Whether it said that it ends, for reasons of its own, as after the death of another rank."""


class Seat:
    """The part of one rank; see the module for how to drive it.

    Args:
        ranks: this rank.
        pid: its process, for messages.
        silence_seconds: how long another rank may be silent while somebody waits for it.
        now: this rank's clock.
    """

    def __init__(self, ranks: Ranks, *, pid: int, silence_seconds: float, now: float) -> None:
        self.rank: int = ranks.rank
        self.collector: int = ranks.world_size - 1
        self.silence_seconds = silence_seconds
        self.beat_seconds: float = beat_seconds(silence_seconds)
        self.outbox: deque[tuple[int, Record]] = deque()
        self.verdict: Record | None = None
        self._hello: Record = {"kind": "hello", "host": ranks.host, "pid": pid, "silence_seconds": silence_seconds}
        others = range(self.collector) if self.is_collector else [self.collector]
        self.peers: dict[int, Peer] = {rank: Peer(rank, 0.0, f"rank {rank}") for rank in others}
        self._now = now
        self._attention = 0.0
        self._last_beat = 0.0
        self._step: str | None = None
        self._is_waiting = False
        self._reports: dict[int, deque[Record]] = {rank: deque() for rank in range(ranks.world_size)}
        self._num_reported = 0
        self._lost: list[Peer] = []
        self.obstacle: str | None = None
        """What keeps this rank from finding others, if the transport knows."""
        self.missing: set[int] = set(self.peers)
        """The peers that have not come and are not known to be lost."""
        self._last_judged = 0.0
        self._answers: deque[Record] = deque()
        self._early: list[Record] = []
        """Reports for a collector that has not come."""

    @property
    def is_collector(self) -> bool:
        """Whether the others report to this rank."""
        return self.rank == self.collector

    # --- what the transport tells ------------------------------------------------------------------------------------

    def arrive(self, rank: int) -> None:
        """Takes that the connection to a peer stands."""
        peer = self.peers[rank]
        peer.is_connected, peer.heard = True, self._attention
        self.missing.discard(rank)
        self._send(rank, self._hello | {"step": self._doing})
        for record in self._early:
            self._send(rank, {"kind": "report", "record": record})
        self._early.clear()
        if self.verdict is not None:  # who comes just when meetings end takes their end for a death otherwise
            self._send(rank, {"kind": "verdict", "record": self.verdict})

    def hear(self, rank: int, message: Record) -> None:
        """Takes a message of a peer."""
        if self.verdict is not None:
            return
        peer = self.peers[rank]
        peer.heard = self._attention
        kind = message["kind"]
        if kind == "hello":
            peer.name = f"{name_rank(rank, message['host'])} (pid {message['pid']})"
            self._compare_silence(peer, message["silence_seconds"])
        if kind in ("hello", "beat"):
            peer.step = message["step"]
        elif kind == "report":
            peer.step = f"it waited for others in {message['record']['step']}"
            self._take_report(rank, message["record"])
        elif kind == "answer":
            self._is_waiting = False
            self._answers.append(message["record"])
        elif kind == "verdict" and self.is_collector:
            self._conclude(message["record"])
        elif kind == "verdict":
            self.verdict = message["record"]
        elif kind == "bye":
            peer.has_left = True
            self.lose(rank)

    def lose(self, rank: int) -> None:
        """Takes that the connection to a peer ended, or never will stand; judged once all that arrived was heard."""
        if not self.peers[rank].is_lost:
            self.peers[rank].is_lost = True
            self._lost.append(self.peers[rank])
            self.missing.discard(rank)

    def tick(self, now: float) -> None:
        """Takes the time; gives signs of life, and finds out who is silent.

        A time in which this rank itself was not there (frozen, suspended, behind a lock) does not count: it might have
        heard the others.
        """
        self._attention += min(max(now - self._now, 0.0), 2 * self.beat_seconds)
        self._now = now
        if self.verdict is None and self._attention - self._last_beat >= self.beat_seconds:
            self._beat()
        self._judge()
        if self._attention - self._last_judged >= self.beat_seconds / 2:
            self._last_judged = self._attention
            self._judge_silence()

    # --- what the rank does ------------------------------------------------------------------------------------------

    def attend(self, step: str) -> None:
        """Begins a step in which other ranks may wait for this one, and this one for others."""
        if step != self._step:
            self._step = step
            if not self.is_collector:  # which would tell thousands
                self._beat()
        self._judge()

    def leave_step(self) -> None:
        """Ends the step."""
        self._step = None

    def report(self, record: Record) -> None:
        """Begins a round."""
        self._is_waiting = True
        if self.is_collector:
            self._take_report(self.rank, record)
        elif not self.peers[self.collector].is_connected:
            self._early.append(record)
        else:
            self._send(self.collector, {"kind": "report", "record": record})
        self._judge()

    def answer(self) -> Record | None:
        """Returns the collector's answer to this rank's report, once; None while it is not there."""
        return self._answers.popleft() if self._answers else None

    def reports(self) -> list[Record] | None:
        """Returns the reports of a round, once, when all ranks have reported; on the collector."""
        if self._num_reported <= self.collector:
            return None
        self._is_waiting = False
        taken = [reports.popleft() for reports in self._reports.values()]
        self._num_reported = sum(map(bool, self._reports.values()))
        return taken

    @property
    def unreported(self) -> list[int]:
        """The ranks that have not reported in this round; on the collector."""
        return [rank for rank, reports in self._reports.items() if not reports]

    @property
    def step(self) -> str:
        """What this rank is at."""
        return self._step or "the next step"

    def answer_all(self, answers: Sequence[Record]) -> Record:
        """Answers a round; returns the collector's own answer."""
        for rank in self.peers:
            self._send(rank, {"kind": "answer", "record": answers[rank]})
        return answers[self.rank]

    def say_goodbye(self) -> None:
        """Tells the peers that this rank will not be heard any more."""
        for rank in self.peers:
            self._send(rank, {"kind": "bye"})

    def give_up(self, message: str, hint: str, lost: Sequence[int] = ()) -> None:
        """Ends the meetings of all, for a reason of this rank."""
        if self.verdict is None:
            self._conclude({"failure": "BuildError", "lost": list(lost), "message": message, "hint": hint})

    @property
    def has_news(self) -> bool:
        """Whether there is an answer, a complete round or a verdict."""
        return self.verdict is not None or bool(self._answers) or self._num_reported > self.collector

    # --- conclusions -------------------------------------------------------------------------------------------------

    @property
    def _doing(self) -> str:
        if self._step is None:
            return "it did something else"
        return f"it waited for others in {self._step}" if self._is_waiting else f"it was at {self._step}"

    @property
    def _awaited_step(self) -> str | None:
        """The step in which this rank, or one that reported, waits for others; None where nobody does."""
        if self._answers:
            return None
        if self._step is not None:
            return self._step
        return next((reports[0]["step"] for reports in self._reports.values() if reports), None)

    def _send(self, rank: int, message: Record) -> None:
        if self.peers[rank].is_connected and not self.peers[rank].is_lost:
            self.outbox.append((rank, message))

    def _beat(self) -> None:
        self._last_beat = self._attention
        for rank in self.peers:
            self._send(rank, {"kind": "beat", "step": self._doing})

    def _take_report(self, rank: int, record: Record) -> None:
        self._num_reported += not self._reports[rank]
        self._reports[rank].append(record)
        self._judge()

    def _judge(self) -> None:
        """Concludes if a rank is lost that somebody waits for."""
        if not self._lost or self.verdict is not None or (step := self._awaited_step) is None:
            return
        # Who left may have done so because of who died, and been faster to say so.
        to_blame = [peer for peer in self._lost if not peer.has_left] or self._lost
        lost = [peer.rank for peer in self._lost]
        names = ", ".join(peer.name for peer in to_blame)
        alive = [rank for rank in range(self.collector + 1) if rank not in lost]
        rest = f"; {name_ranks(alive)} could still be reached" if self.is_collector else ""
        self.give_up(f"{names} died or ended during {step}{rest}", _DEAD_HINT, lost)

    def _judge_silence(self) -> None:
        """Concludes if somebody waits for a rank that is silent; names those too that soon will be."""
        if self.verdict is not None or (step := self._awaited_step) is None:
            return
        silences = {peer.rank: self._attention - peer.heard for peer in self.peers.values()}
        if max(silences.values()) <= self.silence_seconds:
            return
        if self.obstacle is not None and self.missing:
            message = f"{self.obstacle} has not answered for {self.silence_seconds:.1f} s during {step}"
            self.give_up(message, _FROZEN_HINT.format(self.silence_seconds))
            return
        silent = [rank for rank, seconds in silences.items() if seconds > self.silence_seconds / 2]
        phrases = [self._describe_silence(self.peers[rank], silences[rank], step) for rank in silent]
        absent = [rank for rank in silent if self.peers[rank].step is None]
        if absent:
            have = "has" if len(absent) == 1 else "have"
            longest = max(silences[rank] for rank in absent)
            lack = f"{have} not come to {step} within {longest:.1f} s, nor given a sign of life"
            phrases = [*filter(None, phrases), f"{name_ranks(absent)} {lack}"]
        self.give_up("; ".join(phrases[-_LARGEST_NUMBER_SHOWN:]), _FROZEN_HINT.format(self.silence_seconds), silent)

    def _describe_silence(self, peer: Peer, seconds: float, step: str) -> str:
        if peer.step is None:
            return ""
        return f"{peer.name} has been silent for {seconds:.1f} s during {step}; when last heard, {peer.step}"

    def _compare_silence(self, peer: Peer, seconds: float) -> None:
        if seconds != self.silence_seconds:
            message = (
                f"ranks differ in the seconds that a rank may be silent: {self.silence_seconds:g} on rank {self.rank}, "
                f"{seconds:g} on rank {peer.rank}"
            )
            hint = f"set the same on all ranks with `tokenloom.set_rank_silence_seconds` or `{SILENCE_VARIABLE}`"
            self._conclude({"failure": "DivergenceError", "lost": [], "message": message, "hint": hint})

    def _conclude(self, verdict: Record) -> None:
        self.verdict = verdict
        for rank in self.peers:
            self._send(rank, {"kind": "verdict", "record": verdict})
