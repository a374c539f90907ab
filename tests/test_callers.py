"""The line of a user's program that a warning is about."""

from __future__ import annotations

import types

from tokenloom.callers import level_outside

WITHIN = """
from tokenloom.callers import level_outside
def level(): return level_outside()
def deeper(function): return function()
"""


def test_calls_of_this_package_are_counted_up_to_the_first_line_outside():
    module = types.ModuleType("tokenloom.somewhere")
    exec(WITHIN, module.__dict__)
    assert level_outside() == 1
    assert module.level() == 2
    assert module.deeper(module.level) == 3
    assert module.deeper(lambda: module.level()) == 2
    other = types.ModuleType("tokenloomish")  # a name that only begins like ours
    exec(WITHIN, other.__dict__)
    assert other.level() == 1
