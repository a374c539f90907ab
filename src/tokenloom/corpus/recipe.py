"""What a job asks of a recipe, which knows what a record is: text, a conversation, a text and its image.

The job knows files, shards, processes, parts and datasets. A recipe says which files are read and where they may be
cut, what becomes of blocks of their records, and what decides it. A fourth recipe needs a class with the methods of
`Recipe` that have no body and a function that plans with it; nothing in the job itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.corpus.settings import JobSettings
from tokenloom.errors import InputError
from tokenloom.indexed.manifest.contents import DocumentLedger, InputRecord, Manifest, PairFacts
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.cut import cut_inputs
from tokenloom.inputs.record_format import SliceReader
from tokenloom.preprocess.blocks import TokenizedBlock
from tokenloom.preprocess.document_tokens import DocumentTokens
from tokenloom.preprocess.recording import input_records, manifest_of_run
from tokenloom.preprocess.refusals import Isolating
from tokenloom.preprocess.selection import DocumentHashes
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(ABC):
    """How records become datasets. Picklable, and the same in every process of a job.

    Without more, all files become one dataset, under the very prefix, without choosing among its documents.

    Attributes:
        settings: settings of the job.
        tokenizer: tokenizer that names the ids.
        document_tokens: what is added to each document.
        inputs: what the manifests say of the inputs; None for what their files are like.
        dtype: dtype of the tokens.
        is_multimodal: whether each sequence has a mode.
        has_roles: whether roles go with each pair.
        hashes_documents: whether the documents of a part are hashed, for `select`.
        compares_bytes: whether records lead to files that are not among the inputs. What is there is then compared with
            what the job makes now, byte by byte, instead of being taken for it because the inputs are the same.
        threads_per_process: most threads that one process feeds.
        unit: what a record is, where the format of its file does not say.
    """

    settings: JobSettings
    tokenizer: TextTokenizer
    document_tokens: DocumentTokens
    inputs: tuple[InputRecord, ...] | None = None

    is_multimodal: ClassVar[bool] = False
    has_roles: ClassVar[bool] = False
    compares_bytes: ClassVar[bool] = False

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def hashes_documents(self) -> bool:
        return False

    @property
    def threads_per_process(self) -> int:
        return 8

    @property
    def unit(self) -> str | None:
        return None

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

    @abstractmethod
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
        return True

    def select(
        self, hashes: Sequence[DocumentHashes]
    ) -> tuple[Sequence[Mask | None], Sequence[NDArray[np.int8] | None]]:
        """Returns which documents of each part are kept, and the number of the split of each; None for all, or none.

        Only asked where `hashes_documents`.
        """
        raise NotImplementedError

    @abstractmethod
    def nothing_found(self, inputs: str, *, num_blank: int, num_bad: int, first: str) -> InputError:
        """Returns the error for inputs without a single document.

        Args:
            inputs: the inputs, in words.
            num_blank, num_bad: blank lines, and bad records.
            first: first of the bad records, in words, or nothing.
        """

    def recorded(self, files: Sequence[InputFile]) -> tuple[InputRecord, ...]:
        """Returns what the manifest says of the files of an output."""
        return input_records(files) if self.inputs is None else self.inputs

    def manifest_maker(
        self,
        files: Sequence[InputFile],
        *,
        key: str,
        split: str | None,
        ledger: DocumentLedger,
        engine: str,
    ) -> Callable[[PairFacts], Manifest]:
        """Returns what makes the manifest of a dataset once its files are written.

        Args:
            files: files that were read for it, in order.
            key, split: key and split of the dataset.
            ledger: ledger of its documents.
            engine: name of the engine that tokenized.
        """
        return partial(
            manifest_of_run,
            tokenizer=self.tokenizer,
            added=self.document_tokens,
            options=self.options(key, split),
            ledger=ledger,
            inputs=self.recorded(files),
            engine=engine or None,
        )
