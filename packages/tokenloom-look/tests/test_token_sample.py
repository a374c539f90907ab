"""Stretches of tokens, drawn from all of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tokenloom import IndexedDatasetBuilder
from tokenloom_look.report.tokens_section import sample_tokens
from tokenloom_look.target import open_target

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
    assert (found.num_ends_with_eod, found.undecodable) == (found.num_ends, None)
