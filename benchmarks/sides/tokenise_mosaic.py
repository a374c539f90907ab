"""mosaicml-streaming's way: `tokenizers` document by document, each written as a sample of MDS shards; one process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import numpy as np
from mosaic import MDSWriter, StreamingDataset, clean_stale_shared_memory
from serve import Outcome, PeakOfTree, serve
from texts import EOD, digest, text_megabytes, texts_of, tokenizer_path, whole_path
from tokenizers import Tokenizer


def prepare(*, folder: str, megabytes: int) -> Callable[[], Outcome]:
    output = os.path.join(folder, "mds-text")

    def round_() -> Outcome:
        shutil.rmtree(output, ignore_errors=True)
        with PeakOfTree() as tree, MDSWriter(out=output, columns={"tokens": "ndarray:uint16"}) as writer:
            tokenizer = Tokenizer.from_file(tokenizer_path(folder))
            eod = tokenizer.token_to_id(EOD)
            for text in texts_of(whole_path(folder, megabytes)):
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                writer.write({"tokens": np.array([*ids, eod], dtype=np.uint16)})
        work = text_megabytes(folder, megabytes)
        return {"work": work, "memory_bytes": tree.peak_bytes, "digest": lambda: digest(documents(output))}

    return round_


def documents(output: str) -> Iterator[bytes]:
    """Yields the tokens of each document, as its own reader gives them."""
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=output, shuffle=False, batch_size=1)
    for number in range(len(dataset)):
        yield dataset[number]["tokens"].tobytes()


if __name__ == "__main__":
    serve(prepare)
