"""The first `run.toml`, and edits of it: what changes, and that nothing else does."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.data import write_source
from tests.run.texts import SMALL, runs

from tokenloom.errors import ConfigError
from tokenloom.run.amend import denial_lines, draft_text, rewritten, source_value, stage_lines, weighted_entries
from tokenloom.run.settings import DenialSettings, RunSettings, Shares, SourceSettings, StageSettings, parse_run
from tokenloom.run.toml_file import as_key

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


Edit = Callable[[RunSettings], RunSettings]


def edited(text: str, *edits: Edit) -> str:
    """Returns a text after edits, which says what they meant."""
    settings = parse_run(text, path=PATH)
    for each in edits:
        settings = each(settings)
    after, found = rewritten(text, settings)
    assert found == parse_run(after, path=PATH)
    return after


def set_samples(name: str, samples: int, *, weights: Shares | None = None) -> Edit:
    def edit(stage: StageSettings) -> StageSettings:
        sized = replace(stage, tokens=None, samples=samples, passes=None, weights=weights or stage.weights)
        return sized if stage.name == name else stage

    return lambda settings: replace(settings, stages=tuple(map(edit, settings.stages)))


def insert_stage(new: StageSettings, *, after: str) -> Edit:
    def stages(old: tuple[StageSettings, ...]) -> list[StageSettings]:
        return [each for stage in old for each in ([stage, new] if stage.name == after else [stage])]

    return lambda settings: replace(settings, stages=tuple(stages(settings.stages)))


def deny(**denial) -> Edit:
    return lambda settings: replace(settings, denied=(*settings.denied, DenialSettings(**denial)))


def add_source(name: str, data: str) -> Edit:
    new = SourceSettings(name=name, data=(data,))
    return lambda settings: replace(settings, sources=(*settings.sources, new))


def changed(before: str, after: str) -> list[str]:
    """Returns the lines that were taken out, with -, and those that were put in, with +."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[:1] in "+-"]


def test_a_stage_is_given_samples():
    after = edited(TEXT, set_samples("stage 1", 30))
    assert after == TEXT.replace('tokens = "1K" ', "samples = 30 ")
    passes = TEXT.replace("samples = 10\nweights = { web = 1 }  # only web", "passes = { web = 1.5 }  # not long")
    after = edited(passes, set_samples("stage 2", 4, weights=WEB))
    passes_line, lines = "passes = { web = 1.5 }  # not long\n", "samples = 4  # not long\nweights = { web = 1 }\n"
    assert after == passes.replace(passes_line, lines)
    with pytest.raises(ConfigError, match=r"the edited file would be invalid: run.toml: stages.2.weights: required"):
        edited(passes, set_samples("stage 2", 4))
    below = SMALL.replace("weights = { web = 1 }", "[stages.passes]\nweb = 1\n# end")
    after = edited(below, set_samples("stage 1", 4, weights=WEB))
    assert after == SMALL.replace("weights", "samples = 4\nweights") + "# end\n"
    endless = edited(SMALL, set_samples("stage 1", 4))
    assert endless == SMALL.replace("sequence", "samples = 4\nsequence")


def test_a_stage_between_others_changes_none_of_them():
    after = edited(TEXT, insert_stage(NEW, after="stage 1"))
    stages = parse_run(after, path=PATH).stages
    assert [(stage.name, stage.sequence_length) for stage in stages] == [("stage 1", 8), ("new", 16), ("stage 2", 8)]
    assert 'weights.code = 2\n\n[[stages]]\nname = "new"\n' in after
    assert '\n\n# then\n[[stages]]\nname = "stage 2"\nsequence_length = 8\nsamples = 10\n' in after
    assert "# first\n[[stages]]  # begins\nsequence_length = 8\n" in after
    with pytest.raises(ConfigError, match=r"would be invalid: run.toml: stages.1: has no size"):
        edited(SMALL, insert_stage(NEW, after="stage 1"))


def test_a_denial():
    after = edited(TEXT, deny(file="list.txt", start=70))
    assert after == TEXT + '\n[[denied]]\ndocuments = "list.txt"\nfrom = 70\n'
    after = edited(TEXT.rstrip(), deny(documents=(("web", 1), ("web", 2)), start=70, reason="a letter"))
    assert after == TEXT + '\n[[denied]]\ndocuments = ["web:1", "web:2"]\nfrom = 70\nreason = "a letter"\n'


