"""The protocol of ranks in one process, without threads or sleeps: a seeded generator orders the ranks' turns."""

from collections import deque
from operator import itemgetter

import pytest

from tokenloom.distributed.building import Build
from tokenloom.distributed.meeting import Attempt, error_of, report_of
from tokenloom.distributed.membership import Membership
from tokenloom.distributed.ranks import Ranks
from tokenloom.errors import BuildError, TokenloomError


class DeadError(BaseException):
    """Ends a rank where it is."""


class SharedStore:
    """What one rank sees of the store of all; it may die at a call, or be cut off."""

    def __init__(self, values):
        self.values = values
        self.calls_left = None
        """After which the rank dies."""
        self.is_cut = False

    def check(self, keys):
        self._call()
        return all(key in self.values for key in keys)

    def multi_get(self, keys):
        self._call()
        return [self.values[key].encode() for key in keys]

    def set(self, key, text):
        self._call()
        self.values[key] = text

    def append(self, key, text):
        self._call()
        self.values[key] = self.values.get(key, "") + text

    def compare_set(self, key, expected, text):
        self._call()
        if key in self.values:
            return self.values[key].encode()
        if not expected:
            self.values[key] = text
        return text.encode()

    def delete_key(self, key):
        self._call()
        self.values.pop(key, None)

    def _call(self):
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise DeadError
            self.calls_left -= 1
        if self.is_cut:
            raise RuntimeError("connection reset")


class Simulated:
    """One rank: its membership, the steps of a build, and a clock of its own."""

    def __init__(self, rank, world, size, offset):
        self.rank, self.world, self.offset = rank, world, offset
        ranks = Ranks(rank=rank, world_size=size, host=f"host{rank // 2}")
        self.host = ranks.host
        self.store = SharedStore(world.values)
        self.member = Membership(
            ranks,
            lambda: self.store,
            process={"host": ranks.host, "pid": 100 + rank},
            is_gone=lambda other: other["host"] == self.host and not world.ranks[other["pid"] - 100].is_alive,
            nonce=f"{world.rng.integers(1 << 60):x}",
            silence_seconds=60,
            now=offset,
        )
        self.outcome = None
        self.is_awake = self.is_alive = True
        self.leaves = False
        """Whether its process ends once it has built."""
        build = Build(work=lambda: world.work(self), look=lambda: world.look(self), folder="cache", builders="rank0")
        self._rounds = build.rounds()
        self._round, self._busy_until = None, None

    def start(self):
        self._advance(lambda: next(self._rounds))

    def run(self):
        """Goes on as far as it can without hearing more."""
        try:
            self.member.advance(self.world.now + self.offset)
            while self.outcome is None and self._go_on():
                self.member.advance(self.world.now + self.offset)
            if self.outcome == "built" and self.leaves:
                self.member.leave("its process ended")
                self.is_alive = False
        except DeadError:
            self.is_alive = False

    def _go_on(self):
        if self._busy_until is not None:
            if self.world.now < self._busy_until:
                return False
            self._busy_until, attempt = None, Attempt(self._round.work)
            self.member.answer, self.member.decide = None, self._round.decide
            self.member.report = report_of(self._round.step, self.host, attempt)
            return True
        answer = self.member.verdict if self.member.answer is None else self.member.answer
        if answer is None:
            return False
        if "failure" in answer:
            self._advance(lambda: self._rounds.throw(error_of(answer)))
        else:
            self._advance(lambda: self._rounds.send(answer))
        return True

    def _advance(self, go):
        try:
            self._round = go()
        except StopIteration as end:
            self.outcome = end.value
            self.member.step = None
        except TokenloomError as error:
            self.outcome = error
            self.member.step = None
        else:
            self.member.attend(self._round.step)
            self._busy_until = self.world.now + self.world.seconds_of(self, self._round)


