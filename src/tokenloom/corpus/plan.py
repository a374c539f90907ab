"""The plan of a job: which shards it has, and which datasets they become. Every process comes to the same by itself."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np

from tokenloom.corpus.settings import CorpusSettings
from tokenloom.errors import ConfigError
from tokenloom.indexed.layout import DType
from tokenloom.inputs import STDIN, InputFile, InputSlice
from tokenloom.inputs.cut import cut_inputs
from tokenloom.inputs.detect import formats_by_name, split_suffix
from tokenloom.inputs.find import find_inputs
from tokenloom.preprocess.document_tokens import DocumentTokens
from tokenloom.storage.secrets import admit
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_FORMAT_VERSION = 1
"""Of the parts in a job's folder: those of another version are not reused."""

_MOST_NAME_BYTES = 200
"""Of a dataset without suffixes: filesystems take 255 bytes, of which those of files being written need some 40."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """Some of the input, tokenised as a whole or not at all.

    Attributes:
        number: from 0, in the order of the corpus.
        slices: of input files, in order.
        num_bytes: of the input files, as they are.
        key: names what the shard comes to: a hash of the slices, the tokenizer and the settings that decide it.
    """

    number: int
    slices: tuple[InputSlice, ...]
    num_bytes: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDataset:
    """One of the datasets of an output.

    Attributes:
        prefix: of the pair.
        key: of its texts.
        column: the number of the key, from 0.
        split: its name; None without splits.
        split_number: from 0, in the order of the shares; None without splits.
    """

    prefix: str
    key: str
    column: int
    split: str | None
    split_number: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOutput:
    """Datasets that appear together: one per key and split, and the bad records of their shards.

    Attributes:
        prefix: begins the names of all of them.
        datasets: split by split, in each key by key.
        shards: in order.
    """

    prefix: str
    datasets: tuple[PlannedDataset, ...]
    shards: tuple[PlannedShard, ...]

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The input files, each once, in order."""
        return tuple(dict.fromkeys(slice_.file for shard in self.shards for slice_ in shard.slices))


@dataclass(frozen=True, kw_only=True)  # without slots, to remember what is asked for with every shard
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

    @cached_property
    def shards(self) -> tuple[PlannedShard, ...]:
        """All shards, in the order of the corpus."""
        return tuple(shard for output in self.outputs for shard in output.shards)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the tokens."""
        return np.dtype(DType.optimal_dtype(self.tokenizer.vocab_size))

    @cached_property
    def document_tokens(self) -> DocumentTokens:
        """What is added to each document."""
        return _document_tokens(self.settings, self.tokenizer)

    @property
    def reads_streams(self) -> bool:
        """Whether some of the input can be read once only, and by this process alone."""
        return any(file.is_stream for file in self.files)

    def description(self) -> dict[str, Any]:
        """Returns what processes that share the job must agree on, but for the inputs, as values for JSON."""
        return _description(self.settings, self.tokenizer) | {"job": self.settings.of_job()}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides what the job does."""
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
    target = admit(os.fspath(prefix))
    description = _description(settings, tokenizer)
    outputs = tuple(_outputs(found.files, target, settings, description))
    _check_names(outputs)
    return CorpusPlan(
        prefix=target,
        settings=settings,
        tokenizer=tokenizer,
        files=found.files,
        ignored=found.ignored,
        outputs=outputs,
    )


def _outputs(
    files: Sequence[InputFile], target: str, settings: CorpusSettings, description: dict[str, Any]
) -> Iterator[PlannedOutput]:
    groups: list[tuple[str, Sequence[InputFile]]] = [(target, files)]
    if settings.one_pair_per_file:
        names = _names_of_own(files)
        groups = [(os.path.join(target, name), [file]) for name, file in zip(names, files, strict=True)]
    number = 0
    settled = _hash(description)
    for prefix, group in groups:
        cut = cut_inputs(group, shard_bytes=settings.shard_bytes)
        stops = {slice_.file.path: slice_.stop for slices in cut for slice_ in slices}  # the last of each file
        shards = []
        for slices in cut:
            num_bytes = sum(
                slice_.file.num_bytes * (slice_.stop - slice_.start) // max(1, stops[slice_.file.path])
                for slice_ in slices
            )
            # What can be read once only is never what was read before.
            nonce = secrets.token_hex() if any(slice_.file.is_stream for slice_ in slices) else ""
            key = _hash([settled, [_described(slice_) for slice_ in slices], nonce])
            shards.append(PlannedShard(number=number, slices=slices, num_bytes=num_bytes, key=key))
            number += 1
        yield PlannedOutput(prefix=prefix, datasets=tuple(_datasets(prefix, settings)), shards=tuple(shards))


def _datasets(prefix: str, settings: CorpusSettings) -> Iterator[PlannedDataset]:
    splits: list[tuple[int | None, str | None]] = list(enumerate(settings.shares)) or [(None, None)]
    for split_number, split in splits:
        for column, key in enumerate(settings.keys):
            names = [prefix, *([] if split is None else [split]), key.replace("/", "_"), settings.level]
            yield PlannedDataset(prefix="_".join(names), key=key, column=column, split=split, split_number=split_number)


def _names_of_own(files: Sequence[InputFile]) -> list[str]:
    """Returns a name for the datasets of each file: that of the file, without what tells format and compression.

    Raises:
        ConfigError: two files have one name.
    """
    owners: dict[str, str] = {}
    for file in files:
        name = "stdin" if file.path == STDIN else PurePath(split_suffix(file.path)[0]).name
        name = PurePath(name).stem if formats_by_name(name) else name
        if name in owners:
            message = f"`{owners[name]}` and `{file.path}` would both be written as `{name}`"
            raise ConfigError(message, hint="rename one of them, or preprocess their folders one by one")
        owners[name] = file.path
    return list(owners)


def _described(slice_: InputSlice) -> list[Any]:
    file = slice_.file
    return [file.path, file.format, file.compression, file.num_bytes, file.version, slice_.start, slice_.stop]


def _check_names(outputs: Sequence[PlannedOutput]) -> None:
    """Refuses names that could not be written in the end, or twice.

    Raises:
        ConfigError: two datasets have one name, or a name is too long.
    """
    owners: dict[str, PlannedDataset] = {}
    for dataset in (dataset for output in outputs for dataset in output.datasets):
        owner = owners.setdefault(dataset.prefix, dataset)
        if owner is not dataset:
            also = " of ".join(f"{name!r}" for name in (owner.key, owner.split) if name is not None)
            message = f"the datasets of {dataset.key!r} and of {also} would both be written as `{dataset.prefix}`"
            raise ConfigError(message, hint="choose other names for splits, or make them one by one")
        name = os.path.basename(dataset.prefix)
        if len(os.fsencode(name)) > _MOST_NAME_BYTES:
            message = f"expected names of at most {_MOST_NAME_BYTES} bytes, got {name!r}"
            raise ConfigError(message, hint="choose a shorter output prefix")


def _description(settings: CorpusSettings, tokenizer: TextTokenizer) -> dict[str, Any]:
    added = _document_tokens(settings, tokenizer)
    return {
        "version": _FORMAT_VERSION,
        "tokenizer": tokenizer.sha256,
        "bos": added.bos,
        "eod": added.eod,
        "shards": settings.of_shards(),
    }


def _document_tokens(settings: CorpusSettings, tokenizer: TextTokenizer) -> DocumentTokens:
    return DocumentTokens.of(tokenizer, prepend_bos=settings.prepend_bos, append_eod=settings.append_eod)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]
