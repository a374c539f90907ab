"""`tokenloom demo`: the whole path on the standard library's own sources."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import Annotated

from tokenloom import demo
from tokenloom.cli.drawing import look_of, print_shown
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Written
from tokenloom.inspect.shown_data import shown_sample
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import preprocess_corpus
from tokenloom.setting_types import Count
from tokenloom.storage.atomic import storage_errors

_MOST_TOKENS = 80
"""Tokens of each document of the sample that is shown."""


@dataclass(frozen=True, kw_only=True)
class Options:
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
    json: bool = False


def run(options: Options) -> int:
    """Walks the path and prints what happens."""
    tell = _tell_nothing if options.json else print
    missing = demo.missing_parts()
    for sentence in missing:
        tell(sentence)
    folder = options.output
    corpus, prefix = os.path.join(folder, "stdlib.jsonl"), os.path.join(folder, "stdlib")
    with storage_errors("create", folder):
        os.makedirs(folder, exist_ok=True)

    tell("1. Text: the sources of Python's standard library, as JSON lines")
    num_bytes = demo.write_corpus(corpus)
    tell(f"   {corpus}: {num_bytes / 1e6:.1f} MB of text")

    tell(f"2. Tokenizer: byte-level BPE with {options.vocab_size:,} ids, trained on some of it")
    path = os.path.join(folder, "tokenizer.json")
    tokenizer = demo.train_tokenizer(path, vocab_size=options.vocab_size)
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
    datasets = demo.build_datasets(
        data, tokenizer, sequence_length=options.sequence_length, path_to_cache=os.path.join(folder, "cache")
    )
    for dataset in datasets:
        tell(f"   {dataset.index_split.name}: {len(dataset):,} samples of {options.sequence_length:,} tokens")
    train = datasets[0]

    number = demo.first_sample_of_several_documents(train)
    tell(f"5. What a training step sees: sample {number}, decoded, with its documents\n")
    if not options.json:
        print_shown(shown_sample(train, number, tokenizer), look_of(most_tokens=_MOST_TOKENS))

    tell(f"\n6. Batches of {options.micro_batch_size} samples, by ThreadLoader")
    report = demo.stream(train, micro_batch_size=options.micro_batch_size)
    kind = "torch tensors, its import included" if report.tensors == "torch" else "NumPy arrays"
    tell(f"   start-up:  {report.startup_seconds:.2f} s to the first batch of {kind}")
    tell(
        f"   streaming: {report.num_tokens / report.seconds:,.0f} tokens/s, "
        f"{report.num_batches:,} batches in {report.seconds:.2f} s"
    )
    if options.json:
        print_json(
            {
                "prefix": data,
                "num_text_bytes": num_bytes,
                "tokenizer": path,
                "num_documents": summary.num_documents,
                "num_tokens": summary.num_tokens,
                "preprocess_seconds": summary.seconds,
                "num_samples": {dataset.index_split.name: len(dataset) for dataset in datasets},
                "stream": report,
                "missing": missing,
            }
        )
        return 0
    program = (
        "tokenloom" if shutil.which("tokenloom") else f"{os.path.relpath(os.path.dirname(sys.executable))}/tokenloom"
    )
    print(
        "\nLook further:\n"
        f"   {program} info {data}\n"
        f"   {program} verify {data}\n"
        f"   {program} show {data} --sample {number}"
    )
    return 0


def _tell_nothing(_: str) -> None:
    """Takes what people would read."""
