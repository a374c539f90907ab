"""The recipe for text: a text under each key of a record becomes a document of the dataset of that key."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.inputs import STDIN, InputFile, InputSlice
from tokenloom.inputs.find import find_inputs, formats_by_name, split_suffix
from tokenloom.inputs.records import BadLine, Block, parse_block
from tokenloom.overrides import overrides
from tokenloom.preprocess.blocks import (
    BlockTokenizer,
    Column,
    DocumentTokens,
    bundled,
    isolated,
    singles,
)
from tokenloom.preprocess.job import CorpusSummary, JobArguments, run_job
from tokenloom.preprocess.plan import JobPlan, Making, Mask, PlannedDataset, Recipe, plan_job
from tokenloom.preprocess.selection import DocumentHashes, first_occurrences, split_of
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.setting_types import checked_output_prefix, checked_path, checked_paths
from tokenloom.storage.secrets import admit
from tokenloom.tokenizers.engines import choose_engine
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_SAMPLE_BYTES = 512 << 10
_PREVIEW_BLOCK_BYTES = 64 << 10
_SHOWN_IDS = 8

_MOST_THREADS = 8
"""Threads that one process feeds: the thread that reads and writes for them needs about a sixth of the time of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRecipe(Recipe):
    """The recipe for text; see `Recipe`."""

    settings: CorpusSettings

    def of_shards(self) -> dict[str, Any]:
        return self.settings.of_shards()

    def options(self, key: str, split: str | None) -> dict[str, Any]:
        return self.settings.of_datasets() | {"key": key, "split": split}

    def outputs(
        self, prefix: str, files: Sequence[InputFile]
    ) -> Iterator[tuple[str, Sequence[InputFile], tuple[PlannedDataset, ...]]]:
        if not self.settings.one_pair_per_file:
            yield prefix, files, tuple(self._datasets(prefix))
            return
        for name, file in zip(_names_of_own(files), files, strict=True):
            own_prefix = os.path.join(prefix, name)
            yield own_prefix, [file], tuple(self._datasets(own_prefix))

    def _datasets(self, prefix: str) -> Iterator[PlannedDataset]:
        splits: list[tuple[int | None, str | None]] = list(enumerate(self.settings.shares)) or [(None, None)]
        for split_number, split in splits:
            for column, key in enumerate(self.settings.keys):
                names = [prefix] if split is None else [prefix, split]
                if not self.settings.exact_prefix:
                    names += [key.replace("/", "_"), "sentence" if self.settings.split_sentences else "document"]
                name = "_".join(names)
                yield PlannedDataset(prefix=name, key=key, column=column, split=split, split_number=split_number)

    def making(self, first: InputSlice, *, num_workers: int) -> Making:
        texts: list[str] = []
        if not first.file.is_stream:  # a stream is read once; every block is checked as it comes, anyhow
            with closing(self.open(first, block_bytes=_SAMPLE_BYTES)) as reader:
                block = next(iter(reader.blocks()), None)
            columns = [] if block is None else parse_block(block, self.settings.keys).columns
            texts = [text for column in columns for text in column.texts]  # the run itself reports bad records
        choice = choose_engine(self.settings.engine, self.tokenizer, texts)
        block_bytes = self.settings.block_bytes or choice.block_bytes
        return Making(
            engine=choice.recorded,
            engine_reason=choice.reason,
            open=partial(self.open, block_bytes=block_bytes),
            bundles=partial(bundled, num_bytes=block_bytes),
            work=BlockTokenizer(self, choice, num_workers=num_workers),
        )

    def select(
        self, hashes: Sequence[DocumentHashes]
    ) -> tuple[Sequence[Mask | None], Sequence[NDArray[np.int8] | None]]:
        shares = tuple(self.settings.shares.values())
        none = [None] * len(hashes)
        kept = first_occurrences(hashes) if self.settings.drop_duplicates else none
        splits = [split_of(each, seed=self.settings.split_seed, shares=shares) for each in hashes] if shares else none
        return kept, splits


