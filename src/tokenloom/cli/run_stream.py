"""`tokenloom run stream`: read the batches of a run as fast as they come."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, ClassVar

import numpy as np

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, Written
from tokenloom.cli.run_common import BatchSizes, RunPath
from tokenloom.cli.stream import print_statistics, storage_record
from tokenloom.errors import ConfigError
from tokenloom.loading.read_ahead import loader_statistics
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.run import Run
from tokenloom.setting_types import Count, Number


@dataclass(frozen=True, kw_only=True)
class Options(RunPath, BatchSizes):
    """Read batches of a run from a position on as fast as they come. Prints throughput, how long the loop waited and,
    for data in object storage, what was fetched.

    Attributes:
        position: where to begin, as samples from 0 on (default 0).
        at_step: where to begin, as steps from 0 on.
        micro_batch_size: samples per batch.
        batches: stop after so many batches.
        holdout: read what is held out instead.
        json: print one JSON object: position, num_batches, num_samples, num_tokens, seconds, wait_seconds,
            longest_wait_seconds and storage (by source).
    """

    EITHER: ClassVar[Either] = (("position", "at_step"),)

    position: Number | None = None
    at_step: Number | None = None
    micro_batch_size: Annotated[Count, Written(metavar="B")] = 8
    batches: Count = 1000
    holdout: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Reads, and prints throughput and waits."""
    opened = Run.open(options.run_path)
    start = options.position_of(options.position, options.at_step, opened.lock) or 0
    dataset = opened.holdout() if options.holdout else opened.dataset()
    if start + options.micro_batch_size > len(dataset):
        message = f"expected a batch of {options.micro_batch_size} samples from position {start} on, found "
        message += f"{max(0, len(dataset) - start)} samples there"
        raise ConfigError(message)
    sampler = MegatronPretrainingSampler(len(dataset), start, options.micro_batch_size, 0, 1)
    loader = ThreadLoader(dataset, sampler)
    num_batches = num_tokens = 0
    started = time.perf_counter()
    for batch in islice(loader, options.batches):
        num_batches += 1
        num_tokens += int(np.prod(batch["tokens"].shape))
    seconds = time.perf_counter() - started
    wait = loader.wait
    if options.json:
        told = {
            "position": start,
            "num_batches": num_batches,
            "num_samples": num_batches * options.micro_batch_size,
            "num_tokens": num_tokens,
            "seconds": seconds,
            "wait_seconds": wait.total_seconds,
            "longest_wait_seconds": wait.longest_seconds,
            "storage": storage_record(loader_statistics(loader)),
        }
        print_json(told)
        return 0
    print(
        f"{num_batches:,} batches of {options.micro_batch_size} samples from position {start:,} on: {num_tokens:,} "
        f"tokens in {seconds:.2f} s\n{num_batches / seconds:,.1f} batches/s, {num_tokens / seconds:,.0f} tokens/s; "
        f"waited {wait.total_seconds:.2f} s in all, {wait.longest_seconds:.3f} s for the slowest batch"
    )
    if statistics := loader_statistics(loader):
        print_statistics(statistics)
    return 0
