"""Stretches of tokens, drawn from all of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tokenloom import IndexedDatasetBuilder, build_catalogue
from tokenloom.inspect.target import open_target
from tokenloom.inspect.token_sample import sample_tokens

EOD = 256
"""Of the tokenizer of bytes."""


def write_pair(prefix: Path, documents: list[list[int]], dtype: type = np.uint16) -> str:
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype) as builder:
        for ids in documents:
            builder.add_document(ids, [len(ids)])
        builder.finalize(f"{prefix}.idx")
    return str(prefix)


def sampled(*words: str, **options):
    target = open_target(list(words), tokenizer="byte")
    return sample_tokens(target, **{"seed": 1, **options})


def test_shares_of_a_sample_are_those_of_all_tokens(tmp_path):
    documents = [[*b"abc" * size, EOD] for size in (0, 1, 2, 3, 400)]
    found = sampled(write_pair(tmp_path / "one", documents * 20), num_stretches=2000, stretch_tokens=64)
    share = 20 * 5 / sum(len(each) * 20 for each in documents)
    assert found.num_tokens > 100_000
    assert found.counts[EOD] / found.num_tokens == pytest.approx(share, rel=0.2)
    assert found.counts[ord("a")] / found.num_tokens == pytest.approx((1 - share) / 3, rel=0.05)
    assert set(found.counts) == {*b"abc", EOD}


def test_tokens_are_compared_with_the_bytes_of_their_text(tmp_path):
    found = sampled(write_pair(tmp_path / "one", [[*b"words and more", EOD]] * 9))
    assert found.tokens_per_byte == 1.0
    assert found.spread((5, 95)) == [1.0, 1.0]
    assert (found.num_ends_with_eod, found.undecodable) == (found.num_ends, None)


def test_documents_without_eod_are_told(tmp_path):
    found = sampled(write_pair(tmp_path / "one", [[*b"ab", EOD], [*b"cd"], []]))
    assert (found.num_ends, found.num_ends_with_eod) == (2, 1)


def test_the_same_seed_draws_the_same(tmp_path):
    prefix = write_pair(tmp_path / "one", [list(range(256))] * 50)
    first, again, other = (sampled(prefix, seed=seed, num_stretches=3, stretch_tokens=9) for seed in (1, 1, 2))
    assert first.counts == again.counts
    assert first.counts != other.counts


def test_of_a_catalogue_all_parts_are_read_and_no_gap_between_them(tmp_path):
    parts = [write_pair(tmp_path / str(part), [[part + 1] * 100]) for part in range(3)]
    build_catalogue(parts, str(tmp_path / "all"))
    found = sampled(str(tmp_path / "all"), num_stretches=200)
    assert set(found.counts) == {1, 2, 3}


def test_sources_count_by_their_tokens(tmp_path):
    large, small = write_pair(tmp_path / "large", [[1] * 5000]), write_pair(tmp_path / "small", [[2] * 50])
    found = sampled(large, small, num_stretches=500, stretch_tokens=1)
    assert found.counts[1] > 50 * found.counts[2]


@pytest.mark.parametrize("documents", [[], [[]], [[], []]])
def test_nothing_is_a_sample_of_nothing(tmp_path, documents):
    found = sampled(write_pair(tmp_path / "one", documents))
    assert (found.num_tokens, found.tokens_per_byte, found.num_ends) == (0, None, 0)


def test_one_token_and_ids_beyond_the_tokenizer(tmp_path):
    assert sampled(write_pair(tmp_path / "one", [[7]]), num_stretches=2).num_tokens == 2
    found = sampled(write_pair(tmp_path / "two", [[60_000] * 4]))
    assert found.counts[60_000]
    assert found.undecodable is not None


def test_images_are_left_out(tmp_path):
    with IndexedDatasetBuilder(f"{tmp_path}/mixed.bin", dtype=np.uint16, multimodal=True) as builder:
        builder.add_document([1, 2, 3, 9, 9, 9, 9], [3, 4], modes=[0, 1])
        builder.finalize(f"{tmp_path}/mixed.idx")
    found = sampled(f"{tmp_path}/mixed")
    assert set(found.counts) == {1, 2, 3}
    with IndexedDatasetBuilder(f"{tmp_path}/images.bin", dtype=np.uint16, multimodal=True) as builder:
        builder.add_document([9, 9], [2], modes=[1])
        builder.finalize(f"{tmp_path}/images.idx")
    assert sampled(f"{tmp_path}/images").num_tokens == 0
