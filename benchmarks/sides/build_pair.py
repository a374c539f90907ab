"""Many small documents, one by one, into a file pair or what a peer has for one; or their bytes into a file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import peers
from serve import Outcome, serve

TOKENS_PER_DOCUMENT = 16


def document_of(kind: str) -> object:
    """Returns one document."""
    values = np.arange(TOKENS_PER_DOCUMENT)
    return {
        "uint16 arrays": values.astype(np.uint16),
        "int64 arrays": values.astype(np.int64),
        "lists": values.tolist(),
    }[kind]


def prepare(*, folder: str, side: str, kind: str, documents: int) -> Callable[[], Outcome]:
    """Imports one side."""
    prefix = os.path.join(folder, f"built-{side}")
    if side == "limit":
        return writing(f"{prefix}.bin", documents)
    builder_class = peers.modules(side)[1]
    document, lengths = document_of(kind), [TOKENS_PER_DOCUMENT]

    def round_() -> Outcome:
        builder = builder_class(f"{prefix}.bin", dtype=np.uint16)
        add_document = builder.add_document
        for _ in range(documents):
            add_document(document, lengths)
        builder.finalize(f"{prefix}.idx")
        return {"work": documents, "digest": partial(digest, prefix)}

    return round_


def digest(prefix: str) -> str:
    """Returns the hash of both files."""
    state = hashlib.sha256()
    for suffix in (".bin", ".idx"):
        state.update(Path(prefix + suffix).read_bytes())
    return state.hexdigest()


def writing(path: str, documents: int) -> Callable[[], Outcome]:
    """Returns a round that writes as many bytes as the pair has: the tokens, and 20 bytes of index per document."""
    content = bytes(documents * (2 * TOKENS_PER_DOCUMENT + 20))

    def round_() -> Outcome:
        Path(path).write_bytes(content)
        return {"work": documents}

    return round_


if __name__ == "__main__":
    serve(prepare, imports=peers.imports)
