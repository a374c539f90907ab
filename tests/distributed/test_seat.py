"""Ranks in one process, without sockets or sleeps: a scheduler with a seed delivers messages and lets clocks run."""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np
import pytest

from tokenloom.distributed.building import Do, build_steps
from tokenloom.distributed.link import error_of
from tokenloom.distributed.meeting import Attempt, decided, report_of
from tokenloom.distributed.ranks import Ranks
from tokenloom.distributed.seat import Seat
from tokenloom.errors import BuildError, TokenloomError


class Simulated:
    """One rank: a seat, the steps of a build, and a clock of its own."""

    def __init__(self, rank, world, size, offset):
        self.rank, self.world, self.offset = rank, world, offset
        ranks = Ranks(rank=rank, world_size=size, host=f"host{rank // 2}")
        self.host = ranks.host
        self.seat = Seat(ranks, pid=100 + rank, silence_seconds=60, now=offset)
        self.outcome = None
        self.is_awake = self.is_alive = True
        self._steps = build_steps(
            lambda: world.work(self),
            look=lambda: world.look(self),
            is_built_on_rank=lambda: True,
            folder="cache",
            builders="rank0",
            describe=lambda _: {},
        )
        self._step, self._busy_until = None, None

    def start(self):
        self.seat.attend("looking for what is built")
        self._advance(lambda: next(self._steps))

    def run(self):
        """Goes on as far as it can without hearing more."""
        while self.outcome is None:
            if isinstance(self._step, Do):
                if self._busy_until is None:
                    self.seat.attend(self._step.step)
                    self._busy_until = self.world.now + self.world.seconds_of(self, self._step)
                if self.world.now < self._busy_until:
                    return
                self._busy_until, attempt = None, Attempt(self._step.call)
                self._advance(lambda sent=attempt: self._steps.send(sent))
                continue
            if (answer := self._answer()) is None:
                return
            if "failure" in answer:
                error = error_of(answer)
                self._advance(lambda thrown=error: self._steps.throw(thrown))
            else:
                self._advance(lambda sent=answer: self._steps.send(sent))

    def _answer(self):
        if (answer := self.seat.answer()) is not None or self.seat.verdict is not None:
            return self.seat.verdict if answer is None else answer
        if self.seat.is_collector and (reports := self.seat.reports()) is not None:
            return self.seat.answer_all(decided(reports, self._step.decide))
        return None

    def _advance(self, go):
        try:
            self._step = go()
        except StopIteration as end:
            self.outcome = end.value
            self.seat.leave_step()
        except TokenloomError as error:
            self.outcome = error
        else:
            if not isinstance(self._step, Do):
                self.seat.attend(self._step.step)
                self.seat.report(report_of(self._step.step, self.host, self._step.record, self._step.attempt))


class World:
    """Ranks, what travels between them, and what happens to them at some time."""

    def __init__(self, rng, size=4, *, build_seconds=1.0, events=()):
        self.rng, self.now, self.build_seconds = rng, 0.0, build_seconds
        self.built, self.events = False, deque(sorted(events, key=lambda event: event[0]))
        self.ranks = [Simulated(rank, self, size, float(rng.uniform(0, 1e6))) for rank in range(size)]
        self.pipes = {}
        for member, collector in itertools.product(range(size - 1), [size - 1]):
            for pair in ((member, collector), (collector, member)):
                self.pipes[pair] = deque()
                self.ranks[pair[0]].seat.arrive(pair[1])
        for rank in self.ranks:
            rank.start()

    def look(self, rank):
        return "built" if self.built else None

    def work(self, rank):
        self.built = True
        return "built"

    def seconds_of(self, rank, step):
        return self.build_seconds if step.step == "the build" else 0.0

    def run(self, until):
        while self.now < until and any(rank.is_alive and rank.outcome is None for rank in self.ranks):
            self.now += float(self.rng.uniform(0.01, 0.9))
            while self.events and self.events[0][0] <= self.now:
                _, happen = self.events.popleft()
                happen(self)
            self._deliver()
            for number in self.rng.permutation(len(self.ranks)):
                rank = self.ranks[number]
                if rank.is_alive and rank.is_awake:
                    rank.seat.tick(self.now + rank.offset)
                    rank.run()
                    for peer, message in rank.seat.outbox:
                        self.pipes[number, peer].append((self.now + float(self.rng.uniform(0, 0.5)), message))
                    rank.seat.outbox.clear()

    def _deliver(self):
        for (sender, receiver), pipe in self.pipes.items():
            rank = self.ranks[receiver]
            while pipe and pipe[0][0] <= self.now and rank.is_alive and rank.is_awake:
                rank.seat.hear(sender, pipe.popleft()[1])
            if not pipe and not self.ranks[sender].is_alive and rank.is_alive and rank.is_awake:
                rank.seat.lose(sender)


def freeze(number):
    return lambda world: setattr(world.ranks[number], "is_awake", False)


def wake(number):
    return lambda world: setattr(world.ranks[number], "is_awake", True)


def kill(number):
    return lambda world: setattr(world.ranks[number], "is_alive", False)


def test_a_build_of_hours_is_waited_for(rng):
    world = World(rng, build_seconds=4 * 3600)
    world.run(5 * 3600)
    assert [rank.outcome for rank in world.ranks] == ["built"] * 4
    assert world.now > 4 * 3600


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_frozen_rank_is_named_after_the_limit_and_fails_when_it_wakes(rng, victim):
    world = World(rng, build_seconds=600, events=[(30, freeze(victim)), (400, wake(victim))])
    world.run(399)
    for rank in world.ranks:
        if rank.rank != victim and rank.rank != 0:  # rank 0 builds
            assert isinstance(rank.outcome, BuildError)
            assert rank.outcome.message.startswith(
                f"rank {victim} on `host{victim // 2}` (pid {100 + victim}) has been"
            )
    assert world.ranks[victim].outcome is None
    world.run(1200)
    assert {type(rank.outcome) for rank in world.ranks} == {BuildError}


