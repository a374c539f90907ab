"""datatrove's filter of n-grams, one task and one process per part of the text."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable

import numpy as np
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.utils.hashing import HashConfig, create_hash_func
from datatrove.utils.text import ngrams, simplify_text
from datatrove.utils.typeshelper import Languages
from datatrove.utils.word_tokenizers import load_word_tokenizer
from serve import Outcome, PeakOfTree, serve
from texts import part_paths, text_megabytes

WORDS = 13


def prepare(*, folder: str, megabytes: int, workers: int) -> Callable[[], Outcome]:
    parts = part_paths(folder, megabytes)
    output, index = os.path.join(folder, "datatrove-decont"), os.path.join(folder, "datatrove-index")
    config = NGramsDecontConfig(n_grams=WORDS)
    tokenizer, hashed = load_word_tokenizer(Languages.english), create_hash_func(HashConfig())
    with open(os.path.join(folder, f"items-{megabytes}.jsonl"), encoding="utf-8") as lines:
        items = [json.loads(line)["text"] for line in lines]
    hashes = set()
    for item in items:  # as its indexer does, which needs tasks of `lighteval`
        words = tokenizer.word_tokenize(simplify_text(item, config.norm_config))
        hashes |= {hashed(" ".join(each)) for each in ngrams(words, WORDS)}
    os.makedirs(index, exist_ok=True)
    np.array(sorted(hashes), dtype="<u8").tofile(os.path.join(index, "items.index.hashes"))

    def round_() -> Outcome:
        shutil.rmtree(output, ignore_errors=True)
        pipeline = [JsonlReader(os.path.dirname(parts[0])), NGramsDecontFilter(index, config=config)]
        with PeakOfTree() as tree:
            executor = LocalPipelineExecutor(pipeline, tasks=workers, workers=workers, logging_dir=f"{output}/logs")
            found = executor.run().stats[1].stats["dropped"].total
        if found < len(items) // 10:
            raise ValueError(f"expected {len(items) // 10} documents with an item, found {found}")
        return {"work": text_megabytes(folder, megabytes), "memory_bytes": tree.peak_bytes}

    return round_


if __name__ == "__main__":
    serve(prepare)
