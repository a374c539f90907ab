"""Loaders without a library, correct and broken; the classes are factories, too."""

import os
import random
import signal
import time


class Counting:
    """A loader of shuffled numbers whose state is a position: any number of ranks may go on from it."""

    num_samples, seed = 400, 1

    def __init__(self, rank, world_size, state=None):
        self.place, self.step = 4 * rank, 4 * world_size
        self.position = state["position"] if state else 0
        self.order = list(range(self.num_samples))
        random.Random(self.seed).shuffle(self.order)

    def __iter__(self):
        while self.position + self.step <= len(self.order):
            first = self.position + self.place
            self.position += self.step
            yield {"number": self.order[first : first + 4]}
        self.position = 0

    def state_dict(self):
        return {"position": self.position}


def by_count(rank, world_size, consumed):
    return Counting(rank, world_size, {"position": consumed})


class Short(Counting):
    num_samples = 40


class ShufflesAnew(Counting):
    seed = None


class GivesNothing(Counting):
    num_samples = 0


class ForgetsReadAhead(Counting):
    def state_dict(self):
        return {"position": self.position + 2 * self.step}


class RepeatsABatch(Counting):
    def state_dict(self):
        return {"position": max(self.position - self.step, 0)}


def ignores_its_state(rank, world_size, state):
    return Counting(rank, world_size)


class LosesItsSeed(Counting):
    def __init__(self, rank, world_size, state):
        self.seed = 2 if state else 1
        super().__init__(rank, world_size, state)


def counts_by_rank(rank, world_size, num_batches):
    return Counting(rank, world_size, {"position": num_batches * 4 * world_size})


def turns_batches_round(rank, world_size, state):
    loader = Counting(rank, world_size, state)
    if state:
        loader.order[8:16], loader.order[16:24] = loader.order[16:24], loader.order[8:16]
    return loader


class SharesItsState(Counting):
    """Returns its state without a copy, and keeps the given one without a copy."""

    def __init__(self, rank, world_size, state):
        self.state = {"position": 0} if state is None else state
        super().__init__(rank, world_size, self.state)

    @property
    def position(self):
        return self.state["position"]

    @position.setter
    def position(self, position):
        self.state["position"] = position

    def state_dict(self):
        return self.state


class KeepsTheGivenState(SharesItsState):
    def state_dict(self):
        return dict(self.state)


class RepeatsEpochs(Short):
    """Repeats the first epoch when it is resumed at its end."""

    def __init__(self, rank, world_size, state):
        super().__init__(rank, world_size, state)
        self.epoch = state["epoch"] if state else 0

    def __iter__(self):
        random.Random(self.epoch).shuffle(self.order)
        yield from super().__iter__()
        self.epoch += 1

    def state_dict(self):
        return {"position": self.position % 40, "epoch": self.epoch}


class GoesOnBeyondTheEnd(Short):
    def __init__(self, rank, world_size, state):
        super().__init__(rank, world_size, state)
        self.is_endless = state is not None

    def __iter__(self):
        yield from super().__iter__()
        while self.is_endless:
            yield from super().__iter__()


def raises(rank, world_size, state):
    if state and rank == 1:
        raise OSError("no such bucket")
    return Counting(rank, world_size, state)


def always_raises(rank, world_size, state):
    raise OSError("no such bucket")


def hangs(rank, world_size, state):
    if state and rank == 1:
        time.sleep(1000)
    return Counting(rank, world_size, state)


def dies(rank, world_size, state):
    if state and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return Counting(rank, world_size, state)


def gives_objects(rank, world_size, state):
    return [{"number": [1, 2], "image": [object(), object()]}]


def cannot_go_on(rank, world_size):
    raise AssertionError


def position_of(loader, num_batches):
    return {"position": loader.gi_frame.f_locals["self"].position}


def numbers_of(batch):
    return batch["number"]
