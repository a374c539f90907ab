"""What Megatron calls things and we do: all names of its modules are there, and what is named of ours exists."""

from __future__ import annotations

import functools
import json
import re
from importlib import import_module

from docs_site.names import namespaces, public_names
from tests.docs.pages import ROOT

import tokenloom
from tokenloom.megatron.installation import OURS

TEXT = (ROOT / "docs" / "guides" / "megatron-names.md").read_text().split("\n## What a fork may override")[0]
NOT_ABOUT_DATA = {"get_args", "log_single_rank", "logger"}


def in_backticks(text):
    return re.findall(r"`([^`]+)`", text)


def section(title):
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def names_of_megatron():
    names = {
        name
        for module in json.loads((ROOT / "tests" / "golden" / "megatron_names.json").read_text()).values()
        for name, (kind, _) in module.items()
        if kind != "import" and "." not in name
    }
    of_satellites = {name for ours in OURS.values() for name in getattr(import_module(ours), "__all__", ())}
    return (names | of_satellites) - NOT_ABOUT_DATA


def test_every_name_of_its_modules_is_on_the_page():
    assert sorted(name for name in names_of_megatron() if not name.startswith("_") and f"`{name}`" not in TEXT) == []


def test_names_that_are_the_same_are_public_there():
    for names, namespace in re.findall(r"^\| (`.*?) \| `tokenloom\.(\w+)` \|$", section("The same name"), re.MULTILINE):
        assert sorted(set(in_backticks(names)) - set(public_names(namespace))) == []


def test_other_names_are_in_the_modules_of_the_reference_here():
    modules = [*map(import_module, OURS.values())]
    rows = re.findall(r"^\| (`.*?) \| .* \|$", section("Another name"), re.MULTILINE)
    listed = [name for names in rows for name in in_backticks(names)]
    assert len(listed) > 50
    assert [name for name in listed if not any(hasattr(module, name) for module in modules)] == []


def test_what_it_is_here_is_there():
    for dotted in sorted(set(re.findall(r"`(tokenloom\.[\w.]+)`", TEXT))):
        _, *names = dotted.split(".")
        if names[0] == "megatron":
            import_module(dotted)
        else:
            value = functools.reduce(getattr, names, tokenloom)
            assert names[-1] in namespaces() or value is not None, dotted


def test_settings_that_are_named_of_a_class_are_of_that_class():
    named = re.findall(r"((?:`\w+`(?:, | and )?)+) of `tokenloom\.(\w+)`", TEXT)
    assert len(named) >= 6
    for settings, kind in named:
        annotations = {
            name for base in getattr(tokenloom, kind).__mro__ for name in getattr(base, "__annotations__", {})
        }
        annotations |= set(getattr(getattr(tokenloom, kind).__init__, "__annotations__", {}))
        assert set(in_backticks(settings)) <= annotations
