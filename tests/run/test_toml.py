"""Reading a TOML file: what is wrong with it is a ConfigError that quotes the line."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.run.toml_file import TomlFile, read_toml
from tokenloom.run.toml_lines import TomlPlaces

NO_TOML = {
    "a = 1\nb = \n": (2, "b =", "expected TOML, found something else"),
    "a = 1\nb\nc = 2": (2, "b", "expected TOML, found something else"),
    "a = 1\na = 2": (2, "a = 2", "expected `a` once, found it again; it stands on line 1 already"),
    "a = 1\n[b]\nc = 1\n[b]\n": (4, "[b]", "expected `b` once, found it again; it stands on line 2 already"),
    "x = { a = 1, a = 2 }": (1, "x = { a = 1, a = 2 }", "expected `x.a` once"),
    "[sources]\nweb = 1\n\nweb = [\n2]\n": (4, "web = [", "expected `sources.web` once"),
    "a = 1\nb = 'x\n": (2, "b = 'x", "expected TOML, found something else"),
    'a = 1\nb = """x\n\n': (3, "", "expected TOML, found something else"),
    "a = 1\nb = [1,\n": (2, "b = [1,", "expected TOML, found something else"),
    "a = 1\nb = \x00": (2, "b = \\x00", "expected TOML, found something else"),
    "a = 1\nb = 2001-13-01": (2, "b = 2001-13-01", "expected TOML, found something else"),
    "a = 1\na.b = 2": (2, "a.b = 2", "expected TOML, found something else"),
}


@pytest.mark.parametrize("text", NO_TOML)
def test_what_is_no_toml_is_quoted(text):
    number, line, words = NO_TOML[text]
    with pytest.raises(ConfigError) as caught:
        TomlFile(text, path="run.toml")
    assert caught.value.message.startswith(f"run.toml:{number}: ")
    assert caught.value.message.endswith(f"\n    {line}")
    assert words in caught.value.message


def test_numbers_that_nobody_can_compute_with():
    with pytest.raises(ConfigError, match="number that is too long to read"):
        TomlFile(f"a = {'9' * 5000}", path="run.toml")
    with pytest.raises(ConfigError, match="number that is too long to read"):
        TomlFile("a = 1e99999999999999999999", path="run.toml")


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 100_000, "a = " + "[" * 70 + "]" * 70, "a." * 5000 + "a = 1", f"[{'a.' * 500}a]\na = {{ a = 1 }}"],
)
def test_tables_in_each_other_without_end(text):
    with pytest.raises(ConfigError, match=r"expected at most 64 arrays and tables in each other in `run.toml`"):
        TomlFile(text, path="run.toml")


def test_fractions_are_exact():
    assert TomlFile("a = 0.1", path="run.toml").values == {"a": Decimal("0.1")}


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 1")
    with pytest.raises(ConfigError, match="begins with a byte order mark"):
        read_toml(path)
    path.write_bytes(b"seed = 1\nname = '\xe9'\n")
    with pytest.raises(ConfigError, match=r"run.toml:2: expected UTF-8, found byte 0xe9"):
        read_toml(path)
    path.write_bytes("seed = 1".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"run.toml:1: expected UTF-8, found byte 0xff"):
        read_toml(path)


def test_lines_that_are_long_or_hold_secrets_are_not_shown_whole():
    file = TomlFile(f'a = "{"x" * 1000}"\nb = "https://host/key?sig=secret"\n', path="run.toml")
    assert str(file.error(("a",), "wrong")) == f'run.toml:1: wrong\n    a = "{"x" * 155}…'
    assert str(file.error(("b",), "wrong", hint="mend it")) == (
        'run.toml:2: wrong\n    b = "https://host/key?…"\nhint: mend it'
    )
    assert str(file.error((), "wrong")) == "run.toml: wrong"


@given(st.text("[]{}=\"'.,#\n\r a1e_-:\\\x00é"))
def test_any_text_is_read_or_refused(text):
    with suppress(ConfigError):
        TomlFile(text, path="run.toml")


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


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_everything_has_its_line(end):
    places = TomlPlaces(TEXT.replace("\n", end))
    for path, number in LINES.items():
        place = places.find(path)
        assert place is not None
        assert places.line_at(place.start).number == number
        assert places.line_at(place.start).text == TEXT.splitlines()[number - 1]
