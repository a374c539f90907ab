"""A vector index of `faiss` on the CPU: trained on a sample, filled with codes of blocks, searched.

What of it is the same bit for bit, measured with faiss 1.15 on AVX-512 (on another kind of processor, or with another
version, last bits may differ):

- training on one thread: always; the draws in it are of fixed seeds. With more threads k-means (IVF, PQ, SQ) gave the
  same bits in every trial, rotations (OPQ, PCA) did not: they are repeatable for one number of threads only;
- codes of a block: on one thread, cut alike. Codes of IVF lists are the same however a block is cut; those of a
  projection, or of PQ without lists, are not, since linear algebra rounds by shapes. So blocks are cut from their first
  vector on into pieces of 1,024, each on one thread: the same block gives the same codes, on any number of threads;
- adding codes gives the bits that adding vectors would;
- HNSW graphs: on one thread, with vectors added in the same pieces;
- searching: the same pieces, for the same reason; else distances differ in last bits, and near ties change places.

`faiss` raises `RuntimeError` for everything, with the C++ function that failed; `_refusals` words it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, StorageError
from tokenloom.numbers import checked_integer
from tokenloom.optional import require
from tokenloom.storage.atomic import PendingFile, storage_errors

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_CALL = re.compile(r"^.* at \S+:\d+: (?:Error: '.*?' failed:? ?)?", re.DOTALL)
_WITH_CODES = (
    *("IndexFlat", "IndexFlatL2", "IndexPQ", "IndexScalarQuantizer", "IndexLSH", "IndexResidualQuantizer"),
    *("IndexIVFFlat", "IndexIVFPQ", "IndexIVFScalarQuantizer", "IndexIVFRaBitQ", "IndexIVFResidualQuantizer"),
)
"""Kinds that take codes which were made elsewhere, tried one by one; IndexIVFPQFastScan breaks the heap instead."""

_PIECE = 1024
"""Vectors that are encoded, added or searched together; part of what makes results repeatable."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Neighbors:
    """What a search found.

    Attributes:
        ids: int64[num_queries, k], numbers of vectors, the nearest first; -1 where there are no more.
        distances: float32[num_queries, k], squared Euclidean distances as the index measures them; infinite at -1.
    """

    ids: Int64s
    distances: Float32s


