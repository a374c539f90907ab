"""What the explorer's page looks at, made once, and a server of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from explored_data import Explored, make_explored
from explorer_requests import Asker


@pytest.fixture(scope="session")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Explored:
    """Data and runs to explore."""
    return make_explored(tmp_path_factory.mktemp("explored"))


@pytest.fixture(scope="session")
def explorer(explored: Explored) -> Iterator[Asker]:
    """A server of the run."""
    with explored.served(explored.run()) as asker:
        yield asker
