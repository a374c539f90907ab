"""The environment of `make adapters` has what it says, and there nothing is skipped."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from tests.adapters.libraries import MUST_BE_THERE

PINNED = dict(
    line.split("==")
    for line in Path(__file__).with_name("requirements.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


@pytest.mark.skipif(not MUST_BE_THERE, reason="this is not the environment of `make adapters`")
@pytest.mark.parametrize("name", PINNED)
def test_the_pinned_version_is_installed(name):
    assert version(name) == PINNED[name]
