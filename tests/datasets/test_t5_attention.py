"""Attention masks of T5."""

from __future__ import annotations

import torch

from tokenloom import (
    T5MaskedWordPieceDataset,
)


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
