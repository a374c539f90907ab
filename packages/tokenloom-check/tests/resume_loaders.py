"""Loaders without a library, correct and broken."""

from __future__ import annotations

import os
import random
import signal
import time


class Counting:
    """A loader of shuffled numbers whose state is a position: any number of ranks may go on from it."""

    def __init__(self, rank, world_size, start=0, *, num_samples=400, size=4, seed=1):
        self.place, self.step, self.size = size * rank, size * world_size, size
        self.position = start
        self.order = list(range(num_samples))
        random.Random(seed).shuffle(self.order)

    def __iter__(self):
        while self.position + self.step <= len(self.order):
            first = self.position + self.place
            self.position += self.step
            yield {"number": self.order[first : first + self.size]}
        self.position = 0

    def state_dict(self):
        return {"position": self.position}


def start_of(state):
    return state["position"] if state else 0


def counting(rank, world_size, state):
    return Counting(rank, world_size, start_of(state))


def by_count(rank, world_size, consumed):
    return Counting(rank, world_size, consumed)


def factory(name, kind, **settings):
    def make(rank, world_size, state):
        return kind(rank, world_size, start_of(state), **settings)

    make.__name__ = name
    return make


short = factory("short", Counting, num_samples=40)
shuffles_anew = factory("shuffles_anew", Counting, seed=None)
gives_nothing = factory("gives_nothing", Counting, num_samples=0)


class Ahead(Counting):
    def state_dict(self):
        return {"position": self.position + 2 * self.step}


class Behind(Counting):
    def state_dict(self):
        return {"position": max(self.position - self.step, 0)}


forgets_read_ahead, repeats_a_batch = factory("forgets_read_ahead", Ahead), factory("repeats_a_batch", Behind)


def ignores_its_state(rank, world_size, state):
    return Counting(rank, world_size)


def loses_its_seed(rank, world_size, state):
    return Counting(rank, world_size, start_of(state), seed=2 if state else 1)


def counts_by_rank(rank, world_size, num_batches):
    return Counting(rank, world_size, num_batches * 4 * world_size)


def turns_batches_round(rank, world_size, state):
    loader = Counting(rank, world_size, start_of(state))
    if state:
        loader.order[8:16], loader.order[16:24] = loader.order[16:24], loader.order[8:16]
    return loader


class Alias(Counting):
    """Returns its state without a copy, and keeps the given one without a copy."""

    def __init__(self, rank, world_size, state):
        super().__init__(rank, world_size)
        self.state = {"position": 0} if state is None else state

    @property
    def position(self):
        return self.state["position"]

    @position.setter
    def position(self, position):
        if hasattr(self, "state"):
            self.state["position"] = position

    def state_dict(self):
        return self.state


def shares_its_state(rank, world_size, state):
    return Alias(rank, world_size, state)


class Copies(Alias):
    def state_dict(self):
        return dict(self.state)


def keeps_the_state_it_is_given(rank, world_size, state):
    return Copies(rank, world_size, state)


class Goes(Counting):
    """Repeats the first epoch when it is resumed at its end."""

    def __init__(self, rank, world_size, state):
        super().__init__(rank, world_size, start_of(state), num_samples=40)
        self.epoch = state["epoch"] if state else 0

    def __iter__(self):
        random.Random(self.epoch).shuffle(self.order)
        yield from super().__iter__()
        self.epoch += 1

    def state_dict(self):
        return {"position": self.position % 40, "epoch": self.epoch}


def repeats_epochs(rank, world_size, state):
    return Goes(rank, world_size, state)


class Endless(Counting):
    def __iter__(self):
        while True:
            yield from super().__iter__()


def goes_on_beyond_the_end(rank, world_size, state):
    return (Endless if state else Counting)(rank, world_size, start_of(state), num_samples=40)


def raises(rank, world_size, state):
    if state and rank == 1:
        raise OSError("no such bucket")
    return Counting(rank, world_size, start_of(state))


def always_raises(rank, world_size, state):
    raise OSError("no such bucket")


def hangs(rank, world_size, state):
    if state and rank == 1:
        print("hangs", flush=True)
        time.sleep(1000)
    return Counting(rank, world_size, start_of(state))


def dies(rank, world_size, state):
    if state and rank == 0:
        print("out of memory", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return Counting(rank, world_size, start_of(state))


def gives_objects(rank, world_size, state):
    return [{"number": [1, 2], "image": [object(), object()]}]


def cannot_go_on(rank, world_size):
    raise AssertionError


def position_of(loader, num_batches):
    return {"position": loader.gi_frame.f_locals["self"].position}


def numbers_of(batch):
    return batch["number"]