def test_a_source():
    after = edited(TEXT, add_source("wiki", "w/*"))
    assert after == TEXT.replace("# behind\n", '# behind\nwiki = { data = "w/*" }\n')
    after = edited(TEXT, add_source("a b", "c"))
    assert '# behind\n"a b" = { data = "c" }\n\n# first' in after
    apart = TEXT.replace('web = "web"', "").replace("code = [", "[sources.web]\ndata = [")
    apart = apart.replace("weights.code = 2\n", "")
    after = edited(apart, add_source("wiki", "w"))
    assert after == apart + '\n[sources.wiki]\ndata = "w"\n'


def test_several_edits_of_one_file():
    new = insert_stage(replace(NEW, weights=(("wiki", Fraction(1)),)), after="stage 1")
    after = edited(TEXT, deny(file="list.txt", start=70), add_source("wiki", "w"), set_samples("stage 1", 30), new)
    assert [line for line in changed(TEXT, after) if line[0] == "-"] == ['- tokens = "1K"   # not much']


def test_a_file_without_edits_is_as_it_was():
    text = TEXT.replace("\n", "\r\n", 3).rstrip() + "  "
    assert edited(text) == text


INLINE = """\
order = 1
seed = 1
sources.web = "web"
stages = [ { sequence_length = 8, samples = 3, weights = { web = 1 } } ]
denied = []
"""


def test_files_that_are_laid_out_otherwise_are_left_alone():
    with pytest.raises(ConfigError, match=r"was not changed: stages can be edited only if") as caught:
        edited(INLINE, insert_stage(NEW, after="stage 1"))
    assert caught.value.hint == (
        'write by hand:\n    [[stages]]\n    name = "new"\n    sequence_length = 16\n    samples = 5\n'
        "    weights = { web = 1 }"
    )
    with pytest.raises(ConfigError, match=r"(?s)would be invalid.*invalid TOML.*write by hand:\n    \[\[denied\]\]"):
        edited(INLINE, deny(file="x", start=0))
    apart = TEXT.replace("# then\n", '[[denied]]\ndocuments = "y"\n# then\n')
    with pytest.raises(ConfigError, match=r"(?s)would change the order of its tables.*write by hand:\n    samples = 4"):
        edited(apart, set_samples("stage 1", 4))


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
        text = edited(text, set_samples(stages[-1].name, 12))
    elif not stages[number].is_endless:
        given_weights = shares if stages[number].passes is not None or data.draw(st.booleans()) else None
        after = edited(text, set_samples(name, 9, weights=given_weights))
        assert parse_run(after, path=PATH).stages[number].samples == 9
        new = replace(NEW, weights=shares)
        after = edited(text, insert_stage(new, after=name))
        found = parse_run(after, path=PATH)
        assert found.stages == (*stages[: number + 1], new, *stages[number + 1 :])
        assert [line for line in changed(text, after) if line[0] == "-"] == []
        assert replace(found, stages=stages) == before
    after = edited(text, deny(file="list", start=5), add_source("new source", "new/*"))
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


def test_data_without_weights_are_read_once_or_share_a_size_by_their_tokens(tmp_path):
    text = draft_text(("data/web/*", "code"), sequence_length=8, path="run.toml")
    assert parse_run(text, path=PATH).stages[0].passes == (("web", Fraction(1)), ("code", Fraction(1)))
    data = (write_source(str(tmp_path / "a"), 30, 30), write_source(str(tmp_path / "b"), 20))
    text = draft_text(data, sequence_length=8, samples=5, path=str(tmp_path / "run.toml"))
    assert parse_run(text, path=PATH).stages[0].weights == (("a", Fraction(3)), ("b", Fraction(1)))


def test_sources_are_named_by_what_their_paths_say():
    names = {"data/web_text_document": "web", "data/web/*_document": "web", "data/web_*": "web", "web.bin": "web"}
    for entry, name in (names | {"data/books/": "books", "*": "data", "a b": "a b"}).items():
        text = draft_text((entry,), sequence_length=8, path="run.toml")
        assert [source.name for source in parse_run(text, path="run.toml").sources] == [name]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["0.8", "web", "code"], r"entry 1 of the blend must be a prefix, got the number '0.8'"),
        (["web", "0.2"], r"entry 2 of the blend must be a prefix, got the number '0.2'"),
        (["0", "web"], r"`web` in the blend"),
        (["-1", "web"], r"`web` in the blend"),
    ],
)
def test_blends_that_are_none(entries, message):
    with pytest.raises(ConfigError, match=message):
        weighted_entries(entries)
