"""Samples of a computed order compared with our cached order (`GPTDataset` of the builder) on the same pair.

`batches`: thousand samples per second in batches of 16 and 64, one thread, one process; sides alternate, medians.
`first touch`: seconds until the first sample of a pass over a source with many documents, whose lengths are in the page
cache. `long run`: random positions of a run of 10^12 samples and 10^6 passes. `shuffle`: statistics of neighbouring
samples, compared with Megatron's order.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import numpy as np
import peers
from rows.data import drawn_lengths, write_lengths

import tokenloom
from tokenloom import Run

SETTINGS = {
    "random_seed": 1234,
    "tokenizer": peers.Tokenizer(),
    "reset_position_ids": False,
    "reset_attention_mask": False,
    "eod_mask_loss": False,
    "create_attention_mask": False,
}


def write_pair(folder: Path, mean: int, num_tokens: int) -> str:
    """Writes random tokens in lognormal documents; returns the prefix."""
    prefix = folder / f"mean-{mean}-{num_tokens}"
    if not prefix.with_suffix(".idx").exists():
        lengths = drawn_lengths(num_tokens // mean, mean)
        rng = np.random.default_rng(1)
        with tokenloom.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
            for some in np.array_split(lengths, max(1, len(lengths) // 100_000)):
                builder.append_block(rng.integers(1, 50_000, size=int(some.sum()), dtype=np.uint16), some)
            builder.finalize(f"{prefix}.idx")
    return str(prefix)


def write_run(folder: Path, text: str) -> Path:
    """Writes a run without a lock."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "run.toml"
    path.write_text(text)
    return path


def computed(folder: Path, prefix: str, length: int, documents: str, num_samples: int | str) -> Any:
    size = f"samples = {num_samples}" if num_samples else ""
    text = f'order = 1\nseed = 1\ndocuments = "{documents}"\n[sources]\nweb = "{prefix}"\n'
    text += f"[[stages]]\nsequence_length = {length}\n{size}\nweights = {{ web = 1 }}\n"
    return Run.open(write_run(folder, text)).dataset()


def cached(folder: Path, prefix: str, length: int, num_samples: int | None) -> Any:
    config = tokenloom.GPTDatasetConfig(
        **SETTINGS, sequence_length=length, blend=([prefix], None), split="1,0,0", path_to_cache=str(folder / "cache")
    )
    build = tokenloom.BlendedMegatronDatasetBuilder
    return build(tokenloom.GPTDataset, [num_samples, None, None], lambda: True, config).build()[0]


def rates(datasets: dict[str, Any], batch: int, rounds: int, seconds: float) -> dict[str, float]:
    """Returns samples per second of each side; sides alternate, and each round starts at another position."""
    count = min(map(len, datasets.values()))
    found: dict[str, list[float]] = {name: [] for name in datasets}
    rng = np.random.default_rng(2)
    for turn in range(rounds + 1):
        first = int(rng.integers(0, count)) // batch * batch
        for name, dataset in datasets.items():
            at, read, started = first, 0, time.perf_counter()
            while (spent := time.perf_counter() - started) < seconds:
                dataset.batch(np.arange(at, at + batch) % count)
                at, read = at + batch, read + batch
            if turn:  # the first one warms up
                found[name].append(read / spent)
    return {name: statistics.median(each) for name, each in found.items()}


def batch_rows(folder: Path, options: argparse.Namespace) -> list[list[object]]:
    rows: list[list[object]] = []
    for mean in options.means:
        prefix = write_pair(folder, mean, options.tokens)
        for length in options.lengths:
            order = cached(folder, prefix, length, None)
            count = len(order)
            datasets = {
                "cached": order,
                "shuffled": computed(folder, prefix, length, "shuffled", count),
                "file": computed(folder, prefix, length, "file", count),
            }
            for batch in options.batches:
                found = rates(datasets, batch, options.rounds, options.seconds)
                base = found["cached"]
                row = [mean, length, batch, *(f"{found[name] / 1e3:.1f}" for name in datasets)]
                rows.append([*row, f"{found['shuffled'] / base:.2f}", f"{found['file'] / base:.2f}"])
    return rows


