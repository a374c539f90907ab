"""Cards that notebooks show."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tokenloom.rendering.card import card, top_table
from tokenloom.rendering.html import Markup
from tokenloom.rendering.plain import printable
from tokenloom.rendering.words import name_of


def body(markup: str) -> str:
    """Returns a card without its style."""
    return re.sub(r"<style>.*?</style>", "", markup, count=1, flags=re.DOTALL)


def refuse() -> str:
    raise RuntimeError("a user's class")


def test_a_card_tells_what_is_known():
    drawn = card(
        "Pair",
        [("tokens", 1024), ("dtype", lambda: "uint16"), ("size", None), ("rows", refuse)],
        name="a/b",
        alarms=["x<y"],
    )
    assert body(drawn) == (
        '<div class="tokenloom-card"><p><span class="kind">Pair</span> <span class="name">a/b</span></p>'
        '<p class="alarm" role="alert">x&lt;y</p>'
        '<table class="facts"><tbody><tr><th scope="row">tokens</th><td>1,024</td></tr>'
        '<tr><th scope="row">dtype</th><td>uint16</td></tr></tbody></table></div>'
    )


def test_a_card_of_nothing_is_its_heading():
    assert body(card("Pair", [])) == '<div class="tokenloom-card"><p><span class="kind">Pair</span></p></div>'


def test_the_style_touches_cards_only_and_asks_for_nothing():
    (style,) = re.findall(r"<style>(.*?)</style>", card("Pair", []), re.DOTALL)
    assert not re.search(r"url|@import|http|//|expression", style)
    rules = re.sub(r"@media [^{]*\{(.*?)\}\}", r"\1}", style, flags=re.DOTALL)
    selectors = [part.strip() for rule in re.findall(r"([^{}]+)\{", rules) for part in rule.split(",")]
    assert len(selectors) > 10
    assert all(".tokenloom-card" in selector for selector in selectors)
    assert "prefers-color-scheme:dark" in style


def test_many_rows_are_the_largest_and_one_of_all_others():
    rows = [(f"s{number}", number) for number in range(100)]
    drawn = top_table(
        ["name", "size"],
        rows,
        sizes=[number for _, number in rows],
        others=lambda rest: [sum(rows[n][1] for n in rest)],
    )
    assert re.findall(r'<th scope="row">(.*?)</th>', drawn) == [*(f"s{n}" for n in range(89, 100)), "89 others"]
    assert f"{sum(range(89)):,}" in drawn
    few = top_table(["name", "size"], rows[:12], sizes=range(12), others=lambda rest: [0])
    assert re.findall(r'<th scope="row">(.*?)</th>', few) == [f"s{n}" for n in range(12)]


@given(st.text(min_size=1, max_size=300))
def test_no_name_is_more_than_a_text(text: str):
    named = body(card(text, [(text, text), ("f", lambda: text)], name=text, alarms=[text]))
    plain = body(card("x", [("x", "x"), ("f", lambda: "x")], name="x", alarms=["x"]))
    assert re.findall(r"<[^>]*>", named) == re.findall(r"<[^>]*>", plain)
    assert "\x1b" not in named
    shortened = printable(name_of(text, width=120))
    assert named.count("&lt;") == 3 * printable(text).count("<") + 3 * shortened.count("<")


def test_markup_of_ours_stays():
    assert "<b>x</b>" in card("Pair", [("a", Markup("<b>x</b>"))])
