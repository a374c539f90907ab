"""Ranks that build together, over links that are slow, with clocks of their own.

Promised: every rank that lives and is awake ends soon, with what was built or with an error; an error names a rank that
really died, was frozen, was cut off or failed; and without any of these all get what was built, however long it takes.
"""

from __future__ import annotations

import re

import numpy as np

from tests.distributed import test_seat
from tests.simulation.scheduler import FailedError, World
from tokenloom.errors import BuildError, StorageError, TokenloomError

_NAMED = re.compile(r"ranks? (\d+)(?:(?: on `\w+`)?(?:, | and |-)(\d+))*")


class _Ranks(test_seat.World):
    """The ranks, of which one may fail to build, and whose links may end."""

    failing: int | None = None

    def work(self, rank: test_seat.Simulated) -> str:
        if rank.rank == self.failing:
            raise StorageError(f"the disk of rank {rank.rank} is full")
        return super().work(rank)

    def cut(self, member: int) -> None:
        """Ends the link of a member and the collector, for both."""
        collector = len(self.ranks) - 1
        for number, peer in ((member, collector), (collector, member)):
            self.pipes[number, peer].clear()
            if self.ranks[number].is_alive:
                self.ranks[number].seat.lose(peer)


def run(world: World) -> None:
    """One run of the scenario."""
    rng = world.rng
    size = rng.randrange(2, 6)
    affected: set[int] = set()
    events = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        moment, kind, victim = (
            rng.uniform(0, 60),
            rng.choice(("freeze", "nap", "kill", "cut", "jump")),
            rng.randrange(size),
        )
        if kind == "cut" and victim == size - 1:
            kind = "kill"
        world.tell(f"at {moment:.2f}: {kind} rank {victim} of {size}")
        if kind == "kill":
            events.append((moment, test_seat.kill(victim)))
        elif kind == "cut":
            events.append((moment, lambda ranks, victim=victim: ranks.cut(victim)))
        elif kind == "jump":
            events.append((moment, lambda ranks, victim=victim: _jump(ranks, victim)))
        else:
            events.append((moment, test_seat.freeze(victim)))
            if kind == "nap" or rng.random() < 0.5:
                events.append((moment + (rng.uniform(0, 40) if kind == "nap" else 300), test_seat.wake(victim)))
        if kind not in ("nap", "jump"):
            affected |= {victim, size - 1} if kind == "cut" else {victim}
        if kind == "nap" and len(events) > 2:
            affected.add(victim)  # several naps may add up
    ranks = _Ranks(np.random.default_rng(rng.getrandbits(60)), size, build_seconds=rng.uniform(0, 90), events=events)
    if rng.random() < 0.2:
        ranks.failing = 0
        affected.add(0)
    ranks.run(600)
    world.num_steps += 1
    for rank in ranks.ranks:
        world.tell(f"rank {rank.rank}: alive {rank.is_alive}, awake {rank.is_awake}: {rank.outcome!r}")
    for rank in ranks.ranks:
        if rank.is_alive and rank.is_awake:
            _check(rank, affected)


def _check(rank: test_seat.Simulated, affected: set[int]) -> None:
    outcome = rank.outcome
    if outcome is None:
        raise FailedError(f"rank {rank.rank} waits for ever")
    if outcome == "built":
        return
    if not isinstance(outcome, TokenloomError):
        raise FailedError(f"rank {rank.rank} ended with {outcome!r}")
    if not affected:
        raise FailedError(f"nothing happened, and rank {rank.rank} ended with {outcome!r}")
    named = {int(number) for match in _NAMED.finditer(str(outcome)) for number in match.groups() if number}
    if isinstance(outcome, BuildError) and not named & affected:
        raise FailedError(f"rank {rank.rank} blames {sorted(named)}, and {sorted(affected)} were hit: {outcome}")


def _jump(ranks: _Ranks, victim: int) -> None:
    ranks.ranks[victim].offset += float(ranks.rng.uniform(-1e5, 1e5))
