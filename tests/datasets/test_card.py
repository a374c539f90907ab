"""What a notebook shows of datasets: what is known without opening or building anything."""

from __future__ import annotations

import os

import pytest
from tests.datasets import masked
from tests.datasets.conversations import ANSWER, PROMPT, conversation, make_sft, write_conversations
from tests.rendering.cards import tables_of, text_of
from tests.rendering.figure_parts import title_of
from tests.support import StandInTokenizer, make_config, make_dataset, write_corpus

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.mock import MockGPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.indexed.counts import sequence_counts

DOCUMENTS = [[1, 2, 3, 9], [4, 5, 6, 7, 8, 9], [10, 11, 9]]


def facts_of(dataset) -> dict[str, str]:
    return dict(tables_of(dataset._repr_html_())[0])


def test_gpt_samples_show_their_epochs_and_their_pair(tmp_path):
    dataset = make_dataset(write_corpus(tmp_path / "a", DOCUMENTS), num_samples=5)
    about, pair = tables_of(dataset._repr_html_())
    assert about == [
        ["split", "train"],
        ["samples", "6"],
        ["epochs", "2"],
        ["tokens of an epoch", "13"],
        ["documents exposed", "3 of 3"],
        ["windows", "concat"],
        ["sequence length", "4"],
        ["seed", str(dataset.config.random_seed)],
    ]
    assert pair[:2] == [["documents", "3"], ["tokens", "13"]]
    assert "its pair" in text_of(dataset._repr_html_())


def test_data_that_are_opened_later_stay_closed(tmp_path):
    prefix = write_corpus(tmp_path / "a", DOCUMENTS)
    settings = {"path_to_cache": str(tmp_path / "cache")}
    builder = BlendedMegatronDatasetBuilder(GPTDataset, [5, 0, 0], lambda: True, make_config(prefix, **settings))
    assert facts_of(builder.build()[0])["samples"] == "6"
    later = make_config(prefix, fast_cache_load=True, sequences_per_dataset=sequence_counts([prefix]), **settings)
    dataset = BlendedMegatronDatasetBuilder(GPTDataset, [5, 0, 0], lambda: True, later).build()[0]
    os.remove(f"{prefix}.bin")
    assert facts_of(dataset)["samples, at least"] == "5"
    assert "samples" not in facts_of(dataset)
    assert not dataset.dataset.is_open


@pytest.mark.parametrize("kind", masked.KINDS)
def test_masked_samples_are_shown_and_their_documents(prefix, kind):
    dataset = masked.make_dataset(kind, prefix, num_samples=7)
    assert facts_of(dataset) | {"seed": ""} == {
        "split": "train",
        "samples": str(len(dataset)),
        "documents exposed": "4 of 4",
        "sequence length": "12",
        "seed": "",
    }


class Unbuilt:
    """An order that would have to be built."""

    is_built = False

    @property
    def num_samples(self):
        raise AssertionError("nothing is built to be shown")


def test_no_index_is_built_to_be_shown(prefix):
    dataset = masked.make_dataset("bert", prefix, num_samples=7)
    dataset.order = Unbuilt()
    assert facts_of(dataset)["samples, at least"] == "7"
    assert "samples" not in facts_of(dataset)


def test_conversations_are_shown(tmp_path):
    prefix = write_conversations(tmp_path / "a", [conversation((PROMPT, [1, 2]), (ANSWER, [3, 4]))] * 3)
    facts = facts_of(make_sft(prefix))
    assert (facts["samples"], facts["exposed"], facts["sequence length"]) == ("2", "3 of 3 sequences", "8")


def test_made_up_data_have_no_pair():
    config = make_config(None, tokenizer=StandInTokenizer(vocab_size=50))
    low_level = MockGPTDataset.build_low_level_dataset(None, config)
    dataset = MockGPTDataset(low_level, None, range(10), 4, Split.valid, config)
    assert len(tables_of(dataset._repr_html_())) == 1
    assert (facts_of(dataset)["data"], facts_of(dataset)["split"]) == ("made up", "valid")


class Broken(MegatronDataset):
    """A class of a user's own that fails."""

    @staticmethod
    def build_low_level_dataset(dataset_path, config):
        return range(3)

    @staticmethod
    def numel_low_level_dataset(low_level_dataset):
        return 3

    def __len__(self):
        raise RuntimeError("not now")

    def __getitem__(self, idx):
        raise RuntimeError("not now")


def test_a_class_that_fails_is_shown_without_what_fails():
    config = BlendedMegatronDatasetConfig(random_seed=1, sequence_length=8, blend=(["<b>"], None), split="1")
    dataset = Broken(range(3), "<b>", range(3), 2, Split.train, config)
    assert facts_of(dataset) == {"split": "train", "sequence length": "8", "seed": "1"}
    assert text_of(dataset._repr_html_()).startswith("Broken <b>")


def test_lengths_are_those_of_what_a_split_exposes(tmp_path, prefix):
    gpt = make_dataset(write_corpus(tmp_path / "a", DOCUMENTS), indices=[0, 2])
    assert title_of(gpt.plot_lengths().axes[0]) == "2 sequences, 7 tokens, 4 on average"
    bert = masked.make_dataset("bert", prefix, indices=[2, 3])
    assert bert.length_histogram().counts[:4].tolist() == [0, 2, 1, 1]
    assert masked.make_dataset("bert", prefix, indices=[2]).length_histogram().num_sequences == 0
