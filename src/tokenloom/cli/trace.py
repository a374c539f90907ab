"""`tokenloom trace`: which rows of which files stood at a step of a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.dealing import add_dealing, check_dealing, has_batch_sizes, topology_of
from tokenloom.cli.json_output import add_json
from tokenloom.cli.run_common import refuse_usage
from tokenloom.cli.show import tokenizer_of
from tokenloom.cli.stopping import say
from tokenloom.cli.trace_rows import InputFiles, add_texts, print_rows
from tokenloom.cli.values import ranges, whole_number
from tokenloom.errors import ConfigError
from tokenloom.loading.topology import Topology
from tokenloom.run.audit.source_origins import SourceOrigins, origins_missing
from tokenloom.run.audit.trace import trace_dataset
from tokenloom.run.lock import MOST_SAMPLES
from tokenloom.run.run import Run
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_AT_ONCE = 4096
"""Positions: a million spans of long samples at most."""


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "trace",
        description="Print what stands at steps or positions of a run: the spans of documents that each sample is "
        "made of, with source and pass, and the line or row of the input file that each document was made of. Nothing "
        "is read of the tokens unless their text is asked for. With --json one object per line and span: position, "
        "step, rank, micro_batch, source, pass, document, start, length, file, record (from 1), slot, denied, stage, "
        "walk, window, pair, row, run, and with --text and --from-input text and input; null where something is not "
        "known. The exit status is 0 if all is well, 1 for an error or where --check-inputs finds a problem, and 2 for "
        "wrong usage.",
    )
    parser.add_argument(
        "run_path", nargs="?", default="run.toml", metavar="RUN", help="its run.toml (default run.toml)"
    )
    add_json(parser, each="span, a line each")
    group = parser.add_argument_group("what is asked: numbers, ranges such as 100:200, lists of these")
    group.add_argument("--step", type=ranges, action="append", metavar="N", help="steps, from 0 on")
    group.add_argument(
        "--position", "--sample", type=ranges, action="append", metavar="N", help="positions: samples from 0 on"
    )
    group.add_argument("--rank", type=ranges, action="append", metavar="R", help="only these data-parallel ranks")
    group.add_argument("--micro-batch", type=whole_number, metavar="M", help="only this micro-batch of each rank")
    group.add_argument("--holdout", action="store_true", help="positions of what is held out instead")
    add_dealing(parser)
    group = parser.add_argument_group("what is told of each span")
    group.add_argument("--text", action="store_true", help="its text, decoded")
    group.add_argument("--from-input", action="store_true", help="the record of the input file, read again")
    group.add_argument("--check-inputs", action="store_true", help="whether input files are what they were")
    group.add_argument("--tokenizer", metavar="PATH", help="tokenizer.json or its folder (default: that of the run)")
    group.add_argument("--path-to-cache", metavar="FOLDER", help='folder of the index cache, with order = "megatron"')
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Traces, some thousand positions at a time, and prints."""
    _check_usage(options)
    opened = Run.open(options.run_path, path_to_cache=options.path_to_cache)
    topology = topology_of(options, opened.lock)
    dataset = opened.holdout() if options.holdout else None
    end = opened.num_samples if dataset is None else len(dataset)
    if dataset is None and opened.lock.is_megatron:
        end = len(opened.dataset())
    end = MOST_SAMPLES if end is None else end
    origins = SourceOrigins(opened.lock)
    inputs = InputFiles(origins)
    tokenizer = _tokenizer(options, opened)
    is_first = True
    for positions in _asked(options, topology, end):
        table = opened.trace(positions) if dataset is None else trace_dataset(dataset, positions)
        table = table.with_origins(origins)
        if topology is not None:
            table = table.with_steps(topology)
        rows = list(table.rows())
        if options.text or options.from_input or options.check_inputs:
            inputs.check(table)
        if options.text:
            add_texts(rows, table, tokenizer)
        if options.from_input:
            inputs.add_records(rows, table)
        if is_first and not options.json:
            print(f"run {opened.identity}")
        is_first = False
        print_rows(rows, as_json=options.json)
    if origins.missing:
        say(origins_missing(origins.missing))
    return 1 if options.check_inputs and inputs.num_problems else 0


def _check_usage(options: argparse.Namespace) -> None:
    if (options.step is None) == (options.position is None):
        refuse_usage(options, "name --step or --position, one of both")
    if options.step is not None and not has_batch_sizes(options):
        refuse_usage(options, "a step needs --global-batch-size or --batch-size-schedule")
    check_dealing(options)
    if (options.rank is not None or options.micro_batch is not None) and options.micro_batch_size is None:
        refuse_usage(options, "--rank and --micro-batch need --micro-batch-size and --data-parallel-size")
    if options.holdout and (options.step is not None or has_batch_sizes(options)):
        refuse_usage(options, "--holdout is about positions: what is held out has no steps")


def _tokenizer(options: argparse.Namespace, opened: Run) -> TextTokenizer | None:
    if not options.text:
        return None
    return tokenizer_of(opened) if options.tokenizer is None else load_tokenizer(options.tokenizer)


def _asked(options: argparse.Namespace, topology: Topology | None, end: int) -> Iterator[NDArray[np.int64]]:
    """Yields the positions that are asked for, some thousand at a time.

    Raises:
        ConfigError: a position, step, rank or micro-batch is not there, or micro-batches do not make up a step.
    """
    ranks = None if options.rank is None else _flat(options.rank)
    if ranks is not None and (largest := max(each.stop for each in ranks) - 1) >= options.data_parallel_size:
        message = f"expected ranks below {options.data_parallel_size}, as --data-parallel-size says, found {largest}"
        raise ConfigError(message)
    for start, stop in _stretches(options, topology, end):
        for begin in range(start, stop, _AT_ONCE):
            chosen = np.arange(begin, min(begin + _AT_ONCE, stop), dtype=np.int64)
            if topology is not None and ranks is not None:
                chosen = chosen[np.isin(topology.ranks(chosen), [rank for each in ranks for rank in each])]
            if topology is not None and options.micro_batch is not None:
                chosen = chosen[topology.micro_batches(chosen) == options.micro_batch]
            yield chosen


def _stretches(options: argparse.Namespace, topology: Topology | None, end: int) -> Iterator[tuple[int, int]]:
    """Yields the same of all ranks and micro-batches, as first position and one past the last."""
    if options.position is not None:
        asked = _flat(options.position)
        if (last := max(each.stop for each in asked)) > end:
            what = "what is held out" if options.holdout else "the run"
            message = f"expected positions below {end:,}, where {what} ends, found {last - 1:,}"
            raise ConfigError(message)
        yield from ((each.start, each.stop) for each in asked)
        return
    assert topology is not None  # a step has batch sizes
    sizes = topology.batch_sizes
    steps = _flat(options.step)
    last = max(each.stop for each in steps) - 1
    if sizes.position_of_step(last + 1) > end:
        found = f"step {last:,}, which reads positions {sizes.position_of_step(last):,} to "
        message = f"expected a step of the run, which has {end:,} positions, found {found}"
        message += f"{sizes.position_of_step(last + 1) - 1:,}"
        raise ConfigError(message, hint=f"it has {sizes.step_of_position(end):,} whole steps, from 0 on")
    for step in (step for each in steps for step in each):
        if options.micro_batch is not None:
            topology.positions_of(step, micro_batch=options.micro_batch)  # which is there, or this says so
        yield sizes.position_of_step(step), sizes.position_of_step(step + 1)


def _flat(given: Sequence[Sequence[range]]) -> list[range]:
    return [each for part in given for each in part]
