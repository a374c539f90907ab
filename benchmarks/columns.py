"""Batches of GPT samples with and without columns; sides alternate, numbers are medians of ratios.

`weight` is float16 per token, `label` uint8, `ids` and `logits` the 64 most likely tokens of a teacher model and their
values; `source` is uint8 per document; `absent` is a column that the data lack, filled with its default.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import common
import numpy as np
from run_samples import SETTINGS, cached, write_pair

import tokenloom
from tokenloom.indexed import IndexedDataset, add_column

SIDES = {"label": ("label",), "weight": ("weight",), "source": ("source",), "absent": {"absent": 1.0}}
SIDES |= {"top 64": ("ids", "logits")}
ROWS_AT_ONCE = 1 << 16


def write_columns(prefix: str) -> None:
    count, rng = IndexedDataset(prefix).num_tokens, np.random.default_rng(0)
    for name, dtype, width in (("label", np.uint8, ()), ("weight", np.float16, ()), ("ids", np.uint16, (64,))):
        blocks = (
            rng.integers(0, 200, (min(ROWS_AT_ONCE, count - start), *width)) for start in range(0, count, ROWS_AT_ONCE)
        )
        add_column(prefix, name, blocks, dtype=dtype, overwrite=True)
    source = rng.integers(0, 9, IndexedDataset(prefix).num_documents)
    add_column(prefix, "source", source, dtype=np.uint8, kind="document", overwrite=True)
    blocks = (np.zeros((min(ROWS_AT_ONCE, count - at), 64)) for at in range(0, count, ROWS_AT_ONCE))
    add_column(prefix, "logits", blocks, dtype=np.float16, overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_pair(Path(folder), 600, options.tokens)
        write_columns(prefix)
        for length in (2048, 8192):
            plain = cached(Path(folder), prefix, length, None)
            for name, columns in SIDES.items():
                config = tokenloom.GPTDatasetConfig(
                    **SETTINGS, sequence_length=length, blend=([prefix], None), split="1,0,0", columns=columns
                )
                data = IndexedDataset(prefix)
                chosen = np.arange(len(data), dtype=np.int32)
                dataset = tokenloom.GPTDataset(data, prefix, chosen, None, tokenloom.Split.train, config)
                for batch in (8, 64):
                    rows.append([length, name, batch, *compared(plain, dataset, batch, options.rounds)])
    common.print_rows("Batches with columns", ("tokens", "columns", "batch", "µs plain", "µs with", "ratio"), rows)


def compared(plain: tokenloom.GPTDataset, dataset: tokenloom.GPTDataset, batch: int, rounds: int) -> list[str]:
    """Returns microseconds of a sample without and with columns, and the median of their ratio."""
    rng, spent = np.random.default_rng(1), []
    sides = [(each, each.allocate_batch(batch)) for each in (plain, dataset)]
    for _ in range(rounds):
        positions = rng.integers(0, len(dataset), batch)
        times = []
        for each, out in sides:
            started = time.perf_counter()
            each.batch(positions, out=out)
            times.append(time.perf_counter() - started)
        spent.append(times)
    without, with_columns = (statistics.median(each) / batch * 1e6 for each in zip(*spent, strict=True))
    ratio = statistics.median(second / first for first, second in spent)
    return [f"{without:.2f}", f"{with_columns:.2f}", f"{ratio:.2f}"]


if __name__ == "__main__":
    main()
