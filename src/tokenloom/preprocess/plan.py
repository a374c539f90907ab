"""The plan of a job: its shards, and the datasets they become by a recipe. Every process makes the same by itself."""

from __future__ import annotations

import functools
import os
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.dataset import IndexedDataset
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
from tokenloom.preprocess.shard import ShardReport, condemn, shard_worker
from tokenloom.preprocess.sharded import Counts, RunShard, ShardedJob, hash_of
from tokenloom.storage.addresses import short_hash
from tokenloom.tokenizers.kinds import KINDS
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_version = functools.cache(version)
_FORMAT_VERSION = 3
"""Version of the parts in a job's folder: those of another one are not reused."""

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
class PlannedShard:
    """Some of the input, tokenized as a whole or not at all.

    Attributes:
        number: number from 0, in the order of the corpus.
        slices: slices of input files, in order.
        num_bytes: size of the input files in bytes, as they are.
        key: names what the shard comes to: a hash of the slices, the tokenizer and the settings that decide it.
    """

    number: int
    slices: tuple[InputSlice, ...]
    num_bytes: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOutput:
    """Datasets that appear together: one per key and split, and the bad records of their shards.

    Attributes:
        prefix: begins the names of all of them.
        datasets: split by split, in each key by key.
        shards: the shards, in order.
    """

    prefix: str
    datasets: tuple[PlannedDataset, ...]
    shards: tuple[PlannedShard, ...]

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The input files, each once, in order."""
        return tuple(dict.fromkeys(slice_.file for shard in self.shards for slice_ in shard.slices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What one process makes blocks into arrays with.

    Attributes:
        open: returns the reader of a slice.
        bundles: puts blocks together, or cuts them, into what a thread is given at once.
        work: what the threads do with it.
        engine, engine_reason: what tokenizes, and why; empty where there is no choice.
    """

    open: Callable[[InputSlice], SliceReader]
    bundles: Callable[[Iterable[Block]], Iterator[list[Block]]]
    work: Callable[[Sequence[Block]], TokenizedBlock]
    engine: str = ""
    engine_reason: str = ""


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


@dataclass(frozen=True, kw_only=True)  # without slots, to remember what is asked for with every shard
class JobPlan(ShardedJob):
    """A job of a corpus; see `ShardedJob`.

    Attributes:
        prefix: prefix of the outputs, or the folder for them where there is one for each file.
        recipe: the rules by which records become datasets.
        files: files that are read, in order.
        ignored: files in folders that are not read.
        outputs: what comes out.
    """

    prefix: str
    recipe: Recipe
    files: tuple[InputFile, ...]
    ignored: tuple[str, ...]
    outputs: tuple[PlannedOutput, ...]

    @property
    def settings(self) -> JobSettings:
        """What of the settings the job itself needs."""
        return self.recipe.settings

    @cached_property
    def shards(self) -> tuple[PlannedShard, ...]:
        return tuple(shard for output in self.outputs for shard in output.shards)

    @property
    def columns(self) -> tuple[str, ...]:
        """The key of each pair that a part has."""
        return self.recipe.keys or ("",)

    @property
    def worker_timeout_seconds(self) -> float:
        return self.settings.worker_timeout_seconds

    @property
    def reads_streams(self) -> bool:
        return any(file.is_stream for file in self.files)

    def open(self, planned: PlannedDataset) -> IndexedDataset:
        """Opens a dataset that is there."""
        return IndexedDataset(planned.prefix, multimodal=self.recipe.is_multimodal)

    def description(self) -> dict[str, Any]:
        return _description(self.recipe) | {"job": self.settings.of_job()}

    def input_keys(self) -> list[str]:
        return sorted({short_hash(file.path)[:16] for file in self.files})

    def read_report(self, data: bytes, *, path: str) -> ShardReport:
        return ShardReport.from_json(data, path=path)

    def worker(self, num_workers: int) -> AbstractContextManager[RunShard]:
        return shard_worker(self, num_workers=num_workers)

    def counts_of(self, report: ShardReport, shard: PlannedShard) -> Counts:
        return {"num_file_bytes": shard.num_bytes, **report.counts}

    def whereabouts(self, shard: PlannedShard) -> str:
        return f"from `{shard.slices[0].file.path}` on"

    def blame(self, journal_path: str, reason: str) -> str | None:
        place = condemn(journal_path, reason)
        return None if place is None else f"`{place[0]}` record {place[1]}"


def plan_job(recipe: Recipe, prefix: str, files: Sequence[InputFile], *, ignored: tuple[str, ...] = ()) -> JobPlan:
    """Returns the plan of a job; reads no more of the inputs than their footers."""
    settled = hash_of(_description(recipe))
    outputs: list[PlannedOutput] = []
    number = 0
    for own_prefix, group, datasets in recipe.outputs(prefix, files):
        cut = list(recipe.cut(group))
        units = Counter[InputFile]()
        for slice_ in (slice_ for slices in cut for slice_ in slices):
            units[slice_.file] += slice_.stop - slice_.start
        shards = []
        for slices in cut:
            num_bytes = sum(
                slice_.file.num_bytes * (slice_.stop - slice_.start) // max(1, units[slice_.file]) for slice_ in slices
            )
            # What can be read once only is never what was read before.
            nonce = secrets.token_hex() if any(slice_.file.is_stream for slice_ in slices) else ""
            key = hash_of([settled, [_described(slice_) for slice_ in slices], nonce])
            shards.append(PlannedShard(number=number, slices=slices, num_bytes=num_bytes, key=key))
            number += 1
        outputs.append(PlannedOutput(prefix=own_prefix, datasets=datasets, shards=tuple(shards)))
    return JobPlan(prefix=prefix, recipe=recipe, files=tuple(files), ignored=ignored, outputs=tuple(outputs))


def _described(slice_: InputSlice) -> list[Any]:
    file = slice_.file
    return [file.path, file.format, file.compression, file.num_bytes, file.version, slice_.start, slice_.stop]


def _description(recipe: Recipe) -> dict[str, Any]:
    return {
        "version": _FORMAT_VERSION,
        "tokenizer": recipe.tokenizer.sha256,
        "bos": recipe.document_tokens.bos,
        "eod": recipe.document_tokens.eod,
        "shards": recipe.of_shards(),
    }
