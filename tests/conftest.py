"""What all tests share: fresh seeds, printed when a test fails; a process with torch to fork from; object storage."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.browser.fixtures import chromium, pages  # noqa: F401 - fixtures of all tests
from tests.object_store.fixtures import bucket, s3_server  # noqa: F401 - fixtures of all tests
from tests.support import forking_from

# A busy machine makes an example slow, not wrong. The parent is named, since the default has fixed seeds under CI.
settings.register_profile(
    "tokenloom",
    parent=settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tokenloom")
# Sanitizers make everything several times slower: `make sanitize` asks for fewer examples.
settings.register_profile("sanitize", parent=settings.get_profile("tokenloom"), max_examples=25)


collect_ignore = ["megatron/cpu_torch.py", "megatron/training_loop.py"]
"""Programs that tests run: to look for examples in them would load Megatron's models."""


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names bytes by their length: compressed data holds the time of its making, and workers must agree on names."""
    return f"{len(val)}_bytes" if isinstance(val, bytes) else None


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A fresh seed per run; set TOKENLOOM_TEST_SEED to repeat one. Failures print it."""
    value = int(os.environ.get("TOKENLOOM_TEST_SEED", secrets.randbelow(2**31)))
    request.node.add_report_section("setup", "seed", f"TOKENLOOM_TEST_SEED={value}")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A generator of this test's own, from the fresh seed."""
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def forkserver() -> Iterator[Any]:
    """Starts processes as forks of one that has imported torch, and what ranks of tests run."""
    with forking_from("tests.distributed.worker", "tests.packing.worker") as context:
        yield context
