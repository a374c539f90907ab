"""Runs over a few pairs on disk whose documents are many enough for several blocks, and random changes of them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from tests.run.small_runs import lock, segment

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.order.computed_keys import source_key
from tokenloom.run.dataset import RunDataset
from tokenloom.run.held_out import held_tokens, with_holdout
from tokenloom.run.lock import LockedDenial, LockedPair, LockedSource, RunLock
from tokenloom.run.members import Reading
from tokenloom.run.sources import lock_pair
from tokenloom.run.timeline import Timeline
from tokenloom.run.tokenizer import RunTokenizer

SIZES = (700, 300, 30, 520)
"""Documents of the pairs."""

LENGTHS = (16, 40)

SAMPLES = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}


def write_pairs(folder: Path) -> list[LockedPair]:
    rng = np.random.default_rng(5)
    pairs = []
    for number, size in enumerate(SIZES):
        lengths = rng.integers(0, 12, size=size).astype(np.int32)
        lengths[7] = 100
        prefix = folder / f"pair-{number}"
        with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
            builder.append_block(rng.integers(0, 1000, size=int(lengths.sum())), lengths)
            builder.finalize(f"{prefix}.idx")
        pairs.append(lock_pair(str(prefix)))
    return pairs


def plain_run(pairs: list[LockedPair]) -> RunLock:
    """A run of two sources, two stages of two lengths, and a denial; its seed was chosen so that it shows much."""
    web = LockedSource(name="web", pairs=tuple(pairs[:2]))
    code = LockedSource(name="code", pairs=(pairs[3],))
    segments = [segment(0, 100, [3, 1], length=16), segment(100, 300, [1, 1], length=40)]
    denials = (LockedDenial(start=50, documents=((0, (7, 300)),)),)
    return lock([web, code], segments, block=8, denials=denials, seed=6, samples=SAMPLES)


def held(pairs: list[LockedPair], name: str, seed: int, share: Fraction | None, *, by_blocks: bool) -> LockedSource:
    found = []
    for number, pair in enumerate(with_holdout(pairs, share, by_blocks=by_blocks)):
        lengths = IndexedDataset(pair.prefix).sequence_lengths
        tokens = held_tokens(pair, lengths, key=source_key(seed, name), number=number)
        found.append(replace(pair, held_tokens=tokens))
    return LockedSource(name=name, pairs=tuple(found))


@st.composite
def committed_runs(draw, pairs: list[LockedPair]) -> RunLock:
    """Runs of one to three segments over two sources, the first of which may grow."""
    seed = draw(st.integers(0, 2**63 - 1))
    sizes = draw(st.lists(st.integers(1, 250), min_size=1, max_size=3))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    since = draw(st.sampled_from([0, *starts[1:]]))
    webs = [replace(pairs[0], since=0), replace(pairs[1], since=since), replace(pairs[2], since=since)]
    share = draw(st.sampled_from([None, Fraction(1, 3), Fraction(1, 20)]))
    by_blocks = share is not None and draw(st.booleans())
    sources = [
        held(webs, "web", seed, share, by_blocks=by_blocks),
        held([pairs[3]], "code", seed, None, by_blocks=False),
    ]
    segments = []
    length = draw(st.sampled_from(LENGTHS))
    for start, size in zip(starts, sizes, strict=True):
        length = draw(st.sampled_from([length, *LENGTHS]))
        weights = draw(st.sampled_from([[1, 1], [3, 1], [1, 0], [2, 5]]))
        mixed_as = draw(st.sampled_from([None, size + 5]))
        segments.append(segment(start, size, weights, length=length, mixed_as=mixed_as))
    denied = sorted(draw(st.sets(st.integers(0, 1029), max_size=400)))
    denials = (LockedDenial(start=draw(st.sampled_from(starts)), documents=((0, tuple(denied)),)),) if denied else ()
    return lock(
        sources, segments, seed=seed, block=draw(st.sampled_from([1, 8, 64])), denials=denials,
        documents=draw(st.sampled_from(["shuffled", "file"])),
        samples=SAMPLES | draw(st.sampled_from([{}, {"add_extra_token_to_sequence": False}])),
    )  # fmt: skip


def readings(lock: RunLock, begin: int, end: int) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """Where each document of each source is read, and denied: by looking at the spans of every position."""
    timeline = Timeline(lock)
    dataset = RunDataset(timeline, tokenizer=RunTokenizer(None, None), reading=Reading())
    found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    sources = timeline.locate(np.arange(begin, end)).sources.tolist()
    for position, source in zip(range(begin, end), sources, strict=True):
        spans = dataset.spans(position)
        for document, length in zip(spans.documents.tolist(), spans.lengths.tolist(), strict=True):
            if length:
                which = -1 - document if document < 0 else document
                found.setdefault((source, which), ([], []))[document < 0].append(position)
    return found
