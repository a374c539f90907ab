"""Targets of report and explorer: a pair, a blend, a catalogue, a run, or a job."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from tokenloom.blending.spec import parse_blend
from tokenloom.cli.options import Written, arguments_of
from tokenloom.cli.run_options import SampleOptions
from tokenloom.datasets.blends import Blend
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split, split_indices
from tokenloom.errors import ConfigError, DatasetNotFoundError, TokenizerError
from tokenloom.indexed.catalogue import catalogue_path
from tokenloom.indexed.layout import bin_path, idx_path, prefix_of
from tokenloom.inspect.shown import OpenPairs, Shown, shown_document, shown_sample
from tokenloom.loading.from_data import tokenizer_of_data
from tokenloom.order.arrays import ArrayStore, DataOrigin
from tokenloom.preprocess.folder import JOB
from tokenloom.run.audit.trace import PairRows
from tokenloom.run.dataset import RunTokenizer
from tokenloom.run.lock import lock_path
from tokenloom.run.run import Run
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.publishing import recover
from tokenloom.storage.resolve import did_you_mean, exists
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.load import load_tokenizer

_WHAT_IS_NAMED = (
    "name a prefix (the path of a pair without `.bin` or `.idx`), a catalogue, a run.toml, the folder of a job, or a "
    "file with a blend"
)


class TargetKind(StrEnum):
    pair = "pair"
    catalogue = "catalogue"
    blend = "blend"
    run = "run"
    job = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSource:
    """A source of a target: a source of a run, or a prefix.

    Attributes:
        number: its number, from 0.
        name: name of the source of a run, else the prefix.
        prefixes: its pairs; documents count over them.
        num_documents, num_tokens: sums over its pairs.
        weight: its weight in a blend, or None.
    """

    number: int
    name: str
    prefixes: tuple[str, ...]
    num_documents: int
    num_tokens: int
    weight: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """Settings of samples of a pair, as of `tokenloom show`."""

    sequence_length: int = 2048
    seed: int = 1234
    window_policy: str = "concat"


@dataclass(frozen=True, kw_only=True)  # without slots, to remember what is opened
class Target:
    """A pair, blend, catalogue, run or job, opened on demand and read only. Thread-safe.

    Attributes:
        name: as the user named it.
        sources: the data, by number; none of a job.
        tokenizer: decodes tokens; None shows ids.
        run: the run, or None.
        blend: prefixes and weights; of a pair, one.
        folder: the folder of a job, or None.
        settings: settings of samples of a pair.
        notes: sentences on missing things, such as the tokenizer.
        scratch: folder of the index of a run in the reference's order, removed with this.
    """

    kind: TargetKind
    name: str
    sources: tuple[TargetSource, ...] = ()
    tokenizer: Any = None
    run: Run | None = None
    blend: tuple[list[str], list[float] | None] | None = None
    folder: str | None = None
    settings: SampleSettings = field(default_factory=SampleSettings)
    notes: tuple[str, ...] = ()
    object_storage: ObjectStorageSettings | None = None
    scratch: str | None = None

    def __post_init__(self) -> None:
        if self.scratch is not None:
            weakref.finalize(self, shutil.rmtree, self.scratch, ignore_errors=True)

    @cached_property
    def pairs(self) -> OpenPairs:
        return OpenPairs(object_storage=self.object_storage)

    @cached_property
    def pair_rows(self) -> PairRows:
        if self.run is not None:
            return PairRows.of_lock(self.run.lock)
        return PairRows.of([[(source.name, source.num_documents)] for source in self.sources])

    @cached_property
    def samples(self) -> Any:
        """The dataset of positions, of a pair from all its documents; None for blends and jobs."""
        if self.run is not None:
            return self.run.dataset()
        if self.kind not in (TargetKind.pair, TargetKind.catalogue) or self.pairs.get(self.name).data.multimodal:
            return None
        return _windows(self)

    @property
    def num_positions(self) -> int | None:
        """Number of samples; None without samples or without end."""
        if self.run is not None:
            return self.run.num_samples
        return None if self.samples is None else len(self.samples)

    def named(self, pair: int, document: int) -> tuple[int, int]:
        """Returns source and number of a document with tokens, from the number of its pair and its number there.

        Documents count over the pairs of a source; in a run they are sequences, and none is empty.
        """
        rows = self.pair_rows
        if self.run is not None:
            document = int(self.pairs.get(rows.prefixes[pair]).data.document_indices[document])
        return rows.source_of(pair), int(rows.first_documents[pair]) + document

    def document(self, source: int, document: int, *, first: int = 0, count: int | None = None) -> Shown:
        """Returns tokens of a document of a source, see `shown_document`."""
        if not 0 <= source < len(self.sources):
            raise IndexError(f"source {source} out of range: there are {len(self.sources)}")
        named = self.sources[source]
        if not 0 <= document < named.num_documents:
            raise IndexError(f"document {document} out of range: {named.name} has {named.num_documents:,}")
        numbers, rows = self.pair_rows.locate(np.array([source], np.int32), np.array([document], np.int64))
        pair = self.pairs.get(self.pair_rows.prefixes[int(numbers[0])])
        row = int(rows[0]) if self.run is None else pair.document_of(int(rows[0]))  # runs count sequences
        shown = shown_document(pair, row, self.tokenizer, first=first, count=count)
        spans = tuple(replace(span, source=named.name, document=document) for span in shown.spans)
        return replace(shown, heading=f"document {document:,} of {named.name}", spans=spans)

    def no_samples(self) -> ConfigError:
        message = f"the {self.kind} `{self.name}` has no samples"
        return ConfigError(message, hint="name a pair, or the run.toml of a run")

    def sample(self, position: int) -> Shown:
        """Returns the sample at a position, see `shown_sample`."""
        if self.samples is None:
            raise self.no_samples()
        return shown_sample(self.samples, position, self.tokenizer, pairs=self.pairs, run=self.run)


def open_target(
    words: Sequence[str],
    *,
    tokenizer: str | None = None,
    settings: SampleSettings | None = None,
    object_storage: ObjectStorageSettings | None = None,
) -> Target:
    """Returns the target of some words; reads indices, locks and manifests, and no tokens.

    Args:
        words: a prefix, a catalogue, a `run.toml`, the folder of a job or the prefix of its output, a folder or glob of
            pairs, a file with a blend; or several prefixes, or weights and prefixes by turns.
        tokenizer: as for `load_tokenizer`; None for that of the run, or of the first manifest.
        settings: settings of samples of a pair.
        object_storage: settings of object storage.
    """
    if not words:
        raise ConfigError("no target given", hint="name a prefix, a run.toml, or the folder of a job")
    settings = SampleSettings() if settings is None else settings
    word = words[0]
    if len(words) == 1 and word.endswith(".toml"):
        return _of_run(word, tokenizer, settings, object_storage)
    if len(words) == 1 and (folder := _job_folder(word)) is not None:
        loaded = None if tokenizer is None else load_tokenizer(tokenizer)
        return Target(kind=TargetKind.job, name=word, folder=folder, tokenizer=loaded, settings=settings)
    return _of_data(words, tokenizer, settings, object_storage)


def _of_run(
    path: str, tokenizer: str | None, settings: SampleSettings, object_storage: ObjectStorageSettings | None
) -> Target:
    recover(lock_path(path))
    if os.path.exists(path) and not os.path.exists(lock_path(path)):
        raise ConfigError(f"the run `{path}` is not locked", hint=f"lock it: tokenloom run lock {path}")
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    run = Run.open(path, tokenizer=loaded, object_storage=object_storage)
    notes: list[str] = []
    if loaded is None and run.lock.tokenizer is not None:
        try:
            loaded = run.tokenizer.loaded
        except TokenizerError as error:
            notes.append(f"the tokenizer of the run cannot be used: {error.message}")
    if loaded is None and run.lock.tokenizer is None:
        notes.append("the run names no tokenizer: ids are shown")
    sources = [
        TargetSource(
            number=number,
            name=source.name,
            prefixes=tuple(pair.prefix for pair in source.pairs),
            num_documents=sum(pair.num_documents for pair in source.pairs),
            num_tokens=sum(pair.num_tokens for pair in source.pairs),
        )
        for number, source in enumerate(run.lock.sources)
    ]
    scratch = None
    if run.lock.is_megatron:  # its index is built, and would be kept beside the data
        notes.append("the order of this run is the reference's: its index is built anew to look at it")
        scratch = tempfile.mkdtemp(prefix="tokenloom-")
        run = Run.open(path, tokenizer=loaded, object_storage=object_storage, path_to_cache=scratch)
    return Target(
        kind=TargetKind.run,
        name=path,
        sources=tuple(sources),
        tokenizer=loaded,
        run=run,
        settings=settings,
        notes=tuple(notes),
        object_storage=object_storage,
        scratch=scratch,
    )


def _of_data(
    words: Sequence[str], tokenizer: str | None, settings: SampleSettings, object_storage: ObjectStorageSettings | None
) -> Target:
    prefixes, weights = _blend_of(words)
    prefixes = [prefix_of(prefix) for prefix in prefixes]
    if len(prefixes) > 1 or weights is not None:
        kind = TargetKind.blend
    elif exists(catalogue_path(prefixes[0]), settings=object_storage):
        kind = TargetKind.catalogue
    else:
        kind = TargetKind.pair
    pairs = OpenPairs(object_storage=object_storage)
    sources = []
    for number, prefix in enumerate(prefixes):
        data = pairs.get(prefix).data
        sources.append(
            TargetSource(
                number=number,
                name=prefix,
                prefixes=(prefix,),
                num_documents=data.num_documents,
                num_tokens=data.num_tokens,
                weight=None if weights is None else weights[number],
            )
        )
    notes: tuple[str, ...] = ()
    try:
        loaded = tokenizer_of_data(tokenizer, prefixes, object_storage)
    except TokenizerError as error:
        if tokenizer is not None:
            raise
        loaded, notes = None, (f"{error.message}: ids are shown",)
    target = Target(
        kind=kind,
        name=prefixes[0] if kind is not TargetKind.blend else " ".join(words),
        sources=tuple(sources),
        tokenizer=loaded,
        blend=(prefixes, weights),
        settings=settings,
        notes=notes,
        object_storage=object_storage,
    )
    target.__dict__["pairs"] = pairs  # which are open already
    return target


class _InMemory(GPTDataset):
    """Samples whose index arrays are neither read from the cache nor written to it: looking leaves no trace."""

    def _array_store(self, origin: DataOrigin, *, base: str | None = None) -> ArrayStore:
        return replace(super()._array_store(origin, base=base), cache=None, must_exist=False, deferred=False)


def _windows(target: Target) -> GPTDataset:
    settings = target.settings
    data = target.pairs.get(target.name).data
    tokenizer: Any = RunTokenizer(None, None) if target.tokenizer is None else target.tokenizer
    config = GPTDatasetConfig(
        random_seed=settings.seed,
        sequence_length=settings.sequence_length,
        blend=([target.name], None),
        split="1,0,0",
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        window_policy=settings.window_policy,
        object_storage=target.object_storage,
        allow_tokenizer_mismatch=True,  # whoever names another tokenizer wants to see what it makes of the data
    )
    return _InMemory(data, target.name, split_indices((0.0, 1.0), len(data)), None, Split.train, config)


def _job_folder(word: str) -> str | None:
    """Returns the folder of the job of a word, its folder or the prefix of its output, or None."""
    for folder in (word.rstrip("/"), f"{word}.job"):
        if not is_remote(word) and os.path.isfile(os.path.join(folder, JOB)):
            is_output_there = folder != word.rstrip("/") and os.path.exists(idx_path(word))
            return None if is_output_there else folder
    return None


def _blend_of(words: Sequence[str]) -> Blend:
    word = words[0]
    if len(words) > 1 or not os.path.isfile(word) or word.endswith((".bin", ".idx")):
        try:
            return parse_blend(list(words))["blend"]
        except DatasetNotFoundError as error:
            if len(words) > 1 or is_remote(word) or any(map(os.path.exists, (idx_path(word), bin_path(word)))):
                raise
            hint = did_you_mean(word, suffix=".idx") or _WHAT_IS_NAMED
            raise DatasetNotFoundError(f"nothing to look at under `{word}`", hint=hint) from error
    if word.endswith(".lock"):
        raise ConfigError(f"`{word}` is the lock of a run", hint="name the run.toml beside it")
    try:
        return parse_blend(args_file=word)["blend"]
    except ConfigError as error:
        hint = f"{_WHAT_IS_NAMED}; tokenize raw input with `tokenloom preprocess` first"
        raise ConfigError(f"`{word}` is no blend: prefixes, or weights and prefixes by turns", hint=hint) from error


@dataclass(frozen=True, kw_only=True)
class TargetOptions(SampleOptions):
    """Targets, and settings of samples.

    Attributes:
        targets: a prefix, several or weights and prefixes, a catalogue, a run.toml, or the folder of a job.
        tokenizer: tokenizer (default: what made the data).
    """

    targets: Annotated[tuple[str, ...], Written(metavar="TARGET", is_positional=True)]
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None

    def open(self) -> Target:
        settings = SampleSettings(**arguments_of(self, SampleSettings))
        return open_target(self.targets, tokenizer=self.tokenizer, settings=settings)
