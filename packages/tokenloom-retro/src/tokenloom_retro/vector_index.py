"""Trains, fills and searches a vector index of `faiss` on the CPU.

Bit-for-bit reproducibility, measured with faiss 1.15 on AVX-512 (the last bits may differ on other processors or
versions):

- Training uses fixed seeds. With any number of threads, k-means (IVF, PQ, SQ) gave the same bits in every trial, but
rotations (OPQ, PCA) only with the same number of threads.
- Codes of projections, and of PQ without lists, depend on the shape of the input, like all linear algebra. So blocks
are split into pieces of 1,024 vectors, each encoded on one thread: the codes do not depend on the number of threads.
- Adding codes gives the same bits as adding vectors.
- HNSW graphs are built on one thread in the same pieces.
- Searches use the same pieces; otherwise the last bits of distances would differ, and near ties would swap.

`faiss` raises `RuntimeError` for all errors; the message names the C++ function that failed.
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
"""Index types that are tested to accept codes from other processes; IndexIVFPQFastScan corrupts the heap instead."""

_PIECE = 1024  # number of vectors to encode, add or search together; fixed for reproducible results


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Neighbors:
    """The result of a search.

    Attributes:
        ids: int64[num_queries, k], indices of vectors, nearest first; -1 after the last neighbor.
        distances: float32[num_queries, k], squared Euclidean distances; infinite where `ids` is -1.
    """

    ids: Int64s
    distances: Float32s


class VectorIndex:
    """An index over vectors, which are numbered from 0 in the order of insertion; made by `train` or `open`.

    `search` and `encode` are thread-safe; `set_effort` must not run during a search.

    Attributes:
        string: the argument of `faiss.index_factory`.
        dimension: dimension of the vectors.
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
            string: argument of `faiss.index_factory`, such as "IVF4096,Flat" or "OPQ32_256,IVF65536_HNSW32,PQ32".
            sample: float32[num_vectors, dimension]; at least 40 vectors per list and per code are recommended.
            num_threads: threads of `faiss`; the bits of rotations depend on this number.

        Raises:
            ConfigError: the string is invalid, or the sample is too small.
            MissingExtraError: `faiss` is not installed.
        """
        index = make_index(string, sample.shape[1])
        _quieten(index)
        action = f"the index {string!r} cannot be trained on {len(sample)} vectors, or cannot be searched"
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
        """Opens an index file of `faiss`; `string` must be given, since the file does not contain the string.

        Raises:
            StorageError: the file is missing or damaged, or has another dimension or number of vectors.
            MissingExtraError: `faiss` is not installed.
        """
        path = os.fspath(path)
        with storage_errors("open", path), open(path, "rb"):
            pass
        try:
            index = _library().read_index(path)
        except (RuntimeError, MemoryError) as error:
            message = f"`{path}` is not a complete index of `faiss`: {_message_of(error)}"
            raise StorageError(message, hint="rebuild the index") from error
        if index.d != dimension:
            message = f"`{path}`: expected vectors of dimension {dimension}, found {index.d}"
            raise StorageError(message, hint="use the embedder of the build")
        if num_vectors not in (None, index.ntotal):
            message = f"`{path}`: expected {num_vectors} vectors, found {index.ntotal}"
            raise StorageError(message, hint="rebuild the index: it is incomplete or from other data")
        return cls(string, index)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def __repr__(self) -> str:
        return f"VectorIndex({self.string!r}, dimension={self.dimension}, num_vectors={len(self)})"

    @property
    def code_bytes(self) -> int:
        """Returns the bytes per code, or per vector for index types without codes (HNSW, fast scan, refined)."""
        if _takes_codes(self._index):
            return int(self._index.sa_code_size())
        return self.dimension * np.dtype(np.float32).itemsize

    def encode(self, embeddings: Float32s, *, num_threads: int = 1) -> Bytes:
        """Returns the codes of vectors, uint8[num_vectors, code_bytes]; the bits do not depend on `num_threads`."""
        if not _takes_codes(self._index):
            return np.ascontiguousarray(embeddings).view(np.uint8)
        codes = np.empty((len(embeddings), self.code_bytes), dtype=np.uint8)

        def encode(piece: slice) -> None:
            codes[piece] = self._index.sa_encode(np.ascontiguousarray(embeddings[piece]))

        by_pieces(encode, len(embeddings), num_threads)
        return codes

    def assemble(self, blocks: Iterable[Bytes]) -> VectorIndex:
        """Returns a copy of the index with the codes of all blocks added; one block is in memory at a time.

        Raises:
            ConfigError: the index does not support adding vectors.
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
        """Sets the number of candidates that each later search compares; files written later store the settings.

        Args:
            nprobe: number of IVF lists to search.
            ef_search: number of HNSW candidates, of the index or its coarse quantizer.

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
                raise ConfigError(message, hint="drop the setting, or use an index with IVF or HNSW") from error

    def search(self, embeddings: Float32s, k: int, *, num_threads: int = 1) -> Neighbors:
        """Returns the `k` neighbors of each row of `embeddings`, float32[n, dimension], equal for any `num_threads`."""
        k = checked_integer("k", k, at_least=1)
        ids = np.empty((len(embeddings), k), dtype=np.int64)
        distances = np.empty((len(embeddings), k), dtype=np.float32)

        def search(piece: slice) -> None:
            self._index.search(np.ascontiguousarray(embeddings[piece]), k, D=distances[piece], I=ids[piece])

        by_pieces(search, len(embeddings), num_threads)
        distances[ids < 0] = np.inf
        return Neighbors(ids=ids, distances=distances)

    def write(self, pending: PendingFile) -> None:
        """Writes the index to a pending file."""
        faiss = _library()
        try:  # given a path, `faiss` only prints a message if the disk is full
            faiss.write_index(self._index, faiss.PyCallbackIOWriter(pending.write))
        except RuntimeError as error:
            raise StorageError(f"`{pending.path}`: cannot write it: {_message_of(error)}") from error


def make_index(string: str, dimension: int) -> Any:
    """Returns an empty, untrained index.

    Raises:
        ConfigError: the string is invalid, or does not support the dimension.
        MissingExtraError: `faiss` is not installed.
    """
    try:
        return _library().index_factory(dimension, string)
    except RuntimeError as error:
        message = f"index {string!r} is invalid for vectors of dimension {dimension}: {_message_of(error)}"
        raise ConfigError(message, hint='try "Flat", "IVF4096,Flat" or "OPQ32_256,IVF65536_HNSW32,PQ32"') from error


def exact_neighbors(queries: Float32s, vectors: Float32s, k: int, *, num_threads: int = 1) -> Neighbors:
    """Returns the k nearest vectors of each query, by comparison with all vectors.

    Distances are rounded to about 1e-7 of the squared norms, so equal vectors may come in any order.

    Args:
        queries: float32[num_queries, dimension].
        vectors: float32[num_vectors, dimension].
        k: number of neighbors per query.
        num_threads: number of threads; it does not change the result.
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
    """Returns the share of exact neighbors that were found; 1 if there are none.

    If two vectors are equal and only one of the two is in `exact`, finding the other vector counts as a miss.

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
    """Divides `count` vectors into slices; calls `work` with each slice, in threads without inner parallelism."""

    def alone(piece: slice) -> None:
        with _threads(1):  # OpenMP stores the number of threads per calling thread
            work(piece)

    with ThreadPoolExecutor(checked_integer("num_threads", num_threads, at_least=1)) as pool:
        for _ in pool.map(alone, _pieces(count)):
            pass


def _library() -> Any:
    return require("faiss", extra="retro")


def _message_of(error: BaseException) -> str:
    """Returns the message of an error without its C++ source location."""
    return _CALL.sub("", str(error)).strip() or str(error) or type(error).__name__


@contextmanager
def _refusals(action: str) -> Iterator[None]:
    """Raises errors of `faiss` as ConfigError; the message begins with `action`."""
    try:
        yield
    except RuntimeError as error:
        raise ConfigError(f"{action}: {_message_of(error)}") from error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Sets the number of `faiss` threads for calls of this thread."""
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
    """Returns the index behind rotations and projections; the result is valid only as long as `index` exists."""
    faiss = _library()
    inner = faiss.downcast_index(index)
    while isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    return inner


def _takes_codes(index: Any) -> bool:
    """Returns whether the index can add codes that another process computed."""
    return type(_innermost(index)).__name__ in _WITH_CODES


def _quieten(index: Any) -> None:
    """Disables the warnings of `faiss` on stderr about small training samples."""
    inner = _innermost(index)
    for part in (inner, getattr(inner, "pq", None)):
        if (settings := getattr(part, "cp", None)) is not None:
            settings.min_points_per_centroid = 1
