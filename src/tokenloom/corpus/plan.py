"""The plan of a job: which shards it has, and which datasets they become. Every process comes to the same by itself."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from tokenloom.corpus.settings import CorpusSettings
from tokenloom.errors import ConfigError
from tokenloom.indexed.layout import DType
from tokenloom.preprocess.cutting import cut_inputs
from tokenloom.preprocess.finding import find_inputs
from tokenloom.preprocess.inputs import STDIN, InputFile, InputSlice
from tokenloom.preprocess.tokenizers import TextTokenizer

_FORMAT_VERSION = 1
"""Of the parts in a job's folder: those of another version are not reused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """Some of the input, tokenised as a whole or not at all.

    Attributes:
        number: from 0, in the order of the corpus.
        slices: of input files, in order.
        key: names what the shard comes to: a hash of the slices, the tokenizer and the settings that decide it.
    """

    number: int
    slices: tuple[InputSlice, ...]
    key: str

    @property
    def num_bytes(self) -> int:
        """Of the input files, as they are; of Parquet row groups, in proportion."""
        return sum(slice_.num_bytes for slice_ in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOutput:
    """Datasets that appear together: one per key and split, and the bad records of their shards.

    Attributes:
        prefix: begins the names of all of them.
        shards: in order.
    """

    prefix: str
    shards: tuple[PlannedShard, ...]

    def dataset_prefix(self, key: str, *, level: str, split: str | None = None) -> str:
        """Returns the prefix of the dataset of a key, and of a split if there are any."""
        return "_".join([self.prefix, *([] if split is None else [split]), key, level])


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlan:
    """A job.

    Attributes:
        prefix: of the outputs, or the folder for them with `one_pair_per_file`.
        settings: of the user.
        tokenizer: that names the ids.
        files: that are read, in order.
        ignored: files in folders that are not read.
        outputs: what comes out.
    """

    prefix: str
    settings: CorpusSettings
    tokenizer: TextTokenizer
    files: tuple[InputFile, ...]
    ignored: tuple[str, ...]
    outputs: tuple[PlannedOutput, ...]

    @property
    def shards(self) -> tuple[PlannedShard, ...]:
        """Returns all shards, in the order of the corpus."""
        return tuple(shard for output in self.outputs for shard in output.shards)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the tokens."""
        return np.dtype(DType.optimal_dtype(self.tokenizer.vocab_size))

    @property
    def bos(self) -> int | None:
        """The id that begins each document, if one does."""
        return self.tokenizer.bos if self.settings.prepend_bos else None

    @property
    def eod(self) -> int | None:
        """The id that ends each document, if one does."""
        return self.tokenizer.eod if self.settings.append_eod else None

    @property
    def reads_stdin(self) -> bool:
        """Whether it can be read once only, and by this process."""
        return any(file.path == STDIN for file in self.files)

    def description(self) -> dict[str, Any]:
        """Returns what processes that share the job must agree on, but for the inputs, as values for JSON."""
        return _description(self.settings, self.tokenizer) | {"job": self.settings.of_job()}

    def fingerprint(self) -> str:
        """Returns a hash of all that decides what the job does."""
        return _hash([self.description(), [shard.key for shard in self.shards]])


def plan_corpus(
    names: Sequence[str | os.PathLike[str]],
    prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer,
    settings: CorpusSettings,
) -> CorpusPlan:
    """Returns the plan of a job; reads no more of the inputs than their names, sizes and footers.

    Args:
        names: of files, folders and so on, see `find_inputs`.
        prefix: of the outputs.
        tokenizer: that names the ids.
        settings: of the job.

    Raises:
        ConfigError: a setting is wrong, or two files would have one output.
        InputError: there is nothing to read, or a file is not what its name says.
        MissingTokenError: the tokenizer has no `bos` or `eod` to add.
        StorageError: an input cannot be found or read.
    """
    found = find_inputs([os.fspath(name) for name in names], input_format=settings.input_format)
    target = os.fspath(prefix)
    description = _description(settings, tokenizer)
    outputs = tuple(_outputs(found.files, target, settings, description))
    plan = CorpusPlan(
        prefix=target,
        settings=settings,
        tokenizer=tokenizer,
        files=found.files,
        ignored=found.ignored,
        outputs=outputs,
    )
    _ = plan.bos, plan.eod  # raises now, not in the first shard
    return plan


def _outputs(
    files: Sequence[InputFile], target: str, settings: CorpusSettings, description: dict[str, Any]
) -> Iterator[PlannedOutput]:
    groups: list[tuple[str, Sequence[InputFile]]] = [(target, files)]
    if settings.one_pair_per_file:
        names = _names_of_own(files)
        groups = [(os.path.join(target, name), [file]) for name, file in zip(names, files, strict=True)]
    number = 0
    for prefix, group in groups:
        shards = []
        for slices in cut_inputs(group, shard_bytes=settings.shard_bytes):
            key = _hash([description, [asdict(slice_) for slice_ in slices]])
            shards.append(PlannedShard(number=number, slices=tuple(slices), key=key))
            number += 1
        yield PlannedOutput(prefix=prefix, shards=tuple(shards))


def _names_of_own(files: Sequence[InputFile]) -> list[str]:
    """Returns a name for the datasets of each file: that of the file, up to its first dot.

    Raises:
        ConfigError: two files have one name.
    """
    owners: dict[str, str] = {}
    for file in files:
        name = PurePath(file.path).name.split(".")[0] or "stdin"
        if name in owners:
            message = f"`{owners[name]}` and `{file.path}` would both be written as `{name}`"
            raise ConfigError(message, hint="rename one of them, or preprocess their folders one by one")
        owners[name] = file.path
    return list(owners)


def _description(settings: CorpusSettings, tokenizer: TextTokenizer) -> dict[str, Any]:
    return {
        "version": _FORMAT_VERSION,
        "tokenizer": tokenizer.sha256,
        "bos": tokenizer.bos if settings.prepend_bos else None,
        "eod": tokenizer.eod if settings.append_eod else None,
        "shards": settings.of_shards(),
    }


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]
