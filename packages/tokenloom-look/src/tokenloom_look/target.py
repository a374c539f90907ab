"""Opens the target of a report or explorer: a pair, blend, catalogue, run or job."""

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
from tokenloom.order.array_store import ArrayStore, DataOrigin
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

_TARGETS_HINT = (
    "pass a prefix (the path of a pair without `.bin` or `.idx`), a catalogue, a run.toml, the folder of a job, or a "
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
    """A source of a run, or the pair or catalogue at one prefix. Document indices start at 0 in each source."""

    number: int  # index in the target
    name: str  # name of the source in a run, otherwise the prefix
    prefixes: tuple[str, ...]  # of the pairs of the source; a document index counts over all these pairs
    num_documents: int
    num_tokens: int
    weight: float | None = None  # in a blend


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """Settings for samples of a pair, with the defaults of `tokenloom show`."""

    sequence_length: int = 2048
    seed: int = 1234
    window_policy: str = "concat"


@dataclass(frozen=True, kw_only=True)  # without slots, for cached properties
class Target:
    """A pair, blend, catalogue, run or job, opened lazily and read-only. Thread-safe."""

    kind: TargetKind
    name: str  # as given by the user
    sources: tuple[TargetSource, ...] = ()  # empty for a job
    tokenizer: Any = None  # decodes tokens; None to show ids
    run: Run | None = None
    blend: tuple[list[str], list[float] | None] | None = None  # prefixes and weights; a pair has one prefix
    folder: str | None = None  # of a job
    settings: SampleSettings = field(default_factory=SampleSettings)
    notes: tuple[str, ...] = ()  # sentences about missing parts, such as the tokenizer
    object_storage: ObjectStorageSettings | None = None
    scratch: str | None = None  # temporary folder for the index of a run in Megatron's order

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
        """Returns the samples of a run, or of a pair or catalogue without images; None for other targets."""
        if self.run is not None:
            return self.run.dataset()
        if self.kind not in (TargetKind.pair, TargetKind.catalogue) or self.pairs.get(self.name).data.multimodal:
            return None
        return _windows(self)

    @property
    def num_positions(self) -> int | None:
        """Returns the number of samples; None for a run without end, or if `samples` is None."""
        if self.run is not None:
            return self.run.num_samples
        return None if self.samples is None else len(self.samples)

    def named(self, pair: int, document: int) -> tuple[int, int]:
        """Converts (pair index, document index in the pair) to (source index, document index in the source).

        The document index in the source counts over all pairs of the source. A run counts sequences instead of
        documents, so empty documents do not count.
        """
        rows = self.pair_rows
        if self.run is not None:
            document = int(self.pairs.get(rows.prefixes[pair]).data.document_indices[document])
        return rows.source_of(pair), int(rows.first_documents[pair]) + document

    def document(self, source: int, document: int, *, first: int = 0, count: int | None = None) -> Shown:
        """Decodes tokens of a document, given the document's index in the source; see `shown_document`."""
        if not 0 <= source < len(self.sources):
            raise IndexError(f"source {source} out of range: the target has {len(self.sources)} sources")
        named = self.sources[source]
        if not 0 <= document < named.num_documents:
            raise IndexError(f"document {document} out of range: {named.name} has {named.num_documents:,} documents")
        numbers, rows = self.pair_rows.locate(np.array([source], np.int32), np.array([document], np.int64))
        pair = self.pairs.get(self.pair_rows.prefixes[int(numbers[0])])
        row = int(rows[0]) if self.run is None else pair.document_of(int(rows[0]))  # runs count sequences
        shown = shown_document(pair, row, self.tokenizer, first=first, count=count)
        spans = tuple(replace(span, source=named.name, document=document) for span in shown.spans)
        return replace(shown, heading=f"document {document:,} of {named.name}", spans=spans)

    def no_samples(self) -> ConfigError:
        message = f"the {self.kind} `{self.name}` has no samples"
        return ConfigError(message, hint="pass a pair, or the run.toml of a run")

    def sample(self, position: int) -> Shown:
        """Decodes the sample at a position; see `shown_sample`."""
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
    """Opens the target that `words` of a command line specify; reads indices, locks and manifests, but no tokens.

    Args:
        words: a prefix, a catalogue, a `run.toml`, the folder or output prefix of a job, a folder or glob of pairs,
            or a file with a blend; or several prefixes, or alternating weights and prefixes.
        tokenizer: argument of `load_tokenizer`; None for the tokenizer that the run or the first manifest names.
        settings: settings for samples of a pair.
        object_storage: settings of object storage.
    """
    if not words:
        raise ConfigError("no target given", hint="pass a prefix, a run.toml, or the folder of a job")
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
            notes.append(f"the tokenizer of the run cannot be loaded: {error.message}")
    if loaded is None and run.lock.tokenizer is None:
        notes.append("the run has no tokenizer: tokens are shown as ids")
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
    if run.lock.is_megatron:  # with a temporary folder, no index cache is written beside the data
        notes.append("this run uses Megatron's order: its index is rebuilt in a temporary folder")
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
        loaded, notes = None, (f"{error.message}: tokens are shown as ids",)
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
    target.__dict__["pairs"] = pairs  # already open
    return target


class _InMemory(GPTDataset):
    """A GPT dataset that neither reads nor writes the index cache: viewing data must not leave files behind."""

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
        allow_tokenizer_mismatch=True,  # the user may view data with another tokenizer
    )
    return _InMemory(data, target.name, split_indices((0.0, 1.0), len(data)), None, Split.train, config)


def _job_folder(word: str) -> str | None:
    """Returns the folder of an unfinished job, given the folder or the output prefix of the job; else None."""
    for folder in (word.rstrip("/"), f"{word}.job"):
        if not is_remote(word) and os.path.isfile(os.path.join(folder, JOB)):
            is_done = folder != word.rstrip("/") and os.path.exists(idx_path(word))
            return None if is_done else folder
    return None


def _blend_of(words: Sequence[str]) -> Blend:
    word = words[0]
    if len(words) > 1 or not os.path.isfile(word) or word.endswith((".bin", ".idx")):
        try:
            return parse_blend(list(words))["blend"]
        except DatasetNotFoundError as error:
            if len(words) > 1 or is_remote(word) or any(map(os.path.exists, (idx_path(word), bin_path(word)))):
                raise
            hint = did_you_mean(word, suffix=".idx") or _TARGETS_HINT
            raise DatasetNotFoundError(f"no dataset, run or job at `{word}`", hint=hint) from error
    if word.endswith(".lock"):
        raise ConfigError(f"`{word}` is the lock of a run", hint="pass the run.toml in the same folder")
    try:
        return parse_blend(args_file=word)["blend"]
    except ConfigError as error:
        hint = f"{_TARGETS_HINT}; tokenize raw input with `tokenloom preprocess` first"
        message = f"`{word}` is not a blend: expected prefixes, or alternating weights and prefixes"
        raise ConfigError(message, hint=hint) from error


@dataclass(frozen=True, kw_only=True)
class TargetOptions(SampleOptions):
    """Options for the target and its samples.

    Attributes:
        targets: prefixes, alternating weights and prefixes, a catalogue, a run.toml, or the folder of a job.
        tokenizer: tokenizer to decode tokens with (default: the tokenizer of the data).
    """

    targets: Annotated[tuple[str, ...], Written(metavar="TARGET", is_positional=True)]
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None

    def open(self) -> Target:
        settings = SampleSettings(**arguments_of(self, SampleSettings))
        return open_target(self.targets, tokenizer=self.tokenizer, settings=settings)