def plan_corpus(
    names: Sequence[str | os.PathLike[str]],
    prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer,
    settings: CorpusSettings,
) -> JobPlan:
    """Returns the plan of a job for text; reads no more of the inputs than their names, sizes and footers."""
    found = find_inputs([os.fspath(name) for name in names], input_format=settings.input_format)
    target = checked_path("output_prefix", prefix)
    target = target.rstrip(os.sep) if settings.one_pair_per_file else target  # there it is a folder
    target = admit(checked_output_prefix("output_prefix", target))
    added = DocumentTokens.of(tokenizer, prepend_bos=settings.prepend_bos, append_eod=settings.append_eod)
    # Pure Python, such as a user's own tokenizer may be, needs processes, which must be able to import its class.
    is_python = overrides(tokenizer, "encode_texts") and type(tokenizer).__module__ != "__main__"
    recipe = TextRecipe(
        settings=settings,
        tokenizer=tokenizer,
        document_tokens=added,
        hashes_documents=settings.hashes_documents,
        threads_per_process=1 if settings.split_sentences or is_python else _MOST_THREADS,
        keys=settings.keys,
    )
    plan = plan_job(recipe, target, found.files, ignored=found.ignored)
    _check_names([dataset for output in plan.outputs for dataset in output.datasets])
    return plan


def _names_of_own(files: Sequence[InputFile]) -> list[str]:
    """Returns a name for the datasets of each file: its own, without the suffixes of format and compression."""
    owners: dict[str, str] = {}
    for file in files:
        name = "stdin" if file.path == STDIN else PurePath(split_suffix(file.path)[0]).name
        name = PurePath(name).stem if formats_by_name(name) else name
        if name in owners:
            message = f"`{owners[name]}` and `{file.path}` would both be written as `{name}`"
            raise ConfigError(message, hint="rename one of them, or preprocess their folders one by one")
        owners[name] = file.path
    return list(owners)


def _check_names(datasets: Iterable[PlannedDataset]) -> None:
    owners: dict[str, PlannedDataset] = {}
    for dataset in datasets:
        owner = owners.setdefault(dataset.prefix, dataset)
        if owner is not dataset:
            also = " of ".join(repr(name) for name in (owner.key, owner.split) if name is not None)
            message = f"the datasets of {dataset.key!r} and of {also} would both be written as `{dataset.prefix}`"
            raise ConfigError(message, hint="choose other names for splits, or make them one by one")


def preprocess_corpus(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer | str | os.PathLike[str] | Any,
    settings: CorpusSettings | None = None,
    **how: Unpack[JobArguments],
) -> CorpusSummary:
    """Tokenizes a corpus into `PREFIX_KEY_document.bin` and `.idx`, and a manifest beside them, for each key.

    The input is cut into shards, a function of the inputs and `shard_bytes` alone. Each is tokenized into a part in
    `PREFIX.job`, which appears whole; in the end the parts become the datasets, all at once, and the folder is removed.
    The same call again, after an earlier one was interrupted or killed, does the missing shards only; on several
    machines that share the folder, all take part. Documents keep their order, and the bytes depend on neither the
    number of processes and threads, nor on `shard_bytes`, `block_bytes`, the engine or the runner.

    Memory: some 120 MB per process and 60 MB per thread, more for text in which nearly all words are new; up to 250
    times the longest record (see `max_record_bytes`), whatever the size of the input.

    Args:
        inputs: files, folders, patterns, addresses, `@list` or `-`, see `find_inputs`.
        output_prefix: prefix of the outputs; with `one_pair_per_file` their folder. Missing folders are made.
        tokenizer: tokenizer, or what `load_tokenizer` takes for one.
        settings: see `CorpusSettings`.
        num_processes: number of processes on this machine; None for one per eight threads, or one per thread for pure
            Python: splitting sentences, or an `encode_texts` of your own, of a class that can be imported.
        num_workers: threads of each process; None to use all processors.
        runner: runs the shards in another way, such as `RayRunner`.
        work_folder: folder of the parts instead of `PREFIX.job`.
        restart: discard the shards of an unfinished earlier call.
        overwrite: replace datasets that are there and were not made by this job; they stay whole until the new
            ones are complete.
        progress: called often, from the calling thread.

    Raises:
        ConfigError: a setting is wrong, or an unfinished job with other settings or inputs is in the folder.
        OutputExistsError: there are other datasets under these names, and no `overwrite`.
        OutputBusyError: another process writes one of them.
        InputError: the input is bad, has no documents, or changed meanwhile.
        TokenizerError: the tokenizer has no `bos` or `eod` to add, or cannot use the engine.
        WorkerError: processes keep dying.
        StorageError: reading or writing failed.
    """
    names = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    names = checked_paths("inputs", names, example='such as "corpus.jsonl" or ["crawl/", "books.jsonl"]')
    if settings is not None and not isinstance(settings, CorpusSettings):
        hint = "such as `CorpusSettings(append_eod=True)`"
        raise ConfigError(f"`settings`: must be `CorpusSettings`, got {settings!r}", hint=hint)
    plan = plan_corpus(names, output_prefix, load_tokenizer(tokenizer), settings or CorpusSettings())
    return run_job(plan, **how)


