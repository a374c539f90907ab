"""Samples made step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support import EOD, StandInTokenizer, make_dataset, write_corpus

from tokenloom.datasets.splits import Split
from tokenloom.megatron.core.datasets.reference_samples import masks_and_position_ids, sample_of_text

TEXT = torch.tensor([1, EOD, 2, 3, EOD, EOD, 4])


def test_masks_and_positions_of_a_text():
    mask, loss, positions = masks_and_position_ids(TEXT, EOD, True, True, True, True)
    assert positions.tolist() == [0, 1, 0, 1, 2, 0, 0]
    assert loss.tolist() == [1, 0, 1, 1, 0, 0, 1]
    seen = [[j for j in range(7) if not mask[0, i, j]] for i in range(7)]
    assert seen == [[0], [0, 1], [2], [2, 3], [2, 3, 4], [5], [6]]
    mask, loss, positions = masks_and_position_ids(TEXT, EOD, False, False, False, False)
    assert mask is None
    assert (loss.tolist(), positions.tolist()) == ([1] * 7, list(range(7)))


@pytest.mark.parametrize("flags", list(np.ndindex(2, 2, 2, 2)))
@pytest.mark.parametrize("extra", [True, False])
def test_samples_are_those_of_the_kernel(tmp_path, rng, flags, extra):
    prefix = write_corpus(tmp_path / "corpus", [rng.choice([1, 2, 3, 5, EOD], size=25) for _ in range(2)])
    names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    settings = {name: bool(flag) for name, flag in zip(names, flags, strict=True)}
    dataset = make_dataset(
        prefix,
        in_memory=True,
        split=Split.valid,
        drop_last_partial_validation_sequence=False,
        sequence_length=6,
        tokenizer=StandInTokenizer(pad=5),
        add_extra_token_to_sequence=extra,
        **settings,
    )
    given = [settings[name] for name in names]
    for k in range(len(dataset)):
        text, _ = dataset._query_document_sample_shuffle_indices(k)
        made = sample_of_text(dataset, text, None, lambda tokens: masks_and_position_ids(tokens, EOD, *given))
        expected = dataset[k]
        assert list(made) == list(expected)
        assert all(torch.equal(made[name], expected[name]) for name in made)
        assert all(made[name].dtype == expected[name].dtype for name in made)
