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
from typing import Any

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.errors import InputError
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.optional import require
from tokenloom.storage.atomic import PendingFile
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

FILL_IN_THE_MIDDLE = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
END_OF_DOCUMENT = "<|endoftext|>"
_TRAINING_BYTES = 4 << 20  # of text for the tokenizer: enough for a small vocabulary, a second or two of work


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
    tokenizers = require("tokenizers", extra="tokenizers")
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
    """Returns train, valid and test of one epoch."""
    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=sequence_length,
        blend=([prefix], None),
        split="90,5,5",
        path_to_cache=path_to_cache,
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        inter_document_masking=True,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [None, None, None], lambda: True, config).build()


def first_sample_of_several_documents(dataset: GPTDataset) -> int:
    """Returns the first sample in which documents meet, or 0 if there is none."""
    return next((number for number in range(len(dataset)) if len(dataset.spans(number)) > 1), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """What one epoch through the data loader took."""

    num_batches: int
    num_tokens: int
    seconds: float


def stream_epoch(dataset: GPTDataset, *, micro_batch_size: int) -> StreamReport:
    """Goes through all batches of an epoch as a training loop would."""
    sampler = MegatronPretrainingSampler(len(dataset), 0, micro_batch_size, 0, 1)
    started = time.perf_counter()
    num_batches = num_tokens = 0
    batch: dict[str, Any]
    for batch in build_dataloader(dataset, sampler):
        num_batches += 1
        num_tokens += batch["tokens"].numel()
    return StreamReport(num_batches=num_batches, num_tokens=num_tokens, seconds=time.perf_counter() - started)
