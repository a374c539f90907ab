"""`tokenloom_retro.megatron`: samples as texts."""

from __future__ import annotations

import pytest
from tests.support import EOD, StandInTokenizer, write_corpus

from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
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


def test_a_query_of_a_users_own_is_asked(prefix):
    class Marked(MultiSplitGPTDataset):
        def _query_document_sample_shuffle_indices(self, idx):
            text, documents, *_ = super()._query_document_sample_shuffle_indices(idx)
            return text + 100, documents

    marked, plain = build(prefix, Marked), build(prefix)
    assert marked[1]["text"].tolist() == (plain[1]["text"] + 100).tolist()
    assert build(prefix, Marked, return_document_ids=False)[1]["text"].tolist() == marked[1]["text"].tolist()


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
