"""`tokenloom preprocess`, the whole command with start-up, beside the reference's way of doing it.

Text: sources of the standard library, lines shuffled and identifiers renamed afresh in each document, so that no two
are alike and words keep coming that no cache has seen. The tools of the reference are not on PyPI; the peer is what
they do: `json.loads`, `tokenizers` document by document, megatron-core's builder, in one process or with a pool. The
peer takes a smaller slice, and its imports (seconds) are not counted; ours are. Both must write the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import common

EOD = "<|endoftext|>"
IDENTIFIER = re.compile(r"\b[a-z_]{5,}\b")
LONGEST = 20_000  # characters; longer sources are cut, at a place that changes
OURS, PEER, POOL = "tokenloom", "peer, 1 process", "peer, pool"


def documents(seed: int) -> Iterator[str]:
    """Yields documents without end."""
    rng = random.Random(seed)
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    sources = [path.read_text("utf-8", "ignore") for path in paths if "site-packages" not in path.parts]
    names = sorted({name for source in sources for name in IDENTIFIER.findall(source)})
    ranks = {name: rank for rank, name in enumerate(names)}
    while True:
        rng.shuffle(sources)
        for source in sources:
            start = rng.randrange(max(1, len(source) - LONGEST // 2))
            lines = source[start : start + rng.randrange(LONGEST // 10, LONGEST)].split("\n")
            rng.shuffle(lines)
            rename = functools.partial(_rename, ranks=ranks, number=rng.randrange(10**6))
            yield IDENTIFIER.sub(rename, "\n".join(lines))


def _rename(match: re.Match[str], *, ranks: dict[str, int], number: int) -> str:
    """Appends the number to a tenth of the names, another tenth for another number."""
    name = match[0]
    return f"{name}{number}" if (ranks.get(name, 0) * 7919 + number) % 9973 % 10 == 0 else name


def write_inputs(folder: Path, megabytes: list[int], seed: int) -> dict[int, int]:
    """Writes `SIZE.jsonl` for each size, each the beginning of the next; returns the exact bytes of text of each."""
    exact: dict[int, int] = {}
    with contextlib.ExitStack() as stack:
        streams = {size: stack.enter_context(open(folder / f"{size}.jsonl", "wb")) for size in set(megabytes)}
        num_bytes = 0
        for number, text in enumerate(documents(seed)):
            line = json.dumps({"id": number, "text": text}).encode() + b"\n"
            num_bytes += len(text.encode())
            for size in list(streams):
                streams[size].write(line)
                if num_bytes >= size * 1e6:
                    exact[size] = num_bytes
                    del streams[size]
            if not streams:
                return exact
    raise AssertionError


def train_tokenizer(path: Path) -> None:
    """Writes a byte-level BPE tokenizer of 32 000 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000, special_tokens=[EOD], initial_alphabet=alphabet, show_progress=False
    )
    backend.train(sorted(map(str, Path(sysconfig.get_path("stdlib")).glob("*.py"))), trainer)
    backend.save(str(path))


def run_command(folder: Path, size: int, workers: int) -> dict[str, float]:
    """Runs the command; returns its seconds and its peak of resident memory."""
    command = [sys.executable, "-m", "tokenloom.cli", "preprocess", str(folder / f"{size}.jsonl"), "--append-eod"]
    command += ["--output-prefix", str(folder / "ours"), "--tokenizer", str(folder / "tokenizer.json")]
    started = time.perf_counter()
    process = subprocess.Popen([*command, "--workers", str(workers)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the command failed: {process.returncode}")
    return {"seconds": seconds, "peak_bytes": usage.ru_maxrss * 1024}


def start_encoder(path: str) -> None:
    """Gives this process its tokenizer."""
    from tokenizers import Tokenizer

    global backend, eod
    backend = Tokenizer.from_file(path)
    eod = backend.token_to_id(EOD)


def encode_line(line: str) -> list[int]:
    """Returns the tokens of one line of JSON."""
    ids = backend.encode(json.loads(line)["text"], add_special_tokens=False).ids
    return [*ids, eod] if ids else []


def peer(folder: str, size: int, workers: int) -> None:
    """Does the same with megatron-core's builder; 0 workers do it in this process. Prints JSON."""
    import peers

    builder_class = peers.modules(peers.PEER)[1]
    import numpy as np

    tokenizer = os.path.join(folder, "tokenizer.json")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    started = time.perf_counter()
    with open(os.path.join(folder, f"{size}.jsonl"), encoding="utf-8") as stream:
        if workers:
            pool = multiprocessing.get_context("fork").Pool(workers, initializer=start_encoder, initargs=(tokenizer,))
            rows = pool.imap(encode_line, stream, 32)
        else:
            start_encoder(tokenizer)
            rows = map(encode_line, stream)
        builder = builder_class(os.path.join(folder, "peer.bin"), dtype=np.uint16)
        for row in rows:
            builder.add_document(row, [len(row)] if row else [])
        builder.finalize(os.path.join(folder, "peer.idx"))
        if workers:
            pool.close()
            pool.join()
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak}))


def digest(prefix: Path) -> str:
    """Returns the hash of both files of a pair."""
    state = hashlib.sha256()
    for suffix in (".bin", ".idx"):
        state.update(Path(f"{prefix}{suffix}").read_bytes())
    return state.hexdigest()


def bench(folder: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    """Returns one record per side and size."""
    exact = write_inputs(folder, [*options.sizes, options.peer_size], options.seed)
    train_tokenizer(folder / "tokenizer.json")
    cases = [(OURS, size) for size in sorted({*options.sizes, options.peer_size})]
    cases += [(PEER, options.peer_size), (POOL, options.peer_size)]
    runs: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for side, size in cases:
            if side == OURS:
                result = run_command(folder, size, options.workers)
            else:
                workers = options.workers if side == POOL else 0
                result = common.run_child("preprocess.py", "--child", folder, size, workers)
                run_command(folder, size, options.workers)
                if digest(folder / "peer") != digest(folder / "ours_text_document"):
                    raise RuntimeError(f"{side} wrote other bytes")
            runs[side, size].append(result)
    return [
        {
            "side": side,
            "megabytes": exact[size] / 1e6,
            "seconds": statistics.median(run["seconds"] for run in results),
            "slowest_seconds": max(run["seconds"] for run in results),
            "megabytes_per_second": exact[size] / 1e6 / statistics.median(run["seconds"] for run in results),
            "peak_megabytes": max(run["peak_bytes"] for run in results) / 1e6,
        }
        for (side, size), results in runs.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200, 500], help="megabytes of text")
    parser.add_argument("--peer-size", type=int, default=10, help="megabytes of text for the peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="PATH", help="also write the records there")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        folder, size, workers = options.child
        peer(folder, int(size), int(workers))
        return
    with tempfile.TemporaryDirectory() as folder:
        records = bench(Path(folder), options)
    if options.json:
        Path(options.json).write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    common.print_rows(
        f"Text to .bin/.idx with {options.workers} workers (medians of {options.rounds}; ours with start-up)",
        ("side", "MB of text", "seconds", "slowest", "MB/s", "peak MB"),
        [
            [
                record["side"],
                f"{record['megabytes']:.0f}",
                f"{record['seconds']:.2f}",
                f"{record['slowest_seconds']:.2f}",
                f"{record['megabytes_per_second']:.1f}",
                f"{record['peak_megabytes']:.0f}",
            ]
            for record in records
        ],
    )


if __name__ == "__main__":
    main()
