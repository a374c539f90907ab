"""The examples of the documentation run, and print what it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_on_testing_runs_and_prints_what_it_shows(capsys, monkeypatch):
    text = (DOCS / "testing-your-own.md").read_text()
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # where pickle looks for the classes
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, vars(module))
    module.test_squares_conform()
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    *expected, _ = shown.splitlines()
    assert capsys.readouterr().out.splitlines()[: len(expected)] == expected


def test_the_page_on_hooks_is_right_in_what_it_asserts():
    page: dict[str, object] = {"__name__": "page"}  # not of tokenloom, so that its classes are a user's
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "megatron-hooks.md").read_text(), re.DOTALL)
    assert len(blocks) > 1
    for block in blocks:
        exec(block, page)
