"""A corpus into datasets, from the first look at the inputs to the last file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from tokenloom.corpus.job import run_job
from tokenloom.corpus.progress import CorpusProgress
from tokenloom.corpus.settings import CorpusSettings
from tokenloom.corpus.summary import CorpusSummary
from tokenloom.corpus.text import plan_corpus
from tokenloom.errors import ConfigError
from tokenloom.jobs.running import Runner
from tokenloom.setting_types import checked_paths
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer


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
    progress: Callable[[CorpusProgress], None] | None = None,
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
    ).summary