def write_huge(folder: Path, num_documents: int) -> str:
    prefix = folder / f"huge-{num_documents}"
    write_lengths(prefix, drawn_lengths(num_documents, 400))
    return str(prefix)


def touch_rows(folder: Path, options: argparse.Namespace) -> list[list[object]]:
    prefix = write_huge(folder, options.documents)
    np.fromfile(f"{prefix}.idx", dtype=np.uint8).max()  # brings it into memory
    rows: list[list[object]] = []
    for documents in ("shuffled", "file"):
        for positions in ("first pass", "second pass", "third pass"):
            if positions == "first pass":
                dataset = computed(folder, prefix, 4096, documents, "")
                per_pass = dataset.timeline.walk_of(0, 0).num_windows
                position = 0
            else:
                position += per_pass
            started = time.perf_counter()
            dataset.sample(position)
            rows.append([options.documents, documents, positions, f"{time.perf_counter() - started:.3f}"])
    return rows


def long_rows(folder: Path, options: argparse.Namespace) -> list[list[object]]:
    """Runs this script in a new process, whose memory is that of the run alone."""
    rows: list[list[object]] = []
    prefix = write_pair(folder, 400, 10**6 * 128)
    for documents in ("shuffled", "file"):
        call = [sys.executable, __file__, "--long", prefix, documents, str(folder), str(options.rounds)]
        found = subprocess.run(call, check=True, capture_output=True, text=True)
        rows.append([documents, *found.stdout.split()])
    return rows


