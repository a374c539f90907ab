"""T5 samples that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.datasets.masked import ALL_WORDS, BOS, EOS, NOTHING_IS_MASKED, make_config, make_dataset, sample_of
from tests.support import StandInWordPieces, write_sentences

from tokenloom import ConfigError, T5MaskedWordPieceDataset


def test_t5_replaces_masked_words_by_sentinels_in_the_order_of_the_text(tmp_path):
    prefix = write_sentences(tmp_path / "corpus", [[[10, 11], [50, 12]]])
    tokenizer = StandInWordPieces(continuations=[50])
    dataset = make_dataset("t5", prefix, tokenizer=tokenizer, sequence_length_decoder=10, **ALL_WORDS)
    assert sample_of(dataset, 0) == {
        "text_enc": [6, 7, 8] + [0] * 9,
        "text_dec": [BOS, 6, 10, 7, 11, 50, 8, 12, 0, 0],
        "labels": [6, 10, 7, 11, 50, 8, 12, EOS, -1, -1],
        "loss_mask": [1] * 8 + [0] * 2,
        "truncated": 0,
        "enc_mask": [1] * 3 + [0] * 9,
        "dec_mask": [1] * 8 + [0] * 2,
    }


def test_t5_of_which_nothing_is_masked_and_whose_end_is_lost(prefix):
    dataset = make_dataset("t5", prefix, sequence_length=6, sequence_length_decoder=2, **NOTHING_IS_MASKED)
    assert sample_of(dataset, 0) == {
        "text_enc": [10, 11, 12, 13, 0, 0],
        "text_dec": [BOS, 0],
        "labels": [EOS, -1],
        "loss_mask": [1, 0],
        "truncated": 1,
        "enc_mask": [1] * 4 + [0] * 2,
        "dec_mask": [1, 0],
    }


def test_t5_asks_for_sentinels_and_does_without_cls_sep_and_mask(prefix):
    with pytest.raises(ConfigError, match="has no `additional_special_tokens_ids`"):
        make_config("t5", prefix, tokenizer=StandInWordPieces(num_sentinels=0))
    tokenizer = StandInWordPieces(cls=None, sep=None, mask=None)
    assert make_dataset("t5", prefix, tokenizer=tokenizer)[0]["text_dec"][0] == BOS


def test_more_masked_runs_than_sentinels_names_sample_and_numbers(prefix, caplog):
    dataset = make_dataset("t5", prefix, tokenizer=StandInWordPieces(num_sentinels=1), **ALL_WORDS)
    assert "can have up to 9 masked runs of words, but the tokenizer has 1 sentinels" in caplog.text
    (k,) = np.flatnonzero(dataset.sample_index[:, 0] == 0)
    message = rf"sample {k} of .*corpus` \(train\): 6 runs of words are masked, but the tokenizer has 1 sentinel tokens"
    with pytest.raises(ConfigError, match=message):
        dataset.batch(range(len(dataset)))


def test_a_decoder_that_is_too_short_names_sample_and_numbers(prefix):
    dataset = make_dataset(
        "t5", prefix, tokenizer=StandInWordPieces(num_sentinels=9), sequence_length_decoder=12, **ALL_WORDS
    )
    (k,) = np.flatnonzero(dataset.sample_index[:, 0] == 0)
    with pytest.raises(ConfigError, match=f"sample {k} .*the decoder needs 13 tokens, but sequence_length_decoder is"):
        dataset[int(k)]


def test_dense_attention_masks_of_t5():
    encoder, decoder = torch.tensor([[5, 6, 0]]), torch.tensor([[4, 0]])
    masks = T5MaskedWordPieceDataset.config_attention_mask(encoder, decoder, None, None, use_local=True)
    assert [(~mask).int().tolist() for mask in masks] == [
        [[[[1, 1, 0], [1, 1, 0], [0, 0, 0]]]],
        [[[[1, 0], [0, 0]]]],
        [[[[1, 1, 0], [0, 0, 0]]]],
    ]


def test_separate_attention_masks_of_t5():
    encoder_mask, decoder_mask = torch.ones(2, 3), torch.zeros(2, 4)
    encoder, decoder, cross = T5MaskedWordPieceDataset.config_attention_mask(
        encoder_mask, decoder_mask, encoder_mask, decoder_mask
    )
    assert (encoder.shape, decoder) == ((2, 1, 1, 3), None)
    assert [mask.shape for mask in cross] == [(2, 1, 1, 4), (2, 1, 1, 3)]
