"""BERT and T5: samples per second of one process, and the building of sentence mappings, compared with megatron-core.

Sentence lengths are lognormal, 20 words on average; a third of the pieces continue a word. Measured are `dataset[k]` of
both sides and our batched fetch (`__getitems__`, as in a DataLoader). Sides alternate in one process.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import statistics
import tempfile
import time
import warnings
from typing import Any

import common
import numpy as np
from common import rate

BATCH_SIZE = 32
SETTINGS = {
    "random_seed": 1234,
    "split": "1,0,0",
    "masking_probability": 0.15,
    "short_sequence_probability": 0.1,
    "masking_max_ngram": 3,
    "masking_do_full_word": True,
    "masking_do_permutation": False,
    "masking_use_longer_ngrams": False,
    "masking_use_geometric_distribution": False,
}


class Tokenizer:
    """A word-piece vocabulary of typical size."""

    vocab_size = 30_522
    pad, cls, sep, mask, bos, eos = range(6)
    additional_special_tokens_ids = list(range(6, 106))  # noqa: RUF012 - read only
    unique_identifiers = {"class": "benchmark"}  # noqa: RUF012 - read only

    def __init__(self) -> None:
        self.inv_vocab = {i: f"##{i}" if i % 3 == 0 and i > 200 else f"w{i}" for i in range(self.vocab_size)}


def draw_documents(rng: np.random.Generator, num_sentences: int) -> tuple[Any, Any]:
    """Returns sentence lengths and the boundaries of documents, which have 12 sentences on average."""
    lengths = np.minimum(rng.lognormal(2.8, 0.6, size=num_sentences).astype(np.int32) + 1, 512)
    inner = rng.integers(0, num_sentences, size=num_sentences // 12)
    return lengths, np.unique(np.concatenate([[0, num_sentences], inner])).astype(np.int64)


def write_corpus(prefix: str, num_sentences: int) -> None:
    """Writes a pair with one sequence per sentence."""
    import tokenloom

    rng = np.random.default_rng(0)
    lengths, boundaries = draw_documents(rng, num_sentences)
    tokens = rng.integers(200, Tokenizer.vocab_size, size=int(lengths.sum()), dtype=np.uint16)
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    with tokenloom.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        for first, stop in itertools.pairwise(boundaries.tolist()):
            builder.add_document(tokens[ends[first] : ends[stop]], lengths[first:stop].tolist())
        builder.finalize(f"{prefix}.idx")


def build_datasets(prefix: str, folder: str, name: str, length: int) -> tuple[Any, Any]:
    """Returns our dataset and the peer's, which reads our index."""
    import tokenloom

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from megatron.core.datasets import bert_dataset, indexed_dataset, t5_dataset, utils

    kind = {"bert": "BERTMaskedWordPieceDataset", "t5": "T5MaskedWordPieceDataset"}[name]
    peers = {"bert": bert_dataset, "t5": t5_dataset}[name]
    settings: dict[str, Any] = SETTINGS | {"blend": ([prefix], None), "tokenizer": Tokenizer()}
    settings |= {"sequence_length": length, "path_to_cache": os.path.join(folder, f"cache-{length}")}
    settings |= {"classification_head": True} if name == "bert" else {"sequence_length_decoder": length}
    data = tokenloom.IndexedDataset(prefix)
    indices = np.arange(data.num_documents, dtype=np.int32)
    config = getattr(tokenloom, f"{kind}Config")(**settings)
    ours = getattr(tokenloom, kind)(data, prefix, indices, 1, tokenloom.Split.train, config)
    peer_config = getattr(peers, f"{kind}Config")(**settings)
    low_level = indexed_dataset.IndexedDataset(prefix)
    return ours, getattr(peers, kind)(low_level, prefix, indices, 1, utils.Split.train, peer_config)


def bench_samples(prefix: str, folder: str, name: str, length: int, rounds: int) -> list[object]:
    """Returns one row of the table."""
    ours, peer = build_datasets(prefix, folder, name, length)
    num_samples, num_peer = 12_800 * 128 // length, 640 * 128 // length
    rng = np.random.default_rng(1)
    single, batched, other = [], [], []
    for _ in range(rounds):
        positions = rng.choice(len(ours), size=min(num_samples, len(ours)), replace=False).tolist()
        groups = [positions[i : i + BATCH_SIZE] for i in range(0, len(positions), BATCH_SIZE)]
        single.append(rate(ours.__getitem__, positions))
        batched.append(rate(ours.__getitems__, groups, BATCH_SIZE))
        other.append(rate(peer.__getitem__, positions[:num_peer]))
    one, many, base = map(statistics.median, (single, batched, other))
    return [name, length, f"{one:,.0f}", f"{many:,.0f}", f"{base:,.0f}", f"{one / base:.0f}x", f"{many / base:.0f}x"]


def bench_mapping(num_sentences: int, epochs: int, rounds: int) -> list[object]:
    """Returns one row of the table."""
    from megatron.core.datasets import helpers

    import tokenloom

    lengths, boundaries = draw_documents(np.random.default_rng(0), num_sentences)

    def build_ours() -> Any:
        return tokenloom.build_mapping(
            boundaries,
            lengths,
            num_epochs=epochs,
            max_sequence_length=509,
            short_sequence_probability=0.1,
            seed=1234,
            min_sentences=2,
        )

    def build_peer() -> Any:
        return helpers.build_mapping(boundaries, lengths, epochs, 2**40, 509, 0.1, 1234, False, 2)

    seconds: dict[Any, list[float]] = {build_ours: [], build_peer: []}
    for _ in range(rounds):
        for build, own in seconds.items():
            started = time.perf_counter()
            rows = build()
            own.append(time.perf_counter() - started)
    ours, peer = (statistics.median(own) * 1e9 / num_sentences / epochs for own in seconds.values())
    return [f"{num_sentences / 1e6:g} M x {epochs}", len(rows), f"{ours:.1f}", f"{peer:.1f}", f"{peer / ours:.1f}x"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--mapping-sentences", type=int, default=5_000_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "corpus")
        write_corpus(prefix, options.sentences)
        rows = [
            bench_samples(prefix, folder, name, length, options.rounds)
            for name in ("bert", "t5")
            for length in options.lengths
        ]
    common.print_rows(
        "Masked samples per second, one process, warm page cache (medians)",
        ("kind", "length", "ours[k]", "ours batched", "peer[k]", "[k] / peer", "batched / peer"),
        rows,
    )
    common.print_rows(
        "Sentence mappings (medians), ns per sentence and epoch",
        ("sentences x epochs", "samples", "ours", "peer", "speed-up"),
        [bench_mapping(options.mapping_sentences, epochs, options.rounds) for epochs in (1, 5)],
    )


if __name__ == "__main__":
    main()