def long_run(prefix: str, documents: str, folder: str, rounds: str) -> None:
    """Prints passes, megabytes without the mapped files, and microseconds of a sample.

    In batches of 16 from all over the run, each sample thus of another pass, which is touched first by it; in batches
    of 16 and alone within a pass.
    """
    dataset = computed(Path(folder), prefix, 128, documents, 10**12)
    per_pass = dataset.timeline.walk_of(0, 0).num_windows
    rng = np.random.default_rng(3)
    dataset.batch(np.arange(16))
    times: dict[str, list[float]] = {"anywhere": [], "within": [], "alone": []}

    def ask(name: str, positions: np.ndarray) -> None:
        started = time.perf_counter()
        dataset.batch(positions)
        times[name].append((time.perf_counter() - started) / len(positions) * 1e6)

    for _ in range(int(rounds) * 10):
        ask("anywhere", rng.integers(0, 10**12, size=16))
        begin = int(rng.integers(1, 10**12 // per_pass - 1)) * per_pass + 2048
        dataset.batch([begin])
        ask("within", begin + rng.integers(0, per_pass - 5000, size=16))
        ask("alone", begin + rng.integers(0, per_pass - 5000, size=1))
    status = Path("/proc/self/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024
    print(10**12 // per_pass, f"{resident:.0f}", *(f"{statistics.median(found):.1f}" for found in times.values()))


def shuffle_rows(folder: Path, options: argparse.Namespace) -> list[list[object]]:
    """Returns the statistics of each order: a uniformly random one has the same source in half of the neighbours.

    Two sources of equal weight, each with as many documents of one sample's length, so that a sample is a document.
    """
    count, length = options.shuffled, 64
    prefixes = [folder / f"whole-{count}-{number}" for number in range(2)]
    for prefix in prefixes:
        write_lengths(prefix, np.full(count, length, dtype=np.int32))
    sources = "".join(f'{name} = "{prefix}"\n' for name, prefix in zip(("web", "code"), prefixes, strict=True))
    orders: dict[str, Any] = {}
    for name, settings in (
        ("shuffled", ""),
        ("file order", 'documents = "file"\n'),
        ("shuffled, even mix", 'mix = "even"\n'),
    ):
        text = f"order = 1\nseed = 1\n{settings}[sources]\n{sources}[samples]\nadd_extra_token_to_sequence = false\n"
        text += f"[[stages]]\nsequence_length = {length}\nsamples = {2 * count}\nweights = {{ web = 1, code = 1 }}\n"
        dataset = Run.open(write_run(folder, text)).dataset()
        orders[name] = dataset, lambda k, dataset=dataset: (dataset.sample(k)["dataset_id"], dataset.spans(k))
    config = tokenloom.GPTDatasetConfig(
        **SETTINGS,
        sequence_length=length,
        blend_per_split=[([str(prefix) for prefix in prefixes], [0.5, 0.5]), None, None],
        add_extra_token_to_sequence=False,
        mid_level_dataset_surplus=0.0,
    )
    build = tokenloom.BlendedMegatronDatasetBuilder
    blend = build(tokenloom.GPTDataset, [2 * count, None, None], lambda: True, config).build()[0]
    orders["the reference's"] = blend, lambda k: (blend.locate(k)[0], blend.spans(k))
    orders["uniformly random"] = None, None
    rng = np.random.default_rng(4)
    rows: list[list[object]] = []
    for name, (_, ask) in orders.items():
        if ask is None:
            sources_of, documents = rng.permutation(np.arange(2 * count) % 2), rng.permutation(2 * count) % count
        else:
            found = [ask(k) for k in range(2 * count)]
            sources_of = np.array([int(source) for source, _ in found])
            documents = np.array([int(spans.documents[0]) for _, spans in found])
        rows.append([name, *statistics_of(sources_of, documents, count)])
    return rows


def statistics_of(sources: np.ndarray, documents: np.ndarray, count: int) -> list[object]:
    """Returns what describes an order of two sources.

    Same source as the one before; on one of two ranks (every second position), of its first source; documents next to
    each other in the file; mean displacement, as a part of what is expected of a random order (a third of all).
    """
    web = documents[sources == 0]
    displacement = np.abs(web - np.arange(len(web)) * count / len(web)).mean() / (count / 3)
    together = (np.abs(np.diff(web)) == 1).mean() * count / 2
    near = (np.abs(np.diff(web)) < 256).mean() * count / 512
    return [
        f"{(sources[1:] == sources[:-1]).mean():.3f}",
        f"{(sources[::2] == sources[0]).mean():.3f}",
        f"{displacement:.3f}",
        f"{together:.2f}",
        f"{near:.2f}",
    ]


def main() -> None:
    if sys.argv[1:2] == ["--long"]:
        long_run(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "output" / "run")
    parser.add_argument("--only", nargs="+", default=["batches", "touch", "long", "shuffle"])
    parser.add_argument("--means", type=int, nargs="+", default=[100, 400, 2000])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--tokens", type=int, default=400_000_000)
    parser.add_argument("--documents", type=int, default=100_000_000)
    parser.add_argument("--shuffled", type=int, default=100_000, help="documents of a source whose order is looked at")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each round")
    parser.add_argument("--quick", action="store_true", help="less of everything: a minute")
    options = parser.parse_args()
    if options.quick:
        options.means, options.lengths, options.rounds, options.seconds = [400], [2048], 3, 0.2
        options.tokens, options.documents, options.shuffled = 20_000_000, 10_000_000, 10_000
    options.folder.mkdir(parents=True, exist_ok=True)
    if "batches" in options.only:
        common.print_rows(
            "thousand samples a second, computed order beside our own cached order",
            ["tokens/document", "length", "batch", "cached", "shuffled", "file", "shuffled x", "file x"],
            batch_rows(options.folder, options),
        )
    if "touch" in options.only:
        common.print_rows(
            "the first sample of a pass (s)",
            ["documents", "order", "sample", "seconds"],
            touch_rows(options.folder, options),
        )
    if "long" in options.only:
        common.print_rows(
            "a run of 10^12 samples at random positions",
            ["order", "passes", "MB", "µs, 16 passes", "µs, 16 of a pass", "µs, one"],
            long_rows(options.folder, options),
        )
    if "shuffle" in options.only:
        common.print_rows(
            "shuffle quality: two equal sources, a document a sample; 1.00 is what a random order has",
            ["order", "same source as before", "on one of 2 ranks", "displacement", "file neighbours", "within 256"],
            shuffle_rows(options.folder, options),
        )


if __name__ == "__main__":
    main()
