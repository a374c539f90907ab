"""What a job asks of a recipe, which knows what a record is: text, a conversation, a text and its image.

The job knows files, shards, processes, parts and datasets. A recipe says which files are read and where they may be
cut, what becomes of blocks of their records, and what decides it. A fourth recipe needs a class with these members and
a function that plans with it; nothing in the job itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.corpus.settings import BadRecordBudget
from tokenloom.errors import InputError
from tokenloom.indexed.manifest.contents import InputRecord
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.record_format import SliceReader
from tokenloom.preprocess.blocks import TokenizedBlock
from tokenloom.preprocess.document_tokens import DocumentTokens
from tokenloom.preprocess.recording import RecordedTokenizer
from tokenloom.preprocess.refusals import Isolating
from tokenloom.preprocess.selection import DocumentHashes

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
    work: Isolating[TokenizedBlock]


class JobSettings(Protocol):
    """What the job itself asks of the settings of any recipe; see `CorpusSettings`."""

    @property
    def bad_records(self) -> BadRecordBudget:
        """How many are set aside."""

    @property
    def origins(self) -> bool:
        """Whether the record of each document is written beside the pairs."""

    @property
    def document_hashes(self) -> bool:
        """Whether the hash of each document's text is written beside the pairs."""

    @property
    def shard_bytes(self) -> int:
        """Size of a shard."""

    @property
    def record_timeout_seconds(self) -> float:
        """Most time that a thread may take for the records it is given at once."""

    @property
    def worker_timeout_seconds(self) -> float:
        """Time after which a silent process loses its shard."""


class Recipe(Protocol):
    """How records become datasets. Picklable, and the same in every process of a job."""

    @property
    def settings(self) -> JobSettings:
        """What of the settings the job itself needs."""

    @property
    def tokenizer(self) -> RecordedTokenizer:
        """The tokenizer that names the ids."""

    @property
    def document_tokens(self) -> DocumentTokens:
        """What is added to each document, for the manifest."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""

    @property
    def is_multimodal(self) -> bool:
        """Whether each sequence has a mode."""

    @property
    def has_roles(self) -> bool:
        """Whether roles go with each pair."""

    @property
    def hashes_documents(self) -> bool:
        """Whether the documents of a part are hashed, for `select`."""

    @property
    def compares_bytes(self) -> bool:
        """Whether records lead to files that are not among the inputs.

        What is there is then compared with what the job makes now, byte by byte, instead of being taken for it because
        the inputs are the same.
        """

    @property
    def threads_per_process(self) -> int:
        """Most threads that one process feeds."""

    def of_shards(self) -> dict[str, Any]:
        """Returns what decides what a shard holds, as values for JSON, but for tokenizer and document tokens."""

    def of_job(self) -> dict[str, Any]:
        """Returns what else processes that share a job must agree on."""

    def options(self, key: str, split: str | None) -> Mapping[str, Any]:
        """Returns what the manifest of a dataset says of how it was made."""

    def groups(self, prefix: str, files: Sequence[InputFile]) -> list[tuple[str, Sequence[InputFile]]]:
        """Returns the outputs of a job: the prefix of each, and the files it is made of."""

    def datasets(self, prefix: str) -> Iterator[PlannedDataset]:
        """Yields the datasets of an output, split by split, in each key by key."""

    def cut(self, files: Sequence[InputFile]) -> Iterable[tuple[InputSlice, ...]]:
        """Returns the shards of some files, in order: a function of the files and `shard_bytes` alone."""

    def recorded(self, files: Sequence[InputFile]) -> tuple[InputRecord, ...]:
        """Returns what the manifest says of the files of an output."""

    def unit(self, file: InputFile) -> str:
        """Returns what a record of a file is: `line`, `row`, `file`, or `pair` of a folder."""

    def making(self, first: InputSlice, *, num_workers: int) -> Making:
        """Returns what one process works with, for so many threads.

        Args:
            first: slice of the job, by which engines are compared: the same in every process.
            num_workers: threads that will work.
        """

    def is_current(self, slices: Sequence[InputSlice], numbers: Mapping[str, int]) -> bool:
        """Whether what the records of a shard lead to, beside the inputs, is still what it was made of.

        Args:
            slices: slices of the shard.
            numbers: numbers of the recipe, from the shard's report.
        """

    def select(
        self, hashes: Sequence[DocumentHashes]
    ) -> tuple[Sequence[Mask | None], Sequence[NDArray[np.int8] | None]]:
        """Returns which documents of each part are kept, and the number of the split of each; None for all, or none.

        Only asked where `hashes_documents`.
        """

    def nothing_found(self, inputs: str, *, num_blank: int, num_bad: int, first: str) -> InputError:
        """Returns the error for inputs without a single document.

        Args:
            inputs: the inputs, in words.
            num_blank, num_bad: blank lines, and bad records.
            first: first of the bad records, in words, or nothing.
        """
