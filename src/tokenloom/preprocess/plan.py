"""The plan of a job: which shards it has, and which datasets they become. Every process comes to the same by itself."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.preprocess.part import ShardReport
from tokenloom.preprocess.recipe import PlannedDataset, Recipe
from tokenloom.preprocess.settings import JobSettings
from tokenloom.preprocess.shard import condemn, shard_worker
from tokenloom.preprocess.sharded import Counts, JobProgress, ProgressBook, RunShard, ShardedJob, hash_of
from tokenloom.storage.addresses import short_hash

_FORMAT_VERSION = 2
"""Version of the parts in a job's folder: those of another one are not reused."""


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

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The key of each pair that a part has."""
        keys = {dataset.column: dataset.key for dataset in self.outputs[0].datasets}
        return tuple(keys[column] for column in sorted(keys))

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

    def book(self, show: Callable[[JobProgress], None] | None) -> ProgressBook:
        """Returns what adds up how far the shards are."""
        total = sum(shard.num_bytes for shard in self.shards)
        return ProgressBook(self, "preprocess", unit="bytes", measure="num_file_bytes", total=total, show=show)


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
