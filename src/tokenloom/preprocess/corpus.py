"""Preprocesses text: the text under each key of a record becomes a document in the dataset of that key."""

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
from tokenloom.preprocess.blocks import BlockTokenizer, Column, DocumentTokens, bisect_failures, group_blocks, singles
from tokenloom.preprocess.job import CorpusSummary, JobArguments, run_job
from tokenloom.preprocess.job_plan import BlockPipeline, JobPlan, Mask, PlannedDataset, Recipe, plan_job
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
"""Maximum number of threads per process: the thread that reads and writes needs a sixth of the time of each worker."""


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

    def pipeline(self, first: InputSlice, *, num_workers: int) -> BlockPipeline:
        texts: list[str] = []
        if not first.file.is_stream:  # a pipe can be read only once; each of its blocks is checked later
            with closing(self.open(first, block_bytes=_SAMPLE_BYTES)) as reader:
                block = next(iter(reader.blocks()), None)
            columns = [] if block is None else parse_block(block, self.settings.keys).columns
            texts = [text for column in columns for text in column.texts]  # the job itself reports bad records
        choice = choose_engine(self.settings.engine, self.tokenizer, texts)
        block_bytes = self.settings.block_bytes or choice.block_bytes
        return BlockPipeline(
            engine=choice.recorded,
            engine_reason=choice.reason,
            open=partial(self.open, block_bytes=block_bytes),
            bundles=partial(group_blocks, num_bytes=block_bytes),
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
    """Returns the plan of a text job; reads only names, sizes and footers of the inputs."""
    found = find_inputs([os.fspath(name) for name in names], input_format=settings.input_format)
    target = checked_path("output_prefix", prefix)
    target = target.rstrip(os.sep) if settings.one_pair_per_file else target  # a folder
    target = admit(checked_output_prefix("output_prefix", target))
    added = DocumentTokens.of(tokenizer, prepend_bos=settings.prepend_bos, append_eod=settings.append_eod)
    # A user's tokenizer in pure Python scales with processes only; the processes must be able to import its class.
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
    """Returns a dataset name per file: the file name without the suffixes of format and compression."""
    owners: dict[str, str] = {}
    for file in files:
        name = "stdin" if file.path == STDIN else PurePath(split_suffix(file.path)[0]).name
        name = PurePath(name).stem if formats_by_name(name) else name
        if name in owners:
            message = f"`{owners[name]}` and `{file.path}` would both be written to `{name}`"
            raise ConfigError(message, hint="rename one of the files, or preprocess their folders separately")
        owners[name] = file.path
    return list(owners)


def _check_names(datasets: Iterable[PlannedDataset]) -> None:
    owners: dict[str, PlannedDataset] = {}
    for dataset in datasets:
        owner = owners.setdefault(dataset.prefix, dataset)
        if owner is not dataset:
            also = " of ".join(repr(name) for name in (owner.key, owner.split) if name is not None)
            message = f"the datasets of {dataset.key!r} and of {also} would both be written to `{dataset.prefix}`"
            raise ConfigError(message, hint="choose other names for the splits, or preprocess the keys separately")


def preprocess_corpus(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer | str | os.PathLike[str] | Any,
    settings: CorpusSettings | None = None,
    **how: Unpack[JobArguments],
) -> CorpusSummary:
    """Tokenizes a corpus: for each key, writes `PREFIX_KEY_document.bin` and `.idx` with a manifest.

    Cuts the input into shards; the cuts depend only on the inputs and `shard_bytes`. Tokenizes each shard into a part
    in the folder `PREFIX.job`. At the end, assembles all parts into the datasets, publishes them atomically and removes
    the folder. A repeated call after an interrupt or kill does only the missing shards. Calls on several machines that
    share the folder divide the shards among themselves. Documents keep their order. The bytes of the datasets do not
    depend on the number of processes and threads, `shard_bytes`, `block_bytes`, the engine or the runner.

    Memory: about 120 MB per process and 60 MB per thread, and more for texts in which few words repeat; a long record
    (see `max_record_bytes`) takes up to 250 times its size. Memory does not depend on the size of the input.

    Args:
        inputs: files, folders, globs, addresses, `@list` or `-`; see `find_inputs`.
        output_prefix: prefix of the outputs, or their folder with `one_pair_per_file`. Missing folders are created.
        tokenizer: tokenizer, or an argument of `load_tokenizer`.
        settings: see `CorpusSettings`.
        num_processes: number of processes on this machine. The default is one per eight processors, or one per
            processor for pure Python: sentence splitting, or your own importable class with an `encode_texts` method.
        num_workers: threads per process; None to use all processors.
        runner: an object that runs the shards elsewhere, such as a `RayRunner`.
        work_folder: folder in which to create the job's folder, instead of `PREFIX.job` beside the output.
        restart: discard the finished shards of an unfinished earlier call.
        overwrite: replace existing datasets of other jobs; the old datasets stay intact until the job is complete.
        progress: function to call often with a `JobProgress`, from the calling thread.

    Raises:
        ConfigError: a setting is wrong, or the job's folder belongs to an unfinished job with other settings or inputs.
        OutputExistsError: other datasets with these names exist, and `overwrite` is False.
        OutputBusyError: another process is writing one of the datasets.
        InputError: the input is bad, has no documents, or changed during the job.
        TokenizerError: the tokenizer has no `bos` or `eod` to add, or does not support the engine.
        WorkerError: worker processes died repeatedly.
        StorageError: reading or writing failed.
    """
    names = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    names = checked_paths("inputs", names, example='such as "corpus.jsonl" or ["crawl/", "books.jsonl"]')
    if settings is not None and not isinstance(settings, CorpusSettings):
        hint = "pass an object such as `CorpusSettings(append_eod=True)`"
        raise ConfigError(f"`settings`: must be `CorpusSettings`, got {settings!r}", hint=hint)
    plan = plan_corpus(names, output_prefix, load_tokenizer(tokenizer), settings or CorpusSettings())
    return run_job(plan, **how)


# --- preview ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPreview:
    """A document as `preprocess_corpus` would store it.

    Attributes:
        path: path of the input file.
        key: key of the text in the record.
        text: text decoded from the ids, including special tokens; sequences are concatenated.
        first_ids, last_ids: the first and the last ids, at most eight each.
        num_tokens: number of tokens, including added tokens.
        num_sequences: number of nonempty sequences.
        num_text_bytes: size of the input text in UTF-8 bytes.
        is_doubled: whether the text already begins or ends with an added token, which the document then has twice.
        is_exact: whether the ids decode to the input text; False if the tokenizer normalizes or lacks characters.
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
    """A preview of a job: its first documents, and counts of its files and shards.

    Attributes:
        documents: the first documents for each key, in order.
        bad_lines: bad records that precede the last of these documents.
        num_files, num_ignored: number of input files, and number of other files in the input folders.
        num_bytes: size of the input files in bytes, before decompression.
        num_shards: number of shards.
        dtype: dtype of the tokens.
        engine, engine_reason: name of the tokenization engine, and the reason for the choice.
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
    """Returns the first `count` documents of each key as `preprocess_corpus` would store them; writes nothing.

    Has the arguments and errors of `preprocess_corpus`, but returns bad records instead of raising errors for them.
    """
    plan = plan_corpus(inputs, output_prefix, tokenizer, settings)
    pipeline = plan.recipe.pipeline(plan.shards[0].slices[0], num_workers=1)
    documents: list[DocumentPreview] = []
    bad_lines: list[BadLine] = []
    for record in _records(plan):
        if len(documents) >= count * len(settings.keys):
            break
        [result] = bisect_failures(pipeline.work, [record])
        bad_lines += result.bad_lines
        if result.num_documents:
            columns = zip(settings.keys, parse_block(record, settings.keys).columns, result.columns, strict=True)
            documents += [_preview(plan.recipe, record, key, [*texts.texts], column) for key, texts, column in columns]
    return CorpusPreview(
        documents=tuple(documents),
        bad_lines=tuple(bad_lines),
        num_files=len(plan.files),
        num_ignored=len(plan.ignored),
        num_bytes=sum(file.num_bytes for file in plan.files),
        num_shards=len(plan.shards),
        dtype=plan.recipe.dtype.name,
        engine=pipeline.engine,
        engine_reason=pipeline.engine_reason,
    )


def _records(plan: JobPlan) -> Iterator[Block]:
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
