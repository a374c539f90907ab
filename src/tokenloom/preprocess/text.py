"""The recipe for text: a text under each key of a record becomes a document of the dataset of that key."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.inputs import STDIN, InputFile, InputSlice
from tokenloom.inputs.find import find_inputs, formats_by_name, split_suffix
from tokenloom.inputs.records import parse_block
from tokenloom.overrides import overrides
from tokenloom.preprocess.blocks import (
    BlockTokenizer,
    DocumentTokens,
    SentenceSplitter,
    TemplateTokens,
    bundled,
)
from tokenloom.preprocess.job import run_job
from tokenloom.preprocess.plan import JobPlan, plan_job
from tokenloom.preprocess.recipe import Making, Mask, PlannedDataset, Recipe
from tokenloom.preprocess.selection import DocumentHashes, first_occurrences, split_of
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.sharded import JobProgress, Runner
from tokenloom.preprocess.summary import CorpusSummary
from tokenloom.setting_types import checked_output_prefix, checked_path, checked_paths
from tokenloom.storage.secrets import admit
from tokenloom.tokenizers.engines import EngineChoice, choose_engine
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_SAMPLE_BYTES = 512 << 10

_MOST_THREADS = 8
"""Threads that one process feeds: the thread that reads and writes for them needs about a sixth of the time of each."""

_MOST_NAME_BYTES = 200
"""Longest name of a dataset without suffixes: filesystems take 255 bytes, and files being written need some 40."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRecipe(Recipe):
    """The recipe for text; see `Recipe`.

    Attributes:
        settings: settings of the user's.
    """

    settings: CorpusSettings

    @property
    def splitter(self) -> SentenceSplitter | None:
        """What cuts texts into sentences; None if nothing does."""
        return SentenceSplitter(keep_newlines=self.settings.keep_newlines) if self.settings.split_sentences else None

    @property
    def template_tokens(self) -> TemplateTokens:
        """What is put around each text."""
        return TemplateTokens.of(self.tokenizer) if self.settings.template_tokens else TemplateTokens()

    def of_shards(self) -> dict[str, Any]:
        """Returns what decides what a shard holds."""
        return self.settings.of_shards()

    def options(self, key: str, split: str | None) -> dict[str, Any]:
        """Returns what the manifest of a dataset says of how it was made."""
        return self.settings.of_datasets() | {"key": key, "split": split}

    def outputs(
        self, prefix: str, files: Sequence[InputFile]
    ) -> Iterator[tuple[str, Sequence[InputFile], tuple[PlannedDataset, ...]]]:
        """Yields one output, or one for each file, with a dataset for each split and key."""
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
                names = [prefix, *([] if split is None else [split])]
                if not self.settings.exact_prefix:
                    names += [key.replace("/", "_"), self.settings.level]
                name = "_".join(names)
                yield PlannedDataset(prefix=name, key=key, column=column, split=split, split_number=split_number)

    def choose_engine(self, first: InputSlice) -> EngineChoice:
        """Returns the engine, checked on the beginning of the corpus: the same in every process.

        Of what can be read once only nothing is looked at first; every block is checked as it comes, anyhow.
        """
        texts: list[str] = []
        if not first.file.is_stream:
            reader = self.open(first, block_bytes=_SAMPLE_BYTES)
            with closing(reader):
                block = next(iter(reader.blocks()), None)
            columns = [] if block is None else parse_block(block, self.settings.keys).columns
            texts = [text for column in columns for text in column.texts]  # bad records are left to the run itself
        return choose_engine(self.settings.engine, self.tokenizer, texts)

    def making(self, first: InputSlice, *, num_workers: int) -> Making:
        """Returns what one process works with."""
        choice = self.choose_engine(first)
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
        """Returns which documents of each part are the first of their texts, and the split of each."""
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
    """Returns the plan of a job for text; reads no more of the inputs than their names, sizes and footers.

    Raises:
        ConfigError: a setting is wrong, or two files would have one output.
        InputError: there is nothing to read, or a file is not what its name says.
        MissingTokenError: the tokenizer has no `bos` or `eod` to add.
        StorageError: an input cannot be found or read.
    """
    found = find_inputs([os.fspath(name) for name in names], input_format=settings.input_format)
    if settings.one_pair_per_file:
        target = admit(checked_path("output_prefix", prefix))
    else:
        target = admit(checked_output_prefix("output_prefix", prefix))
    added = DocumentTokens.of(tokenizer, prepend_bos=settings.prepend_bos, append_eod=settings.append_eod)
    # For work in pure Python, as a user's own tokenizing may be, processes that can import its class.
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
    """Returns a name for the datasets of each file: that of the file, without what tells format and compression."""
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
    """Refuses names that could not be written in the end, or twice."""
    owners: dict[str, PlannedDataset] = {}
    for dataset in datasets:
        owner = owners.setdefault(dataset.prefix, dataset)
        if owner is not dataset:
            also = " of ".join(f"{name!r}" for name in (owner.key, owner.split) if name is not None)
            message = f"the datasets of {dataset.key!r} and of {also} would both be written as `{dataset.prefix}`"
            raise ConfigError(message, hint="choose other names for splits, or make them one by one")
        name = os.path.basename(dataset.prefix)
        if len(os.fsencode(name)) > _MOST_NAME_BYTES:
            message = f"expected names of at most {_MOST_NAME_BYTES} bytes, got {name!r}"
            raise ConfigError(message, hint="choose a shorter output prefix")


