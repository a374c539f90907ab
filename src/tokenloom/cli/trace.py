"""`tokenloom trace`: which rows of which files stood at a step of a run."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.drawing import visible
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, OneOf, UsageError, Written
from tokenloom.cli.run_common import NO_STEPS, WIDTH, Dealing, RunPath, stage_of
from tokenloom.cli.show import tokenizer_of
from tokenloom.cli.stopping import say
from tokenloom.cli.values import ranges
from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import Topology
from tokenloom.rendering.words import name_of
from tokenloom.run.audit.source_origins import SourceOrigins, input_problem, origins_missing, read_records, span_tokens
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.run.audit.trace import trace_dataset
from tokenloom.run.run import Run
from tokenloom.setting_types import Number
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer, decoded

Row = dict[str, Any]

_HEADING = f"{'slot':>8} {'document':>12} {'start':>9} {'length':>8}  origin"
_ORIGIN_WIDTH = WIDTH - _HEADING.index("origin")


class InputFiles:
    """The input files of traced documents.

    Args:
        origins: tells files and records.
    """

    def __init__(self, origins: SourceOrigins) -> None:
        self._origins = origins
        self._problems: dict[int, str | None] = {}

    @property
    def num_problems(self) -> int:
        """How many of the files that were looked at are not what they were."""
        return sum(problem is not None for problem in self._problems.values())

    def check(self, table: SpanTable) -> None:
        """Says of each file that documents are of, once, if it is not what it was."""
        assert table.files is not None
        for file in np.unique(table.files[table.files >= 0]).tolist():
            if file not in self._problems:
                self._problems[file] = problem = input_problem(self._origins.files[file])
                if problem is not None:
                    say(problem)

    def add_records(self, rows: Sequence[Row], table: SpanTable) -> None:
        """Adds to each span what its record is, as `input`; None of a file that is not what it was.

        Raises:
            InputError, StorageError: a file cannot be read.
        """
        assert table.files is not None
        assert table.records is not None
        for row in rows:
            row["input"] = None
        for file, problem in self._problems.items():
            chosen = np.flatnonzero((table.files == file) & ~table.denied)
            if problem is not None or not len(chosen):
                continue
            numbers = table.records[chosen].tolist()
            found = read_records(self._origins.files[file], numbers)
            for place, number in zip(chosen.tolist(), numbers, strict=True):
                rows[place]["input"] = found.get(number)


def add_texts(rows: Sequence[Row], table: SpanTable, tokenizer: TextTokenizer | None) -> None:
    """Adds to each span its text, as `text`: without a tokenizer the ids in words; None of what is denied."""
    for row, tokens in zip(rows, span_tokens(table), strict=True):
        row["text"] = None if row["denied"] else decoded(tokens.tolist(), tokenizer)


def print_rows(rows: Sequence[Row], *, as_json: bool) -> None:
    """Prints spans: an object per line, or a table per sample."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    for _, sample in itertools.groupby(rows, key=lambda row: row["position"]):
        spans = list(sample)
        print(f"\n{_sample_of(spans[0])}\n{_HEADING}")
        for row in spans:
            numbers = f"{row['slot']:>8,} {row['document']:>12,} {row['start']:>9,} {row['length']:>8,}"
            print(f"{numbers}  {visible(_origin_of(row))}")
            for name in ("text", "input"):
                if row.get(name) is not None:
                    for line in visible(row[name]).removesuffix("\n").split("\n"):
                        print(f"  {name} | {line}")


def _sample_of(row: Row) -> str:
    """Returns where a sample stands, and what it is of."""
    words = [f"position {row['position']:,}"]
    words += [
        f"{name.replace('_', '-')} {row[name]:,}" for name in ("step", "rank", "micro_batch") if row[name] is not None
    ]
    if row["stage"] is not None:
        words.append(stage_of(row["stage"]))
    words.append(f"source {name_of(row['source'])}")
    if row["pass"] is not None:
        words.append(f"pass {row['pass']:,}")
    return textwrap.fill(", ".join(words), WIDTH, subsequent_indent="  ")


def _origin_of(row: Row) -> str:
    """Returns record and file of a document, or row and pair, cut at the left."""
    name, number = (row["pair"], f" row {row['row']:,}") if row["file"] is None else (row["file"], f":{row['record']}")
    before = "denied: " if row["denied"] else ""
    room = _ORIGIN_WIDTH - len(before) - len(number)
    return before + (name if len(name) <= room else f"…{name[len(name) - room + 1 :]}") + number


_Ranges = tuple[Sequence[range], ...]

_AT_ONCE = 4096
"""Positions: a million spans of long samples at most."""


_ASKED = "what is asked: numbers, ranges such as 100:200, lists of these"
_TOLD = "what is told of each span"


