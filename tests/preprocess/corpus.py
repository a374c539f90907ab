"""Tokenizers and JSON lines for the tests of preprocessing."""

from __future__ import annotations

import functools
import json
import os
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenloom.indexed.builder import IndexedDatasetBuilder
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.preprocess.tokenizers import HuggingFaceTokenizer

EOD = "<|endoftext|>"


@functools.cache
def byte_level_json() -> str:
    """Returns a `tokenizer.json` of 1000 tokens, trained on sources of the standard library."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=[EOD, "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [(stdlib / name).read_text("utf-8") for name in ("ast.py", "heapq.py", "inspect.py", "textwrap.py")]
    backend.train_from_iterator(texts, trainer)
    return backend.to_str()


def word_level_json() -> str:
    """Returns a `tokenizer.json` that `gigatoken` does not support, and that makes nothing of white space."""
    vocabulary = {"[UNK]": 0, "</s>": 1, "alpha": 2, "beta": 3}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["</s>"])
    return backend.to_str()


def mistaken_json() -> str:
    """Returns a `tokenizer.json` that `gigatoken` loads and gets wrong, as of 0.10."""
    backend = Tokenizer.from_str(byte_level_json())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    return backend.to_str()


def make_tokenizer(data: str, **options: Any) -> HuggingFaceTokenizer:
    """Returns the tokenizer without a file."""
    return HuggingFaceTokenizer("memory/tokenizer.json", data.encode(), **options)


def write_lines(path: Path, lines: Iterable[object]) -> Path:
    """Writes each object as a line of JSON; bytes as they are."""
    data = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in data))
    return path


def documents_of(prefix: str | os.PathLike[str]) -> list[list[list[int]]]:
    """Returns the tokens of each sequence of each document."""
    dataset = IndexedDataset(os.fspath(prefix))
    bounds = dataset.document_indices
    return [
        [dataset[index].tolist() for index in range(bounds[number], bounds[number + 1])]
        for number in range(len(bounds) - 1)
    ]


def build_by_hand(
    prefix: Path, tokenizer: HuggingFaceTokenizer, documents: Iterable[str | list[str]], *, eod: int | None
) -> tuple[bytes, bytes]:
    """Writes what preprocessing must write, one document at a time as the reference does; returns both files."""
    dtype = np.uint16 if tokenizer.vocab_size < 65500 else np.int32
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype) as builder:
        for document in documents:
            sentences = [document] if isinstance(document, str) else document
            rows = [row for row in map(tokenizer.tokenize, sentences) if row]
            if rows and eod is not None:
                rows[-1].append(eod)
            builder.add_document([token for row in rows for token in row], [len(row) for row in rows])
        builder.finalize(f"{prefix}.idx")
    return read_pair(prefix)


def read_pair(prefix: str | os.PathLike[str]) -> tuple[bytes, bytes]:
    """Returns the bytes of both files."""
    return Path(f"{os.fspath(prefix)}.bin").read_bytes(), Path(f"{os.fspath(prefix)}.idx").read_bytes()


def leftovers(folder: Path, *inputs: Path) -> list[str]:
    """Returns the names of the files in a folder other than the inputs, hidden ones included."""
    return sorted(set(os.listdir(folder)) - {path.name for path in inputs})
