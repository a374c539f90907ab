"""How pages look: one palette with all pictures, and contrasts that everybody can read."""

from __future__ import annotations

import re

import pytest

from tokenloom_look.pictures import OTHER, PALETTE
from tokenloom_look.web.assets import asset

STYLE = asset("style.css").text


def variables(start: str) -> dict[str, str]:
    """Returns the colours that a block of the style sets."""
    block = STYLE[STYLE.index(start) :].split("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-fA-F]{6});", block))


LIGHT = variables(":root {")
DARK = LIGHT | variables(":root:not([data-paper]) {")

READ_ON = {
    "ground": ("text", "text-soft", "link", "good", "warning", "bad", "special", "axis"),
    "ground-soft": ("text", "text-soft", "link"),
    "ground-strong": ("text", "text-soft"),
    "prompt-ground": ("text", "prompt"),
    "answer-ground": ("text", "answer"),
    "special-ground": ("special",),
    "image-ground": ("image",),
    "denied-ground": ("bad",),
}


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_series_have_the_colours_of_all_pictures():
    series = [LIGHT[f"series-{number}"] for number in range(1, len(PALETTE) + 1)]
    assert (*series, LIGHT["series-other"]) == (*PALETTE, OTHER)
    assert f"series-{len(PALETTE) + 1}" not in LIGHT
    assert f"NUM_COLOURS = {len(PALETTE)};" in asset("chart-ink.js").text


@pytest.mark.parametrize("look", ["light", "dark"])
def test_texts_can_be_read_on_their_grounds(look):
    colours = LIGHT if look == "light" else DARK
    pairs = [(text, ground) for ground, texts in READ_ON.items() for text in texts]
    low = {pair: contrast(*(colours[name] for name in pair)) for pair in pairs}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}


def test_each_kind_of_token_is_told_by_more_than_colour():
    told = {
        kind: re.search(rf"\.run\.{kind} \{{[^}}]*(border|underline|shadow)", STYLE)
        for kind in ("eod", "bos", "special", "image", "padding", "denied", "loss", "prompt", "answer")
    }
    assert [kind for kind, rule in told.items() if rule is None] == []
