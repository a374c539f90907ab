"""The examples of the documentation run, and print what it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[1] / "docs" / "testing-your-own.md"


def test_the_page_on_testing_runs_and_prints_what_it_shows(capsys, monkeypatch):
    text = PAGE.read_text()
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # where pickle looks for the classes
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, vars(module))
    module.test_squares_conform()
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    *expected, _ = shown.splitlines()
    assert capsys.readouterr().out.splitlines()[: len(expected)] == expected
