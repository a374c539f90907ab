"""Fill-in-the-middle samples: samples and tokens per second of one process, by rate; rate 0 is `GPTDataset`.

The corpus is Python's standard library, the tokenizer a byte-level BPE of 8,000 tokens trained on it. Other rates
mostly cost decoding and encoding; "encode" is the time to encode the text of the same samples once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sysconfig
import tempfile
import time
from pathlib import Path

import common
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import tokenloom

SENTINELS = {"prefix": "<|prefix|>", "middle": "<|middle|>", "suffix": "<|suffix|>"}


def write_corpus(folder: str) -> tuple[str, str]:
    """Writes tokenizer and pair; returns the prefix and the path of the tokenizer."""
    texts = [path.read_text("utf-8", "replace") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", *SENTINELS.values()]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=8000, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    path = os.path.join(folder, "tokenizer.json")
    backend.save(path)
    prefix = os.path.join(folder, "corpus")
    with tokenloom.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        for text in texts:
            ids = [*backend.encode(text).ids, 0]
            builder.add_document(np.array(ids, dtype=np.uint16), [len(ids)])
        builder.finalize(f"{prefix}.idx")
    return prefix, path


def make_dataset(prefix: str, tokenizer: object, length: int, rate: float) -> tokenloom.GPTFIMDataset:
    config = tokenloom.GPTFIMDatasetConfig(
        random_seed=1234,
        sequence_length=length,
        blend=([prefix], None),
        split="1",
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        inter_document_masking=True,
        fim_rate=rate,
        fim_spm_rate=0.5,
        fim_extra_tokens=SENTINELS,
    )
    data = tokenloom.IndexedDataset(prefix)
    indices = np.arange(len(data), dtype=np.int32)
    return tokenloom.GPTFIMDataset(data, prefix, indices, None, tokenloom.Split.train, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        prefix, path = write_corpus(folder)
        tokenizer = tokenloom.load_tokenizer(path)
        for length in options.lengths:
            datasets = {rate: make_dataset(prefix, tokenizer, length, rate) for rate in (0.0, 0.5, 1.0)}
            count = min(options.samples, len(datasets[0.0]))
            times: dict[float, list[float]] = {rate: [] for rate in datasets}
            encode = []
            for _ in range(options.rounds):
                for rate, dataset in datasets.items():
                    started = time.perf_counter()
                    for begin in range(0, count, 8):
                        dataset.batch(range(begin, min(begin + 8, count)))
                    times[rate].append(time.perf_counter() - started)
                texts = [tokenizer.detokenize(row) for row in datasets[0.0].batch(range(count))["tokens"].tolist()]
                started = time.perf_counter()
                for text in texts:
                    tokenizer.tokenize(text)
                encode.append(time.perf_counter() - started)
            for rate in datasets:
                seconds = statistics.median(times[rate])
                rows.append(
                    [
                        length,
                        rate,
                        f"{count / seconds:,.0f}",
                        f"{count * length / seconds:,.0f}",
                        f"{seconds / statistics.median(encode):.2f}",
                    ]
                )
    common.print_rows(
        "Fill-in-the-middle samples of one process (medians)",
        ("length", "rate", "samples/s", "tokens/s", "time / encode"),
        rows,
    )


if __name__ == "__main__":
    main()
