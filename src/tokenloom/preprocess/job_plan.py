"""Plans a job: cuts the input into shards, and lists the datasets to write. Every process makes an equal plan."""

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
_FORMAT_VERSION = 3  # of the parts in a job folder; parts of another version are not reused

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDataset:
    """A dataset to write: the texts of one key (with index `column`) in one split (with index `split_number`)."""

    prefix: str
    key: str = ""
    column: int = 0
    split: str | None = None
    split_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """A unit of work: consecutive slices of the input; see `ShardedJob` for `number` and `key`."""

    number: int
    slices: tuple[InputSlice, ...]
    num_bytes: int  # size of the slices in the input files
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOutput:
    """The datasets, one per key and split, that are made from the same shards, and one file of bad records."""

    prefix: str
    datasets: tuple[PlannedDataset, ...]  # ordered by split, then by key
    shards: tuple[PlannedShard, ...]

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The distinct input files, in order."""
        return tuple(dict.fromkeys(slice_.file for shard in self.shards for slice_ in shard.slices))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPipeline:
    """The functions with which one process reads and tokenizes slices.

    Attributes:
        open: returns the reader of a slice.
        bundles: groups blocks into bundles; a thread tokenizes one bundle at a time.
        work: tokenizes a bundle.
        engine, engine_reason: name of the tokenization engine, and the reason for the choice; empty if none was chosen.
    """

    open: Callable[[InputSlice], SliceReader]
    bundles: Callable[[Iterable[Block]], Iterator[list[Block]]]
    work: Callable[[Sequence[Block]], TokenizedBlock]
    engine: str = ""
    engine_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(ABC):
    """The rules for converting records into datasets. Picklable, and equal in every process of a job.

    By default, all documents of all files become one dataset at the output prefix.

    Attributes:
        settings: settings of the job.
        tokenizer: tokenizer of the texts.
        document_tokens: tokens to add to each document.
        dtype: dtype of the tokens.
        is_multimodal: whether each sequence has a mode.
        has_roles: whether each pair has a roles column.
        hashes_documents: whether to hash the documents for `select`.
        threads_per_process: number of processors per process, unless the user chooses the number of processes.
        unit: noun for a record ("pair"); None for the noun of the input format.
        keys: keys of the texts in a record; of a table, only these columns are read. None for all.
        documents, expected: plural name of the documents, and a description of valid input, for messages.
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
    expected: ClassVar[str] = "provide one JSON object per line, or a file of another format with its usual suffix"

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(DType.optimal_dtype(self.tokenizer.vocab_size))

    @abstractmethod
    def of_shards(self) -> dict[str, Any]:
        """Returns the settings that decide the bytes of a shard, as JSON values."""

    @abstractmethod
    def options(self, key: str, split: str | None) -> Mapping[str, Any]:
        """Returns the member `options` of the manifest, for the dataset of a key and split."""

    def outputs(
        self, prefix: str, files: Sequence[InputFile]
    ) -> Iterator[tuple[str, Sequence[InputFile], tuple[PlannedDataset, ...]]]:
        """Yields (prefix, files, datasets) of each output; datasets are ordered by split, then by key."""
        yield prefix, files, (PlannedDataset(prefix=prefix),)

    def cut(self, files: Sequence[InputFile]) -> Iterable[tuple[InputSlice, ...]]:
        """Returns the slices of each shard, in order; depends only on the files and `shard_bytes`."""
        return cut_inputs(files, shard_bytes=self.settings.shard_bytes)

    def open(self, slice_: InputSlice, *, block_bytes: int) -> SliceReader:
        """Opens a slice for reading with the limits of the settings; see `open_slice`."""
        return open_slice(slice_, block_bytes=block_bytes, keys=self.keys, limits=self.settings)

    @abstractmethod
    def pipeline(self, first: InputSlice, *, num_workers: int) -> BlockPipeline:
        """Returns functions that read and tokenize with `num_workers` threads; compares engines on texts of `first`."""

    def select(
        self, hashes: Sequence[DocumentHashes]
    ) -> tuple[Sequence[Mask | None], Sequence[NDArray[np.int8] | None]]:
        """Selects documents by `hashes`, one array per part; returns (masks, split indices), one array per part each.

        A mask is True for each document to keep; None keeps all documents. Split indices are None without splits.
        """
        raise NotImplementedError

    def recorded(self, files: Sequence[InputFile]) -> tuple[InputRecord, ...]:
        """Returns the member `inputs` of the manifest: path, size and version of each input file."""
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
        """Returns the manifest of a planned dataset; `pair` has the counts and checksums of the dataset's files."""

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
    """A preprocessing job; see `ShardedJob`.

    Attributes:
        prefix: path prefix of the outputs; with `one_pair_per_file`, the folder of the outputs.
        recipe: rules for converting records into datasets.
        files: input files, in order.
        ignored: paths of files in input folders that are not read.
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
        """The key of the texts in each `.bin`/`.idx` pair of a part; a recipe without keys has one pair, of key ""."""
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

    def location(self, shard: PlannedShard) -> str:
        return f"its first file is `{shard.slices[0].file.path}`"

    def blame(self, part_prefix: str, reason: str) -> str | None:
        place = condemn(part_prefix, reason)
        return None if place is None else f"`{place[0]}` record {place[1]}"


def plan_job(recipe: Recipe, prefix: str, files: Sequence[InputFile], *, ignored: tuple[str, ...] = ()) -> JobPlan:
    """Returns the plan of a job; reads only the footers of input files."""
    settings_hash = hash_of(_description(recipe))
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
            # The content of a pipe may differ at each run, so its shard is never reused.
            nonce = secrets.token_hex() if any(slice_.file.is_stream for slice_ in slices) else ""
            key = hash_of([settings_hash, [_described(slice_) for slice_ in slices], nonce])
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
