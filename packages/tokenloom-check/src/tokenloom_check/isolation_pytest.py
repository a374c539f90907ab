"""The pytest fixture `isolation`; pytest loads it where tokenloom-check is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def isolation() -> Callable[..., Any]:
    """Returns `check_isolation`: `isolation(model, batch)` fails the test if a document leaks."""
    from tokenloom_check.isolation import check_isolation

    return check_isolation
