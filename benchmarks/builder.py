"""`IndexedDatasetBuilder` with many small documents, beside megatron-core: time and memory growth.

`add_document` per document, as both sides offer it: from uint16 arrays, from int64 arrays (converted), from lists.
Each run is a process of its own; sides alternate.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import common
import numpy as np
import peers

KINDS = ("uint16 arrays", "int64 arrays", "lists")
TOKENS_PER_DOCUMENT = 16


def child(side: str, kind: str, num_documents: int, folder: str) -> None:
    """Builds once."""

    def prepare():
        builder_class = peers.modules(side)[1]
        values = np.arange(TOKENS_PER_DOCUMENT)
        document = {
            "uint16 arrays": values.astype(np.uint16),
            "int64 arrays": values.astype(np.int64),
            "lists": values.tolist(),
        }[kind]
        lengths = [TOKENS_PER_DOCUMENT]

        def work():
            builder = builder_class(os.path.join(folder, "built.bin"), dtype=np.uint16)
            add_document = builder.add_document
            for _ in range(num_documents):
                add_document(document, lengths)
            builder.finalize(os.path.join(folder, "built.idx"))
            return num_documents

        return work

    common.measure(prepare)


def bench(kind: str, num_documents: int, rounds: int) -> list[object]:
    """Returns one row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        results = common.alternate(
            peers.SIDES,
            rounds,
            lambda side: common.run_child("builder.py", "--child", side, kind, num_documents, folder),
        )
    ours, peer = results[peers.OURS], results[peers.PEER]
    return [
        kind,
        f"{ours['seconds'] / num_documents * 1e6:.2f}",
        f"{peer['seconds'] / num_documents * 1e6:.2f}",
        f"{peer['seconds'] / ours['seconds']:.1f}x",
        f"{ours['growth_bytes'] / num_documents:.0f}",
        f"{peer['growth_bytes'] / num_documents:.0f}",
        f"{peer['growth_bytes'] / ours['growth_bytes']:.1f}x",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        side, kind, num_documents, folder = options.child
        child(side, kind, int(num_documents), folder)
        return
    common.print_rows(
        f"Builder, {options.documents / 1e6:g} M documents of {TOKENS_PER_DOCUMENT} tokens, with finalize (medians)",
        ("documents from", "ours us/doc", "peer us/doc", "speed-up", "ours B/doc", "peer B/doc", "memory"),
        [bench(kind, options.documents, options.rounds) for kind in KINDS],
    )


if __name__ == "__main__":
    main()
