"""Random datasets, blends and runs: `dataset[k]` against every other way to a sample, in forks of readers, too.

python -m tests.test_every_way_in --count 5000    # so many fresh configurations
"""

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.run.folders import HEAD, changed_run
from tests.support import fork_result, make_config, random_documents, threads_calling, write_corpus
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.testing import check_dataset

_EOD = 0


def draw_dataset(folder: Path, rng: np.random.Generator) -> Any:
    """Returns a dataset of one pair, a blend, or a run that changed a few times."""
    best_fit = rng.random() < 0.3
    if rng.random() < 0.4:
        head = HEAD.replace("1234", str(rng.integers(1 << 31))) + ('windows = "best_fit"\n' if best_fit else "")
        run = changed_run(folder, rng, head=head, num_changes=int(rng.integers(5)))
        if len({segment.sequence_length for segment in run.lock.segments}) > 1:  # which no batch can hold
            (folder / "same").mkdir()
            run = changed_run(folder / "same", rng, head=head, num_changes=0)
        return run.dataset()
    prefixes = []
    for number in range(1 if rng.random() < 0.4 else int(rng.integers(2, 6))):
        count, longest = int(rng.integers(3, 40)), int(rng.integers(2, 60))
        documents = random_documents(rng, count=count, longest=longest, vocab_size=90)
        documents = [[*document, _EOD] for document in documents]
        prefixes.append(write_corpus(folder / str(number), documents))
    flags = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    config = make_config(
        None,
        blend=(prefixes, rng.uniform(0.1, 3, len(prefixes)).tolist() if len(prefixes) > 1 else None),
        split="1,0,0",
        sequence_length=int(rng.integers(2, 50)),
        random_seed=int(rng.integers(1 << 31)),
        path_to_cache=str(folder / "cache"),
        add_extra_token_to_sequence=bool(rng.random() < 0.8),
        **{name: bool(rng.random() < 0.3) for name in flags},
        **({"window_policy": "best_fit"} if best_fit else {}),
    )
    sizes = (int(rng.integers(5, 300)), 0, 0)
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[0]


def check(folder: Path, seed: int, *, num_children: int = 1) -> None:
    """Checks all ways to samples here, and in forks while threads read."""
    dataset = draw_dataset(folder, np.random.default_rng(seed))
    positions = range(len(dataset))
    check_dataset(dataset, num_samples=5, num_workers=0)
    with threads_calling(lambda: dataset.batch(positions), 2):
        children = [
            fork_result(lambda: check_dataset(dataset, num_samples=5, num_workers=0)) for _ in range(num_children)
        ]
    assert children == [0] * num_children


@pytest.mark.parametrize("number", range(12))
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_every_way_gives_the_same_samples(tmp_path, seed, number):
    check(tmp_path, seed + number)


def main() -> int:
    """Prints each seed that fails, and how many there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    options = parser.parse_args()
    failures, began = 0, time.monotonic()
    print(f"seed {options.seed}", flush=True)
    for number in range(options.count):
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(Path(folder), options.seed + number)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                failures += 1
                print(f"seed {options.seed + number}: {type(error).__name__}: {error}", flush=True)
    print(f"{options.count} configurations, {failures} failures, {(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
