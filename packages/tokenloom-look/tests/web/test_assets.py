"""Static files of pages, and one palette for all charts."""

import re
from hashlib import sha256

import pytest

from tokenloom_look.pictures import OTHER, PALETTE
from tokenloom_look.web.assets import SCRIPTS, STYLES, asset


@pytest.mark.parametrize("name", [*SCRIPTS, *STYLES])
def test_every_file_can_be_inlined(name):
    text = asset(name).text
    assert text
    assert not re.search(r"</(script|style)|<!--|\r|\0", text, re.IGNORECASE)


@pytest.mark.parametrize("name", ["", "assets.py", "../errors.py", "/etc/passwd", "uplot/LICENSE"])
def test_other_files_are_not_served(name):
    with pytest.raises(KeyError):
        asset(name)


def test_scripts_need_no_eval():
    assert [name for name in SCRIPTS if re.search(r"\beval\(|new Function|innerHTML", asset(name).text)] == []


def test_uplot_is_unmodified():
    texts = [asset("uplot/uPlot.iife.min.js").text, asset("uplot/uPlot.min.css").text]
    assert [sha256(text.encode()).hexdigest()[:16] for text in texts] == ["19c8d4c6ad88929a", "df630c6a8d6f8eea"]


STYLE = asset("style.css").text


def variables(start: str) -> dict[str, str]:
    """Returns the colours that a block of the style sheet sets."""
    block = STYLE[STYLE.index(start) :].split("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-fA-F]{6});", block))


LIGHT = variables(":root {")


def test_series_have_the_colours_of_pictures():
    series = [LIGHT[f"series-{number}"] for number in range(1, len(PALETTE) + 1)]
    assert (*series, LIGHT["series-other"]) == (*PALETTE, OTHER)
    assert f"series-{len(PALETTE) + 1}" not in LIGHT
    assert f"NUM_COLOURS = {len(PALETTE)};" in asset("chart-ink.js").text
