"""Benchmarks searched in a corpus."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.data import write_text
from rows.fairness import WARM

WORDS, NUM_ITEMS, NUM_PLANTED = 40, 3_000, 300


def write_items(folder: Path, megabytes: int) -> None:
    """Writes items of 40 words: most of them random words of the text, some of them stretches of it."""
    if (path := folder / f"items-{megabytes}.jsonl").exists():
        return
    with open(folder / f"text-{megabytes}.jsonl", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"].split() for line in lines]
    rng = random.Random(1)
    words = sorted({word for text in texts[:200] for word in text})
    items = [rng.choices(words, k=WORDS) for _ in range(NUM_ITEMS - NUM_PLANTED)]
    for text in rng.sample([text for text in texts if len(text) > 2 * WORDS], NUM_PLANTED):
        begin = rng.randrange(len(text) - WORDS)
        items.append(text[begin : begin + WORDS])
    path.write_text("".join(json.dumps({"text": " ".join(item)}) + "\n" for item in items))


def contamination_row(megabytes: int, workers: int, rounds: int, *, alone: bool) -> Row:
    """Returns the row of a corpus that is searched for items, by all sides or by tokenloom alone."""

    def prepare(folder: Path) -> None:
        write_text(folder, megabytes, workers)
        write_items(folder, megabytes)

    arguments = {"megabytes": megabytes, "workers": workers}
    sides = (
        Side(name="tokenloom contamination", library=OURS, script="find_items.py", arguments=arguments),
        Side(name="datatrove NGramsDecontFilter", library="datatrove", script="find_items_datatrove.py", fresh=True,
             arguments=arguments, environment="datatrove"),
        Side(name="bytes.count", library=LIMIT, script="count_bytes.py", arguments={"megabytes": megabytes}),
    )  # fmt: skip
    return Row(
        job="contamination",
        name=f"{NUM_ITEMS:,} items in {megabytes} MB{', tokenloom alone' if alone else ''}",
        compares="n-grams of 13 words of benchmark items, searched in a corpus",
        fairness="Same text, same items, as many threads or processes as there are cores; each must find all "
        f"{NUM_PLANTED} documents that items were taken from, or it fails. {WARM} Ours is the whole command with its "
        "start-up: it reads tokens, decodes them, compares words and says where each item stands. The peer reads "
        "JSON lines, hashes words that spaCy finds, and stops at the first n-gram of a document; hashes of the items "
        "are made before, by its own functions.",
        limit="`bytes.count` over the text in memory, by one thread: each byte is looked at once",
        unit="MB",
        rounds=rounds,
        sides=sides[::2] if alone else sides,
        prepare=prepare,
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode."""
    small, _ = scale.text_megabytes
    workers, rounds = len(os.sched_getaffinity(0)), min(scale.rounds, 3)
    return [contamination_row(size, workers, rounds, alone=size > small) for size in scale.text_megabytes]
