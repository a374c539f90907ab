"""Parts of a run as lines, which are read as what they were made of."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.texts import runs

from tokenloom.errors import ConfigError
from tokenloom.run.amounts import count_of
from tokenloom.run.denial_settings import DenialSettings
from tokenloom.run.settings import SourceSettings, parse_run
from tokenloom.run.stage_settings import StageSettings
from tokenloom.run.toml_file import TomlFile, as_key
from tokenloom.run.toml_words import denial_lines, shares_text, source_value, stage_lines, tokens_text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (1, "1"),
        (1000, '"1K"'),
        (1100, '"1.1K"'),
        (1_234_000, '"1.234M"'),
        (1_234_500, '"1234.5K"'),
        (4096, "4096"),
        (900 * 10**9, '"900B"'),
    ],
)
def test_tokens(tokens, text):
    assert tokens_text(tokens) == text


@given(st.integers(1, 2**63 - 1) | st.integers(1, 9000).map(lambda number: number * 10**12))
def test_any_tokens_are_read_back(tokens):
    assert count_of(TomlFile(f"a = {tokens_text(tokens)}", path="a").values["a"], "`a`") == tokens


def test_lines_of_denials():
    assert denial_lines(DenialSettings(start=7, file='a "b"')) == ['documents = "a \\"b\\""', "from = 7"]
    listed = DenialSettings(start=0, documents=(("web", 1), ("web", 2)))
    assert denial_lines(listed) == ['documents = ["web:1", "web:2"]', "from = 0"]


def test_shares_that_no_decimal_is():
    assert shares_text((("a", Fraction(1, 8)), ("b c", Fraction(20)))) == '{ a = 0.125, "b c" = 20 }'
    with pytest.raises(ConfigError, match=r"(?s)a number that ends as a decimal, found 1/3.*as whole numbers"):
        shares_text((("a", Fraction(1, 3)),))


def test_a_source():
    source = SourceSettings(name="web", data=("a", "b\x7f"), holdout=Fraction(1, 8), max_passes=3)
    assert source_value(source) == '{ data = ["a", "b\\u007f"], holdout = "12.5%", max_passes = 3 }'


@given(runs())
def test_any_run_is_read_back(run):
    _, seed, sources, stages, start = run
    denial = DenialSettings(start=start, documents=((sources[0].name, 7),))
    lines = ["order = 1", f"seed = {seed}", "[sources]"]
    lines += [f"{as_key(source.name)} = {source_value(source)}" for source in sources]
    for stage in stages:
        lines += ["[[stages]]", *stage_lines(stage)]
    settings = parse_run("\n".join([*lines, "[[denied]]", *denial_lines(denial)]), path="run.toml")
    assert (settings.sources, settings.stages, settings.denied) == (sources, stages, (denial,))


def test_what_is_usual_is_not_written():
    stage = StageSettings(name="a", sequence_length=8, samples=1, weights=(("web", Fraction(1)),))
    assert stage_lines(stage) == ['name = "a"', "sequence_length = 8", "samples = 1", "weights = { web = 1 }"]
