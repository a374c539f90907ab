"""Groups of eight real processes, one per rank."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.fleet import Fleet, Group, Outcomes, fleet_of

WORKER = "tests.packing.worker"
RANKS = 8


class Eight:
    def __init__(self, fleet: Fleet, shared: Path) -> None:
        self._fleet, self._shared = fleet, shared

    def outcomes(self, case: str, **options: Any) -> Outcomes:
        self._fleet.start_if_lost()
        shared = self._shared / str(self._fleet.num_starts)
        shared.mkdir(exist_ok=True)
        return self._fleet.run(Group(world_size=RANKS, shared=shared), WORKER, case, **options)

    def results(self, case: str, **options: Any) -> list[Any]:
        return self.outcomes(case, **options).results

    def errors(self, case: str, **options: Any) -> list[tuple[str, str]]:
        return self.outcomes(case, **options).errors


@pytest.fixture(scope="module")
def fleet(forkserver: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Eight]:
    """Yields processes that end with the module, since the threads of gloo's groups wake 100 times a second."""
    with fleet_of(forkserver, RANKS) as fleet:
        yield Eight(fleet, tmp_path_factory.mktemp("fleet"))


@pytest.fixture
def doomed(forkserver: Any, tmp_path: Path) -> Iterator[Eight]:
    """Yields processes that the test may kill."""
    with fleet_of(forkserver, RANKS) as fleet:
        yield Eight(fleet, tmp_path)
