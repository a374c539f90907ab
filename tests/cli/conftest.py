"""Locked runs for tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.runs import run, write_run


@pytest.fixture
def path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Returns `run.toml` of a locked run."""
    path = write_run(tmp_path)
    assert run(capsys, "run", "lock", path)[0] == 0
    return path
