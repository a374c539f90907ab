"""Notebook cards of blends and of build plans."""

from __future__ import annotations

from tests.rendering.cards import tables_of, text_of
from tests.support import make_config, write_corpus

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.plan import plan_build
from tokenloom.datasets.gpt import GPTDataset


def corpora(folder, count):
    """Writes pairs of 1, 2, 3, ... documents of ten tokens; returns their prefixes."""
    return [write_corpus(folder / f"s{number}", [[1] * 10] * (number + 1)) for number in range(count)]


def test_a_blend_shows_its_shares(tmp_path):
    config = make_config(None, blend=(corpora(tmp_path, 2), [3.0, 1.0]), split="1,0,0")
    blend = BlendedMegatronDatasetBuilder(GPTDataset, [8, 0, 0], lambda: True, config).build()[0]
    facts, members = tables_of(blend._repr_html_())
    assert facts == [["split", "train"], ["samples", "8"], ["class", "GPTDataset"], ["sequence length", "4"]]
    assert [share for _, share in members] == ["share", "75.000%", "25.000%"]


def test_a_plan_shows_each_split_and_what_is_wrong(tmp_path):
    config = make_config(None, blend=(corpora(tmp_path, 2), [3.0, 1.0]), split="50,50,0", mid_level_dataset_surplus=0.0)
    plan = plan_build(config, [40, 10, None])
    facts, train, valid = tables_of(plan._repr_html_())
    assert facts[0] == ["sequence length", "4"]
    assert facts[3:5] == [["train samples", "40"], ["valid samples", "11"]]
    assert train[0][2:6] == ["weight", "share", "samples", "epochs"]
    assert [row[2:5] for row in train[1:]] == [["3", "75.00%", "30"], ["1", "25.00%", "10"]]
    assert len(valid) == 3
    assert plan.problems
    assert text_of(plan._repr_html_()).count(" samples needed, ") == len(plan.problems)
