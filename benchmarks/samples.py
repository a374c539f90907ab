"""Samples per second of one process with a warm page cache, beside megatron-core.

Ways: `dataset[k]` on both sides, and our batched fetch (`__getitems__`, what a DataLoader calls). Settings: plain;
resets (positions restart after end-of-document, no loss there); mask (resets and a dense attention mask that does not
cross documents); documents (inter-document masking, which megatron-core 0.16.1 lacks: it runs plain for comparison).

Samples are dropped as soon as they are made, as a training loop drops them. Sides alternate within one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

import common
import numpy as np
import peers

SETTINGS = {
    "plain": {},
    "resets": {"reset_position_ids": True, "eod_mask_loss": True},
    "mask": {
        "reset_position_ids": True,
        "reset_attention_mask": True,
        "eod_mask_loss": True,
        "create_attention_mask": True,
    },
    "documents": {"inter_document_masking": True},
}


def write_corpus(prefix: str, num_documents: int) -> None:
    """Writes lognormal documents, 665 tokens in the mean, each ended by token 0."""
    import tokenloom

    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(6.0, 1.0, size=num_documents).astype(np.int32) + 1, 50_000)
    tokens = rng.integers(1, 50_000, size=int(lengths.sum()), dtype=np.uint16)
    tokens[np.cumsum(lengths) - 1] = 0
    with tokenloom.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        builder.append_block(tokens, lengths)
        builder.finalize(f"{prefix}.idx")


def rate(fetch, positions, repeats_per_call: int = 1) -> float:
    """Returns samples per second of calling `fetch` with each of `positions`."""
    started = time.perf_counter()
    for position in positions:
        fetch(position)
    return len(positions) * repeats_per_call / (time.perf_counter() - started)


def bench(prefix: str, cache: str, length: int, name: str, rounds: int) -> list[object]:
    """Returns one row of the table."""
    options = SETTINGS[name]
    shared = {"num_samples": None, "path_to_cache": cache, "sequence_length": length}
    ours = peers.gpt_dataset_builder(peers.OURS, prefix)(**shared, **options)
    # Every peer sample starts from nothing: its cached masks are only right for the first sample (a known defect), but
    # they are its speed, so they stay on.
    peer_options = {key: value for key, value in options.items() if key != "inter_document_masking"}
    peer = peers.gpt_dataset_builder(peers.PEER, prefix)(**shared, **peer_options)
    heavy = name == "mask"
    num_samples, num_peer, batch_size = (256, 16, 8) if heavy else (4096, 1024, 32)
    num_samples, num_peer = num_samples * 2048 // length, max(num_peer * 2048 // length, 4)
    rng = np.random.default_rng(1)
    single, batched, other = [], [], []
    for _ in range(rounds):
        positions = rng.permutation(len(ours))[:num_samples].tolist()
        groups = [positions[i : i + batch_size] for i in range(0, len(positions), batch_size)]
        single.append(rate(ours.__getitem__, positions))
        batched.append(rate(ours.__getitems__, groups, batch_size))
        other.append(rate(peer.__getitem__, positions[:num_peer]))
    one, many, base = map(statistics.median, (single, batched, other))
    return [length, name, f"{one:,.0f}", f"{many:,.0f}", f"{base:,.1f}", f"{one / base:.1f}x", f"{many / base:.1f}x"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prefix, cache = os.path.join(folder, "corpus"), os.path.join(folder, "cache")
        write_corpus(prefix, options.documents)
        rows = [bench(prefix, cache, length, name, options.rounds) for length in options.lengths for name in SETTINGS]
    common.print_rows(
        "Samples per second, one process, warm page cache (medians)",
        ("length", "setting", "ours[k]", "ours batched", "peer[k]", "[k] / peer", "batched / peer"),
        rows,
    )


if __name__ == "__main__":
    main()
