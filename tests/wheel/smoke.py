"""Goes the whole way with an installed wheel: import, pair, index build, samples, batches. Prints a line."""

import os
import shutil
import sys
import tempfile

import numpy as np

import tokenloom
from tokenloom import _native


def main() -> None:
    compilers = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make")
    found = [name for name in compilers if shutil.which(name)]
    assert not found, f"expected no compiler in PATH, found {found}"
    package = os.path.dirname(tokenloom.__file__)
    assert package.startswith(sys.prefix), f"expected the wheel's files, found those in `{package}`"

    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "numbers")
        with tokenloom.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
            for first in range(0, 10_000, 100):
                builder.add_document(list(range(first, first + 100)), [100])
            builder.finalize(f"{prefix}.idx")
        assert tokenloom.verify_dataset(prefix).num_tokens == 10_000
        dataset = tokenloom.load(prefix, sequence_length=64, tokenizer="null:10000")
        sample = dataset.sample(0)
        assert sample["tokens"].shape == (64,), sample["tokens"].shape
        batches = list(tokenloom.ThreadLoader(dataset, batch_size=8, tensors="numpy"))
        assert len(batches) == len(dataset) // 8
        for number, batch in enumerate(batches):
            assert batch["tokens"].shape == (8, 64)
            assert np.array_equal(batch["tokens"], dataset.batch(range(8 * number, 8 * number + 8))["tokens"])
    print(f"wheel-check: {os.path.basename(_native.__file__)} works in Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
