"""Pictures of what a build will do, and of the documents of blends."""

from __future__ import annotations

import dataclasses

import pytest
from tests.blending.corpora import corpora
from tests.rendering.figure_parts import legend_of, rows_of, title_of, words_of
from tests.support import make_config

from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.plan import BuildPlan, Problem, plan_build
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.rendering.figures import label


def test_each_split_has_a_row_of_bars(tmp_path):
    prefixes = corpora(tmp_path, 2)
    plan = plan_build(make_config(None, blend=(prefixes, [3.0, 1.0]), split="50,50,0"), [40, 10, None])
    figure = plan.plot(path=tmp_path / "a.svg")
    owed, epochs, valid, _ = figure.axes
    assert [title_of(axes) for axes in figure.axes] == [
        "train: samples owed, 40 in all",
        "train: epochs of each dataset",
        "valid: samples owed, 11 in all",
        "valid: epochs of each dataset",
    ]
    assert rows_of(owed) == [label(prefix, width=28) for prefix in prefixes]
    assert words_of(owed) == ["30 (75.0%)", "10 (25.0%)"]
    assert [word.partition(":")[0] for word in words_of(epochs)] == [
        f"{dataset.num_epochs_owed:.2f}" for dataset in plan.splits[0].datasets
    ]
    assert [bar.get_width() for bar in valid.patches] == [8, 3]
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.filterwarnings("ignore::tokenloom.DuplicateDataWarning")
def test_what_runs_short_is_said_beside_its_bar(tmp_path):
    blend = (corpora(tmp_path, 1) * 2, [3.0, 1.0])
    train = plan_build(make_config(None, blend=blend, split="1,0,0"), [8, None, None]).splits[0]
    short = dataclasses.replace(train, problems=(_problem(train),))
    (_, epochs) = BuildPlan(sequence_length=4, splits=(short, None, None)).plot().axes
    assert [word.endswith(": more than it will have") for word in words_of(epochs)] == [False, True]


def _problem(train):
    return Problem(split=train.split, dataset=1, name="x", owed=9, available=1, surplus=None, remedy="")


@pytest.mark.filterwarnings("ignore::tokenloom.DuplicateDataWarning")
def test_of_200_datasets_the_largest_are_drawn(tmp_path):
    prefixes = corpora(tmp_path, 1) * 200
    config = make_config(None, blend=(prefixes, [float(number + 1) for number in range(200)]), split="1,0,0")
    plan = plan_build(config, [20100, 0, 0])
    owed, epochs = plan.plot().axes
    assert len(rows_of(owed)) == 13
    assert rows_of(owed)[-1] == "188 others"
    samples = sorted(dataset.num_samples_owed for dataset in plan.splits[0].datasets)
    assert [bar.get_width() for bar in owed.patches] == [*samples[:-13:-1], sum(samples[:-12])]
    assert words_of(epochs)[-1].startswith("at most ")


def test_a_plan_of_nothing_has_no_picture():
    with pytest.raises(ConfigError, match="expected a split with data to draw, found none"):
        BuildPlan(sequence_length=4, splits=(None, None, None)).plot()


def test_a_blend_draws_the_lengths_of_each_dataset(tmp_path):
    prefixes = corpora(tmp_path, 2)
    config = make_config(None, blend=(prefixes, [3.0, 1.0]), split="1,0,0")
    blend = BlendedMegatronDatasetBuilder(GPTDataset, [8, 0, 0], lambda: True, config).build()[0]
    axes = blend.plot_lengths().axes[0]
    assert title_of(axes) == "3 sequences, 30 tokens, 10 on average"
    assert legend_of(axes) == [label(prefixes[1], width=28), label(prefixes[0], width=28), "tokens"]


def test_a_blend_of_a_users_own_class_says_what_is_missing():
    class Numbers(list):
        index_split, unique_identifiers, dataset_path = Split.train, {}, "mine"

    blend = BlendedDataset([Numbers(range(3))], [1.0], 3, make_config(None))
    with pytest.raises(ConfigError, match="expected datasets that know how long their sequences are, found Numbers"):
        blend.plot_lengths()
