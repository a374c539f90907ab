"""The main job on real text that every machine has: the sources of Python's standard library.

Text → tokenizer → `.bin`/`.idx` → train, valid, test → batches. Nothing is fetched from anywhere.
"""

from __future__ import annotations

import json
import os
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from tokenloom.datasets.gpt import GPTDataset
from tokenloom.errors import ConfigError, InputError
from tokenloom.loading.from_data import load
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.optional import require
from tokenloom.storage.atomic import PendingFile
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

FILL_IN_THE_MIDDLE = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
END_OF_DOCUMENT = "<|endoftext|>"
_TRAINING_BYTES = 4 << 20  # of text for the tokenizer: enough for a small vocabulary, a second or two of work


def missing_parts() -> list[str]:
    """Says, a sentence each, what is not installed and what that changes: before anything is written.

    Raises:
        MissingExtraError: without what is missing there is no demo.
    """
    for module in ("tokenizers", "orjson"):
        require(module, extra="preprocess")
    sentences = {
        "gigatoken": "gigatoken is not installed: tokenizing is slower (tokenloom[tokenizers])",
        "torch": "torch is not installed: batches are NumPy arrays (tokenloom[torch])",
    }
    return [sentence for module, sentence in sentences.items() if find_spec(module) is None]


def source_texts() -> Iterator[tuple[str, str]]:
    """Yields (name, text) of every module of the standard library, sorted by name.

    Raises:
        InputError: this Python has no sources.
    """
    root = sysconfig.get_paths()["stdlib"]
    found = False
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in ("site-packages", "__pycache__"))
        for name in sorted(files):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8", errors="replace") as stream:
                    text = stream.read()
                found = True
                yield os.path.relpath(path, root), text
    if not found:
        message = f"expected Python sources below `{root}`, found none"
        raise InputError(message)


def write_corpus(path: str) -> int:
    """Writes the sources as JSON lines, one module per line; returns the bytes of text."""
    num_bytes = 0
    with PendingFile(path) as file:
        for name, text in source_texts():
            num_bytes += len(text.encode())
            file.write(json.dumps({"name": name, "text": text}).encode() + b"\n")
    return num_bytes


def train_tokenizer(path: str, *, vocab_size: int) -> TextTokenizer:
    """Trains a byte-level BPE tokenizer on some of the sources and writes it as `tokenizer.json`."""
    tokenizers = require("tokenizers", extra="preprocess")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT, *FILL_IN_THE_MIDDLE],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_some_texts(), trainer)
    with PendingFile(path) as file:
        file.write(tokenizer.to_str().encode())
    return load_tokenizer(path)


def _some_texts() -> Iterator[str]:
    taken = 0
    for number, (_, text) in enumerate(source_texts()):
        if number % 4 == 0:  # spread over the library
            taken += len(text)
            yield text
        if taken > _TRAINING_BYTES:
            return


def build_datasets(
    prefix: str, tokenizer: TextTokenizer, *, sequence_length: int, path_to_cache: str
) -> list[GPTDataset]:
    """Returns train, valid and test of one epoch.

    Raises:
        ConfigError: the sources are too few for a sample to train with.
    """
    datasets: list[GPTDataset] = load(
        prefix,
        sequence_length=sequence_length,
        tokenizer=tokenizer,
        split="90,5,5",
        path_to_cache=path_to_cache,
        inter_document_masking=True,
    )
    if not len(datasets[0]):
        message = f"expected at least one sample of {sequence_length} tokens for training, found none"
        raise ConfigError(message, hint="give a smaller `sequence_length`")
    return datasets


def first_sample_of_several_documents(dataset: GPTDataset) -> int:
    """Returns the first sample in which documents meet, or 0 if there is none."""
    return next((number for number in range(len(dataset)) if len(dataset.spans(number)) > 1), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """How fast batches came.

    Attributes:
        tensors: what they were made of, "torch" or "numpy".
        startup_seconds: until the first of them was there, and torch imported, where it is.
        num_epochs: how often all samples were read while it was measured.
        num_batches, num_tokens: what came in that time.
        seconds: that time, which began when all was warm.
    """

    tensors: str
    startup_seconds: float
    num_epochs: int
    num_batches: int
    num_tokens: int
    seconds: float


def stream(dataset: GPTDataset, *, micro_batch_size: int, at_least_seconds: float = 1.0) -> StreamReport:
    """Goes through all batches as a training loop would: once to warm up, then whole epochs for so long.

    Raises:
        ConfigError: there are not enough samples for a batch.
    """
    if len(dataset) < micro_batch_size:
        message = f"expected at least the {micro_batch_size} samples of a batch for training, found {len(dataset)}"
        raise ConfigError(message, hint="give a smaller `micro_batch_size` or `sequence_length`")
    started = time.perf_counter()
    loader = ThreadLoader(dataset, batch_size=micro_batch_size)
    next(iter(loader))
    startup_seconds = time.perf_counter() - started
    for _ in ThreadLoader(dataset, batch_size=micro_batch_size):
        pass  # the pages of the files come into memory
    num_epochs = num_batches = num_tokens = 0
    seconds = 0.0
    started = time.perf_counter()
    while num_epochs == 0 or seconds < at_least_seconds:
        num_epochs += 1
        for batch in ThreadLoader(dataset, batch_size=micro_batch_size):
            num_batches += 1
            num_tokens += len(batch["tokens"]) * batch["tokens"].shape[1]
        seconds = time.perf_counter() - started
    return StreamReport(
        tensors=loader.tensors,
        startup_seconds=startup_seconds,
        num_epochs=num_epochs,
        num_batches=num_batches,
        num_tokens=num_tokens,
        seconds=seconds,
    )
