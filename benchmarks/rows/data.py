"""The data of the rows: drawn with fixed seeds, written once into the folder that a run shares."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

EOD = "<|endoftext|>"
_IDENTIFIER = re.compile(r"\b[a-z_]{5,}\b")
_LONGEST_CHARACTERS = 20_000  # longer sources are cut, at a place that changes


TYPICAL_TOKENS = 400  # of the documents of a web corpus, in the mean: of rows that do not depend on it much


def write_corpus(prefix: str | Path, num_tokens: int, mean_tokens: int = TYPICAL_TOKENS) -> None:
    """Writes lognormal documents of about so many tokens in all, each ended by token 0; random tokens below 50 000."""
    import tokenloom

    if os.path.exists(f"{prefix}.idx"):
        return
    rng = np.random.default_rng(0)
    lengths = drawn_lengths(num_tokens // mean_tokens, mean_tokens)
    tokens = rng.integers(1, 50_000, size=int(lengths.sum()), dtype=np.uint16)
    tokens[np.cumsum(lengths) - 1] = 0
    with tokenloom.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        builder.append_block(tokens, lengths)
        builder.finalize(f"{prefix}.idx")


def drawn_lengths(num_documents: int, mean_tokens: float) -> np.ndarray:
    """Returns lognormal lengths: int32[num_documents]."""
    drawn = np.random.default_rng(0).lognormal(np.log(mean_tokens) - 0.5, 1.0, size=num_documents)
    return (drawn + 1).astype(np.int32)


def write_lengths(prefix: str | Path, lengths: np.ndarray) -> None:
    """Writes a pair whose .bin file is sparse: for what reads no token."""
    from tokenloom.indexed.layout import DType, Header

    if os.path.exists(f"{prefix}.idx"):
        return
    ends = np.cumsum(lengths, dtype=np.int64)
    code = DType.code_from_dtype(np.uint16)
    header = Header(dtype_code=code, num_sequences=len(lengths), num_boundaries=len(lengths) + 1)
    with open(f"{prefix}.bin", "wb") as tokens:
        tokens.truncate(int(ends[-1]) * 2)
    with open(f"{prefix}.idx", "wb") as index:
        index.write(header.pack())
        lengths.tofile(index)
        ((ends - lengths) * 2).tofile(index)
        np.arange(len(lengths) + 1, dtype=np.int64).tofile(index)


def write_many(folder: Path, count: int, num_documents: int) -> None:
    """Writes `count` small pairs, named by their number."""
    import tokenloom

    if (folder / f"{count - 1:05d}.idx").exists():
        return
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        lengths = rng.integers(50, 500, size=num_documents).astype(np.int32)
        with tokenloom.IndexedDatasetBuilder(f"{folder}/{number:05d}.bin", dtype=np.uint16) as builder:
            builder.append_block(rng.integers(1, 1000, size=int(lengths.sum())), lengths)
            builder.finalize(f"{folder}/{number:05d}.idx")


def write_text(folder: Path, megabytes: int, num_parts: int) -> None:
    """Writes text as JSON lines, in one file and in parts, its exact size, and a tokenizer for it.

    Sources of the standard library, lines shuffled and identifiers renamed afresh in each document, so that no two are
    alike and words keep coming that no cache has seen.
    """
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(folder / "tokenizer.json")
    if (size_path := folder / f"text-{megabytes}.size").exists():
        return
    parts = folder / f"text-{megabytes}-parts"
    parts.mkdir(exist_ok=True)
    num_bytes = 0
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(open(folder / f"text-{megabytes}.jsonl", "wb"))
        streams = [stack.enter_context(open(parts / f"{number:05d}.jsonl", "wb")) for number in range(num_parts)]
        for number, text in enumerate(documents(seed=1)):
            line = json.dumps({"id": number, "text": text}).encode() + b"\n"
            whole.write(line)
            streams[int(num_bytes * num_parts // (megabytes * 1e6))].write(line)
            num_bytes += len(text.encode())
            if num_bytes >= megabytes * 1e6:
                break
    size_path.write_text(str(num_bytes))


def documents(seed: int) -> Iterator[str]:
    """Yields documents without end."""
    rng = random.Random(seed)
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    sources = [path.read_text("utf-8", "ignore") for path in paths if "site-packages" not in path.parts]
    names = sorted({name for source in sources for name in _IDENTIFIER.findall(source)})
    ranks = {name: rank for rank, name in enumerate(names)}
    while True:
        rng.shuffle(sources)
        for source in sources:
            start = rng.randrange(max(1, len(source) - _LONGEST_CHARACTERS // 2))
            lines = source[start : start + rng.randrange(_LONGEST_CHARACTERS // 10, _LONGEST_CHARACTERS)].split("\n")
            rng.shuffle(lines)
            rename = functools.partial(_rename, ranks=ranks, number=rng.randrange(10**6))
            yield _IDENTIFIER.sub(rename, "\n".join(lines))


def _rename(match: re.Match[str], *, ranks: dict[str, int], number: int) -> str:
    """Appends the number to a tenth of the names, another tenth for another number."""
    name = match[0]
    return f"{name}{number}" if (ranks.get(name, 0) * 7919 + number) % 9973 % 10 == 0 else name


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
