"""How long a stage is, and what its name and keys may be."""

from __future__ import annotations

import pytest
from tests.run.texts import SMALL, error_of

from tokenloom.run.settings import parse_run
from tokenloom.run.stage_settings import StageSettings, fault_of_name


def stage_of(keys: str) -> StageSettings:
    return parse_run(SMALL + keys, path="run.toml").stages[0]


@pytest.mark.parametrize(
    ("keys", "num_samples"),
    [
        ("tokens = 8", 1),
        ("tokens = 15", 1),
        ('tokens = "1K"', 125),
        ("samples = 7", 7),
        ('samples = "7K"', 7000),
        ("", None),
    ],
)
def test_samples_of_a_stage(keys, num_samples):
    assert stage_of(keys).num_samples == num_samples
    assert stage_of(keys).is_endless == (num_samples is None)


def test_only_sources_with_a_weight_are_read():
    text = SMALL.replace("web = 1", "web = 1, code = 0").replace("[[", 'code = "code"\nwiki = "wiki"\n[[')
    assert parse_run(text, path="run.toml").stages[0].sources == ("web",)


def test_later_stages_have_the_sequence_length_of_the_one_before():
    more = "samples = 1\n" + "[[stages]]\nsamples = 1\nweights = { web = 1 }\n" * 2
    longer = more.replace("[[stages]]", "[[stages]]\nsequence_length = 16", 1)
    for text, lengths in ((more, [8, 8, 8]), (longer, [8, 16, 16])):
        assert [stage.sequence_length for stage in parse_run(SMALL + text, path="run.toml").stages] == lengths


def test_two_stages_of_one_name_are_told_by_both_lines():
    text = SMALL + 'name = "a"\nsamples = 1\n[[stages]]\nname = "a"\nweights = { web = 1 }\n'
    assert error_of(text).message == (
        "run.toml:11: expected another name than 'a', which the stage on line 5 has\n    name = \"a\""
    )


@pytest.mark.parametrize("name", ["web", "a b", "été", "1", "a.b", "x" * 200])
def test_names(name):
    assert fault_of_name(name) is None


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\0", "a\u2028b", "x" * 201])
def test_what_is_no_name(name):
    assert fault_of_name(name) is not None
