"""Ignores warnings of the frameworks; tokenloom's warnings stay errors."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in (item for item in items if Path(__file__).parent in item.path.parents):
        item.add_marker(pytest.mark.filterwarnings("ignore"), append=False)
        item.add_marker(pytest.mark.filterwarnings("error::tokenloom.errors.TokenloomWarning"))
