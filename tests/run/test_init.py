"""The first `run.toml`."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.data import write_source

from tokenloom.errors import ConfigError
from tokenloom.run.init import RunDraft, draft_text, take_arguments, weighted_entries
from tokenloom.run.settings import parse_run


def stage_of(text: str):
    return parse_run(text, path="run.toml").stages[0]


def test_data_without_weights_are_read_once():
    stage = stage_of(draft_text(RunDraft(data=("data/web/*", "code"), sequence_length=8), path="run.toml"))
    assert stage.passes == (("web", Fraction(1)), ("code", Fraction(1)))


def test_data_without_weights_share_a_size_by_their_tokens(tmp_path):
    data = (write_source(str(tmp_path / "a"), 30, 30), write_source(str(tmp_path / "b"), 20))
    stage = stage_of(draft_text(RunDraft(data=data, sequence_length=8, samples=5), path=str(tmp_path / "run.toml")))
    assert stage.weights == (("a", Fraction(3)), ("b", Fraction(1)))


def test_weighted_data_without_a_size_go_on_for_ever():
    draft = RunDraft(data=("a", "b"), weights=(Fraction(1), Fraction(2)), sequence_length=8)
    assert stage_of(draft_text(draft, path="run.toml")).is_endless


def test_paths_are_named_from_the_folder_of_the_file():
    draft = RunDraft(data=("data/web", "/abs/web", "s3://bucket/web/"), sequence_length=8, tokenizer="byte")
    settings = parse_run(draft_text(draft, path="runs/one/run.toml"), path="runs/one/run.toml")
    assert [source.data[0] for source in settings.sources] == ["../../data/web", "/abs/web", "s3://bucket/web/"]
    assert [source.name for source in settings.sources] == ["web", "web_2", "web_3"]
    assert settings.tokenizer == "byte"


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("data/web_text_document", "web"),
        ("data/web/*_document", "web"),
        ("data/web_*", "web"),
        ("web.bin", "web"),
        ("data/books/", "books"),
        ("*", "data"),
        ("a b", "a b"),
    ],
)
def test_sources_are_named_by_what_their_paths_say(entry, name):
    text = draft_text(RunDraft(data=(entry,), sequence_length=8), path="run.toml")
    assert [source.name for source in parse_run(text, path="run.toml").sources] == [name]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["0.8", "web", "code"], r"weights and prefixes by turns, or prefixes alone, found entry 3 'code' of 3"),
        (["web", "0.2"], r"found entry 1 'web' of 2"),
        (["0", "web"], r"expected a weight above 0 for `web`, found 0"),
        (["-1", "web"], r"expected the weight of `web` to be a finite number from 0 on, found -1"),
        (["nan", "web"], r"expected the weight of `web` to be a finite number"),
    ],
)
def test_blends_that_are_none(entries, message):
    with pytest.raises(ConfigError, match=message):
        weighted_entries(entries)


@given(st.lists(st.tuples(st.integers(1, 1000), st.text(st.characters(codec="utf-8"), min_size=1)), min_size=1))
def test_any_blend_is_written_or_refused(entries):
    try:
        data, weights = weighted_entries([part for weight, path in entries for part in (str(weight), path)])
        text = draft_text(RunDraft(data=data, weights=weights, sequence_length=8), path="run.toml")
    except ConfigError:
        return
    assert len(parse_run(text, path="run.toml").sources) == len(entries)


def test_steps_need_a_batch_size():
    assert take_arguments({"train-iters": ["10"], "global-batch-size": ["3"]}).samples == 30
    assert take_arguments({"train-samples": ["7"]}).samples == 7
    taken = take_arguments({"train-iters": ["10"]})
    assert taken.samples is None
    assert [name for name, _ in taken.not_taken] == ["train-iters"]
    ramped = take_arguments({"train-iters": ["10"], "global-batch-size": ["3"], "rampup-batch-size": ["1", "1", "9"]})
    assert [name for name, _ in ramped.not_taken] == ["train-iters", "rampup-batch-size"]


def test_entries_may_lie_in_a_file(tmp_path):
    (tmp_path / "blend").write_text("1 web\n2 code\n")
    assert take_arguments({"data-args-path": [str(tmp_path / "blend")]}).entries == ("1", "web", "2", "code")
    with pytest.raises(ConfigError, match="cannot be read"):
        take_arguments({"data-args-path": [str(tmp_path / "none")]})


def test_tokenizers():
    assert take_arguments({"tokenizer-type": ["NullTokenizer"], "vocab-size": ["9"]}).tokenizer == "null:9"
    assert take_arguments({"tokenizer-model": ["a.json"], "tokenizer-type": ["HF"]}).tokenizer == "a.json"
    assert take_arguments({"tokenizer-type": ["GPT2BPETokenizer"]}).not_taken[0][0] == "tokenizer-type"


def test_numbers_that_are_none_name_their_argument():
    with pytest.raises(ConfigError, match=r"`--seq-length` 'long'"):
        take_arguments({"seq-length": ["long"]})
