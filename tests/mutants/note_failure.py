"""A plugin of pytest that notes which test runs, and the first one that fails, in the file MUTANTS_NOTE."""

import json
import os
from pathlib import Path

import pytest

_failed: list[str] = []


def _note(test: str, *, failed: bool) -> None:
    if not _failed:
        Path(os.environ["MUTANTS_NOTE"]).write_text(json.dumps({"test": test, "failed": failed}))
    if failed:
        _failed.append(test)


def pytest_runtest_logstart(nodeid: str) -> None:
    _note(nodeid, failed=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _note(report.nodeid, failed=True)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note(report.nodeid, failed=True)