class VectorIndex:
    """An index over vectors, which are numbered from 0 in the order they were added. Make it with `train` or `open`.

    Searching and encoding are safe from several threads; `set_effort` is not, while others search.

    Attributes:
        string: what it was made from, for `faiss.index_factory`.
        dimension: width of the vectors.
    """

    def __init__(self, string: str, index: Any) -> None:
        self.string: str = string
        self.dimension: int = int(index.d)
        self._index = index

    @classmethod
    def train(cls, string: str, sample: Float32s, *, num_threads: int = 1) -> VectorIndex:
        """Returns an empty index, trained on a sample.

        Example:
            >>> index = VectorIndex.train("Flat", np.zeros((0, 2), dtype=np.float32))
            >>> filled = index.assemble([index.encode(np.array([[0, 0], [3, 4]], dtype=np.float32))])
            >>> found = filled.search(np.array([[3, 3]], dtype=np.float32), 2)
            >>> found.ids.tolist(), found.distances.tolist()
            ([[1, 0]], [[1.0, 18.0]])

        Args:
            string: what `faiss.index_factory` takes, such as "IVF4096,Flat", "OPQ32_256,IVF65536_HNSW32,PQ32", "Flat".
            sample: float32[num_vectors, dimension]; 40 vectors or more per list and per code give good ones.
            num_threads: threads of `faiss`; the bits of rotations depend on how many.

        Raises:
            ConfigError: there is no such string, or the sample is too small.
            MissingExtraError: `faiss` is not installed.
        """
        index = make_index(string, sample.shape[1])
        _quieten(index)
        action = f"the index {string!r} cannot be trained on {len(sample)} vectors and searched"
        num_threads = checked_integer("num_threads", num_threads, at_least=1)
        with _threads(num_threads), _refusals(action):
            if not index.is_trained:
                index.train(np.ascontiguousarray(sample))
            index.search(np.zeros((1, index.d), dtype=np.float32), 1)
        return cls(string, index)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, string: str, dimension: int, num_vectors: int | None = None
    ) -> VectorIndex:
        """Returns the index of a file of `faiss`.

        Args:
            path: path of a local file.
            string: what it was made from, which a file does not say.
            dimension: width of its vectors.
            num_vectors: how many it holds; None for any number.

        Raises:
            StorageError: there is no such file, it is truncated or damaged, or it is of another dimension or number of
                vectors.
            MissingExtraError: `faiss` is not installed.
        """
        path = os.fspath(path)
        with storage_errors("open", path), open(path, "rb"):
            pass
        try:
            index = _library().read_index(path)
        except (RuntimeError, MemoryError) as error:
            message = f"`{path}` is no whole index of `faiss`: {_message_of(error)}"
            raise StorageError(message, hint="it was truncated, or is another file; make it again") from error
        if index.d != dimension:
            message = f"`{path}`: expected an index of vectors of {dimension}, found one of {index.d}"
            raise StorageError(message, hint="it was made with another embedder")
        if num_vectors not in (None, index.ntotal):
            message = f"`{path}`: expected an index of {num_vectors} vectors, found {index.ntotal}"
            raise StorageError(message, hint="it was made of other data, or before all blocks were there")
        return cls(string, index)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def __repr__(self) -> str:
        return f"VectorIndex({self.string!r}, dimension={self.dimension}, num_vectors={len(self)})"

    @property
    def code_bytes(self) -> int:
        """Bytes of a vector's code; for kinds without codes (HNSW, fast scan, refined) the vector itself is it."""
        if _takes_codes(self._index):
            return int(self._index.sa_code_size())
        return self.dimension * np.dtype(np.float32).itemsize

    def encode(self, embeddings: Float32s, *, num_threads: int = 1) -> Bytes:
        """Returns the codes of a block, uint8[num_vectors, code_bytes]: the same for the same block, bit for bit.

        Args:
            embeddings: float32[num_vectors, dimension].
            num_threads: pieces of the block that are encoded at a time.
        """
        if not _takes_codes(self._index):
            return np.ascontiguousarray(embeddings).view(np.uint8)
        codes = np.empty((len(embeddings), self.code_bytes), dtype=np.uint8)

        def encode(piece: slice) -> None:
            codes[piece] = self._index.sa_encode(np.ascontiguousarray(embeddings[piece]))

        by_pieces(encode, len(embeddings), num_threads)
        return codes

    def assemble(self, blocks: Iterable[Bytes]) -> VectorIndex:
        """Returns a copy with vectors added, by their codes.

        Args:
            blocks: codes that `encode` gave, uint8[num_vectors, code_bytes] each, in the order of their vectors; each
                block is let go before the next is asked for.

        Raises:
            ConfigError: vectors cannot be added to an index of its kind.
        """
        action = f"vectors cannot be added to the index {self.string!r}"
        with _refusals(action):
            index = _library().clone_index(self._index)
        inner, takes_codes = _innermost(index), _takes_codes(index)
        for codes in blocks:
            codes = np.ascontiguousarray(codes)
            with _threads(1), _refusals(action):
                if not takes_codes:
                    vectors = codes.view(np.float32)
                    for piece in _pieces(len(vectors)):
                        index.add(vectors[piece])
                elif hasattr(inner, "nlist"):
                    inner.add_sa_codes(codes, np.arange(inner.ntotal, inner.ntotal + len(codes), dtype=np.int64))
                else:
                    inner.add_sa_codes(codes)
            if takes_codes:
                index.ntotal = inner.ntotal
        return VectorIndex(self.string, index)

    def set_effort(self, *, nprobe: int | None = None, ef_search: int | None = None) -> None:
        """Says how hard a search tries, for all searches from now on; recorded in a file that is written later.

        Args:
            nprobe: lists that are searched, for IVF; more than there are means all.
            ef_search: candidates that are kept, for HNSW, be it the index or what finds the lists.

        Raises:
            ConfigError: the index has no such setting.
        """
        for name, value in (("nprobe", nprobe), ("efSearch", ef_search)):
            if value is None:
                continue
            checked_integer(name, value, at_least=1)
            try:
                _library().ParameterSpace().set_index_parameter(self._index, name, value)
            except RuntimeError as error:
                message = f"the index {self.string!r} has no `{name}`"
                raise ConfigError(message, hint="leave it out, or choose an index with IVF or HNSW") from error

    def search(self, embeddings: Float32s, k: int, *, num_threads: int = 1) -> Neighbors:
        """Returns the nearest vectors of each of some others.

        Args:
            embeddings: float32[num_queries, dimension].
            k: neighbors of each.
            num_threads: pieces of the queries that are searched at a time; it changes no bit.
        """
        k = checked_integer("k", k, at_least=1)
        ids = np.empty((len(embeddings), k), dtype=np.int64)
        distances = np.empty((len(embeddings), k), dtype=np.float32)

        def search(piece: slice) -> None:
            self._index.search(np.ascontiguousarray(embeddings[piece]), k, D=distances[piece], I=ids[piece])

        by_pieces(search, len(embeddings), num_threads)
        distances[ids < 0] = np.inf
        return Neighbors(ids=ids, distances=distances)

    def write(self, pending: PendingFile) -> None:
        """Writes the index into a file that has no name yet.

        Raises:
            StorageError: it cannot be written.
        """
        faiss = _library()
        try:  # through our stream: given a path, `faiss` only prints that the disk was full when it closed the file
            faiss.write_index(self._index, faiss.PyCallbackIOWriter(pending.write))
        except RuntimeError as error:
            message = f"cannot write `{pending.path}`: {_message_of(error)}"
            raise StorageError(message) from error