@dataclass(frozen=True, kw_only=True)
class Options(RunPath, Dealing):
    """Print what stands at steps or positions of a run: the spans of documents that each sample is made of, with source
    and pass, and the line or row of the input file that each document was made of. Nothing is read of the tokens unless
    their text is asked for. The exit status is 0 if all is well, 1 for an error or where --check-inputs finds a
    problem, and 2 for wrong usage.

    Attributes:
        step: steps, from 0 on.
        position: positions: samples from 0 on.
        rank: only these data-parallel ranks.
        micro_batch: only this micro-batch of each rank.
        holdout: positions of what is held out instead.
        text: its text, decoded.
        from_input: the record of the input file, read again.
        check_inputs: whether input files are what they were.
        tokenizer: tokenizer.json or its folder (default: that of the run).
        path_to_cache: folder of the index cache, with order = "megatron".
        json: print one JSON object per span, a line each: position, step, rank, micro_batch, source, pass, document,
            start, length, file, record (from 1), slot, denied, stage, walk, window, pair, row, run, and with --text and
            --from-input text and input; null where something is not known.
    """

    EITHER: ClassVar[Either] = (("step", "position"),)
    ONE_OF: ClassVar[OneOf] = {"--step or --position": ("step", "position")}

    step: Annotated[_Ranges, Written(parse=ranges, is_repeated=True, group=_ASKED)] = ()
    position: Annotated[
        _Ranges, Written(names=("--position", "--sample"), metavar="N", parse=ranges, is_repeated=True, group=_ASKED)
    ] = ()
    rank: Annotated[_Ranges, Written(metavar="R", parse=ranges, is_repeated=True, group=_ASKED)] = ()
    micro_batch: Annotated[Number | None, Written(metavar="M", group=_ASKED)] = None
    holdout: Annotated[bool, Written(group=_ASKED)] = False
    text: Annotated[bool, Written(group=_TOLD)] = False
    from_input: Annotated[bool, Written(group=_TOLD)] = False
    check_inputs: Annotated[bool, Written(group=_TOLD)] = False
    tokenizer: Annotated[str | None, Written(metavar="PATH", group=_TOLD)] = None
    path_to_cache: Annotated[str | None, Written(metavar="FOLDER", group=_TOLD)] = None
    json: bool = False

    def __post_init__(self) -> None:
        """Refuses options that do not go together."""
        super().__post_init__()
        if self.step and not self.has_batch_sizes:
            raise UsageError(NO_STEPS)
        if (self.rank or self.micro_batch is not None) and self.micro_batch_size is None:
            message = "--rank and --micro-batch need --micro-batch-size and --data-parallel-size"
            raise UsageError(message)
        if self.holdout and (self.step or self.has_batch_sizes):
            message = "--holdout is about positions: what is held out has no steps"
            raise UsageError(message)


def run(options: Options) -> int:
    """Traces, some thousand positions at a time, and prints."""
    opened = Run.open(options.run_path, path_to_cache=options.path_to_cache)
    topology = options.topology(opened.lock)
    dataset = opened.holdout() if options.holdout else opened.dataset()
    origins = SourceOrigins(opened.lock)
    inputs = InputFiles(origins)
    tokenizer = _tokenizer(options, opened)
    is_first = True
    for positions in _asked(options, topology, len(dataset)):
        table = trace_dataset(dataset, positions) if options.holdout else opened.trace(positions)
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


def _tokenizer(options: Options, opened: Run) -> TextTokenizer | None:
    if not options.text:
        return None
    return tokenizer_of(opened) if options.tokenizer is None else load_tokenizer(options.tokenizer)


def _asked(options: Options, topology: Topology | None, end: int) -> Iterator[NDArray[np.int64]]:
    """Yields the positions that are asked for, some thousand at a time.

    Raises:
        ConfigError: a position, step, rank or micro-batch is not there, or micro-batches do not make up a step.
    """
    ranks, num_ranks = _flat(options.rank), options.data_parallel_size
    if ranks and num_ranks and (largest := max(each.stop for each in ranks) - 1) >= num_ranks:
        message = f"expected ranks below {num_ranks}, as --data-parallel-size says, found {largest}"
        raise ConfigError(message)
    for start, stop in _stretches(options, topology, end):
        for begin in range(start, stop, _AT_ONCE):
            chosen = np.arange(begin, min(begin + _AT_ONCE, stop), dtype=np.int64)
            if topology is not None and ranks:
                chosen = chosen[np.isin(topology.ranks(chosen), [rank for each in ranks for rank in each])]
            if topology is not None and options.micro_batch is not None:
                chosen = chosen[topology.micro_batches(chosen) == options.micro_batch]
            yield chosen


def _stretches(options: Options, topology: Topology | None, end: int) -> Iterator[tuple[int, int]]:
    """Yields the same of all ranks and micro-batches, as first position and one past the last."""
    if options.position:
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
