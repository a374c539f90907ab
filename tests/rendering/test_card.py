"""Cards that notebooks show."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tokenloom.rendering.card import card
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


def test_the_style_touches_cards_only_and_asks_for_nothing():
    (style,) = re.findall(r"<style>(.*?)</style>", card("Pair", []), re.DOTALL)
    assert not re.search(r"url|@import|http|//|expression", style)
    rules = re.sub(r"@media [^{]*\{(.*?)\}\}", r"\1}", style, flags=re.DOTALL)
    selectors = [part.strip() for rule in re.findall(r"([^{}]+)\{", rules) for part in rule.split(",")]
    assert len(selectors) > 10
    assert all(".tokenloom-card" in selector for selector in selectors)
    assert "prefers-color-scheme:dark" in style


@given(st.text(min_size=1, max_size=300))
def test_no_name_is_more_than_a_text(text: str):
    named = body(card(text, [(text, text), ("f", lambda: text)], name=text, alarms=[text]))
    plain = body(card("x", [("x", "x"), ("f", lambda: "x")], name="x", alarms=["x"]))
    assert re.findall(r"<[^>]*>", named) == re.findall(r"<[^>]*>", plain)
    assert "\x1b" not in named
    shortened = printable(name_of(text, width=120))
    assert named.count("&lt;") == 3 * printable(text).count("<") + 3 * shortened.count("<")
