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
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, StorageError
from tokenloom.numbers import checked_integer
from tokenloom.storage.atomic import PendingFile, storage_errors
from tokenloom_retro import faiss_library
from tokenloom_retro.embedders import check_embeddings

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]


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
            ConfigError: there is no such string; the sample is too small, or holds what is not finite.
            MissingExtraError: `faiss` is not installed.
        """
        if not isinstance(sample, np.ndarray) or sample.ndim != 2 or not sample.shape[1]:
            message = f"expected vectors of shape [num_vectors, dimension] to train on, found {_kind_of(sample)}"
            raise ConfigError(message)
        check_embeddings(sample, sample.shape[1], where="vectors to train on")
        check_training(string, sample.shape[1], num_vectors=len(sample))
        index = faiss_library.make(string, sample.shape[1])
        faiss_library.quieten(index)
        action = f"the index {string!r} cannot be trained on {len(sample)} vectors and searched"
        num_threads = checked_integer("num_threads", num_threads, at_least=1)
        with faiss_library.threads(num_threads), faiss_library.refusals(action):
            if not index.is_trained:
                index.train(np.ascontiguousarray(sample))
            index.search(np.zeros((1, index.d), dtype=np.float32), 1)
        return cls(string, index)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, string: str, dimension: int, num_vectors: int | None = None
    ) -> VectorIndex:
        """Returns the index of a file, which `save` or `faiss` wrote, once it is what it should be.

        Numbers that were overwritten in place are not noticed: keep a digest where that matters.

        Args:
            path: path of a local file.
            string: what it was made from. A file does not say that, but its parts do: kinds, lists, codes, links.
            dimension: width of its vectors.
            num_vectors: how many it holds; None for any number.

        Raises:
            StorageError: there is no such file, it is truncated or damaged, or it is of another string, dimension or
                number of vectors.
            ConfigError: there is no such string.
            MissingExtraError: `faiss` is not installed.
        """
        path = os.fspath(path)
        expected = faiss_library.structure(faiss_library.make(string, dimension))
        with storage_errors("open", path), open(path, "rb"):
            pass
        try:
            index = faiss_library.library().read_index(path)
        except (RuntimeError, MemoryError) as error:
            reason = (
                faiss_library.message_of(error) if isinstance(error, RuntimeError) else "it asks for too much memory"
            )
            message = f"`{path}` is no whole index of `faiss`: {reason}"
            raise StorageError(message, hint="it was truncated, or is another file; make it again") from error
        if index.d != dimension:
            message = f"`{path}`: expected an index of vectors of {dimension}, found one of {index.d}"
            raise StorageError(message, hint="it was made with another embedder")
        if (found := faiss_library.structure(index)) != expected:
            message = f"`{path}`: expected an index made from {string!r}, which is {expected}, found {found}"
            raise StorageError(message)
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
        if faiss_library.takes_codes(self._index):
            return int(self._index.sa_code_size())
        return self.dimension * np.dtype(np.float32).itemsize

    def encode(self, embeddings: Float32s, *, num_threads: int = 1) -> Bytes:
        """Returns the codes of a block, uint8[num_vectors, code_bytes]: the same for the same block, bit for bit.

        Args:
            embeddings: float32[num_vectors, dimension].
            num_threads: pieces of the block that are encoded at a time.

        Raises:
            ConfigError: these are no such vectors, or not finite.
        """
        check_embeddings(embeddings, self.dimension, where="vectors to encode")
        if not faiss_library.takes_codes(self._index):
            return np.ascontiguousarray(embeddings).view(np.uint8)
        codes = np.empty((len(embeddings), self.code_bytes), dtype=np.uint8)

        def encode(piece: slice) -> None:
            codes[piece] = self._index.sa_encode(np.ascontiguousarray(embeddings[piece]))

        faiss_library.by_pieces(encode, len(embeddings), num_threads)
        return codes

    def assemble(self, blocks: Iterable[Bytes]) -> VectorIndex:
        """Returns a copy with vectors added, by their codes.

        Args:
            blocks: codes that `encode` gave, uint8[num_vectors, code_bytes] each, in the order of their vectors; each
                block is let go before the next is asked for.

        Raises:
            ConfigError: codes are of another width: of another index; or vectors cannot be added to one of its kind.
        """
        action = f"vectors cannot be added to the index {self.string!r}"
        with faiss_library.refusals(action):
            index = faiss_library.library().clone_index(self._index)
        inner, takes_codes, width = faiss_library.innermost(index), faiss_library.takes_codes(index), self.code_bytes
        for number, codes in enumerate(blocks):
            if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != width:
                message = f"block {number}: expected codes of shape [num_vectors, {width}], found {_kind_of(codes)}"
                raise ConfigError(message, hint="they were made by an index of another string or dimension")
            codes = np.ascontiguousarray(codes)
            with faiss_library.threads(1), faiss_library.refusals(action):
                if not takes_codes:
                    vectors = codes.view(np.float32)
                    for piece in faiss_library.pieces(len(vectors)):
                        index.add(vectors[piece])
                elif hasattr(inner, "nlist"):
                    inner.add_sa_codes(codes, np.arange(inner.ntotal, inner.ntotal + len(codes), dtype=np.int64))
                else:
                    inner.add_sa_codes(codes)
            if takes_codes:
                index.ntotal = inner.ntotal
        return VectorIndex(self.string, index)

    def set_effort(self, *, nprobe: int | None = None, ef_search: int | None = None) -> None:
        """Says how hard a search tries, for all searches from now on; recorded in a file that is saved later.

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
                faiss_library.library().ParameterSpace().set_index_parameter(self._index, name, value)
            except RuntimeError as error:
                message = f"the index {self.string!r} has no `{name}`"
                raise ConfigError(message, hint="leave it out, or choose an index with IVF or HNSW") from error

    def search(self, embeddings: Float32s, k: int, *, num_threads: int = 1) -> Neighbors:
        """Returns the nearest vectors of each of some others.

        Args:
            embeddings: float32[num_queries, dimension].
            k: neighbors of each.
            num_threads: pieces of the queries that are searched at a time; it changes no bit.

        Raises:
            ConfigError: these are no such vectors, or not finite; `k` is not positive.
        """
        check_embeddings(embeddings, self.dimension, where="vectors to search for")
        k = checked_integer("k", k, at_least=1)
        ids = np.empty((len(embeddings), k), dtype=np.int64)
        distances = np.empty((len(embeddings), k), dtype=np.float32)

        def search(piece: slice) -> None:
            self._index.search(np.ascontiguousarray(embeddings[piece]), k, D=distances[piece], I=ids[piece])

        faiss_library.by_pieces(search, len(embeddings), num_threads)
        distances[ids < 0] = np.inf
        return Neighbors(ids=ids, distances=distances)

    def save(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        """Writes the index as a file of `faiss`, which appears whole or not at all.

        Args:
            path: path of a local file; what has this name is replaced.
            durable: whether it survives a loss of power.

        Raises:
            StorageError: it cannot be written.
        """
        with PendingFile(path, durable=durable) as pending:
            self.write(pending)

    def write(self, pending: PendingFile) -> None:
        """Writes the index into a file that has no name yet.

        Raises:
            StorageError: it cannot be written.
        """
        faiss = faiss_library.library()
        try:  # through our stream: given a path, `faiss` only prints that the disk was full when it closed the file
            faiss.write_index(self._index, faiss.PyCallbackIOWriter(pending.write))
        except RuntimeError as error:
            message = f"cannot write `{pending.path}`: {faiss_library.message_of(error)}"
            raise StorageError(message) from error


def check_training(string: str, dimension: int, *, num_vectors: int) -> None:
    """Checks that there is an index of a string, and that it can be trained on so many vectors.

    Args:
        string: what `faiss.index_factory` takes.
        dimension: width of the vectors.
        num_vectors: how many there will be.

    Raises:
        ConfigError: there is no such string, or it needs more vectors.
        MissingExtraError: `faiss` is not installed.
    """
    if num_vectors < (least := faiss_library.least_vectors(faiss_library.make(string, dimension))):
        message = f"expected at least {least} vectors to train the index {string!r} on, found {num_vectors}"
        raise ConfigError(message, hint="train on more chunks, or choose an index of fewer lists and codes")


def _kind_of(array: object) -> str:
    """Returns dtype and shape of an array, for a message."""
    return f"{array.dtype} of shape {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
