"""What pages are made of is handed out whole, and nothing else is."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest

from tokenloom_look.web.assets import SCRIPTS, STYLES, asset, policy_of_file


@pytest.mark.parametrize("name", [*SCRIPTS, *STYLES])
def test_every_file_can_stand_inside_a_page(name):
    text = asset(name).text
    assert text
    assert not re.search(r"</(script|style)|<!--|\r|\0", text, re.IGNORECASE)


def test_a_policy_names_what_runs_by_its_hash():
    script = asset("charts.js")
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", script.source)
    policy = policy_of_file(scripts=[script], styles=[])
    assert policy.startswith(f"default-src 'none'; script-src {script.source}; style-src 'none'; ")


@pytest.mark.parametrize("name", ["", "assets.py", "../errors.py", "/etc/passwd", "uplot/LICENSE"])
def test_other_files_are_not_handed_out(name):
    with pytest.raises(KeyError):
        asset(name)


def test_scripts_need_no_eval():
    assert [name for name in SCRIPTS if re.search(r"\beval\(|new Function|innerHTML", asset(name).text)] == []


def test_uplot_is_as_its_authors_made_it():
    texts = [asset("uplot/uPlot.iife.min.js").text, asset("uplot/uPlot.min.css").text]
    assert [sha256(text.encode()).hexdigest()[:16] for text in texts] == ["19c8d4c6ad88929a", "df630c6a8d6f8eea"]