class World:
    """Ranks, the store that they share, and what happens to them at some time."""

    def __init__(self, rng, size=4, *, build_seconds=1.0, events=(), values=None):
        self.rng, self.now, self.build_seconds = rng, 0.0, build_seconds
        self.values = {} if values is None else values
        self.built, self.events = False, deque(sorted(events, key=itemgetter(0)))
        self.ranks = []
        self.ranks += [Simulated(rank, self, size, float(rng.uniform(0, 1e6))) for rank in range(size)]
        for rank in self.ranks:
            rank.start()

    def look(self, rank):
        return "built" if self.built else None

    def work(self, rank):
        self.built = True
        return "built"

    def seconds_of(self, rank, each):
        return self.build_seconds if each.step == "the build" and rank.rank == 0 else 0.0

    def run(self, until):
        while self.now < until and any(rank.is_alive and rank.outcome is None for rank in self.ranks):
            self.now += float(self.rng.uniform(0.01, 0.9))
            while self.events and self.events[0][0] <= self.now:
                _, happen = self.events.popleft()
                happen(self)
            for number in self.rng.permutation(len(self.ranks)):
                rank = self.ranks[number]
                if rank.is_alive and rank.is_awake:
                    rank.run()

    def outcomes(self):
        return [rank.outcome for rank in self.ranks]


def freeze(number):
    return lambda world: setattr(world.ranks[number], "is_awake", False)


def wake(number):
    return lambda world: setattr(world.ranks[number], "is_awake", True)


def kill(number):
    return lambda world: setattr(world.ranks[number], "is_alive", False)


def kill_soon(number, num_calls):
    """Kills a rank at one of its next calls of the store."""
    return lambda world: setattr(world.ranks[number].store, "calls_left", num_calls)


def cut(number):
    return lambda world: setattr(world.ranks[number].store, "is_cut", True)


def test_a_build_of_hours_is_waited_for_and_clocks_that_jump_do_not_matter(rng):
    world = World(rng, build_seconds=4 * 3600)
    world.run(5 * 3600)
    assert world.outcomes() == ["built"] * 4
    assert world.now > 4 * 3600

    def jump(world):
        for rank in world.ranks:
            rank.offset += float(rng.uniform(-1e5, 1e5))

    world = World(rng, build_seconds=100, events=[(20, jump), (40, jump), (60, jump)])
    world.run(300)
    assert world.outcomes() == ["built"] * 4


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_frozen_rank_is_named_after_the_limit_and_fails_when_it_wakes(rng, victim):
    world = World(rng, build_seconds=600, events=[(30, freeze(victim)), (400, wake(victim))])
    world.run(399)
    for rank in world.ranks:
        if rank.rank != victim and rank.rank != 0:  # rank 0 builds
            start = f"rank {victim} on `host{victim // 2}` (pid {100 + victim}) has been"
            assert isinstance(rank.outcome, BuildError)
            assert rank.outcome.message.startswith(start)
    assert world.ranks[victim].outcome is None
    world.run(1200)
    assert {type(outcome) for outcome in world.outcomes()} == {BuildError}


def test_a_rank_that_freezes_for_less_than_the_limit_goes_on_and_so_do_all_that_sleep_together(rng):
    victim = int(rng.integers(4))
    world = World(rng, build_seconds=600, events=[(30, freeze(victim)), (70, wake(victim))])
    world.run(1200)
    assert world.outcomes() == ["built"] * 4
    # As when a laptop is closed: all ranks stop together, and clocks jump.
    sleepers = [(30 + number / 1000, freeze(number)) for number in range(4)]
    wakers = [(5000 + number / 10, wake(number)) for number in range(4)]
    world = World(rng, build_seconds=60, events=sleepers + wakers)
    world.run(6000)
    assert world.outcomes() == ["built"] * 4


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_death_is_known_at_once_to_a_rank_on_the_same_host_and_so_to_all(rng, victim):
    world = World(rng, build_seconds=20, events=[(5, kill(victim))])
    world.run(8)
    for rank in world.ranks:
        if rank.rank not in (0, victim):
            assert rank.outcome.message.startswith(f"rank {victim} on `host{victim // 2}` (pid {100 + victim}) died or")


def test_a_death_on_a_host_of_its_own_is_known_after_the_limit(rng):
    world = World(rng, size=3, build_seconds=600, events=[(5, kill(2))])
    world.run(60)
    assert world.outcomes() == [None] * 3
    world.run(90)
    assert world.ranks[1].outcome.message.startswith("rank 2 on `host1` (pid 102) has been silent for 6")


