"""`tokenloom.megatron.finding`: what imports of the reference's names give."""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module

import tokenloom.megatron
from tokenloom.megatron.finding import Finder


def test_other_names_are_left_to_others():
    assert Finder().find_spec("json", None) is None
    assert Finder().find_spec("megatron.core.parallel_state", []) is None


def test_a_name_is_found_without_being_imported(megatron_here):
    tokenloom.megatron.install()
    spec = importlib.util.find_spec("megatron.core.datasets.helpers_cpp")
    assert spec.origin == "tokenloom.megatron.core.datasets.helpers_cpp"
    assert "megatron.core.datasets.helpers_cpp" not in sys.modules


def test_packages_that_the_installed_one_lacks_are_made_up(megatron_here):
    tokenloom.megatron.install()
    assert import_module("megatron.legacy.data").__path__ == []
    assert import_module("megatron.core").__file__ == str(megatron_here / "megatron" / "core" / "__init__.py")
