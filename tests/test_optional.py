"""Modules that are imported when they are needed: optional libraries, and things of a registry by name."""

import json
import os
import sys

import pytest

from tokenloom.errors import ConfigError, MissingExtraError
from tokenloom.optional import folder_of, require
from tokenloom.registry import Registry


def test_an_installed_module_is_returned():
    assert require("json", extra="all") is json
    assert require("importlib.metadata", extra="all") is sys.modules["importlib.metadata"]


@pytest.mark.parametrize("module", ["absent_module", "absent_module.part"])
def test_a_missing_module_names_the_command_that_installs_it(module):
    with pytest.raises(MissingExtraError) as caught:
        require(module, extra="torch")
    assert caught.value.message == "`absent_module` is not installed"
    assert caught.value.hint == "run `pip install 'tokenloom[torch]'`"
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_missing_dependency_of_an_installed_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "needs_absent.py").write_text("import absent_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"^`absent_module` is not installed, but `needs_absent` needs it\n"):
        require("needs_absent", extra="all")


def test_the_folder_of_a_package_is_found_without_importing_it(tmp_path, monkeypatch):
    (tmp_path / "failing").mkdir()
    (tmp_path / "failing" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert folder_of("failing", extra="all") == os.fspath(tmp_path / "failing")
    with pytest.raises(MissingExtraError, match=r"^`absent_module` is not installed\nhint: run `pip install"):
        folder_of("absent_module", extra="all")


def test_names_keep_their_order_and_nothing_is_imported_before_it_is_asked_for():
    registry = Registry[object]("thing", {"second": "no.such.module:THING", "first": "json:dumps"})
    registry["third"] = 3
    assert list(registry) == ["second", "first", "third"]
    assert len(registry) == 3
    assert "second" in registry
    assert registry["first"]([1]) == "[1]"
    with pytest.raises(ModuleNotFoundError):
        registry["second"]
    with pytest.raises(KeyError):
        registry["fourth"]


@pytest.mark.parametrize("name", ["own", "added"])
def test_a_name_has_one_thing(name: str):
    registry = Registry[object]("thing", {"own": "json:dumps"})
    registry["added"] = 1
    with pytest.raises(ConfigError, match=f"thing '{name}'"):
        registry[name] = 2
    del registry[name]
    registry[name] = 2
    assert registry[name] == 2
