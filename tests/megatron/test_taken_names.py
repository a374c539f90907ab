"""`tokenloom.megatron.taken_names`."""

from __future__ import annotations

import sys
from types import ModuleType

from tokenloom.megatron.taken_names import subclasses, taken_names


class Refuses:
    """An object that may not be asked for its class, as some libraries have."""

    @property
    def __class__(self):
        raise AssertionError


def test_modules_classes_and_functions_are_found_wherever_they_are_global(monkeypatch):
    theirs = ModuleType("megatron.theirs")
    exec("class A: pass\nclass B(A): pass\ndef f(): pass\nx = 1", vars(theirs))
    train, within = ModuleType("train"), ModuleType("megatron.within")
    exec("class Mine(A): pass\nclass Later(Mine): pass", namespace := {"A": theirs.A, "__name__": "train"})
    vars(train).update(theirs=theirs, Base=theirs.B, f=theirs.f, x=theirs.x, odd=Refuses(), none=None)
    vars(within).update(g=theirs.f, stranger=type("A", (), {"__module__": "megatron.theirs"}))
    for module in (theirs, train, within):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = {str(each): each for each in taken_names({"megatron.theirs": theirs})}
    assert {name: (each.original, each.is_within) for name, each in found.items()} == {
        "train.theirs": (None, False),
        "train.Base": ("B", False),
        "train.f": ("f", False),
        "megatron.within.g": ("f", True),
    }
    assert subclasses({"megatron.theirs": theirs}) == [namespace["Later"], namespace["Mine"]]
