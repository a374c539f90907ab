"""The plan of a job: its shards, and the datasets they become by a recipe. Every process makes an equal plan."""

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
from tokenloom.indexed.manifests import DocumentLedger, InputRecord, Manifest, PairFacts, SpecialToken, identity_of
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
_FORMAT_VERSION = 3  # of the parts in a job's folder; parts of another one are not reused

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDataset:
    """A dataset of an output.

    Attributes:
        prefix: prefix of the pair.
        key, column: key of its texts, and the number of the key from 0; empty where the recipe has no keys.
        split, split_number: name of its split, and the number of the split from 0; None without splits.
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
        num_bytes: size of the slices in bytes, as they are in the files.
        key: hash of the slices, the tokenizer and the settings that decide the bytes.
    """

    number: int
    slices: tuple[InputSlice, ...]
    num_bytes: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOutput:
    """Datasets that are published together: one per key and split, and the bad records of their shards.

    Attributes:
        prefix: prefix of all their names.
        datasets: datasets, split by split, in each key by key.
        shards: shards, in order.
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
    """The functions by which one process makes blocks into arrays.

    Attributes:
        open: returns the reader of a slice.
        bundles: joins or cuts blocks into bundles, of which a thread takes one at a time.
        work: tokenizes a bundle.
        engine, engine_reason: name of the engine, and why it was chosen; empty where there is no choice.
    """

    open: Callable[[InputSlice], SliceReader]
    bundles: Callable[[Iterable[Block]], Iterator[list[Block]]]
    work: Callable[[Sequence[Block]], TokenizedBlock]
    engine: str = ""
    engine_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(ABC):
    """How records become datasets. Picklable, and equal in every process of a job.

    By default all files become one dataset, of all documents, under the very prefix.

    Attributes:
        settings: settings of the job.
        tokenizer: tokenizer of the texts.
        document_tokens: tokens that are added to each document.
        dtype: dtype of the tokens.
        is_multimodal: whether each sequence has a mode.
        has_roles: whether each pair has roles.
        hashes_documents: whether the documents of a part are hashed, for `select`.
        threads_per_process: most threads that one process feeds.
        unit: name of a record, where the format of its file does not say.
        keys: keys of the texts in a record, the columns that are read; None for all columns.
        documents, expected: name of the documents, and the description of a good input, for messages.
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
        """Returns the settings that decide the bytes of a shard, as values for JSON."""

    @abstractmethod
    def options(self, key: str, split: str | None) -> Mapping[str, Any]:
        """Returns the options in the manifest of a dataset."""

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
        """Returns the functions for `num_workers` threads; engines are compared on `first`, a slice of the job."""

    def select(
        self, hashes: Sequence[DocumentHashes]
    ) -> tuple[Sequence[Mask | None], Sequence[NDArray[np.int8] | None]]:
        """Returns the mask of kept documents of each part, and their splits; called where `hashes_documents`."""
        raise NotImplementedError

    def recorded(self, files: Sequence[InputFile]) -> tuple[InputRecord, ...]:
        """Returns the files of an output as the manifest names them."""
        return tuple(InputRecord(path=file.path, num_bytes=file.num_bytes, version=file.version) for file in files)

    def manifest(
        self,
        pair: PairFacts,
        planned: PlannedDataset,
        *,
        files: Sequence[InputFile],
        ledger: DocumentLedger,
        engine: str,
    ) -> Manifest:
        """Returns the manifest of a pair that was written of some files as a planned dataset."""

        def special(number: int | None) -> SpecialToken | None:
            return None if number is None else SpecialToken(id=number, text=self.tokenizer.detokenize([number]))

        added = self.document_tokens
        identity = identity_of(self.tokenizer, bos=special(added.bos), eod=special(added.eod))
        is_file = identity.kind not in KINDS or KINDS[identity.kind].needs_file
        if identity.path is not None and is_file and os.path.isfile(identity.path):
            identity = replace(identity, path=os.path.abspath(identity.path))
        return Manifest(
            pair=pair,
            tokenizer=identity,
            options=self.options(planned.key, planned.split),
            ledger=ledger,
            inputs=self.recorded(files),
            engine=engine or None,
            tokenloom_version=_version("tokenloom"),
        )


@dataclass(frozen=True, kw_only=True)  # without slots, for cached properties
class JobPlan(ShardedJob):
    """A job of a corpus; see `ShardedJob`.

    Attributes:
        prefix: prefix of the outputs, or their folder where each file has one.
        recipe: recipe of the datasets.
        files: files that are read, in order.
        ignored: files in folders that are not read.
        outputs: outputs, in order.
    """

    prefix: str
    recipe: Recipe
    files: tuple[InputFile, ...]
    ignored: tuple[str, ...]
    outputs: tuple[PlannedOutput, ...]

    @property
    def settings(self) -> JobSettings:
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
    """Returns the plan of a job; reads only footers of the inputs."""
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
            # A stream never has the content of an earlier one.
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