def test_a_rank_that_freezes_for_less_than_the_limit_goes_on(rng):
    victim = int(rng.integers(4))
    world = World(rng, build_seconds=600, events=[(30, freeze(victim)), (70, wake(victim))])
    world.run(1200)
    assert [rank.outcome for rank in world.ranks] == ["built"] * 4


def test_an_observer_that_sleeps_does_not_take_others_for_silent(rng):
    """As when a laptop is closed: all ranks stop together, and clocks jump."""
    sleepers = [(30 + number / 1000, freeze(number)) for number in range(4)]
    wakers = [(5000 + number / 10, wake(number)) for number in range(4)]
    world = World(rng, build_seconds=60, events=sleepers + wakers)
    world.run(6000)
    assert [rank.outcome for rank in world.ranks] == ["built"] * 4


def test_clocks_that_jump_do_not_matter(rng):
    def jump(world):
        for rank in world.ranks:
            rank.offset += float(rng.uniform(-1e5, 1e5))

    world = World(rng, build_seconds=100, events=[(20, jump), (40, jump), (60, jump)])
    world.run(300)
    assert [rank.outcome for rank in world.ranks] == ["built"] * 4


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_death_is_known_at_once(rng, victim):
    world = World(rng, build_seconds=20, events=[(5, kill(victim))])
    world.run(8)
    for rank in world.ranks:
        if rank.rank not in (0, victim):
            assert rank.outcome.message.startswith(f"rank {victim} on `host{victim // 2}` (pid {100 + victim}) died or")


def test_an_answer_counts_although_the_collector_ended_right_after_it():
    ranks = [Ranks(rank=rank, world_size=2, host="host") for rank in range(2)]
    member, collector = (Seat(rank, pid=1, silence_seconds=60, now=0.0) for rank in ranks)
    for seat, peer in ((member, 1), (collector, 0)):
        seat.arrive(peer)
        seat.attend("the build")
        seat.report({"step": "the build"})
    for _, message in member.outbox:
        collector.hear(0, message)
    assert collector.reports() == [{"step": "the build"}] * 2
    collector.answer_all([{"all": "well"}] * 2)
    collector.say_goodbye()
    for _, message in collector.outbox:
        member.hear(1, message)
    assert (member.answer(), member.verdict) == ({"all": "well"}, None)
    member.attend("the next step")
    assert member.verdict["message"] == "rank 1 on `host` (pid 1) died or ended during the next step"


def test_who_comes_when_the_meetings_have_just_ended_learns_why():
    seconds = {0: 30, 1: 31, 2: 31}
    seats = [
        Seat(Ranks(rank=rank, world_size=3, host="host"), pid=1, silence_seconds=seconds[rank], now=0.0)
        for rank in range(3)
    ]
    collector = seats[2]
    for rank in range(2):  # the hello of rank 0 ends the meetings before the connection of rank 1 stands
        seats[rank].attend("the build")
        seats[rank].arrive(2)
        collector.arrive(rank)
        for _, message in seats[rank].outbox:
            collector.hear(rank, message)
    for receiver, message in collector.outbox:
        seats[receiver].hear(2, message)
    for rank in range(2):
        seats[rank].lose(2)
        seats[rank].tick(0.1)
    assert {seat.verdict["failure"] for seat in seats} == {"DivergenceError"}
    assert seats[1].verdict == collector.verdict


def test_who_left_because_of_a_death_is_not_blamed_for_it():
    collector = Seat(Ranks(rank=3, world_size=4, host="host"), pid=1, silence_seconds=60, now=0.0)
    for rank in range(3):
        collector.arrive(rank)
    collector.attend("the exchange")
    collector.hear(0, {"kind": "bye"})  # faster than the end of the dead one's connection
    collector.lose(1)
    collector.tick(0.1)
    assert collector.verdict["message"].startswith("rank 1 died or ended during the exchange; ranks 2-3 ")
    assert collector.verdict["lost"] == [0, 1]


def test_whatever_happens_no_rank_waits_for_ever_and_no_two_ranks_disagree(rng):
    for _ in range(200):
        size = int(rng.integers(2, 6))
        events = []
        for _ in range(int(rng.integers(1, 4))):
            happen = (freeze, kill, wake)[rng.integers(3)]
            events.append((float(rng.uniform(0, 40)), happen(int(rng.integers(size)))))
        world = World(rng, size, build_seconds=float(rng.uniform(0, 60)), events=events)
        world.run(300)
        outcomes = [rank.outcome for rank in world.ranks if rank.is_alive and rank.is_awake]
        assert None not in outcomes
        assert all(outcome == "built" or isinstance(outcome, BuildError) for outcome in outcomes)


def test_the_same_seed_gives_the_same_run():
    def trace(seed):
        world = World(np.random.default_rng(seed), build_seconds=600, events=[(30, freeze(1))])
        world.run(200)
        return [str(rank.outcome) for rank in world.ranks], world.now

    assert trace(5) == trace(5)


def test_the_collector_knows_for_whom_it_waits():
    collector = Seat(Ranks(rank=3, world_size=4, host="host"), pid=1, silence_seconds=60, now=0.0)
    collector.attend("the build")
    assert (collector.unreported, collector.step) == ([0, 1, 2, 3], "the build")
    collector.report({"step": "the build"})
    collector.arrive(1)
    collector.hear(1, {"kind": "report", "record": {"step": "the build"}})
    assert collector.unreported == [0, 2]
