"""`tokenloom demo`: the whole path on real text that every machine has, the sources of Python's standard library.

Text → tokenizer → `.bin`/`.idx` → train, valid, test → batches. Nothing is fetched from anywhere.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from tokenloom.cli.options import JsonOption, Written
from tokenloom.cli.output import look_of, members, print_json, print_lines
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.errors import ConfigError, InputError
from tokenloom.inspect.shown import shown_lines, shown_sample
from tokenloom.loading.from_data import load
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.optional import require
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import preprocess_corpus
from tokenloom.setting_types import Count
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_MOST_TOKENS = 80
"""Tokens of each document of the sample that is shown."""

_FILL_IN_THE_MIDDLE = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_END_OF_DOCUMENT = "<|endoftext|>"
_TRAINING_BYTES = 4 << 20  # of text for the tokenizer: enough for a small vocabulary, a second or two of work
_LEAST_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Options(JsonOption):
    """Text to training batches, on the sources of Python's standard library. Needs no network.

    Attributes:
        output: folder of the outputs.
        vocab_size: size of the vocabulary.
        sequence_length: tokens per sample.
        micro_batch_size: samples per batch.
        json: print one JSON object: prefix, num_text_bytes, tokenizer, num_documents, num_tokens, preprocess_seconds,
            num_samples by split, stream with tensors, startup_seconds, num_epochs, num_batches, num_tokens, seconds;
            and what is missing.
    """

    output: Annotated[str, Written(metavar="FOLDER")] = "demo-output"
    vocab_size: Count = 8192
    sequence_length: Count = 1024
    micro_batch_size: Count = 8


def run(options: Options) -> int:
    """Walks the path and prints what happens."""
    missing = _missing_parts()
    tell: Callable[[str], None] = (lambda _: None) if options.json else print
    for sentence in missing:
        tell(sentence)
    folder = options.output
    corpus, prefix = os.path.join(folder, "stdlib.jsonl"), os.path.join(folder, "stdlib")
    with storage_errors("create", folder):
        os.makedirs(folder, exist_ok=True)

    tell("1. Text: the sources of Python's standard library, as JSON lines")
    num_bytes = _write_corpus(corpus)
    tell(f"   {corpus}: {num_bytes / 1e6:.1f} MB of text")

    tell(f"2. Tokenizer: byte-level BPE with {options.vocab_size:,} ids, trained on some of it")
    path = os.path.join(folder, "tokenizer.json")
    tokenizer = train_tokenizer(path, vocab_size=options.vocab_size)
    tell(f"   {path}")

    tell("3. Preprocess: text to .bin/.idx")
    summary = preprocess_corpus(
        corpus, prefix, tokenizer, CorpusSettings(append_eod=True), restart=True, overwrite=True
    )
    data = f"{prefix}_text_document"
    tell(f"   {data}.bin/.idx")
    tell(
        f"   {summary.num_documents:,} documents, {summary.num_tokens:,} tokens of {summary.dtype}, "
        f"{num_bytes / 1e6 / summary.seconds:.0f} MB/s with {summary.engine.split()[0]}"
    )

    tell("4. Datasets: shuffled samples of fixed length, split by document")
    datasets: list[GPTDataset] = load(
        data,
        sequence_length=options.sequence_length,
        tokenizer=tokenizer,
        split="90,5,5",
        path_to_cache=os.path.join(folder, "cache"),
        inter_document_masking=True,
    )
    if not len(datasets[0]):
        message = f"expected at least one sample of {options.sequence_length} tokens for training, found none"
        raise ConfigError(message, hint="give a smaller `sequence_length`")
    for dataset in datasets:
        tell(f"   {dataset.index_split.name}: {len(dataset):,} samples of {options.sequence_length:,} tokens")
    train = datasets[0]

    number = next((number for number in range(len(train)) if len(train.spans(number)) > 1), 0)
    tell(f"5. What a training step sees: sample {number}, decoded, with its documents\n")
    if not options.json:
        print_lines(shown_lines(shown_sample(train, number, tokenizer), look_of(most_tokens=_MOST_TOKENS)))

    tell(f"\n6. Batches of {options.micro_batch_size} samples, by ThreadLoader")
    report = _stream(train, options.micro_batch_size)
    kind = "torch tensors, its import included" if report["tensors"] == "torch" else "NumPy arrays"
    tell(f"   start-up:  {report['startup_seconds']:.2f} s to the first batch of {kind}")
    tell(
        f"   streaming: {report['num_tokens'] / report['seconds']:,.0f} tokens/s, "
        f"{report['num_batches']:,} batches in {report['seconds']:.2f} s"
    )
    if options.json:
        record = {"prefix": data, "num_text_bytes": num_bytes, "tokenizer": path, "stream": report, "missing": missing}
        num_samples = {dataset.index_split.name: len(dataset) for dataset in datasets}
        record |= {"preprocess_seconds": summary.seconds, "num_samples": num_samples}
        print_json(record | members(summary, "num_documents", "num_tokens"))
        return 0
    folder = f"{os.path.relpath(os.path.dirname(sys.executable))}/"
    program = f"{'' if shutil.which('tokenloom') else folder}tokenloom"
    print("\nLook further:")
    for words in (f"info {data}", f"verify {data}", f"show {data} --sample {number}"):
        print(f"   {program} {words}")
    return 0


def _missing_parts() -> list[str]:
    """Says, a sentence each, what is not installed and what that changes: before anything is written."""
    for module in ("tokenizers", "orjson"):
        require(module, extra="preprocess")
    sentences = {
        "gigatoken": "gigatoken is not installed: tokenizing is slower (tokenloom[tokenizers])",
        "torch": "torch is not installed: batches are NumPy arrays (tokenloom[torch])",
    }
    return [sentence for module, sentence in sentences.items() if find_spec(module) is None]


def _source_texts() -> Iterator[tuple[str, str]]:
    """Yields (name, text) of every module of the standard library, sorted by name."""
    root = sysconfig.get_paths()["stdlib"]
    paths = [path for path in sorted(Path(root).rglob("*.py")) if "site-packages" not in path.parts]
    if not paths:
        message = f"expected Python sources below `{root}`, found none"
        raise InputError(message)
    for path in paths:
        yield str(path.relative_to(root)), path.read_text(encoding="utf-8", errors="replace")


def _write_corpus(path: str) -> int:
    """Writes the sources as JSON lines, one module per line; returns the bytes of text."""
    num_bytes = 0
    with PendingFile(path) as file:
        for name, text in _source_texts():
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
        special_tokens=[_END_OF_DOCUMENT, *_FILL_IN_THE_MIDDLE],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_some_texts(), trainer)
    with PendingFile(path) as file:
        file.write(tokenizer.to_str().encode())
    return load_tokenizer(path)


def _some_texts() -> Iterator[str]:
    taken = 0
    for number, (_, text) in enumerate(_source_texts()):
        if number % 4 == 0:  # spread over the library
            taken += len(text)
            yield text
        if taken > _TRAINING_BYTES:
            return


def _stream(dataset: GPTDataset, micro_batch_size: int) -> dict[str, Any]:
    """Reads all batches as a training loop would: once to warm up, then whole epochs for a second.

    Returns what tensors are made of, the seconds until the first batch was there, and what came in how many seconds.
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
    while num_epochs == 0 or seconds < _LEAST_SECONDS:
        num_epochs += 1
        for batch in ThreadLoader(dataset, batch_size=micro_batch_size):
            num_batches += 1
            num_tokens += len(batch["tokens"]) * batch["tokens"].shape[1]
        seconds = time.perf_counter() - started
    return {
        "tensors": loader.tensors,
        "startup_seconds": startup_seconds,
        "num_epochs": num_epochs,
        "num_batches": num_batches,
        "num_tokens": num_tokens,
        "seconds": seconds,
    }
