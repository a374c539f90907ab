"""What the reference's tool, which is not on PyPI, does: `json.loads`, `tokenizers` line by line, its builder."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import peers
from serve import Outcome, PeakOfTree, serve
from texts import EOD, digest, text_megabytes, tokenizer_path, whole_path


def start_encoder(path: str) -> None:
    """Gives this process its tokenizer."""
    from tokenizers import Tokenizer

    global backend, eod
    backend = Tokenizer.from_file(path)
    eod = backend.token_to_id(EOD)


def encode_line(line: str) -> list[int]:
    """Returns the tokens of one line of JSON."""
    ids = backend.encode(json.loads(line)["text"], add_special_tokens=False).ids
    return [*ids, eod] if ids else []


def prepare(*, folder: str, megabytes: int, workers: int) -> Callable[[], Outcome]:
    """Imports; 0 workers do it in this process."""
    builder_class = peers.modules(peers.PEER)[1]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    path, prefix = tokenizer_path(folder), os.path.join(folder, f"megatron-{workers}")

    def round_() -> Outcome:
        builder = builder_class(f"{prefix}.bin", dtype=np.uint16)
        with PeakOfTree() as tree, open(whole_path(folder, megabytes), encoding="utf-8") as stream:
            if workers:
                context = multiprocessing.get_context("fork")
                with context.Pool(workers, initializer=start_encoder, initargs=(path,)) as pool:
                    add_rows(builder, pool.imap(encode_line, stream, 32))
            else:
                start_encoder(path)
                add_rows(builder, map(encode_line, stream))
            builder.finalize(f"{prefix}.idx")
        work = text_megabytes(folder, megabytes)
        tokens = Path(f"{prefix}.bin")
        return {"work": work, "memory_bytes": tree.peak_bytes, "digest": lambda: digest([tokens.read_bytes()])}

    return round_


def add_rows(builder, rows) -> None:
    for row in rows:
        builder.add_document(row, [len(row)] if row else [])


if __name__ == "__main__":
    serve(prepare)
