"""`tokenloom contamination`: MB of decoded text per CPU second, and the memory of the n-grams.

The data are Python sources of this machine, tokenized with a byte-level BPE trained on part of them. Benchmark items
have 40 words: random words, which do not occur as a sequence in the sources, or excerpts, which do.
"""

from __future__ import annotations

import argparse
import json
import random
import sysconfig
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from common import print_rows
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenloom import IndexedDatasetBuilder, load_tokenizer
from tokenloom.kernels.ngrams import words_of
from tokenloom_check.contamination import find_contamination, read_benchmarks

WORDS_OF_ITEM = 40
GRAMS_OF_ITEM = WORDS_OF_ITEM - 12
COPIES = 5
"""Of the data: what is made once for a search, tables of the tokenizer, is not counted."""


def sources(megabytes: int) -> list[str]:
    """Returns source files, repeated if there are too few."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    random.Random(1).shuffle(paths)
    found, size = list[str](), 0
    while size < megabytes * 1_000_000:
        for path in paths:
            text = path.read_bytes().decode(errors="replace")
            found.append(text)
            size += len(text.encode())
            if size >= megabytes * 1_000_000:
                break
    return found


def write_tokenizer(path: Path, texts: list[str]) -> None:
    """Trains a byte-level BPE of 32,000 tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=32_000, initial_alphabet=alphabet))
    made.save(str(path))


def write_items(path: Path, texts: list[str], count: int, num_found: int) -> None:
    """Writes items, some of which occur in the texts."""
    generator = random.Random(2)
    words = sorted(set(words_of(" ".join(texts[:200]))))
    with open(path, "w") as lines:
        for number in range(count):
            item = generator.choices(words, k=WORDS_OF_ITEM)
            if number < num_found:
                own = generator.choice(texts).split()
                begin = generator.randrange(max(1, len(own) - WORDS_OF_ITEM))
                item = own[begin : begin + WORDS_OF_ITEM]
            lines.write(json.dumps({"text": " ".join(item)}) + "\n")


def memory_of(path: str, small: str) -> int:
    """Returns the peak bytes of reading items in a new process, after reading `small`."""
    read_benchmarks([small])
    before, _ = resident()
    read_benchmarks([path])
    return resident()[1] - before


def resident() -> tuple[int, int]:
    """Returns current and peak resident bytes of this process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, most = (int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--ngrams", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    texts = sources(options.megabytes)
    num_bytes = sum(len(text.encode()) for text in texts)
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), []
        write_tokenizer(folder / "tokenizer.json", texts[:300])
        tokenizer = load_tokenizer(str(folder / "tokenizer.json"))
        with IndexedDatasetBuilder(f"{folder}/data.bin", dtype=np.uint16) as builder:
            for text in texts:
                ids = tokenizer.tokenize(text)
                builder.add_document(ids, [len(ids)])
            builder.finalize(f"{folder}/data.idx")
        for num_grams in options.ngrams:
            write_items(folder / "items.jsonl", texts, num_grams // GRAMS_OF_ITEM, 100)
            write_items(folder / "small.jsonl", texts, 1, 0)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
                files = [f"{folder}/items.jsonl", f"{folder}/small.jsonl"]
                grown = executor.submit(memory_of, *files).result() / 1e6
            benchmarks = read_benchmarks([str(folder / "items.jsonl")])
            took: list[list[tuple[float, float]]] = [[], []]
            for _ in range(options.rounds):
                for copies, times in zip((1, COPIES), took, strict=True):
                    began, at = time.process_time(), time.perf_counter()
                    sources_of = {"data": (f"{folder}/data",) * copies}
                    find_contamination(benchmarks, sources_of, tokenizer, num_threads=options.threads)
                    times.append((time.process_time() - began, time.perf_counter() - at))
            once, several = (np.min(times, axis=0) for times in took)
            rates = (COPIES - 1) * num_bytes / (several - once) / 1e6
            rows.append((f"{num_grams:,}", f"{grown:,.0f} MB", *(f"{rate:,.0f}" for rate in rates), f"{once[0]:.2f} s"))
    columns = ("n-grams", "peak memory", "MB/s per core", f"MB/s, {options.threads} threads", "once, with tables")
    print_rows(f"{num_bytes / 1e6:.0f} MB of source, best of {options.rounds}", columns, rows)


if __name__ == "__main__":
    main()