def test_a_rank_whose_store_is_gone_says_so_and_others_name_it(rng):
    world = World(rng, build_seconds=600, events=[(5, cut(1))])
    world.run(100)
    host = "the host of the store of `torch.distributed`, often rank 0,"
    assert world.ranks[1].outcome.message == f"{host} died or ended during the build: connection reset"
    for rank in (2, 3):
        assert world.ranks[rank].outcome.message.startswith("rank 1 on `host0` (pid 101) has been silent for 6")


def test_what_an_earlier_group_left_does_no_harm_and_keys_of_old_rounds_are_removed(rng):
    values = {}
    for build_seconds, events in ((5, ()), (30, [(10, kill(1))]), (5, ())):
        world = World(rng, build_seconds=build_seconds, events=events, values=values)
        world.run(200)
    assert world.outcomes() == ["built"] * 4
    world = World(rng, build_seconds=30)
    world.run(100)
    kinds = [key.split("/")[1] for key in world.values if "/" in key]
    assert (kinds.count("outcome"), kinds.count("reports")) <= (3, 3)


def members(*silences, gone=()):
    values = {}
    return [
        Membership(
            Ranks(rank=rank, world_size=len(silences), host="a"),
            lambda: SharedStore(values),
            process={"host": "a", "pid": rank},
            is_gone=lambda process: process["pid"] in gone,
            nonce=str(rank),
            silence_seconds=seconds,
            now=0.0,
        )
        for rank, seconds in enumerate(silences)
    ]


def advance(*those, now=0.0):
    for member in (*those, *those, *those):
        member.advance(now)


def attending(*silences, step="the build", reports=True, gone=()):
    """Returns members in a step, with their reports."""
    found = members(*silences, gone=gone)
    for each in found:
        each.attend(step)
        each.report = {"step": step} if reports else None
    return found


def test_an_answer_counts_although_the_leader_ended_right_after_it():
    member, leader = attending(60, 60)
    leader.decide = lambda reports: [{"all": len(reports)} for _ in reports]
    for each in (member, leader, member):
        each.advance(0.0)
    leader.advance(0.0)
    leader.leave("its process ended")
    member.advance(0.0)
    assert (member.answer, member.verdict) == ({"all": 2}, None)
    member.attend("the next step")
    member.advance(1.0)
    assert member.verdict["message"] == "rank 1 on `a` (pid 1) ended during the build: its process ended"


def test_a_verdict_counts_although_the_leader_answers_right_after_it():
    member, leader = attending(60, 60)
    for each in (leader, member, leader, member):
        each.advance(0.0)
    member.leave("KeyboardInterrupt")
    leader.advance(0.0)
    member.advance(0.0)
    assert leader.verdict == member.verdict
    assert leader.verdict["message"] == "rank 0 on `a` (pid 0) ended during the build: KeyboardInterrupt"


def test_who_leaves_because_of_a_death_blames_the_dead():
    gone = set()
    dead, leaving, leader = attending(60, 60, 60, step="the exchange", reports=False, gone=gone)
    for now in (0.0, 1.0):
        advance(dead, leaving, leader, now=now)
    gone.add(0)
    leaving.leave("BrokenPipeError")
    advance(leader, now=2.0)
    assert leader.verdict["message"] == "rank 0 on `a` (pid 0) died or ended during the exchange"
    assert leader.verdict["lost"] == [0]


def test_the_leader_knows_for_whom_it_waits():
    zero, one, leader = attending(60, 60, 60, reports=False)
    assert leader.unreported == [0, 1]
    one.report = {"step": "the build"}
    for now in range(10):
        advance(zero, one, leader, now=float(now))
    assert (leader.unreported, leader.step) == ([0], "the build")


@pytest.mark.parametrize("reads", [True, False])
def test_rank_0_takes_an_outcome_when_others_have_read_it_or_have_had_time_to(reads):
    zero, one, leader = attending(60, 60, 60, reports=False)
    advance(zero, one, leader)
    for member in (zero, one, leader, zero):
        member.report = {"step": "the build"}
        member.advance(0.1)
    assert (zero.answer, leader.answer) == (None, {})
    for member in (one, zero) if reads else (zero, zero):
        member.advance(0.2 if reads else member.now + 1)
    assert (zero.answer, one.answer) == ({}, {} if reads else None)
