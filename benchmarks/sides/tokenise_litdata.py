"""litdata's `optimize`: one process per part of the text, `tokenizers` document by document, chunks of tokens."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import torch
from litdata import TokensLoader, optimize
from serve import Outcome, PeakOfTree, serve
from texts import EOD, digest, part_paths, text_megabytes, texts_of, tokenizer_path
from tokenizers import Tokenizer


@cache
def load(path: str) -> Tokenizer:
    """Returns the tokenizer, loaded once by each process."""
    return Tokenizer.from_file(path)


def documents(part: str, *, path: str) -> Iterator[torch.Tensor]:
    """Yields the tokens of each document of one part."""
    tokenizer = load(path)
    eod = tokenizer.token_to_id(EOD)
    for text in texts_of(part):
        yield torch.tensor([*tokenizer.encode(text, add_special_tokens=False).ids, eod], dtype=torch.uint16)


def prepare(*, folder: str, megabytes: int, workers: int) -> Callable[[], Outcome]:
    output = os.path.join(folder, "litdata-text")

    def round_() -> Outcome:
        shutil.rmtree(output, ignore_errors=True)
        with PeakOfTree() as tree:
            optimize(
                fn=partial(documents, path=tokenizer_path(folder)),
                inputs=part_paths(folder, megabytes),
                output_dir=output,
                chunk_bytes="64MB",
                item_loader=TokensLoader(),
                num_workers=workers,
                keep_data_ordered=True,
                verbose=False,
            )
        work = text_megabytes(folder, megabytes)
        return {"work": work, "memory_bytes": tree.peak_bytes, "digest": lambda: digest(chunks(output))}

    return round_


def chunks(output: str) -> Iterator[bytes]:
    """Yields the tokens of each chunk: they follow the number of items and where each begins, in 32 bits each."""
    for path in sorted(Path(output).glob("*.bin")):
        content = path.read_bytes()
        yield content[4 * (int.from_bytes(content[:4], "little") + 2) :]


if __name__ == "__main__":
    serve(prepare)
