"""Where keys and tables stand: literal files in the usual ways to write, then generated ones."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.run.toml_lines import TomlPlaces

TEXT = """\
# a comment with = and [brackets]
seed = 1
"quoted key" = 'a # b'
a.b . "c.d" = 2

[sources]   # behind
web = { data = "x]}", holdout = "1%" }
code = [
  "one",  # first
  '''two
  lines''',
  "three" ]
[sources.wiki]
data = \"""
a " b \"\"\"\"\"
[[stages]]
name = "main"
weights = { web = 1, "co\\u0064e" = 2 }
[stages.more]
x = 1
[[stages]]
weights.web = 1
weights.code = 2
when = 1979-05-27 07:32:00
"""

LINES = {
    ("seed",): 2,
    ("quoted key",): 3,
    ("a",): 4,
    ("a", "b", "c.d"): 4,
    ("sources",): 6,
    ("sources", "web"): 7,
    ("sources", "web", "holdout"): 7,
    ("sources", "code"): 8,
    ("sources", "code", 0): 9,
    ("sources", "code", 1): 10,
    ("sources", "code", 2): 12,
    ("sources", "wiki"): 13,
    ("sources", "wiki", "data"): 14,
    ("stages",): 16,
    ("stages", 0): 16,
    ("stages", 0, "name"): 17,
    ("stages", 0, "weights", "code"): 18,
    ("stages", 0, "more"): 19,
    ("stages", 0, "more", "x"): 20,
    ("stages", 1): 21,
    ("stages", 1, "weights"): 22,
    ("stages", 1, "weights", "code"): 23,
    ("stages", 1, "when"): 24,
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("path", LINES, ids=str)
def test_the_line_of_everything_that_is_there(path, end):
    places = TomlPlaces(TEXT.replace("\n", end))
    place = places.find(path)
    assert place is not None
    assert places.line_at(place.start).number == LINES[path]
    assert places.line_at(place.start).text == TEXT.splitlines()[LINES[path] - 1]


def test_what_is_missing_is_looked_for_where_it_would_be():
    places = TomlPlaces(TEXT)
    assert places.find(("stages", 1, "tokens")) == places.find(("stages", 1))
    assert places.find(("sources", "web", "data", "x")) == places.find(("sources", "web", "data"))
    assert places.find(("nothing",)) is None
    assert places.find(()) is None


def test_a_place_holds_its_key_and_value():
    places = TomlPlaces(TEXT)
    place = places.find(("sources", "web", "holdout"))
    assert TEXT[place.start : place.stop] == 'holdout = "1%"'
    assert TEXT[place.value : place.stop] == '"1%"'
    place = places.find(("sources", "wiki", "data"))
    assert TEXT[place.value : place.stop] == '"""\na " b """""'


def test_a_table_that_is_named_after_what_is_in_it():
    places = TomlPlaces("[a.b]\n[a]\n")
    assert places.line_at(places.find(("a",)).start).number == 2


def test_text_that_is_no_toml_is_followed_as_far_as_it_goes():
    places = TomlPlaces("a = 1\nb = [1, 2\n= 3\nc = 4")
    assert [place.path for place in places.places] == [("a",), ("b",), ("b", 0), ("b", 1)]


@pytest.mark.parametrize("text", ["a." * 9000 + "a = 1", "a = " + "[" * 9000, "[" + "a." * 9000 + "a]\na = 1"])
def test_paths_without_end_are_not_followed(text):
    assert len(TomlPlaces(f"b = 1\n{text}\n{text}").places) <= 70


def test_what_stands_twice_is_found():
    first, again = TomlPlaces("a = 1\nb = 2\n[c]\n[d]\n[c]\nb=1\nb=2").first_repeated()
    assert (first.path, first.start, again.start) == (("c",), 12, 20)


KEYS = st.one_of(st.text("ab-_1", min_size=1, max_size=3), st.text(min_size=1, max_size=4))


def written(key: str) -> str:
    if key.isascii() and key.replace("-", "_").replace("_", "a").isalnum():
        return key
    return '"' + "".join(f"\\U{ord(letter):08x}" for letter in key) + '"'


VALUES = st.recursive(
    st.sampled_from(["1", "1.5", "true", '"a]},#\\""', "'b\\'", '"""x\n"y""" ', "'''z'''''", "1979-05-27", "nan"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda values: f"[\n# c\n{' ,'.join(values)}\n]"),
        st.dictionaries(KEYS.map(written), inner, max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{key}= {value}" for key, value in pairs.items()) + "}"
        ),
    ),
    max_leaves=6,
)


def paths_of(value: object, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path}.union(*(paths_of(each, (*path, key)) for key, each in inner))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "[{}]\n", "[[{}]]\n"]), KEYS.map(written), st.dictionaries(KEYS.map(written), VALUES)
        )
    )
)
def test_every_path_of_what_tomllib_reads_has_a_place(blocks):
    text = "".join(
        header.format(name) + "".join(f"{key} = {value} # c\n" for key, value in pairs.items())
        for header, name, pairs in blocks
    )
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        TomlPlaces(text)
        return
    places = TomlPlaces(text)
    assert {place.path[:n] for place in places.places for n in range(len(place.path) + 1)} | {()} == paths_of(values)
    for place in places.places:
        if not place.is_header:
            assert text[place.value : place.stop].strip() == text[place.value : place.stop]


@given(st.text("[]{}=\"'.,#\n\r a1\\"))
def test_any_text_is_followed_without_an_error(text):
    TomlPlaces(text)
