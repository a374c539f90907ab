"""Ranks that build together over a shared store, with separate clocks.

Guarantee: every living, awake rank soon ends with the result or an error. An error names a rank that died, was frozen,
was disconnected from the store or failed. If one rank has the result, so has every connected rank; without such events
all ranks get it, however long it takes. Keys that an earlier group left in the store do no harm.
"""

import re

import numpy as np

from tests.distributed import test_membership as simulated
from tests.simulation.scheduler import FailedError, World
from tokenloom.errors import BuildError, StorageError, TokenloomError

_NAMED = re.compile(r"ranks? (\d+)(?:(?: on `\w+`)?(?:, | and |-)(\d+))*")


class _Ranks(simulated.World):
    failing: int | None = None

    def work(self, rank: simulated.Simulated) -> str:
        if rank.rank == self.failing:
            raise StorageError(f"the disk of rank {rank.rank} is full")
        return super().work(rank)


def run(world: World) -> None:
    rng = world.rng
    size = rng.randrange(2, 6)
    values: dict[str, str] = {}
    if rng.random() < 0.3:
        world.tell("an earlier group")
        _run_group(world, size, values)
    _run_group(world, size, values)


def _run_group(world: World, size: int, values: dict[str, str]) -> None:
    rng = world.rng
    affected: set[int] = set()
    events = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        moment, kind = rng.uniform(0, 60), rng.choice(("freeze", "nap", "kill", "kill soon", "cut", "jump"))
        victim = rng.randrange(size)
        world.tell(f"at {moment:.2f}: {kind} rank {victim} of {size}")
        if kind == "kill":
            events.append((moment, simulated.kill(victim)))
        elif kind == "kill soon":
            events.append((moment, simulated.kill_soon(victim, rng.randrange(12))))
        elif kind == "cut":
            events.append((moment, simulated.cut(victim)))
        elif kind == "jump":
            events.append((moment, lambda ranks, victim=victim: _jump(ranks, victim)))
        else:
            events.append((moment, simulated.freeze(victim)))
            if kind == "nap" or rng.random() < 0.5:
                events.append((moment + (rng.uniform(0, 40) if kind == "nap" else 300), simulated.wake(victim)))
        if kind not in ("nap", "jump"):
            affected.add(victim)
        if kind == "nap" and len(events) > 2:
            affected.add(victim)  # several naps may add up
    seconds = rng.uniform(0, 90)
    drawn = np.random.default_rng(rng.getrandbits(60))
    ranks = _Ranks(drawn, size, build_seconds=seconds, events=events, values=values)
    if rng.random() < 0.2:
        ranks.failing = 0
        affected.add(0)
    for rank in ranks.ranks:
        rank.leaves = rng.random() < 0.3
    ranks.run(600)
    world.num_steps += 1
    for rank in ranks.ranks:
        world.tell(f"rank {rank.rank}: alive {rank.is_alive}, awake {rank.is_awake}: {rank.outcome!r}")
    for rank in ranks.ranks:
        if rank.outcome is not None or (rank.is_alive and rank.is_awake):
            _check(rank, affected)
    outcomes = {rank.rank: rank.outcome for rank in ranks.ranks if not rank.store.is_cut and rank.outcome is not None}
    if "built" in outcomes.values() and set(outcomes.values()) != {"built"}:
        raise FailedError(f"ranks disagree: {outcomes}")


def _check(rank: simulated.Simulated, affected: set[int]) -> None:
    outcome = rank.outcome
    if outcome is None:
        raise FailedError(f"rank {rank.rank} never ends")
    if outcome == "built":
        return
    if not isinstance(outcome, TokenloomError):
        raise FailedError(f"rank {rank.rank} ended with {outcome!r}")
    if rank.store.is_cut and "the host of the store" in str(outcome):
        return
    if not affected:
        raise FailedError(f"no rank was affected, but rank {rank.rank} ended with {outcome!r}")
    if rank.rank in affected and "not reached" in str(outcome):
        return  # it was frozen before it joined, and finds no other rank
    named = {int(number) for match in _NAMED.finditer(str(outcome)) for number in match.groups() if number}
    if isinstance(outcome, BuildError) and not named & affected:
        raise FailedError(f"rank {rank.rank} names {sorted(named)}, but {sorted(affected)} were affected: {outcome}")


def _jump(ranks: _Ranks, victim: int) -> None:
    ranks.ranks[victim].offset += float(ranks.rng.uniform(-1e5, 1e5))
