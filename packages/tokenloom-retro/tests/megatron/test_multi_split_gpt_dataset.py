"""`tokenloom_retro.megatron`: samples as texts."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import EOD, StandInTokenizer, write_corpus

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset
from tokenloom_retro.megatron import MultiSplitGPTDataset, MultiSplitGPTDatasetConfig

DOCUMENTS = [[1, 2, 3, 4, EOD], [5, 6, 7, EOD], [8, 10, EOD]]


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", DOCUMENTS)


def settings(prefix, **changes):
    given = {
        "random_seed": 3,
        "sequence_length": 3,
        "blend": ([prefix], None),
        "split": "1,0,0",
        "split_preprocessing": "1,0,0",
        "return_document_ids": True,
        "tokenizer": StandInTokenizer(),
        **dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False),
    }
    return MultiSplitGPTDatasetConfig(**(given | changes))


def build(prefix, kind=MultiSplitGPTDataset, **changes):
    config = settings(prefix, **changes)
    return BlendedMegatronDatasetBuilder(kind, [6, 0, 0], lambda: True, config).build()[0]


def test_texts_are_those_of_the_stream(prefix):
    texts = build(prefix)
    assert isinstance(texts, GPTDataset)
    stream = [token for document in texts.document_index.tolist() for token in DOCUMENTS[document]]
    for number in range(len(texts)):
        start = int(texts.shuffle_index[number]) * 3
        assert texts[number]["text"].tolist() == stream[start : start + 4]
        assert isinstance(texts[number]["document_ids"], np.ndarray)


def test_a_query_of_a_users_own_is_asked(prefix):
    class Marked(MultiSplitGPTDataset):
        def _query_document_sample_shuffle_indices(self, idx):
            text, documents, *_ = super()._query_document_sample_shuffle_indices(idx)
            return text + 100, documents

    marked, plain = build(prefix, Marked), build(prefix)
    assert marked[1]["text"].tolist() == (plain[1]["text"] + 100).tolist()
    assert build(prefix, Marked, return_document_ids=False)[1]["text"].tolist() == marked[1]["text"].tolist()


def test_index_arrays_may_be_assigned(prefix):
    texts = build(prefix)
    first = texts[0]["text"].tolist()
    texts.shuffle_index = texts.shuffle_index[::-1].copy()
    assert texts[len(texts) - 1]["text"].tolist() == first
    starts = texts.sample_index.copy()
    starts[1:-1] = starts[0]  # windows that nobody would cut
    texts.sample_index = starts
    assert texts.item_hook == "sample_index"
    texts.shuffle_index = np.arange(len(texts), dtype=np.uint32)
    assert list(texts[0]) == ["text", "document_ids"]
    with pytest.raises(ConfigError, match="found None"):
        texts[None]


def test_hooks_of_the_reference_are_not_refused(prefix):
    class Counted(MultiSplitGPTDataset):
        def _get_num_epochs(self, num_tokens_per_epoch):
            asked.append(num_tokens_per_epoch)
            return super()._get_num_epochs(num_tokens_per_epoch)

    asked = []
    assert len(build(prefix, Counted).document_index) == 2 * len(DOCUMENTS)
    assert set(asked) == {12}


@pytest.mark.parametrize("name", ["return_document_ids", "split_preprocessing", "tokenizer", "reset_position_ids"])
def test_what_is_missing_is_an_assertion_error(prefix, name):
    with pytest.raises(AssertionError, match=name):
        settings(prefix, **{name: None})


def test_splits_are_read_as_the_reference_reads_them(prefix):
    found = settings(prefix, split="9:1:0", split_preprocessing="8:2:0")
    assert found.split_matrix == [(0, 0.8), (0.9, 1.0), None]
