"""Conversations: tokenizing, the packing index, and samples per second of one process with a warm page cache.

The released peer has no such dataset, so samples are compared with GPT samples of the same pair, in alternating rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time

import common
import numpy as np
import peers

import tokenloom
from tokenloom.cli.demo import train_tokenizer
from tokenloom.indexed.roles import role_bytes, roles_writer

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_lines(path: str, count: int) -> None:
    """Writes conversations of one to four exchanges, with lognormal lengths."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{number} " for number in range(3000)])
    with open(path, "w") as stream:
        for _ in range(count):
            messages = []
            for _ in range(rng.integers(1, 5)):
                for role, mean in (("user", 3.0), ("assistant", 3.9)):
                    length = min(int(rng.lognormal(mean, 0.8)) + 1, 2000)
                    messages.append({"role": role, "content": "".join(rng.choice(words, length))})
            stream.write(json.dumps({"messages": messages}) + "\n")


def tokenizing(folder: str, count: int, workers: int) -> None:
    """Prints the speed of both kinds of templates."""
    tokenizer = train_tokenizer(os.path.join(folder, "tokenizer.json"), vocab_size=8000)
    source, template = os.path.join(folder, "chat.jsonl"), os.path.join(folder, "template.jinja")
    write_lines(source, count)
    with open(template, "w") as stream:
        stream.write(TEMPLATE)
    rows = []
    for name, chosen in (("built-in", "chatml"), ("Jinja", template)):
        for num_workers in (1, workers):
            prefix = os.path.join(folder, f"{name}-{num_workers}")  # a job that is done would not be done again
            summary = tokenloom.preprocess_chat(
                source, prefix, tokenizer, chat_template=chosen, num_workers=num_workers
            )
            seconds = summary.seconds
            rows.append(
                [
                    name,
                    num_workers,
                    f"{summary.datasets[0].num_sequences / seconds:,.0f}",
                    f"{summary.num_tokens / seconds:,.0f}",
                ]
            )
    megabytes = os.path.getsize(source) / 1e6
    title = f"Tokenizing {count:,} conversations ({megabytes:.0f} MB)"
    common.print_rows(title, ("template", "threads", "conversations/s", "tokens/s"), rows)


def indexing(folder: str, count: int) -> None:
    """Prints the time of the packing index of many conversations."""
    prefix = os.path.join(folder, "many")
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4.0, 1.0, size=count), 4, 4000).astype(np.int32)
    roles = roles_writer(prefix)
    stops = np.stack([lengths // 3, lengths], axis=1).ravel().astype(np.int32)
    kinds = np.tile(np.array([0, 1], dtype=np.uint8), count)
    roles.append(role_bytes(np.full(count, 2), stops, kinds, num_tokens=int(lengths.sum())))
    with tokenloom.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        builder.append_block(np.zeros(int(lengths.sum()), dtype=np.uint16), lengths)
        builder.finalize(f"{prefix}.idx", columns={"roles": roles})
    rows = []
    for length in (2048, 8192):
        started = time.perf_counter()
        dataset = make(tokenloom.SFTDataset, prefix, os.path.join(folder, f"cache{length}"), length)
        num_samples = len(dataset)
        seconds = time.perf_counter() - started
        fill = dataset.ledger().fill
        rows.append([length, f"{num_samples:,}", f"{seconds:.2f}", f"{count / seconds:,.0f}", f"{100 * fill:.2f} %"])
    common.print_rows(
        f"Packing {count:,} conversations ({int(lengths.sum()):,} tokens)",
        ("length", "samples", "seconds", "conversations/s", "fill"),
        rows,
    )


def make(cls, prefix: str, cache: str, length: int):
    """Reads all samples of a pair."""
    config = tokenloom.SFTDatasetConfig(
        random_seed=1,
        sequence_length=length,
        blend=([prefix], None),
        split="1,0,0",
        tokenizer=peers.Tokenizer(),
        path_to_cache=cache,
        inter_document_masking=cls is tokenloom.GPTDataset,
    )
    data = cls.build_low_level_dataset(prefix, config)
    indices = np.arange(cls.numel_low_level_dataset(data), dtype=np.int32)
    return cls(data, prefix, indices, None, tokenloom.Split.train, config)


def sampling(folder: str, rounds: int) -> None:
    """Prints samples per second of conversations and of GPT samples of the same pair."""
    prefix = os.path.join(folder, "many")
    rows = []
    for length in (2048, 8192):
        sft = make(tokenloom.SFTDataset, prefix, os.path.join(folder, f"cache{length}"), length)
        gpt = make(tokenloom.GPTDataset, prefix, os.path.join(folder, f"cache{length}"), length)
        rng = np.random.default_rng(1)
        found: dict[str, list[float]] = {"sft[k]": [], "sft batched": [], "gpt[k]": [], "gpt batched": []}
        for _ in range(rounds):
            positions = rng.permutation(min(len(sft), len(gpt)))[: 2048 * 2048 // length].tolist()
            groups = [positions[i : i + 32] for i in range(0, len(positions), 32)]
            for name, dataset in (("sft", sft), ("gpt", gpt)):
                found[f"{name}[k]"].append(common.rate(dataset.__getitem__, positions))
                found[f"{name} batched"].append(common.rate(dataset.__getitems__, groups, 32))
        medians = {name: statistics.median(values) for name, values in found.items()}
        rows.append([length, *(f"{medians[name]:,.0f}" for name in found), f"{medians['sft batched'] * length:,.0f}"])
    common.print_rows(
        "Samples per second, one process, warm page cache (medians)",
        ("length", *found, "sft batched tokens/s"),
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=10_000, help="conversations to tokenize")
    parser.add_argument("--conversations", type=int, default=1_000_000, help="conversations to pack")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tokenizing(folder, options.lines, options.workers)
        indexing(folder, options.conversations)
        sampling(folder, options.rounds)


if __name__ == "__main__":
    main()
