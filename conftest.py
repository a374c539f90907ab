"""Shared by all tests: seeds, hypothesis profiles, the order of tests, a warm process with torch, object storage.

Tiers (CONTRIBUTING.md): `make test` skips what is marked `slow` and draws the same cases in every run; `make test-all`
runs everything; `make search` draws fresh cases for the tests that draw.
"""

from __future__ import annotations

import os
import random
import secrets
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from tests.browser.fixtures import chromium, pages  # noqa: F401 - fixtures of all tests
from tests.object_store.fixtures import bucket, s3_server  # noqa: F401 - fixtures of all tests
from tests.support import forking_from

# The same examples in every run. A busy machine makes an example slow, not wrong.
settings.register_profile(
    "tokenloom",
    parent=settings.get_profile("default"),
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tokenloom")
settings.register_profile("all", parent=settings.get_profile("tokenloom"), max_examples=100)
settings.register_profile(
    "search",
    parent=settings.get_profile("tokenloom"),
    derandomize=False,
    database=settings.get_profile("default").database,
    max_examples=1000,
    print_blob=True,
)

# Sanitizers make everything several times slower.
settings.register_profile("sanitize", parent=settings.get_profile("all"), max_examples=25)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order-seed", type=int, help="shuffle files, and tests within each file, by this seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "seed" in getattr(item, "fixturenames", ()) or is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("draws")
    if (seed := config.getoption("--order-seed")) is not None:
        by_file: dict[Any, list[pytest.Item]] = {}
        for item in items:
            by_file.setdefault(item.path, []).append(item)
        files, rng = list(by_file.values()), random.Random(seed)
        rng.shuffle(files)
        for tests in files:
            rng.shuffle(tests)
        items[:] = [item for tests in files for item in tests]


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names bytes by their length: compressed data holds the time of its making, and workers must agree on names."""
    return f"{len(val)}_bytes" if isinstance(val, bytes) else None


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Returns the seed of this test: from its name, from `TOKENLOOM_TEST_SEED=N`, or drawn for `=fresh` and printed."""
    wanted = os.environ.get("TOKENLOOM_TEST_SEED")
    if wanted is None:
        return zlib.crc32(request.node.nodeid.encode()) % 2**31
    value = secrets.randbelow(2**31) if wanted == "fresh" else int(wanted)
    request.node.add_report_section("setup", "seed", f"TOKENLOOM_TEST_SEED={value}")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Returns a generator of this test's own, from its seed."""
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Any]:
    """Yields a context whose processes are forks of one that has imported torch and what ranks of tests run."""
    with forking_from("tests.distributed.worker", "tests.packing.worker") as context:
        yield context
