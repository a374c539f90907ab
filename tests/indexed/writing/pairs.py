import numpy as np
from tests.indexed.pairs import pair_bytes

from tokenloom import ConcatenatedPart, IndexedDataset, IndexedDatasetBuilder

CORPUS = [[[1, 2], [3]], [], [[4]], [[], [5, 6]]]


class Pair:
    """A builder and where its pair will be."""

    def __init__(self, folder, dtype=np.uint16, multimodal=False):
        self.folder = folder
        self.prefix = str(folder / "corpus")
        self.builder = IndexedDatasetBuilder(f"{self.prefix}.bin", dtype=dtype, multimodal=multimodal)

    def finish(self):
        self.builder.finalize(f"{self.prefix}.idx")
        return pair_bytes(self.prefix)

    def tokens(self):
        self.finish()
        return [tokens.tolist() for tokens in IndexedDataset(self.prefix)[:]]


def part(prefix, *, documents=None, kept=None):
    mask = None if kept is None else np.array(kept, dtype=np.bool_)
    return ConcatenatedPart(prefix=prefix, documents=documents, kept_documents=mask)