def make_index(string: str, dimension: int) -> Any:
    """Returns the empty index of `faiss` that a string of `index_factory` names.

    Raises:
        ConfigError: there is none, or not of this dimension.
        MissingExtraError: `faiss` is not installed.
    """
    try:
        return _library().index_factory(dimension, string)
    except RuntimeError as error:
        message = f"expected a string of `faiss.index_factory` for vectors of {dimension}, found {string!r}"
        message += f": {_message_of(error)}"
        raise ConfigError(message, hint='such as "IVF4096,Flat", "OPQ32_256,IVF65536_HNSW32,PQ32" or "Flat"') from error


def exact_neighbors(queries: Float32s, vectors: Float32s, k: int, *, num_threads: int = 1) -> Neighbors:
    """Returns the nearest vectors of each query, all being compared.

    Distances are rounded in linear algebra, to some 1e-7 of the squared lengths; equal vectors may thus be told apart,
    and come in either order.

    Args:
        queries: float32[num_queries, dimension].
        vectors: float32[num_vectors, dimension].
        k: neighbors of each.
        num_threads: pieces of the queries that are searched at a time; it changes no bit.
    """
    ids = np.full((len(queries), checked_integer("k", k, at_least=1)), -1, dtype=np.int64)
    distances = np.full(ids.shape, np.inf, dtype=np.float32)
    count = min(k, len(vectors))

    def search(piece: slice) -> None:
        near, found = _library().knn(np.ascontiguousarray(queries[piece]), np.ascontiguousarray(vectors), count)
        order = np.lexsort((found, near), axis=1)
        ids[piece, :count] = np.take_along_axis(found, order, axis=1)
        distances[piece, :count] = np.take_along_axis(near, order, axis=1)

    by_pieces(search, len(queries) if count else 0, num_threads)
    return Neighbors(ids=ids, distances=distances)


def recall(found: Int64s, exact: Int64s) -> float:
    """Returns which share of the exact neighbors were found; 1 if there are none.

    Where vectors are equal, one of them may be among the exact ones and another be found, which counts as missed.

    Example:
        >>> recall(np.array([[4, 2, 9], [1, 0, -1]]), np.array([[2, 4], [1, 5]]))
        0.75

    Args:
        found: int64[num_queries, any], -1 for none.
        exact: int64[num_queries, k], -1 for none.
    """
    pairs = zip(found, exact, strict=True)
    num_found = sum(int((np.isin(wanted, got) & (wanted >= 0)).sum()) for got, wanted in pairs)
    num_exact = int((exact >= 0).sum())
    return num_found / num_exact if num_exact else 1.0


def by_pieces(work: Callable[[slice], None], count: int, num_threads: int) -> None:
    """Does work on the pieces of some vectors, each on one thread of `faiss`; their number changes no bit.

    Args:
        work: is given a piece; called from several threads.
        count: how many vectors there are.
        num_threads: pieces that are worked on at a time.
    """

    def alone(piece: slice) -> None:
        with _threads(1):  # OpenMP counts threads per thread that calls it
            work(piece)

    with ThreadPoolExecutor(checked_integer("num_threads", num_threads, at_least=1)) as pool:
        for _ in pool.map(alone, _pieces(count)):
            pass


def _library() -> Any:
    return require("faiss", extra="retro")


def _message_of(error: BaseException) -> str:
    """Returns what an error says, without the place in C++."""
    return _CALL.sub("", str(error)).strip() or str(error) or type(error).__name__


@contextmanager
def _refusals(action: str) -> Iterator[None]:
    """Turns what `faiss` refuses into a `ConfigError` that says what was being done."""
    try:
        yield
    except RuntimeError as error:
        message = f"{action}: {_message_of(error)}"
        raise ConfigError(message) from error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Lets `faiss` and its linear algebra use so many threads in what this thread calls."""
    faiss = _library()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _pieces(count: int) -> list[slice]:
    return [slice(start, min(start + _PIECE, count)) for start in range(0, count, _PIECE)]


def _innermost(index: Any) -> Any:
    """Returns the index behind rotations and projections: a view, which `index` must outlive."""
    faiss = _library()
    inner = faiss.downcast_index(index)
    while isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    return inner


def _takes_codes(index: Any) -> bool:
    """Whether codes of vectors can be made in one process and added in another."""
    return type(_innermost(index)).__name__ in _WITH_CODES


def _quieten(index: Any) -> None:
    """Keeps `faiss` from warning on stderr, once per centroid table, that it would rather train on more vectors."""
    inner = _innermost(index)
    for part in (inner, getattr(inner, "pq", None)):
        if (settings := getattr(part, "cp", None)) is not None:
            settings.min_points_per_centroid = 1
