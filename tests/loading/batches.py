"""Settings of datasets, and expected batches."""

import torch
from torch.utils.data import default_collate

CHANGES = {
    "plain": {},
    "masks": {"create_attention_mask": True},
    "resets": {"create_attention_mask": True, "reset_attention_mask": True, "reset_position_ids": True},
    "document masking": {"inter_document_masking": True},
    "positional reads": {"mmap_bin_files": False},
}


def assert_equal_batches(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        assert list(batch) == list(other)
        for name in other:
            assert batch[name].dtype == other[name].dtype
            assert torch.equal(batch[name], other[name])


def stacked(dataset, sampler):
    """Yields the expected batches: stacked samples."""
    for positions in sampler:
        yield default_collate([dataset[position] for position in positions])
