"""What a run of preprocessing records of itself in the manifests beside its outputs."""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.layout import DType
from tokenloom.indexed.manifests import (
    DocumentLedger,
    InputRecord,
    Manifest,
    PairFacts,
    SpecialToken,
    identity_of,
)
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.find import cut_inputs
from tokenloom.inputs.record_format import SliceReader, open_slice
from tokenloom.inputs.records import Block
from tokenloom.preprocess.blocks import DocumentTokens, TokenizedBlock
from tokenloom.preprocess.selection import DocumentHashes
from tokenloom.preprocess.settings import JobSettings
from tokenloom.tokenizers.kinds import KINDS
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_version = functools.cache(version)


Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDataset:
    """One of the datasets of an output.

    Attributes:
        prefix: prefix of the pair.
        key: key of its texts; empty where a record has no keys to choose from.
        column: the number of the key, from 0.
        split: its name; None without splits.
        split_number: number of the split from 0, in the order of the shares; None without splits.
    """

    prefix: str
    key: str = ""
    column: int = 0
    split: str | None = None
    split_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What one process makes blocks into arrays with.

    Attributes:
        engine, engine_reason: what tokenizes, and why; empty where there is no choice.
        open: returns the reader of a slice.
        bundles: puts blocks together, or cuts them, into what a thread is given at once.
        work: what the threads do with it.
    """

    engine: str
    engine_reason: str
    open: Callable[[InputSlice], SliceReader]
    bundles: Callable[[Iterable[Block]], Iterator[list[Block]]]
    work: Callable[[Sequence[Block]], TokenizedBlock]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(ABC):
    """How records become datasets. Picklable, and the same in every process of a job.

    Without more, all files become one dataset, under the very prefix, without choosing among its documents.

    Attributes:
        settings: settings of the job.
        tokenizer: tokenizer that names the ids.
        document_tokens: what is added to each document.
        dtype: dtype of the tokens.
        is_multimodal: whether each sequence has a mode.
        has_roles: whether roles go with each pair.
        hashes_documents: whether the documents of a part are hashed, for `select`.
        threads_per_process: most threads that one process feeds.
        unit: what a record is, where the format of its file does not say.
        keys: keys of the texts in a record, so that only their columns are read; None for all columns.
        documents: what the documents are called, and `expected`, what an input with any looks like.
    """

    settings: JobSettings
    tokenizer: TextTokenizer
    document_tokens: DocumentTokens
    hashes_documents: bool = False
    threads_per_process: int = 8
    unit: str | None = None
    keys: tuple[str, ...] | None = None

    is_multimodal: ClassVar[bool] = False
    has_roles: ClassVar[bool] = False
    documents: ClassVar[str] = "documents"
    expected: ClassVar[str] = "expected one JSON object per line, or another format with its own suffix"

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(DType.optimal_dtype(self.tokenizer.vocab_size))

    @abstractmethod
    def of_shards(self) -> dict[str, Any]:
        """Returns what decides what a shard holds, as values for JSON, but for tokenizer and document tokens."""

    @abstractmethod
    def options(self, key: str, split: str | None) -> Mapping[str, Any]:
        """Returns what the manifest of a dataset says of how it was made."""

    def outputs(
        self, prefix: str, files: Sequence[InputFile]
    ) -> Iterator[tuple[str, Sequence[InputFile], tuple[PlannedDataset, ...]]]:
        """Yields the outputs of a job: prefix, files and datasets of each, split by split, in each key by key."""
        yield prefix, files, (PlannedDataset(prefix=prefix),)

    def cut(self, files: Sequence[InputFile]) -> Iterable[tuple[InputSlice, ...]]:
        """Returns the shards of some files, in order: a function of the files and `shard_bytes` alone."""
        return cut_inputs(files, shard_bytes=self.settings.shard_bytes)

    def open(self, slice_: InputSlice, *, block_bytes: int) -> SliceReader:
        """Returns the reader of a slice, within the limits of the settings; see `open_slice`."""
        return open_slice(slice_, block_bytes=block_bytes, keys=self.keys, limits=self.settings)

    @abstractmethod
    def making(self, first: InputSlice, *, num_workers: int) -> Making:
        """Returns what one process works with, for so many threads.

        Args:
            first: slice of the job, by which engines are compared: the same in every process.
            num_workers: threads that will work.
        """

    def select(
        self, hashes: Sequence[DocumentHashes]
    ) -> tuple[Sequence[Mask | None], Sequence[NDArray[np.int8] | None]]:
        """Returns which documents of each part are kept, and the number of the split of each; None for all, or none.

        Only asked where `hashes_documents`.
        """
        raise NotImplementedError

    def recorded(self, files: Sequence[InputFile]) -> tuple[InputRecord, ...]:
        """Returns what the manifest says of the files of an output."""
        return tuple(InputRecord(path=file.path, num_bytes=file.num_bytes, version=file.version) for file in files)

    def manifest(
        self,
        pair: PairFacts,
        *,
        files: Sequence[InputFile],
        key: str,
        split: str | None,
        ledger: DocumentLedger,
        engine: str,
    ) -> Manifest:
        """Returns the manifest of a dataset that was just written.

        Args:
            pair: what its files hold, from `IndexedDatasetBuilder.finalize`.
            files: files that were read for it, in order.
            key, split: key and split of the dataset.
            ledger: what became of each document.
            engine: name of the engine that tokenized.
        """

        def special(number: int | None) -> SpecialToken | None:
            return None if number is None else SpecialToken(id=number, text=self.tokenizer.detokenize([number]))

        added = self.document_tokens
        identity = identity_of(self.tokenizer, bos=special(added.bos), eod=special(added.eod))
        is_file = identity.kind not in KINDS or KINDS[identity.kind].needs_file  # what is none, stays as it was named
        if identity.path is not None and is_file and os.path.isfile(identity.path):
            identity = replace(identity, path=os.path.abspath(identity.path))
        return Manifest(
            pair=pair,
            tokenizer=identity,
            options=self.options(key, split),
            ledger=ledger,
            inputs=self.recorded(files),
            engine=engine or None,
            tokenloom_version=_version("tokenloom"),
        )
