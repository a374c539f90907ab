"""Processes that build and read the same entry of an index cache, while its data may change.

Guarantee: a process gets the arrays of its own data, all of one build, even if others build, die or lose power. A later
process gets them, too.
"""

import numpy as np

from tests.simulation.scheduler import FailedError, Faults, World
from tests.simulation.system import simulated
from tokenloom.errors import IndexCacheError
from tokenloom.order import cache as module
from tokenloom.order.array_store import ArrayStore, StoredOrder
from tokenloom.order.cache import ArraySpec, IndexCache

_SPECS = {
    "documents": ArraySpec(np.dtype(np.int32), (300,)),
    "large": ArraySpec(np.dtype(np.int64), (30_000,)),
    "empty": ArraySpec(np.dtype(np.int64), (0,)),
}


def _arrays(data: int) -> dict[str, np.ndarray]:
    return {name: np.arange(spec.shape[0] or 0, dtype=spec.dtype) * (data + 1) + data for name, spec in _SPECS.items()}


_ARRAYS = {data: _arrays(data) for data in range(3)}


class _Data:
    def __init__(self, world: World, data: int) -> None:
        self.world, self.data = world, data

    def check(self) -> None:
        pass

    def identity(self) -> dict[str, int]:
        return {"data": self.data}


class _Order(StoredOrder):
    def __init__(self, source: _Data, store: ArrayStore) -> None:
        self.source = source
        super().__init__(store)

    def specs(self) -> dict[str, ArraySpec]:
        return _SPECS

    def build(self):
        for name, array in _ARRAYS[self.source.data].items():
            self.source.world.call(f"builds {name}")
            yield name, array.copy()

    def mismatch(self, arrays: object) -> None:
        pass


def _open(world: World, data: int) -> None:
    source = _Data(world, data)
    entry = IndexCache("/run/cache", "0123-GPTDataset")
    options = {"origin": source, "may_stay_unwritten": True}
    found = _Order(source, ArrayStore(cache=entry, description="the key", name="data", **options)).arrays
    for name, expected in _ARRAYS[data].items():
        if not np.array_equal(found[name], expected):
            wrong = int(np.flatnonzero(found[name] != expected)[0])
            raise FailedError(f"data {data}: {name} differs from {wrong}: {found[name][wrong : wrong + 3]}")


def run(world: World) -> None:
    world.disk.put_folder("/run")
    with simulated(world, (module,)):
        data = 0
        for boot in range(world.rng.randrange(1, 4)):
            works = {}
            for number in range(world.rng.randrange(1, 4)):
                data = world.rng.choice((data, data, data, world.rng.randrange(3)))
                works[f"rank{boot}{number} of {data}"] = lambda data=data: _open(world, data)
            for actor in world.run(works, Faults.drawn(world.rng)):
                if actor.error is not None and not issubclass(actor.error_kind or object, IndexCacheError):
                    raise FailedError(f"{actor.name} ended with {actor.error}")
        last = world.run({"at last": lambda: _open(world, data)})[0]
        if last.error is not None:
            raise FailedError(f"failed without faults: {last.error}")
