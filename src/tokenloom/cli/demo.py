"""`tokenloom demo`: runs the whole pipeline, from text to batches, on the source code of Python's standard library."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from tokenloom.cli.options import JsonOption, Written
from tokenloom.cli.output import Answer, look_of, members
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.errors import ConfigError
from tokenloom.inspect.shown import shown_lines, shown_sample
from tokenloom.loading.from_data import load
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.optional import require
from tokenloom.preprocess.corpus import preprocess_corpus
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.setting_types import Count
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_MOST_TOKENS = 80  # the most tokens to show of each document of the sample
_SPECIAL = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
_SOURCE_STRIDE = 8  # train the tokenizer on every eighth module: one or two seconds
_MIN_SECONDS = 1.0
_OPTIONAL = {
    "gigatoken": "gigatoken is not installed: tokenizing is slower (tokenloom[tokenizers])",
    "torch": "torch is not installed: batches are NumPy arrays (tokenloom[torch])",
}


@dataclass(frozen=True, kw_only=True)
class Options(JsonOption):
    """Turn the source code of Python's standard library into training batches, step by step. Needs no network.

    Attributes:
        output: folder of the outputs.
        vocab_size: size of the vocabulary.
        sequence_length: tokens per sample.
        micro_batch_size: samples per batch.
        json: print one JSON object: prefix, num_text_bytes, tokenizer, num_documents, num_tokens, preprocess_seconds,
            num_samples (an object by split), missing (texts about optional libraries that are not installed);
            `stream`: an object: tensors, startup_seconds, num_epochs, num_batches, num_tokens and seconds.
    """

    output: Annotated[str, Written(metavar="FOLDER")] = "demo-output"
    vocab_size: Count = 8192
    sequence_length: Count = 1024
    micro_batch_size: Count = 8


def run(options: Options) -> Iterator[Answer]:
    for module in ("tokenizers", "orjson"):
        require(module, extra="preprocess")
    missing = [words for module, words in _OPTIONAL.items() if find_spec(module) is None]
    folder = options.output
    corpus, prefix, path = (os.path.join(folder, name) for name in ("stdlib.jsonl", "stdlib", "tokenizer.json"))
    with storage_errors("create", folder):
        os.makedirs(folder, exist_ok=True)

    yield _step(*missing, "1. Text: the source code of Python's standard library, as JSON lines")
    num_bytes = 0
    with PendingFile(corpus) as file:
        for name, text in _source_texts():
            num_bytes += len(text.encode())
            file.write(json.dumps({"name": name, "text": text}).encode() + b"\n")
    yield _step(f"   {corpus}: {num_bytes / 1e6:.1f} MB of text")

    yield _step(f"2. Tokenizer: byte-level BPE with {options.vocab_size:,} ids, trained on an eighth of the text")
    tokenizer = train_tokenizer(path, vocab_size=options.vocab_size)
    yield _step(f"   {path}", "3. Preprocess: text to .bin/.idx")
    settings, data = CorpusSettings(append_eod=True), f"{prefix}_text_document"
    summary = preprocess_corpus(corpus, prefix, tokenizer, settings, restart=True, overwrite=True)
    speed = f"{num_bytes / 1e6 / summary.seconds:.0f} MB/s with {summary.engine.split()[0]}"
    counts = f"{summary.num_documents:,} documents, {summary.num_tokens:,} tokens of {summary.dtype}"
    yield _step(f"   {data}.bin/.idx", f"   {counts}, {speed}")

    yield _step("4. Datasets: shuffled samples of fixed length, split by document")
    datasets: list[GPTDataset] = load(
        data,
        sequence_length=options.sequence_length,
        tokenizer=tokenizer,
        split="90,5,5",
        path_to_cache=os.path.join(folder, "cache"),
        inter_document_masking=True,
    )
    train, size = datasets[0], options.micro_batch_size
    if len(train) < size:
        message = f"the train split has {len(train)} samples, fewer than a batch of {size}"
        raise ConfigError(message, hint="lower `micro_batch_size` or `sequence_length`")
    num_samples = {dataset.index_split.name: len(dataset) for dataset in datasets}
    of_length = f"samples of {options.sequence_length:,} tokens"
    yield _step(*(f"   {name}: {count:,} {of_length}" for name, count in num_samples.items()))

    number = next((number for number in range(len(train)) if len(train.spans(number)) > 1), 0)
    yield _step(f"5. One training sample: sample {number}, decoded, with its documents\n")
    yield _step(*shown_lines(shown_sample(train, number, tokenizer), look_of(most_tokens=_MOST_TOKENS)))

    yield _step(f"\n6. Batches of {size} samples, by ThreadLoader")
    report = _stream(train, size)
    kind = "torch tensors, with `import torch`" if report["tensors"] == "torch" else "NumPy arrays"
    speed = f"{report['num_tokens'] / report['seconds']:,.0f} tokens/s"
    yield _step(
        f"   start-up:  {report['startup_seconds']:.2f} s to the first batch of {kind}",
        f"   streaming: {speed}, {report['num_batches']:,} batches in {report['seconds']:.2f} s",
    )
    record = {"prefix": data, "num_text_bytes": num_bytes, "tokenizer": path, "stream": report, "missing": missing}
    record |= {"preprocess_seconds": summary.seconds, "num_samples": num_samples}
    record |= members(summary, "num_documents", "num_tokens")
    program = "tokenloom" if shutil.which("tokenloom") else os.path.join(os.path.dirname(sys.executable), "tokenloom")
    commands = (f"info {data}", f"verify {data}", f"show {data} --sample {number}")
    yield Answer(record, ["\nNext, try:", *(f"   {program} {command}" for command in commands)])


def _step(*lines: str) -> Answer:
    return Answer(iter(()), lines)  # the JSON object is part of the last answer


def _source_texts() -> Iterator[tuple[str, str]]:
    """Yields (relative path, text) of every module of the standard library, sorted by path."""
    root = sysconfig.get_paths()["stdlib"]
    for path in sorted(Path(root).rglob("*.py")):
        if "site-packages" not in path.parts:
            yield str(path.relative_to(root)), path.read_text(encoding="utf-8", errors="replace")


def train_tokenizer(path: str, *, vocab_size: int) -> TextTokenizer:
    """Trains a byte-level BPE tokenizer on every eighth text of `_source_texts`; writes the tokenizer to `path`."""
    tokenizer = require("tokenizers", extra="preprocess").ByteLevelBPETokenizer()
    texts = (text for _, text in itertools.islice(_source_texts(), 0, None, _SOURCE_STRIDE))
    settings = {"vocab_size": vocab_size, "min_frequency": 0, "special_tokens": _SPECIAL}
    tokenizer.train_from_iterator(texts, show_progress=False, **settings)
    with PendingFile(path) as file:
        file.write(tokenizer.to_str().encode())
    return load_tokenizer(path)


def _stream(dataset: GPTDataset, micro_batch_size: int) -> dict[str, Any]:
    """Reads batches like a training loop: one epoch to warm up, then whole epochs for at least a second.

    Returns the object `stream` of `tokenloom demo --json`.
    """
    started = time.perf_counter()
    loader = ThreadLoader(dataset, batch_size=micro_batch_size)
    next(iter(loader))
    report = {"tensors": loader.tensors, "startup_seconds": time.perf_counter() - started}
    deque(loader, maxlen=0)  # fill the page cache
    counts = {"num_epochs": 0, "num_batches": 0, "num_tokens": 0}
    started, seconds = time.perf_counter(), 0.0
    while seconds < _MIN_SECONDS:
        for batch in ThreadLoader(dataset, batch_size=micro_batch_size):
            counts["num_batches"] += 1
            counts["num_tokens"] += math.prod(batch["tokens"].shape)
        counts["num_epochs"] += 1
        seconds = time.perf_counter() - started
    return {**report, **counts, "seconds": seconds}
