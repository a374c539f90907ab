"""A tokenizer alone, its text in memory, on all cores, nothing read or written: cold, with one engine per thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from serve import Outcome, serve
from texts import text_megabytes, texts_of, tokenizer_path, whole_path

BLOCK = 128  # documents in a call


def prepare(*, folder: str, megabytes: int, engine: str, workers: int) -> Callable[[], Outcome]:
    """Reads the text; `engine` is gigatoken or tokenizers."""
    texts = list(texts_of(whole_path(folder, megabytes)))
    definition = Path(tokenizer_path(folder)).read_bytes()
    blocks = [texts[i : i + BLOCK] for i in range(0, len(texts), BLOCK)]
    shares = [blocks[number::workers] for number in range(workers)]
    make = {"gigatoken": gigatoken_engine, "tokenizers": tokenizers_engine}[engine]

    def round_() -> Outcome:
        engines = [make(definition) for _ in shares]  # new ones: what they cache belongs to the work
        started = time.perf_counter()
        with ThreadPoolExecutor(workers) as executor:
            list(executor.map(encode_all, engines, shares))
        return {"work": text_megabytes(folder, megabytes), "seconds": time.perf_counter() - started}

    return round_


def gigatoken_engine(definition: bytes) -> Callable[[list[str]], object]:
    import gigatoken

    backend = gigatoken.Tokenizer.from_json(definition)
    return lambda texts: backend.encode_batch(texts, parallel=False)


def tokenizers_engine(definition: bytes) -> Callable[[list[str]], object]:
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a thread each, as for the other
    from tokenizers import Tokenizer

    backend = Tokenizer.from_buffer(definition)
    return lambda texts: backend.encode_batch_fast(texts, add_special_tokens=False)


def encode_all(encode: Callable[[list[str]], object], blocks: list[list[str]]) -> None:
    for block in blocks:
        encode(block)


if __name__ == "__main__":
    serve(prepare)
