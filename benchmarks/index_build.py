"""Index build: `GPTDataset` from nothing to its three index arrays, written to the cache, beside megatron-core.

The data is real in size and random in lengths; the `.bin` file is sparse, as no token is read. Each run is a process
of its own; sides alternate.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile

import common
import numpy as np
import peers


def write_corpus(prefix: str, num_documents: int, mean_length: float) -> int:
    """Writes a pair with lognormal lengths and a sparse .bin file; returns its tokens."""
    from tokenloom.indexed.layout import DType, Header

    rng = np.random.default_rng(0)
    lengths = (rng.lognormal(np.log(mean_length) - 0.5, 1.0, size=num_documents) + 1).astype(np.int32)
    ends = np.cumsum(lengths, dtype=np.int64)
    code = DType.code_from_dtype(np.uint16)
    header = Header(dtype_code=code, num_sequences=num_documents, num_boundaries=num_documents + 1)
    with open(f"{prefix}.idx", "wb") as index:
        index.write(header.pack())
        lengths.tofile(index)
        ((ends - lengths) * 2).tofile(index)
        np.arange(num_documents + 1, dtype=np.int64).tofile(index)
    with open(f"{prefix}.bin", "wb") as tokens:
        tokens.truncate(int(ends[-1]) * 2)
    return int(ends[-1])


def child(side: str, prefix: str, num_samples: int, cache: str) -> None:
    """Builds once and reports the bytes of the arrays."""

    def prepare():
        # Inputs come first and are not counted: imports, the opened pair with its lengths in memory, the indices.
        build = peers.gpt_dataset_builder(side, prefix)

        def work():
            dataset = build(num_samples=num_samples, path_to_cache=cache, sequence_length=2048)
            arrays = (dataset.document_index, dataset.sample_index, dataset.shuffle_index)
            return sum(array.nbytes for array in arrays)

        return work

    common.measure(prepare)


def bench(num_documents: int, epochs: int, rounds: int) -> list[object]:
    """Returns one row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "corpus")
        num_tokens = write_corpus(prefix, num_documents, 400)
        # Just under whole epochs, so that no final epoch is separate: the common case of a run of N epochs.
        num_samples = (epochs * num_tokens - 1) // 2048
        cache = os.path.join(folder, "cache")

        def run(side: str):
            shutil.rmtree(cache, ignore_errors=True)
            return common.run_child("index_build.py", "--child", side, prefix, num_samples, cache)

        results = common.alternate(peers.SIDES, rounds, run)
    ours, peer = results[peers.OURS], results[peers.PEER]
    return [
        f"{num_documents / 1e6:g} M x {epochs}",
        f"{ours['seconds']:.2f}",
        f"{peer['seconds']:.2f}",
        f"{peer['seconds'] / ours['seconds']:.1f}x",
        f"{ours['growth_bytes'] / ours['result']:.2f}",
        f"{peer['growth_bytes'] / peer['result']:.2f}",
        f"{ours['result'] / 2**20:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        side, prefix, num_samples, cache = options.child
        child(side, prefix, int(num_samples), cache)
        return
    rows = [bench(documents, epochs, options.rounds) for documents in options.documents for epochs in options.epochs]
    common.print_rows(
        "Index build, sequence length 2048, arrays written to the cache (medians)",
        ("documents x epochs", "ours s", "peer s", "speed-up", "ours peak/arrays", "peer peak/arrays", "arrays MiB"),
        rows,
    )


if __name__ == "__main__":
    sys.exit(main())