# --- what a job would do ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPreview:
    """A document as it will be stored.

    Attributes:
        path: path of its file.
        key: key of its text.
        text: text decoded from the ids, special tokens spelled out; of several sequences, one after the other.
        first_ids, last_ids: first and last ids, at most eight of each.
        num_tokens: number of tokens, added ones included.
        num_sequences: number of sequences that have tokens.
        num_text_bytes: size of the original in bytes, as UTF-8.
        is_doubled: whether it begins or ends with two of the added tokens, since its own text spells one out.
        is_exact: whether the ids spell the original text; else the tokenizer normalises, or lacks characters.
    """

    path: str
    key: str
    text: str
    first_ids: tuple[int, ...]
    last_ids: tuple[int, ...]
    num_tokens: int
    num_sequences: int
    num_text_bytes: int
    is_doubled: bool
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPreview:
    """The first documents and the plan of a job that was not run.

    Attributes:
        documents: the first documents under each key, in order.
        bad_lines: bad records among the first ones.
        num_files, num_ignored: input files that would be read, and other files in folders.
        num_bytes: size of the input in bytes, as it is.
        num_shards: shards it would be cut into.
        dtype: dtype of the tokens.
        engine, engine_reason: name of the engine, and why it was chosen.
    """

    documents: tuple[DocumentPreview, ...]
    bad_lines: tuple[BadLine, ...]
    num_files: int
    num_ignored: int
    num_bytes: int
    num_shards: int
    dtype: str
    engine: str
    engine_reason: str


def preview_corpus(
    inputs: Sequence[str | os.PathLike[str]],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer,
    settings: CorpusSettings,
    *,
    count: int = 5,
) -> CorpusPreview:
    """Returns the first `count` documents as `preprocess_corpus` would store them; writes nothing.

    Arguments and errors are those of `preprocess_corpus`, but bad records are listed.
    """
    plan = plan_corpus(inputs, output_prefix, tokenizer, settings)
    making = plan.recipe.making(plan.shards[0].slices[0], num_workers=1)
    documents: list[DocumentPreview] = []
    bad_lines: list[BadLine] = []
    for record in _records(plan):
        if len(documents) >= count * len(settings.keys):
            break
        [made] = isolated(making.work, [record])
        bad_lines += made.bad_lines
        if made.num_documents:
            columns = zip(settings.keys, parse_block(record, settings.keys).columns, made.columns, strict=True)
            documents += [_preview(plan.recipe, record, key, [*texts.texts], column) for key, texts, column in columns]
    return CorpusPreview(
        documents=tuple(documents),
        bad_lines=tuple(bad_lines),
        num_files=len(plan.files),
        num_ignored=len(plan.ignored),
        num_bytes=sum(file.num_bytes for file in plan.files),
        num_shards=len(plan.shards),
        dtype=plan.recipe.dtype.name,
        engine=making.engine,
        engine_reason=making.engine_reason,
    )


def _records(plan: JobPlan) -> Iterator[Block]:
    """Yields the records of the corpus, each as a block of its own."""
    for slice_ in (slice_ for shard in plan.shards for slice_ in shard.slices):
        with closing(plan.recipe.open(slice_, block_bytes=_PREVIEW_BLOCK_BYTES)) as reader:
            for block in reader.blocks():
                for single in singles([block]):
                    yield from single


def _preview(recipe: Recipe, record: Block, key: str, texts: list[str], column: Column) -> DocumentPreview:
    tokenizer, added, ids = recipe.tokenizer, recipe.document_tokens, column.tokens.tolist()
    rows = [row.tolist() for row in np.split(column.tokens, np.cumsum(column.lengths)[:-1])]
    return DocumentPreview(
        path=record.path,
        key=key,
        text="".join(map(tokenizer.detokenize, rows)),
        first_ids=tuple(ids[:_SHOWN_IDS]),
        last_ids=tuple(ids[-_SHOWN_IDS:]),
        num_tokens=len(ids),
        num_sequences=len(column.lengths),
        num_text_bytes=sum(len(text.encode()) for text in texts),
        is_doubled=len(ids) > 1 and (ids[:2] == [added.bos] * 2 or ids[-2:] == [added.eod] * 2),
        is_exact=all(tokenizer.detokenize(tokenizer.tokenize(text)) == text for text in texts),
    )
