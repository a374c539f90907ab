"""What a notebook and pictures show of blends, and of what a build will do."""

from __future__ import annotations

import re

from tests.blending.corpora import corpora
from tests.rendering.cards import tables_of
from tests.rendering.figure_parts import rows_of, title_of, words_of
from tests.support import make_config

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.plan import plan_build
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.rendering.figures import label


def test_a_blend_shows_its_shares(tmp_path):
    config = make_config(None, blend=(corpora(tmp_path, 2), [3.0, 1.0]), split="1,0,0")
    blend = BlendedMegatronDatasetBuilder(GPTDataset, [8, 0, 0], lambda: True, config).build()[0]
    facts, members = tables_of(blend._repr_html_())
    assert facts == [
        ["split", "train"],
        ["samples", "8"],
        ["datasets", "2"],
        ["class", "GPTDataset"],
        ["sequence length", "4"],
    ]
    assert [share for _, share in members] == ["share", "75.000%", "25.000%"]


def test_a_plan_shows_each_split_and_what_is_wrong(tmp_path):
    config = make_config(None, blend=(corpora(tmp_path, 2), [3.0, 1.0]), split="50,50,0", mid_level_dataset_surplus=0.0)
    plan = plan_build(config, [40, 10, None])
    facts, train, valid = tables_of(plan._repr_html_())
    assert facts[:3] == [["sequence length", "4"], ["train samples", "40"], ["valid samples", "11"]]
    assert train[0][2:] == ["share", "samples owed", "epochs"]
    assert [row[2:4] for row in train[1:]] == [["75.000%", "30"], ["25.000%", "10"]]
    assert len(valid) == 3
    alarms = re.findall(r'role="alert">(.*?)</p>', plan._repr_html_())
    assert len(alarms) == len(plan.problems) > 0
    assert all(" samples owed, " in alarm for alarm in alarms)


def test_a_plan_is_drawn_with_a_row_of_bars_for_each_split(tmp_path):
    prefixes = corpora(tmp_path, 2)
    plan = plan_build(make_config(None, blend=(prefixes, [3.0, 1.0]), split="50,50,0"), [40, 10, None])
    owed, epochs, valid, _ = (figure := plan.plot(path=tmp_path / "a.svg")).axes
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
