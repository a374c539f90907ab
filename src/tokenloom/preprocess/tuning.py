"""How many processes and threads suit a corpus on this machine: measured on its beginning, not guessed."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate

from tokenloom.errors import ConfigError, InputError
from tokenloom.inputs.limits import LEAST_SHARD_BYTES
from tokenloom.machine import usable_processors
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.job import corpus_runner
from tokenloom.preprocess.plan import JobPlan
from tokenloom.preprocess.settings import BadRecordBudget, CorpusSettings
from tokenloom.preprocess.sharded import JobProgress
from tokenloom.preprocess.text import plan_corpus
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.copies import scratch_folder
from tokenloom.storage.publishing import make_folder_of
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_SHARDS_PER_PROCESSOR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTrial:
    """How fast some processes and threads were.

    Attributes:
        num_processes, num_workers: processes, and threads of each.
        bytes_per_second: text per second, from the first to the last block; starting is not counted.
        tokens_per_second: likewise.
    """

    num_processes: int
    num_workers: int
    bytes_per_second: float
    tokens_per_second: float


def find_optimal_workers(
    inputs: Sequence[str],
    output_prefix: str,
    tokenizer: TextTokenizer,
    settings: CorpusSettings,
    *,
    sample_bytes: int = 128 << 20,
    progress: Callable[[int, int], None] | None = None,
) -> list[WorkerTrial]:
    """Returns trials, the fastest first, of tokenizing the beginning of a corpus to the disk of the output.

    Args:
        inputs, output_prefix, tokenizer, settings: the same as for `preprocess_corpus`; nothing of the output is
            touched.
        sample_bytes: fewest bytes of the input files that each trial reads.
        progress: called with the number of trials done, and of all.

    Raises:
        ConfigError: the input is standard input, which can be read only once.
        InputError: the sample holds no text.
    """
    num_processors = usable_processors()
    shard_bytes = max(LEAST_SHARD_BYTES, sample_bytes // (_SHARDS_PER_PROCESSOR * num_processors))
    lenient = replace(settings, shard_bytes=shard_bytes, bad_records=BadRecordBudget(most=None))
    plan = plan_corpus(inputs, output_prefix, tokenizer, replace(lenient, one_pair_per_file=False))
    if plan.reads_streams:
        message = "expected inputs that can be read several times, got standard input"
        raise ConfigError(message)
    plan = _beginning(plan, sample_bytes)
    pairs = _pairs(num_processors)
    trials: list[WorkerTrial] = []
    for number, (num_processes, num_workers) in enumerate(pairs):
        if progress is not None:
            progress(number, len(pairs))
        trials.append(_try(plan, num_processes, num_workers))
    return sorted(trials, key=lambda trial: -trial.bytes_per_second)


def _pairs(num_processors: int) -> list[tuple[int, int]]:
    """Returns numbers of processes and threads that use half of the processors, all, or twice as many."""
    totals = sorted({max(1, num_processors // 2), num_processors, 2 * num_processors})
    powers = [1 << exponent for exponent in range(num_processors.bit_length())]
    return [(processes, total // processes) for total in totals for processes in powers if processes <= total]


def _beginning(plan: JobPlan, sample_bytes: int) -> JobPlan:
    """Returns the plan of the first shards, as many as make up the sample."""
    [output] = plan.outputs
    sizes = accumulate(shard.num_bytes for shard in output.shards)
    count = next((number for number, size in enumerate(sizes, 1) if size >= sample_bytes), len(output.shards))
    return replace(plan, outputs=(replace(output, shards=output.shards[:count]),))


def _try(plan: JobPlan, num_processes: int, num_workers: int) -> WorkerTrial:
    seen: list[tuple[float, JobProgress]] = []

    def note(at: JobProgress) -> None:
        seen[1:] = [(time.monotonic(), at)]

    place = scratch_folder(plan.prefix) if is_remote(plan.prefix) else os.path.dirname(plan.prefix) or "."
    with ExitStack() as stack:
        make_folder_of(plan.prefix)
        with storage_errors("write to the folder of", plan.prefix):
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix=".tokenloom-trial-", dir=place))
        folder = JobFolder(os.path.join(name, "job"), plan)
        run = corpus_runner(plan, num_processes=num_processes, num_workers=num_workers)
        with folder.joined():
            run(plan, folder, plan.book(note))
    (first_seconds, first), (last_seconds, last) = seen[0], seen[-1]
    seconds = last_seconds - first_seconds
    num_bytes, num_tokens = (last.counts[name] - first.counts[name] for name in ("num_text_bytes", "num_tokens"))
    if seconds <= 0 or not num_bytes:
        message = f"expected a sample of several blocks, found {last.counts['num_text_bytes']} bytes of text"
        raise InputError(message, hint="so small a corpus needs no tuning")
    return WorkerTrial(
        num_processes=num_processes,
        num_workers=num_workers,
        bytes_per_second=num_bytes / seconds,
        tokens_per_second=num_tokens / seconds,
    )
