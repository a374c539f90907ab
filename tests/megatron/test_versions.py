"""`tokenloom.megatron.versions`."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from tests.megatron.conftest import write_megatron

from tokenloom.megatron.versions import CHECKED, NEWEST, installed_version, reference_version, version_numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.16.1", (0, 16, 1)), ("0.19.2rc1", (0, 19, 2)), ("0.20", (0, 20)), ("0.20.0+abc", (0, 20, 0)), ("dev", ())],
)
def test_versions_are_numbers(text, numbers):
    assert version_numbers(text) == numbers
    assert version_numbers(CHECKED[-1]) >= NEWEST


def test_what_is_imported_counts_first(megatron_here):
    core = ModuleType("megatron.core")
    core.__version__ = "0.19.2+abc"
    sys.modules["megatron.core"] = core  # `megatron_here` puts the modules back; monkeypatch would undo that after it
    assert reference_version() == (0, 19, 2) < NEWEST


def test_a_checkout_is_read_without_importing_it(own_imports, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_megatron(tmp_path, "0, 19, 1"))
    assert installed_version() == "0.19.1"
    assert reference_version() == (0, 19, 1)
    assert "megatron.core" not in sys.modules


def test_without_one_the_newest_is_followed(no_megatron):
    assert installed_version() is None
    assert reference_version() == NEWEST


@pytest.mark.peer
def test_the_installed_peer_is_found(own_imports):
    assert installed_version() in CHECKED
