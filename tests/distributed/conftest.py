"""Groups of four real processes, one per rank."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.fleet import Fleet, Group, Runner, fleet_of

WORKER = "tests.distributed.worker"


@pytest.fixture(scope="session")
def four_ranks(forkserver: Any) -> Iterator[Fleet]:
    """Yields warm processes, for all cases in which none is lost."""
    with fleet_of(forkserver, 4) as fleet:
        yield fleet


@pytest.fixture
def run(four_ranks: Fleet, tmp_path: Path) -> Runner:
    """Returns what runs a case of `worker` on every rank of four warm ones."""

    def run(case: str, *, backend: str = "gloo", **options: Any) -> Any:
        return four_ranks.run(Group(world_size=4, shared=tmp_path, backend=backend), WORKER, case, **options)

    return run


@pytest.fixture
def run_fresh(forkserver: Any, tmp_path: Path) -> Runner:
    """Returns what runs a case of `worker` on processes of its own, which may die, freeze or break their group."""

    def run(case: str, *, world_size: int = 4, backend: str = "gloo", **options: Any) -> Any:
        with fleet_of(forkserver, world_size) as fleet:
            return fleet.run(Group(world_size=world_size, shared=tmp_path, backend=backend), WORKER, case, **options)

    return run
