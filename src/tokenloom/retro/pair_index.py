"""What the vectors of a pair are searched with: all of them where that is quick enough, else an index that is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np

from tokenloom.machine import usable_processors
from tokenloom.progress import task as shown_task
from tokenloom.retro.faiss_library import make
from tokenloom.retro.output import NewOutput, same_output
from tokenloom.retro.pair_vectors import Float32s, PairVectors
from tokenloom.retro.search import ExactIndex, Searchable
from tokenloom.retro.vector_index import Bytes, VectorIndex
from tokenloom.storage.sampling import spread_evenly

EXACT = "exact"
"""The name of no index: all vectors are compared."""

_MOST_COMPARED = 1 << 32
"""Pairs of vectors that are compared without an index: 20 to 40 s on two cores where they are 256 wide."""

_TRAINED_PER_LIST = 40
_MOST_TRAINED = 1 << 17
_NPROBE = 16
_AT_ONCE = 1 << 14


def open_pair_index(
    vectors: PairVectors,
    *,
    num_queries: int,
    string: str | None = None,
    of_documents: bool = False,
    notice: Callable[[str], None] | None = None,
) -> Searchable:
    """Returns what finds the nearest chunks, or documents, of a pair; makes an index where one is called for.

    An index is a file beside the vectors, and is used again. Memory: all of it, which is a byte for each number of a
    vector for the one that is chosen here; all vectors are compared in memory that does not grow with them.

    Args:
        vectors: the vectors.
        num_queries: how many vectors will be searched for.
        string: "exact", or what `faiss.index_factory` takes; None to compare all vectors where that are some billion
            pairs at most, and take an index of lists of bytes above that.
        of_documents: whether the vectors of documents are searched, not those of chunks.
        notice: called with a sentence that says what is used, and where it is.

    Raises:
        ConfigError: the string is none, or the index needs more vectors to be trained on.
        MissingExtraError: `faiss` is not installed.
        StorageError: the index cannot be read or written.
    """
    rows = vectors.documents if of_documents else vectors.vectors
    if string is None and num_queries * len(rows) > _MOST_COMPARED:
        string = default_string(len(rows))
    if string is None or string == EXACT:
        if notice is not None:
            notice(f"comparing with all {len(rows):,} vectors, without an index")
        return ExactIndex(rows)
    name = f"{'documents' if of_documents else 'chunks'}-{string.replace(os.sep, '_')}"
    path = os.path.join(vectors.folder, f"{name}.faissindex")
    identity = {"string": string, "vectors_crc32": vectors.crc32, "num_vectors": len(rows)}
    is_made = same_output(vectors.folder, name, identity, manifest=f"{name}.json") is not None
    if notice is not None:
        what = f"index `{string}`, {_NPROBE} lists of which are searched" if "IVF" in string else f"index `{string}`"
        notice(f"reading `{path}`: {what}" if is_made else f"making `{path}`: {what}; it is kept, to be used again")
    index = _opened(path, string, rows) if is_made else _made(vectors.folder, name, string, rows, identity)
    if "IVF" in string:
        index.set_effort(nprobe=_NPROBE)
    return index


def check_index_string(string: str | None, dimension: int) -> None:
    """Makes sure that an index could be made, before there are vectors for it.

    Args:
        string: what `open_pair_index` takes.
        dimension: numbers of a vector.

    Raises:
        ConfigError: the string is none of an index for such vectors.
        MissingExtraError: `faiss` is not installed.
    """
    if string not in (None, EXACT):
        make(string, dimension)


def default_string(num_vectors: int) -> str:
    """Returns the index for so many vectors: lists, twice as many as the root, of a byte per number.

    Example:
        >>> default_string(1_000_000)
        'IVF2000,SQ8'
    """
    return f"IVF{max(1, 2 * int(num_vectors**0.5))},SQ8"


def _opened(path: str, string: str, rows: Float32s) -> VectorIndex:
    return VectorIndex.open(path, string=string, dimension=rows.shape[1], num_vectors=len(rows))


def _made(folder: str, name: str, string: str, rows: Float32s, identity: dict[str, object]) -> VectorIndex:
    num_trained = min(len(rows), _MOST_TRAINED)
    if string == default_string(len(rows)):
        num_trained = min(num_trained, _TRAINED_PER_LIST * 2 * int(len(rows) ** 0.5))
    chosen = spread_evenly(len(rows), num_trained)
    trained = VectorIndex.train(string, np.ascontiguousarray(rows[chosen]))
    num_threads = usable_processors()
    with (
        shown_task("index", unit="vectors", total=len(rows)) as advance,
        NewOutput(folder, name, manifest=f"{name}.json") as output,
    ):

        def codes() -> Iterator[Bytes]:
            for start in range(0, len(rows), _AT_ONCE):
                block = np.ascontiguousarray(rows[start : start + _AT_ONCE])
                yield trained.encode(block, num_threads=num_threads)
                advance(len(block))

        index = trained.assemble(codes())
        index.write(output.file(f"{name}.faissindex"))
        output.publish(identity, {"vectors": len(index)}, overwrite=True)
    return index
