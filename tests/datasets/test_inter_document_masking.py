"""Inter-document masking: samples recorded from a reference newer than the release on PyPI."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.support import StandInTokenizer, equal_samples, make_config, write_corpus

from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split, split_indices
from tokenloom.indexed.dataset import IndexedDataset

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "inter_document_masking.npz")
CASES = sorted({name.split("_")[0] for name in GOLDEN.files}, key=lambda name: int(name.removeprefix("case")))
FIELDS = ["tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen"]


@pytest.mark.parametrize("mapped", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_samples_are_those_of_the_reference(tmp_path, case, mapped):
    recorded = json.loads(str(GOLDEN[f"{case}_settings"]))
    tokens, lengths = GOLDEN[f"{case}_documents"], GOLDEN[f"{case}_lengths"]
    prefix = write_corpus(tmp_path / "corpus", np.split(tokens, np.cumsum(lengths)[:-1]), dtype=tokens.dtype)
    config = make_config(
        prefix,
        tokenizer=StandInTokenizer(pad=recorded.pop("pad"), eod=recorded.pop("eod"), vocab_size=recorded["vocab_size"]),
        inter_document_masking=True,
        mmap_bin_files=mapped,
        **{name: value for name, value in recorded.items() if name != "vocab_size"},
    )
    data = IndexedDataset(prefix, mmap=mapped)
    compared = 0
    for split in Split:
        if f"{case}_{split.name}_tokens" not in GOLDEN.files:
            continue
        expected = {name: GOLDEN[f"{case}_{split.name}_{name}"] for name in FIELDS}
        bounds = config.split_matrix[split.value]
        dataset = GPTDataset(data, prefix, split_indices(bounds, len(data)), None, split, config)
        count = len(expected["tokens"])
        batch = dataset.batch(range(count))
        assert list(batch) == FIELDS
        for k in range(count):
            golden, tensors = {name: expected[name][k] for name in FIELDS}, dataset[k]
            for found in (dataset.sample(k), tensors, {name: batch[name][k] for name in FIELDS}):
                assert equal_samples({name: np.asarray(value) for name, value in found.items()}, golden), (split, k)
            compared += 1
    assert compared


def seed_of_identity(count: int) -> int:
    """Returns a seed that leaves `count` documents unshuffled."""
    return next(seed for seed in range(10_000) if (np.diff(np.random.RandomState(seed).permutation(count)) > 0).all())


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize(
    ("lengths", "boundaries", "longest"),
    [
        ([1, 4, 1], [0, 1, 8], 7),  # the last token begins a document: padding extends the document before it
        ([1, 4, 2], [0, 1, 5, 8], 4),
        ([1, 1, 1], [0, 1, 8], 7),
        ([4, 0, 1], [0, 4, 8], 4),
        ([1, 4, 0], [0, 1, 5, 8], 4),
        ([1, 4, 1, 0], [0, 1, 5, 6, 8], 4),
        ([2], [0, 8], 8),
        ([8, 1], [0, 8], 8),  # full
        ([4, 4, 1], [0, 4, 8], 4),
    ],
)
def test_a_partial_sample_ends_before_its_last_token(tmp_path, lengths, boundaries, longest, mapped):
    prefix = write_corpus(tmp_path / "corpus", [[number + 1] * length for number, length in enumerate(lengths)])
    config = make_config(
        prefix,
        sequence_length=8,
        random_seed=seed_of_identity(len(lengths)),
        inter_document_masking=True,
        drop_last_partial_validation_sequence=False,
        mmap_bin_files=mapped,
    )
    dataset = GPTDataset(IndexedDataset(prefix, mmap=mapped), prefix, range(len(lengths)), None, Split.valid, config)
    sample = dataset.sample(len(dataset) - 1)
    bounds = [*boundaries, *[8] * (9 - len(boundaries))]
    assert (sample["cu_seqlens"].tolist(), int(sample["max_seqlen"])) == (bounds, longest)
    assert sample["position_ids"].tolist() == [k - max(at for at in boundaries if at <= k) for k in range(8)]


def test_all_recorded_cases_are_there():
    assert len(CASES) == 12
