"""Edits of `run.toml`: what changes, and that nothing else does."""

from __future__ import annotations

import difflib
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.texts import SMALL, runs

from tokenloom.errors import ConfigError
from tokenloom.run.denial_settings import DenialSettings
from tokenloom.run.settings import parse_run
from tokenloom.run.stage_settings import StageSettings
from tokenloom.run.toml_edit import add_source, append_denial, append_stage, insert_stage_after, set_stage_size
from tokenloom.run.toml_file import as_key
from tokenloom.run.toml_words import denial_lines, source_value, stage_lines

PATH = "run.toml"
WEB = (("web", Fraction(1)),)
NEW = StageSettings(name="new", sequence_length=16, samples=5, weights=WEB)

TEXT = """\
# our run
order = 1
seed = 1   # do not change
[sources]  # all of it
web = "web"
# more to come
code = [   # two
  "a",
  "b" ]  # behind

# first
[[stages]]  # begins
sequence_length = 8
tokens = "1K"   # not much
weights.web = 1
weights.code = 2

# then
[[stages]]
samples = 10
weights = { web = 1 }  # only web

[[denied]]
documents = "x"
"""


def changed(before: str, after: str) -> list[str]:
    """Returns the lines that were taken out, with -, and those that were put in, with +."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[:1] in "+-"]


def test_passes_in_the_place_of_weights_and_back():
    passes = (("web", Fraction(3, 2)),)
    after = set_stage_size(TEXT, "stage 2", "passes", passes, path=PATH)
    assert after == TEXT.replace("samples = 10\nweights = { web = 1 }  # only web", "passes = { web = 1.5 }")
    back = set_stage_size(after, "stage 2", "samples", 4, path=PATH, weights=WEB)
    assert changed(after, back) == ["- passes = { web = 1.5 }", "+ samples = 4", "+ weights = { web = 1 }"]
    with pytest.raises(
        ConfigError, match=r"(?s)is left as it is, since the change would be wrong.*`weights` of stage 'stage 2'"
    ):
        set_stage_size(after, "stage 2", "samples", 4, path=PATH)


def test_a_stage_between_others_changes_none_of_them():
    after = insert_stage_after(TEXT, "stage 1", NEW, path=PATH)
    stages = parse_run(after, path=PATH).stages
    assert [(stage.name, stage.sequence_length) for stage in stages] == [("stage 1", 8), ("new", 16), ("stage 2", 8)]
    assert '# then\n[[stages]]\nname = "stage 2"\nsequence_length = 8\nsamples = 10\n' in after
    assert "# first\n[[stages]]  # begins\nsequence_length = 8\n" in after


def test_a_denial():
    after = append_denial(TEXT, "list.txt", start=70, path=PATH)
    assert after == TEXT + '\n[[denied]]\ndocuments = "list.txt"\nfrom = 70\n'
    after = append_denial(TEXT.rstrip(), ["web:2", "web:1"], start=70, path=PATH)
    assert after == TEXT + '\n[[denied]]\ndocuments = ["web:1", "web:2"]\nfrom = 70\n'
    with pytest.raises(ConfigError, match="did you mean `web`"):
        append_denial(TEXT, ["wbe:1"], start=70, path=PATH)


def test_a_source():
    after = add_source(TEXT, "wiki", "w/*", path=PATH)
    assert after == TEXT.replace("# behind\n", '# behind\nwiki = { data = "w/*" }\n')
    after = add_source(TEXT, "a b", ["c", "d"], path=PATH, max_passes=2, holdout=Fraction(1, 100))
    assert '# behind\n"a b" = { data = ["c", "d"], holdout = "1%", max_passes = 2 }\n' in after
    with pytest.raises(ConfigError, match=r"run.toml:5: expected a new source, found 'web', which is there"):
        add_source(TEXT, "web", "w", path=PATH)
    with pytest.raises(ConfigError, match=r"(?s)data of their own for sources 'web' and 'wiki'"):
        add_source(TEXT, "wiki", "web", path=PATH)


INLINE = """\
order = 1
seed = 1
sources.web = "web"
stages = [ { sequence_length = 8, samples = 3, weights = { web = 1 } } ]
denied = []
"""


def test_stages_that_are_written_otherwise_are_left_alone():
    with pytest.raises(ConfigError, match=r"expected a line `\[\[stages\]\]`, found stages that are") as caught:
        append_stage(INLINE, NEW, path=PATH)
    assert caught.value.hint == (
        'write by hand:\n    [[stages]]\n    name = "new"\n    sequence_length = 16\n    samples = 5\n'
        "    weights = { web = 1 }"
    )
    with pytest.raises(ConfigError, match=r"(?s)found it in another value.*write by hand:\n    samples = 4"):
        set_stage_size(INLINE, "stage 1", "samples", 4, path=PATH)
    with pytest.raises(ConfigError, match=r"(?s)the change would make it no TOML.*write by hand:\n    \[\[denied\]\]"):
        append_denial(INLINE, "x", start=0, path=PATH)
    text = SMALL.replace("weights = { web = 1 }", "[stages.passes]\nweb = 1")
    with pytest.raises(ConfigError, match=r"(?s)expected a line `passes = …`, found it written otherwise"):
        set_stage_size(text, "stage 1", "samples", 4, path=PATH, weights=WEB)
    with pytest.raises(ConfigError, match=r"(?s)expected a line `weights = …`, found it written otherwise"):
        set_stage_size(TEXT, "stage 1", "passes", WEB, path=PATH)


@given(runs(), st.data())
def test_any_run_keeps_its_lines_and_meaning(run, data):
    text, _, sources, stages, _ = run
    end = data.draw(st.sampled_from(["\n", "\r\n", "  # c\n", "\n\n"]))
    text = text.replace("\n", end) + data.draw(st.sampled_from(["", end]))
    before = parse_run(text, path=PATH)
    number = data.draw(st.integers(0, len(stages) - 1))
    name = stages[number].name
    shares = ((sources[0].name, Fraction(7, 4)),)
    if stages[-1].is_endless and data.draw(st.booleans()):
        text = set_stage_size(text, stages[-1].name, "samples", 12, path=PATH)
    elif not stages[number].is_endless:
        if stages[number].passes is None and data.draw(st.booleans()):
            after = set_stage_size(text, name, "tokens", "9K", path=PATH)
            assert parse_run(after, path=PATH).stages[number].tokens == 9000
        new = replace(NEW, weights=shares)
        after = insert_stage_after(text, name, new, path=PATH)
        found = parse_run(after, path=PATH)
        assert found.stages == (*stages[: number + 1], new, *stages[number + 1 :])
        assert [line for line in changed(text, after) if line[0] == "-"] == []
        assert replace(found, stages=stages) == before
    after = add_source(append_denial(text, "list", start=5, path=PATH), "new source", "new/*", path=PATH)
    found = parse_run(after, path=PATH)
    assert (len(found.denied), found.sources[-1].data) == (2, ("new/*",))
    assert [line for line in changed(text, after) if line[0] == "-"] == []


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
