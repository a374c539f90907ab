"""Many small documents, one by one, into mosaicml-streaming's shards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import numpy as np
from mosaic import MDSWriter
from serve import Outcome, serve


def prepare(*, folder: str, documents: int, tokens: int) -> Callable[[], Outcome]:
    output = os.path.join(folder, "built-mds")
    document = np.arange(tokens, dtype=np.uint16)

    def round_() -> Outcome:
        shutil.rmtree(output, ignore_errors=True)
        with MDSWriter(out=output, columns={"tokens": "ndarray:uint16"}) as writer:
            for _ in range(documents):
                writer.write({"tokens": document})
        return {"work": documents}

    return round_


if __name__ == "__main__":
    serve(prepare)