def preprocess_corpus(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer | str | os.PathLike[str] | Any,
    settings: CorpusSettings | None = None,
    *,
    num_processes: int | None = None,
    num_workers: int | None = None,
    runner: Runner | None = None,
    work_folder: str | os.PathLike[str] | None = None,
    restart: bool = False,
    overwrite: bool = False,
    progress: Callable[[JobProgress], None] | None = None,
) -> CorpusSummary:
    """Tokenizes a corpus into `PREFIX_KEY_document.bin` and `.idx`, and a manifest beside them, for each key.

    The input is cut into shards, a function of the inputs and `shard_bytes` alone. Each is tokenized into a part in
    `PREFIX.job` that appears whole; in the end the parts become the datasets, all at once, and the folder goes. The
    same call again, after whatever ended an earlier one, does what is missing only; on several machines that share the
    folder, all take part. The order of the documents is kept, and the bytes depend on neither the number of
    processes and threads, nor on `shard_bytes`, `block_bytes`, the engine or the runner.

    Memory: some 120 MB per process and 60 MB per thread, more for text in which nearly all words are new; whatever the
    size of the input, and up to 250 times the longest record: see `max_record_bytes`.

    Args:
        inputs: files, folders, patterns, addresses, `@list` or `-`, see `find_inputs`.
        output_prefix: prefix of the outputs; their folder must exist. With `one_pair_per_file` it is the folder, which
            is made.
        tokenizer: tokenizer from `load_tokenizer`, or what that takes.
        settings: see `CorpusSettings`.
        num_processes: number of processes on this machine; None for one per eight threads, or one per thread for pure
            Python: cutting sentences, or an `encode_texts` of your own, of a class that can be imported.
        num_workers: threads of each process; None to use all processors.
        runner: does the shards in another way, such as `RayRunner`.
        work_folder: where the parts lie instead of `PREFIX.job`; needed for outputs in object storage.
        restart: give up what an earlier call did and did not finish, and begin anew.
        overwrite: replace datasets that are there and were not made by this very job; they stay whole until the new
            ones are complete.
        progress: called often, from the calling thread.

    Raises:
        ConfigError: a setting is wrong, or an unfinished job with other settings or inputs is in the folder.
        OutputExistsError: there are other datasets under these names, and no `overwrite`.
        OutputBusyError: another process writes one of them.
        InputError: the input is bad, has no documents, or changed meanwhile.
        TokenizerError: there is no `bos` or `eod` to add, or the engine asked for cannot be used.
        WorkerError: processes keep dying.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    names = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    names = checked_paths("inputs", names, example='such as "corpus.jsonl" or ["crawl/", "books.jsonl"]')
    if settings is not None and not isinstance(settings, CorpusSettings):
        message = f"expected `CorpusSettings` as `settings`, found {settings!r}"
        raise ConfigError(message, hint="such as `CorpusSettings(append_eod=True)`")
    plan = plan_corpus(names, output_prefix, load_tokenizer(tokenizer), settings or CorpusSettings())
    return run_job(
        plan,
        num_processes=num_processes,
        num_workers=num_workers,
        runner=runner,
        work_folder=work_folder,
        restart=restart,
        overwrite=overwrite,
        progress=progress,
        started=started,
    )
