"""What is asked of `faiss` itself: one thread, its errors in our words, and what an index is made of.

`faiss` raises `RuntimeError` for everything, with the C++ function that failed; an index it reads may be of any kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.optional import require

_CALL = re.compile(r"^.* at \S+:\d+: (?:Error: '.*?' failed:? ?)?", re.DOTALL)
_WITH_CODES = (
    *("IndexFlat", "IndexFlatL2", "IndexPQ", "IndexScalarQuantizer", "IndexLSH", "IndexResidualQuantizer"),
    *("IndexIVFFlat", "IndexIVFPQ", "IndexIVFScalarQuantizer", "IndexIVFRaBitQ", "IndexIVFResidualQuantizer"),
)
"""Kinds that take codes which were made elsewhere, tried one by one; IndexIVFPQFastScan breaks the heap instead."""

_OPQ_CODES = 256
"""Centroids that OPQ finds its rotation with, whatever the codes are."""

_PIECE = 1024
"""Vectors that are encoded, added or searched together; part of what makes results repeatable."""


def library() -> Any:
    """Returns the imported `faiss`.

    Raises:
        MissingExtraError: it is not installed.
    """
    return require("faiss", extra="retro")


def message_of(error: RuntimeError) -> str:
    """Returns what an error says, without the place in C++."""
    return _CALL.sub("", str(error)).strip() or str(error)


@contextmanager
def refusals(action: str) -> Iterator[None]:
    """Turns what `faiss` refuses into a `ConfigError` that says what was being done."""
    try:
        yield
    except RuntimeError as error:
        message = f"{action}: {message_of(error)}"
        raise ConfigError(message) from error


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Lets `faiss` and its linear algebra use so many threads in what this thread calls."""
    faiss = library()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def pieces(count: int) -> list[slice]:
    """Returns the pieces that a number of vectors are cut into, from the first on."""
    return [slice(start, min(start + _PIECE, count)) for start in range(0, count, _PIECE)]


def by_pieces(work: Callable[[slice], None], count: int, num_threads: int) -> None:
    """Does work on the pieces of some vectors, each on one thread of `faiss`; their number changes no bit.

    Args:
        work: is given a piece; called from several threads.
        count: how many vectors there are.
        num_threads: pieces that are worked on at a time.

    Raises:
        ConfigError: the number of threads is not positive.
    """

    def alone(piece: slice) -> None:
        with threads(1):  # OpenMP counts threads per thread that calls it
            work(piece)

    cut = pieces(count)
    if checked_integer("num_threads", num_threads, at_least=1) == 1 or len(cut) < 2:
        for piece in cut:
            alone(piece)
        return
    with ThreadPoolExecutor(min(num_threads, len(cut))) as pool:
        for _ in pool.map(alone, cut):
            pass


def make(string: str, dimension: int) -> Any:
    """Returns the empty index that a string of `index_factory` names.

    Raises:
        ConfigError: there is none, or not of this dimension.
    """
    faiss = library()
    try:
        index = faiss.index_factory(dimension, string)
    except RuntimeError as error:
        message = f"expected a string of `faiss.index_factory` for vectors of {dimension}, found {string!r}"
        message += f": {message_of(error)}"
        raise ConfigError(message, hint='such as "IVF4096,Flat", "OPQ32_256,IVF65536_HNSW32,PQ32" or "Flat"') from error
    inner = innermost(index)
    if getattr(inner, "nlist", 1) < 1:
        message = f"expected lists in the index {string!r}, found none"
        raise ConfigError(message)
    if type(inner).__name__.startswith("IndexIDMap"):
        message = f"expected an index that counts its vectors itself, found {string!r}"
        raise ConfigError(message, hint="leave `IDMap` out")
    return index


def innermost(index: Any) -> Any:
    """Returns the index behind rotations and projections: a view, which `index` must outlive."""
    faiss = library()
    inner = faiss.downcast_index(index)
    while isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    return inner


def takes_codes(index: Any) -> bool:
    """Whether codes of vectors can be made in one process and added in another."""
    return type(innermost(index)).__name__ in _WITH_CODES


def least_vectors(index: Any) -> int:
    """Returns how many vectors are the least to train on, as far as the kind of the index tells; 0 if on none."""
    if index.is_trained:
        return 0
    inner = innermost(index)
    faiss = library()
    quantizer = faiss.downcast_index(inner.quantizer) if hasattr(inner, "nlist") else None
    parts: tuple[Any, ...] = (inner, quantizer)
    codes = [1 << part.pq.nbits for part in parts if hasattr(part, "pq")]
    if quantizer is not None and not type(quantizer).__name__.startswith("MultiIndex"):
        codes.append(inner.nlist)
    chain = faiss.downcast_index(index)
    if isinstance(chain, faiss.IndexPreTransform) and any(isinstance(o, faiss.OPQMatrix) for o in _transforms(chain)):
        codes.append(_OPQ_CODES)
    return max(codes, default=1)


def _transforms(index: Any) -> list[Any]:
    """Returns the transforms before an index, each a view."""
    return [library().downcast_VectorTransform(index.chain.at(number)) for number in range(index.chain.size())]


def _name_of(transform: Any) -> str:
    """Returns the name of a transform; files tell of rotations no more than that they are linear."""
    name = type(transform).__name__
    return name if name == "PCAMatrix" or not isinstance(transform, library().LinearTransform) else "LinearTransform"


def quieten(index: Any) -> None:
    """Keeps `faiss` from warning on stderr, once per centroid table, that it would rather train on more vectors."""
    inner = innermost(index)
    for part in (inner, getattr(inner, "pq", None)):
        if (settings := getattr(part, "cp", None)) is not None:
            settings.min_points_per_centroid = 1


def structure(index: Any) -> str:
    """Returns what an index is made of, in words; equal for all of one string and dimension, trained or not."""
    faiss = library()
    kind = faiss.downcast_index(index)  # a view: `index` owns what it looks at, and must outlive it
    name = type(kind).__name__.replace("IndexFlatL2", "IndexFlat")
    parts = [f"{name}({kind.d}"]
    if isinstance(kind, faiss.IndexPreTransform):
        parts += [f"{_name_of(one)} {one.d_in} to {one.d_out}" for one in _transforms(kind)]
        parts.append(structure(kind.index))
    if hasattr(kind, "nlist"):
        parts.append(f"{kind.nlist} lists by {structure(kind.quantizer)}")
    if hasattr(kind, "pq"):
        parts.append(f"{kind.pq.M} codes of {kind.pq.nbits} bits")
    if hasattr(kind, "sq"):
        parts.append(f"numbers of kind {kind.sq.qtype}")
    if hasattr(kind, "code_size"):
        parts.append(f"{kind.code_size} bytes")
    if hasattr(kind, "hnsw"):
        parts.append(f"{kind.hnsw.nb_neighbors(1)} links, {structure(kind.storage)}")
    if hasattr(kind, "refine_index"):
        parts += [structure(kind.base_index), structure(kind.refine_index)]
    return ", ".join(parts) + ")"
