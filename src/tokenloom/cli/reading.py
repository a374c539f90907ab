"""Commands about the documents and samples of a run: show, trace, when, deny, replay."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.options import JsonOption, Position, Written, arguments_of, refuse, refuse_usage, split_weights
from tokenloom.cli.output import Answer, facts_lines, look_of, members, say, table
from tokenloom.cli.run_options import NO_STEPS, BatchSizes, RankOptions, RunPath, SampleOptions, difference, stage_of
from tokenloom.datasets.chat_config import SFTDatasetConfig
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.conversations import SFTDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split, split_indices
from tokenloom.errors import ConfigError, DatasetNotFoundError, TokenizerError
from tokenloom.indexed.layout import prefix_of
from tokenloom.inspect.shown import OpenPair, Shown, shown_document, shown_lines, shown_sample
from tokenloom.inspect.texts import find_ids, find_text, find_whole_texts, input_problem, read_records, span_tokens
from tokenloom.loading.batch_sizes import Topology
from tokenloom.loading.from_data import tokenizer_of_data
from tokenloom.loading.losses import SpanLoss, losses_folder, span_losses, torn_files
from tokenloom.loading.sample_digests import RangeDigest, digest_of_positions, name_of_run
from tokenloom.numbers import items_of, parse_integer, quoted
from tokenloom.rendering.words import counted, printable
from tokenloom.run.amend import Amendment, Documents, deny_documents
from tokenloom.run.audit.source_origins import SourceOrigins, origins_missing, records_may_be_elsewhere, resolve_names
from tokenloom.run.audit.trace import SpanTable, trace_dataset
from tokenloom.run.held_out import are_held_out
from tokenloom.run.lock import lock_path, read_lock
from tokenloom.run.run import Run
from tokenloom.run.settings import parse_name, record_name
from tokenloom.run.toml_file import read_text
from tokenloom.setting_types import Count, Number
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer, decoded

Row = dict[str, Any]
Matches = dict[tuple[int, int], list[tuple[int, int] | None]]
"""{(source, document): matches}; a match is (start, length) in the document's tokens, None for the whole document."""

_TEXT_WIDTH = 100  # number of a document's first characters to show
_CHUNK_POSITIONS = 4096  # positions to trace at a time; at most a million spans if samples are long
_CHUNK_DOCUMENTS = 1000  # documents to search for at a time
_MOST_LINES, _MOST_HELD_OUT, _MOST_SHOWN = 1000, 20, 10

_POSITIONS = "steps, positions and ranks: N, a range such as 100:200, or a list such as 5,100:200"
_PER_SPAN = "output per span"
_OUTPUT = "output"


def _ranges(text: str) -> list[range]:
    """Parses numbers and half-open ranges, such as `5,100:200`."""
    ranges = []
    for item in items_of(text):
        where = f"{quoted(text)}: {item.place}"
        first, colon, stop = item.text.partition(":")
        start = parse_integer(first.strip(), where, at_least=0)
        ranges.append(range(start, parse_integer(stop.strip(), where, at_least=0) if colon else start + 1))
        if not ranges[-1]:
            refuse(f"{where} is an empty range", hint="the end of a range is exclusive: 5:6 contains only 5")
    return ranges


def _ids(text: str) -> list[int]:
    return [parse_integer(item.text, f"{quoted(text)}: {item.place}") for item in items_of(text)]


_Ranges = tuple[Sequence[range], ...]
_Numbers = Written(parse=_ranges, is_repeated=True, group=_POSITIONS)


@dataclass(frozen=True, kw_only=True)
class ShowOptions(SampleOptions, JsonOption):
    """Decode a document or a training sample. Prints a heading per document; special tokens, padding, prompts, answers
    and tokens that have loss as labels are marked. If neither --tokenizer nor the manifest names a tokenizer, prints
    token ids. A terminal shows one screen of a document; pipe to `less` to see all. Obeys NO_COLOR and FORCE_COLOR.

    Attributes:
        prefix: path of the pair, without .bin or .idx.
        run_path: run.toml of a run, for --position.
        document: show document I of the pair; negative numbers count from the end.
        sample: show sample K of a split of the pair.
        position: show position N of a run.
        holdout: --position is a position among the held-out samples of the run.
        json: print one JSON object: heading, facts, notes, spans, first, num_tokens, and `tokens`: a list with one
            object per token: id, text, kind, part, loss and span.
        tokenizer: tokenizer.json or its folder (default: the tokenizer of the data).
        ids: print the id after each token.
        split: weights or shares of train, valid and test, such as 98,1,1 or train=0.99,valid=0.01.
        split_name: split of the sample.
        num_samples: number of samples of the split (default one epoch).
        path_to_cache: folder of the index cache.
    """

    EITHER: ClassVar[Any] = (("document", "sample", "position"),)
    ONE_OF: ClassVar[Any] = {"--document, --sample or --position": ("document", "sample", "position")}

    prefix: Annotated[str | None, Written(metavar="PREFIX", is_positional=True)] = None
    run_path: Annotated[str | None, Written(names=("--run",), metavar="RUN")] = None
    document: Annotated[int | None, Written(metavar="I")] = None
    sample: Annotated[int | None, Written(metavar="K")] = None
    position: Number | None = None
    holdout: bool = False
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None
    ids: bool = False
    split: Annotated[str, Written(parse=split_weights)] = "969,30,1"
    split_name: Annotated[str, Written(names=("--from",), choices=tuple(Split.__members__))] = "train"
    num_samples: Number | None = None
    path_to_cache: Annotated[str | None, Written(metavar="FOLDER")] = None

    def __post_init__(self) -> None:
        if (self.run_path is None) == (self.prefix is None):
            refuse_usage("pass either PREFIX or --run")
        if (self.run_path is None) != (self.position is None):
            refuse_usage("--run and --position must be given together")
        if self.holdout and self.run_path is None:
            refuse_usage("--holdout needs --run")


def show(options: ShowOptions) -> Answer:
    try:
        shown = _of_pair(options) if options.run_path is None else _of_run(options.run_path, options)
    except IndexError as error:
        raise ConfigError(str(error)) from error
    return Answer(shown, shown_lines(shown, look_of(ids=options.ids)))


def _of_run(path: str, options: ShowOptions) -> Shown:
    assert options.position is not None  # `ShowOptions` requires it
    opened, is_held_out = Run.open(path), options.holdout
    dataset, run = (opened.holdout(), None) if is_held_out else (opened.dataset(), opened)
    shown = shown_sample(dataset, options.position, _tokenizer_of(opened, options.tokenizer), run=run)
    where = "the held-out samples" if is_held_out else "the run"
    return dataclasses.replace(shown, heading=f"position {options.position:,} of {where}")


def _tokenizer_of(opened: Run, path: str | None) -> TextTokenizer | None:
    """Loads the tokenizer at `path`; if `path` is None, that of the run, or reports why this fails and returns None."""
    if path is not None:
        return load_tokenizer(path)
    try:
        return None if opened.lock.tokenizer is None else opened.tokenizer.loaded
    except TokenizerError as error:
        say(f"cannot load the tokenizer of the run: {error.message}")
        return None


def _of_pair(options: ShowOptions) -> Shown:
    assert options.prefix is not None  # `ShowOptions` requires it
    pair, tokenizer = OpenPair(prefix_of(options.prefix)), None
    try:
        tokenizer = tokenizer_of_data(options.tokenizer, [pair.prefix])
    except TokenizerError as error:
        if options.tokenizer is not None or options.document is None:
            raise
        say(f"{error.message}: showing token ids")
    if options.document is not None:
        return shown_document(pair, options.document, tokenizer)
    if pair.data.multimodal:
        refuse(f"`{pair.prefix}` has images, which samples cannot contain", hint="show a document with --document")
    assert options.sample is not None
    samples = _samples(options, pair, tokenizer)
    name = f"sample {options.sample:,} of {len(samples):,} ({options.split_name})"
    return dataclasses.replace(shown_sample(samples, options.sample, tokenizer), heading=name)


def _samples(options: ShowOptions, pair: OpenPair, tokenizer: Any) -> GPTDataset | SFTDataset:
    """Returns the dataset of one split: an `SFTDataset` if the pair has roles, else a `GPTDataset`."""
    split, kinds = Split[options.split_name], (GPTDatasetConfig, GPTDataset)
    config_class, dataset_class = kinds if pair.roles is None else (SFTDatasetConfig, SFTDataset)
    others = {"random_seed": options.seed, "blend": ([pair.prefix], None), "tokenizer": tokenizer}
    config = config_class(**arguments_of(options, config_class, **others))
    assert config.split_matrix is not None
    if (bounds := config.split_matrix[split.value]) is None:
        refuse(f"--split {options.split} gives no documents to {split.name}")
    data: Any = dataset_class.build_low_level_dataset(pair.prefix, config)
    indices = split_indices(bounds, dataset_class.numel_low_level_dataset(data))
    return dataset_class(data, pair.prefix, indices, options.num_samples, split, config)


def _span_table(rows: Sequence[Row], *more: str, origins: bool = False) -> Iterator[str]:
    """Yields the lines of a table of spans; a column with the same value in all rows becomes a line above the table.

    `more` names additional columns.
    """
    if not rows:
        return
    known = [name for name in ("step", "rank", *more, "pass") if any(row[name] is not None for row in rows)]
    same = [name for name in known if len(rows) > 1 and all(row[name] == rows[0][name] for row in rows)]
    if same:
        values = [(name.replace("_", "-"), rows[0][name]) for name in same]
        yield ", ".join(stage_of(value) if name == "stage" else f"{name} {value:,}" for name, value in values)
    names = ["position", *(name for name in known if name not in same), "start", "length"]
    columns = {name.replace("_", "-"): [row[name] for row in rows] for name in names}
    columns["document"] = [f"{row['source']}:{row['document']}" for row in rows]
    states = [_state_of(row) for row in rows]
    if any(map(str, states)):
        columns["loss" if "loss" in rows[0] else ""] = states
    if origins:
        columns["origin"] = [_origin_of(row) for row in rows]
    yield from table([*columns], [*zip(*columns.values(), strict=True)])


def _state_of(row: Row) -> object:
    """Returns a span's cell in the last column: "denied", the loss per token, or whether training has read the span."""
    if row["denied"]:
        return "denied"
    if row.get("loss") is not None:
        from rich.text import Text

        number = f"{'~' if row['loss_of'] == 'sample' else ''}{_number(row['loss'] / row['length'])}"
        return Text(number, style=("", "yellow", "bold red")[row["loss_level"]])
    return {True: "seen", False: "to come", None: ""}[row.get("seen")]


def _number(value: float) -> str:
    return f"{value:,.4g}" if not abs(value) >= 1000 else f"{value:.3e}" if abs(value) >= 1e8 else f"{value:,.0f}"


def _origin_of(row: Row) -> str:
    return f"{row['pair']} row {row['row']:,}" if row["file"] is None else f"{row['file']}:{row['record']}"


def _text_lines(rows: Sequence[Row], *names: str) -> Iterator[str]:
    """Yields the lines of the texts in the fields `names` of each row; each line begins with the document's name."""
    for row, name in itertools.product(rows, names):
        if row.get(name) is not None:
            lines = printable(row[name]).removesuffix("\n").split("\n")
            yield from (f"{row['source']}:{row['document']} {name} | {line}" for line in lines)


@dataclass(frozen=True, kw_only=True)
class RunFiles(RunPath, RankOptions):
    """Options that name further files of a run: tokenizer, index cache and losses.

    Attributes:
        tokenizer: tokenizer.json or its folder (default: the tokenizer of the run).
        path_to_cache: folder of the index cache, for runs with order = "megatron".
        losses: folder of recorded losses (default: `losses` beside run.toml).
    """

    GROUP = "files"

    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None
    path_to_cache: Annotated[str | None, Written(metavar="FOLDER")] = None
    losses: Annotated[str | None, Written(metavar="FOLDER")] = None


@dataclass(frozen=True, kw_only=True)
class NamedDocuments(RunPath):
    """Options that name documents of a run.

    Attributes:
        document: document N (from 0) of source NAME.
        record: the document made from line or row N (from 1) of input file FILE.
    """

    GROUP = "documents (one or more of these)"

    document: Annotated[tuple[str, ...], Written(metavar="NAME:N", is_repeated=True)] = ()
    record: Annotated[tuple[str, ...], Written(metavar="FILE:N", is_repeated=True)] = ()


@dataclass(frozen=True, kw_only=True)
class TraceOptions(RunFiles):
    """Print the samples at steps or positions of a run. A sample is printed as spans of documents, each span with the
    source, the pass, and the line or row of the input file. With --worst, print instead the documents with the largest
    share of the loss that `LossRecorder` stored during training, and the command that denies these documents. The exit
    status is 1 if --check-inputs finds a problem.

    Attributes:
        step: the steps, counted from 0.
        position: the positions of the samples, counted from 0.
        rank: print only the samples of these data-parallel ranks.
        holdout: --position is a position among the held-out samples.
        text: print the decoded text.
        from_input: print the record, which is read again from the input file.
        check_inputs: report each input file that has changed since it was tokenized.
        worst: print only the N documents with the largest share of loss, each with its first words (--text: all words).
        json: print one JSON object per span, one per line: position, step, rank, micro_batch, source, pass, document,
            start, length, file, record (from 1), slot, denied, stage, walk, window, pair, row, run; text with --text,
            input with --from-input; unknown values are null. With --worst one object per document: source, document,
            file, record, pair, row, loss, loss_of ("document", or "sample" if the loss of a sample was divided among
            its documents in proportion to tokens), length, positions (a list), share, text.
    """

    EITHER: ClassVar[Any] = (("step", "position"), ("worst", "from_input"), ("worst", "check_inputs"))
    ONE_OF: ClassVar[Any] = {"--step or --position": ("step", "position")}

    step: Annotated[_Ranges, _Numbers] = ()
    position: Annotated[_Ranges, dataclasses.replace(_Numbers, names=("--position", "--sample"), metavar="N")] = ()
    rank: Annotated[_Ranges, dataclasses.replace(_Numbers, metavar="R")] = ()
    holdout: Annotated[bool, Written(group=_POSITIONS)] = False
    text: Annotated[bool, Written(group=_PER_SPAN)] = False
    from_input: Annotated[bool, Written(group=_PER_SPAN)] = False
    check_inputs: Annotated[bool, Written(group=_PER_SPAN)] = False
    worst: Annotated[Count | None, Written(metavar="N", group=_PER_SPAN)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for is_wrong, message in (
            (self.step and not self.has_batch_sizes, NO_STEPS),
            (self.rank and self.micro_batch_size is None, "--rank needs --micro-batch-size and --data-parallel-size"),
            (self.holdout and (self.step or self.has_batch_sizes), "--holdout needs --position, not steps"),
            (self.holdout and self.worst is not None, "--holdout and --worst exclude each other"),
            (self.losses is not None and self.worst is None, "--losses needs --worst"),
        ):
            if is_wrong:
                refuse_usage(message)


def trace(options: TraceOptions) -> Iterator[Answer]:
    opened = Run.open(options.run_path, path_to_cache=options.path_to_cache)
    topology = options.topology(opened.lock)
    dataset = opened.holdout() if options.holdout else opened.dataset()
    origins, problems = SourceOrigins(opened.lock), dict[int, str | None]()
    tokenizer = _tokenizer_of(opened, options.tokenizer) if options.text or options.worst is not None else None
    heading = [f"run {opened.identity}"]
    chunks = _position_chunks(options, topology, len(dataset))
    if options.worst is not None:
        yield _worst(options, opened, np.unique(np.concatenate(list(chunks))), origins, tokenizer)
        return
    for positions in chunks:
        table = trace_dataset(dataset, positions) if options.holdout else opened.trace(positions)
        table = _with_steps(table.with_origins(origins), topology)
        rows = list(table.rows())
        assert table.files is not None  # set by `with_origins`
        assert table.records is not None
        files = np.unique(table.files[table.files >= 0]).tolist()
        for file in files if options.text or options.from_input or options.check_inputs else ():
            if file not in problems and (problem := problems.setdefault(file, input_problem(origins.files[file]))):
                say(problem)
        if options.text:
            for row, tokens in zip(rows, span_tokens(table), strict=True):
                row["text"] = None if row["denied"] else decoded(tokens.tolist(), tokenizer)
        for file in files if options.from_input else ():
            chosen = np.flatnonzero((table.files == file) & ~table.denied).tolist()
            is_readable = problems[file] is None and bool(chosen)
            records = read_records(origins.files[file], table.records[chosen].tolist()) if is_readable else {}
            for place in chosen:
                rows[place]["input"] = records.get(int(table.records[place]))
        for row in rows if options.from_input else ():
            row.setdefault("input", None)
        is_changed = options.check_inputs and any(problems.values())
        drawn = _span_table(rows, "micro_batch", "stage", "slot", origins=True)
        yield Answer(iter(rows), [*heading, *drawn, *_text_lines(rows, "text", "input")], 1 if is_changed else 0)
        heading = []
    if origins.missing:
        say(origins_missing(origins.missing))


def _position_chunks(options: TraceOptions, topology: Topology | None, end: int) -> Iterator[NDArray[np.int64]]:
    """Yields the positions that the options select, in chunks; a position, step or rank out of range is an error."""
    ranges, steps, ranks = ([*chain(*given)] for given in (options.position, options.step, options.rank))
    num_ranks, what = options.data_parallel_size, "the held-out part" if options.holdout else "the run"
    if ranks and num_ranks and (largest := max(each.stop for each in ranks) - 1) >= num_ranks:
        refuse(f"rank {largest} out of range: --data-parallel-size is {num_ranks}")
    if (last := max((each.stop for each in ranges), default=0)) > end:
        refuse(f"position {last - 1:,} out of range: {what} has {end:,} positions")
    if steps and topology is not None:
        at = topology.batch_sizes.position_of_step
        last = max(each.stop for each in steps) - 1
        if (stop := at(last + 1)) > end:
            last_step = topology.batch_sizes.step_of_position(end) - 1
            hint = f"the last whole step is {last_step:,}" if last_step >= 0 else "the run has no whole step"
            reads = f"reads positions {at(last):,} to {stop - 1:,}"
            refuse(f"step {last:,} out of range: it {reads}; the run has {end:,} positions", hint=hint)
        ranges += [range(at(step), at(step + 1)) for step in chain(*steps)]
    for each in ranges:
        for begin in range(each.start, each.stop, _CHUNK_POSITIONS):
            chosen = np.arange(begin, min(begin + _CHUNK_POSITIONS, each.stop), dtype=np.int64)
            if topology is not None and ranks:
                chosen = chosen[np.isin(topology.ranks(chosen), [*chain(*ranks)])]
            yield chosen


def _worst(
    options: TraceOptions, opened: Run, positions: NDArray[np.int64], origins: SourceOrigins, tokenizer: Any
) -> Answer:
    """Returns the documents with the largest share of loss (NaN first), and the command that denies these documents."""
    if (folder := _open_losses(opened, options.losses)) is None:
        message = f"no folder `losses` beside `{opened.path}`"
        raise DatasetNotFoundError(
            message, hint="record losses with `LossRecorder`, and pass their folder with --losses"
        )
    losses = span_losses(opened, folder, positions.tolist())
    table = opened.trace(positions).with_origins(origins)
    documents: dict[tuple[str, int], Row] = {}
    for place, row in enumerate(table.rows()):
        if (loss := _loss_of(row, losses))["loss"] is not None:
            kept = {name: row[name] for name in ("source", "document", "file", "record", "pair", "row")}
            new = kept | {"loss": 0.0, "loss_of": loss["loss_of"], "length": 0, "positions": [], "place": place}
            document = documents.setdefault((row["source"], row["document"]), new)
            document["loss"] += loss["loss"]
            document["length"] += row["length"]
            document["positions"].append(row["position"])
    total = sum(each["loss"] for each in documents.values() if math.isfinite(each["loss"]))
    ranked = sorted(documents.values(), key=lambda each: (math.isfinite(each["loss"]), -each["loss"]))
    worst = ranked[: options.worst]
    tokens = span_tokens(table.take(np.array([each.pop("place") for each in worst], dtype=np.int64)))
    for document, first in zip(worst, tokens, strict=True):
        document["share"] = document["loss"] / total if total and math.isfinite(document["loss"]) else None
        document["text"] = decoded(first.tolist(), tokenizer)
    lines = [f"run {opened.identity}", *_worst_lines(worst, positions.tolist(), losses, whole_text=options.text)]
    if worst and opened.lock.order_name != "megatron":
        lines += _deny_lines(options, opened, worst, int(positions[0]))
    return Answer(iter(worst), lines)


def _open_losses(opened: Run, path: str | None) -> str | None:
    """Returns the losses folder: `path`, or if `path` is None, `losses` beside `run.toml`; reports incomplete files."""
    folder = losses_folder(opened, path)
    for file in () if folder is None else torn_files(folder):
        say(f"`{file}`: the last record is incomplete, and is ignored")
    return folder


def _loss_of(row: Row, losses: Mapping[tuple[int, int], SpanLoss]) -> Row:
    """Returns a dict of `loss`, `loss_of` and `loss_level` of a span, all None if no loss was recorded."""
    if (found := losses.get((row["position"], row["slot"]))) is None:
        return {"loss": None, "loss_of": None, "loss_level": None}
    return {"loss": found.loss, "loss_of": "document" if found.is_recorded else "sample", "loss_level": found.level}


def _worst_lines(
    documents: Sequence[Row], positions: Iterable[int], losses: Mapping[tuple[int, int], SpanLoss], *, whole_text: bool
) -> Iterator[str]:
    """Yields the lines of a table of documents, then the text of each document: the whole text or its first words."""
    wanted, known = set(positions), {position for position, _ in losses}
    total = sum(each.loss for each in losses.values())
    missing = f", {len(wanted - known):,} without a recorded loss" if wanted - known else ""
    yield f"{counted(len(wanted), 'position')}{missing}; loss {_number(total)}"
    cells = []
    for row in documents:
        share = "-" if row["share"] is None else f"{row['share']:.2%}"
        share = f"~{share}" if row["loss_of"] == "sample" else share
        counts = (_number(row["loss"]), _number(row["loss"] / row["length"]), row["length"], len({*row["positions"]}))
        cells.append((f"{row['source']}:{row['document']}", share, *counts, _origin_of(row)))
    columns = ("document", "share", "loss", "per token", "tokens", "samples", "origin")
    yield from table(columns, cells) if cells else ()
    begins = [{**row, "text": " ".join(row["text"][: 2 * _TEXT_WIDTH].split())[:_TEXT_WIDTH]} for row in documents]
    yield from _text_lines(documents if whole_text else begins, "text")
    if any(row["loss_of"] == "sample" for row in documents):
        yield "\n~ estimate: the loss of the sample, divided among its documents in proportion to their tokens"


def _deny_lines(options: BatchSizes, opened: Run, documents: Sequence[Row], first: int) -> Iterator[str]:
    """Yields a command that denies documents from position `first` on, but not before the first unconsumed position."""
    position = max(first, opened.lock.consumed)
    arguments: list[object] = ["--from-position", position]
    if (sizes := options.batch_sizes(opened.lock)) is not None:
        step = sizes.step_of_position(position)
        arguments = ["--from-step", step + (sizes.position_of_step(step) < position)]
        for name in ("global_batch_size", "batch_size_schedule"):
            if (value := getattr(options, name)) is not None:
                arguments += [f"--{name.replace('_', '-')}", value]
    arguments += itertools.chain(*(("--document", f"{row['source']}:{row['document']}") for row in documents))
    yield "\nto deny these documents, before you resume training from an earlier checkpoint:"
    yield f"  {shlex.join(['tokenloom', 'deny', opened.path, *map(str, arguments)])}"


@dataclass(frozen=True, kw_only=True)
class WhenOptions(NamedDocuments, RunFiles):
    """Find every position of a run, past or future, that reads given documents; print its pass and stage.
    Only --tokens and --ids read the data; other searches do not. If losses were recorded, also print the loss per
    token, with high losses in color. The exit status is 0 even if no position reads the documents.

    Attributes:
        text_file: documents whose whole text equals that of FILE; needs text hashes (`preprocess --document-hashes`).
        tokens: documents that contain this text; reads all data.
        ids: documents that contain this sequence of token ids; reads all data.
        until_position: search only before position N.
        json: print one JSON object per span, one per line: the keys of `trace --json`, match (index of the first
            matching token), num_matched (number of matching tokens) and seen (whether training has consumed the
            position, see run.lock); unknown values are null. With losses, also loss, loss_of (as in `trace --json`) and
            loss_level (1: above 1.5 times the median; 2: above 3 times the median; else 0).
    """

    ONE_OF: ClassVar[Any] = {
        "--document, --record, --text-file, --tokens or --ids": ("document", "record", "text_file", "tokens", "ids")
    }

    text_file: Annotated[str | None, Written(metavar="FILE", group=NamedDocuments.GROUP)] = None
    tokens: Annotated[str | None, Written(metavar="TEXT", group=NamedDocuments.GROUP)] = None
    ids: Annotated[Sequence[int] | None, Written(metavar="I,I,…", parse=_ids, group=NamedDocuments.GROUP)] = None
    until_position: Annotated[Position | None, Written(group="range (default: the whole run)")] = None


def when(options: WhenOptions) -> Iterator[Answer]:
    opened = Run.open(options.run_path, path_to_cache=options.path_to_cache)
    topology = options.topology(opened.lock)
    stop = options.position_of(options.until_position, opened.lock)
    if stop is None and opened.num_samples is None:
        refuse(f"`{options.run_path}` is endless", hint="pass --until-position or --until-step")
    matches = _matches_of(options, opened)
    origins = SourceOrigins(opened.lock)
    folder, consumed, documents = _open_losses(opened, options.losses), opened.lock.consumed, sorted(matches)

    def rows() -> Iterator[Row]:
        """Yields each span with matching tokens, once per match."""
        chunks = (documents[at : at + _CHUNK_DOCUMENTS] for at in range(0, len(documents), _CHUNK_DOCUMENTS))
        tables: Iterable[SpanTable] = (opened.occurrences(_by_source(chunk), stop=stop) for chunk in chunks)
        losses = None
        if folder is not None:  # for all documents together, because each call reads all loss files
            tables = list(tables)
            losses = span_losses(opened, folder, chain(*(table.positions.tolist() for table in tables)))
        for found in tables:
            table = _with_steps(found.with_origins(origins), topology)
            for source, row in zip(table.sources.tolist(), table.rows(), strict=True):
                row |= {} if losses is None else _loss_of(row, losses)
                seen = row["position"] < consumed if consumed else None
                for match in matches[source, row["document"]]:
                    start, length = match or (None, None)
                    if match is None or (row["start"] < sum(match) and match[0] < row["start"] + row["length"]):
                        yield row | {"match": start, "num_matched": length, "seen": seen}

    def lines() -> Iterator[str]:
        yield f"run {opened.identity}"
        num_matches = sum(map(len, matches.values()))
        more = f", with {counted(num_matches, 'match')}" if num_matches > len(matches) else ""
        yield f"{counted(len(matches), 'document')}{more}"
        for source, numbers in _by_source(matches).items():
            held = are_held_out(opened.lock, source, np.array(numbers, dtype=np.int64))
            for document in np.array(numbers)[held][:_MOST_HELD_OUT].tolist():
                yield f"{opened.lock.sources[source].name}:{document} is held out: training never reads it"
        remaining = rows()
        first = list(itertools.islice(remaining, _MOST_LINES))
        yield from _span_table(first)
        num_rows = len(first) + sum(1 for _ in remaining)
        where = "" if stop is None else f" before position {stop:,}"
        yield f"{counted(num_rows, 'span')}{where}" if num_rows else f"never read{where}"
        if num_rows > _MOST_LINES:
            yield f"showing the first {_MOST_LINES:,} spans; --json prints all"

    yield Answer(rows(), lines())
    if origins.missing and options.json:
        say(origins_missing(origins.missing))


def _matches_of(options: WhenOptions, opened: Run) -> Matches:
    lock, matches = opened.lock, Matches()
    names = [source.name for source in lock.sources]
    named = [*options.document, *(record_name(each, names) for each in options.record)]
    resolved = resolve_names([parse_name(each, names) for each in named], lock.sources)
    for source, documents in resolved.by_source:
        matches.update(((source, document), [None]) for document in documents)
    for name in resolved.empty_records:
        say(f"{name} has no document in this run: the record was blank, bad, a duplicate, or is part of other data")
    if resolved.unknown_pairs:
        say(origins_missing(resolved.unknown_pairs))
    if options.text_file is not None:
        text = read_text(options.text_file, missing="pass a file with the text")
        texts = [text, text.removesuffix("\n"), text.removesuffix("\r\n"), f"{text}\n"]
        same_texts, missing = find_whole_texts(lock, texts)
        if missing:
            say(f"cannot search {counted(len(missing), 'pair')} that lack hashes of texts: `{missing[0]}`, …")
        for document in same_texts:
            matches.setdefault(document, []).append(None)
    found = [] if options.ids is None else find_ids(lock, options.ids)
    if options.tokens is not None:
        tokenizer = opened.tokenizer.loaded if options.tokenizer is None else load_tokenizer(options.tokenizer)
        found = find_text(lock, options.tokens, tokenizer) + found
    for match in found:
        matches.setdefault((match.source, match.document), []).append((match.start, match.length))
    return matches


def _by_source(documents: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    by_source = itertools.groupby(sorted(documents), key=lambda each: each[0])
    return {source: [document for _, document in group] for source, group in by_source}


@dataclass(frozen=True, kw_only=True)
class DenyOptions(NamedDocuments, RankOptions):
    """Deny documents, starting at a position that training has not consumed: their tokens become padding without loss;
    all other tokens keep their positions. Adds [[denied]] to run.toml and writes run.lock; both files change, or
    neither. Prints the changed spans, and digests that prove that nothing else moved.

    Attributes:
        documents_file: a file of documents (NAME:N) and records (FILE:N), one per line.
        reason: the reason for the denial, stored in run.toml.
        from_position: the first position where tokens become padding; positions count from 0.
        until_position: list only changes before position N.
        since_start: also list the spans of the documents at earlier positions.
        dry_run: print the changes, write nothing.
        json: print one JSON object: path, written, position, reason, listed_until, num_positions, num_tokens;
            `documents`, `already_denied`, `held_out`, `no_document`: lists of names; `unknown_pairs`: prefixes without
            origins; `changed`, `seen` (null without --since-start): lists of spans as in `trace --json`; `digest`,
            `order_without_denials`: objects: before, after; `diff`: a list of lines.
    """

    ONE_OF: ClassVar[Any] = {
        "--document, --record or --documents-file": ("document", "record", "documents_file"),
        "--from-step or --from-position": ("from_position",),
    }

    documents_file: Annotated[str | None, Written(metavar="FILE", group=NamedDocuments.GROUP)] = None
    reason: Annotated[str | None, Written(metavar="TEXT")] = None
    from_position: Position | None = None
    until_position: Annotated[Position | None, Written(group=_OUTPUT)] = None
    since_start: Annotated[bool, Written(group=_OUTPUT)] = False
    dry_run: bool = False


def deny(options: DenyOptions) -> Answer:
    lock = read_lock(lock_path(options.run_path))
    position = options.position_of(options.from_position, lock)
    assert position is not None  # `ONE_OF` requires it
    topology = options.topology(lock)
    until, write = options.position_of(options.until_position, lock), not options.dry_run
    names = [source.name for source in lock.sources]
    documents = (*options.document, *(record_name(record, names) for record in options.record))
    given: dict[str, Any] = {"denied_documents": documents, "denied": options.documents_file, "reason": options.reason}
    denial = Amendment(position=position, **given)
    denied = deny_documents(options.run_path, denial, until=until, since_start=options.since_start, write=write)
    locked = denied.amended.locked

    def names_of(documents: Documents) -> list[str]:
        known = locked.lock.sources
        return [f"{known[source].name}:{number}" for source, chosen in documents.items() for number in chosen.tolist()]

    def rows_of(table: SpanTable) -> list[Row]:
        return list(_with_steps(table, topology).rows())

    record = {
        "path": options.run_path,
        "written": write,
        **members(denial, "position", "reason"),
        "documents": names_of(denied.documents),
        "already_denied": names_of(denied.again),
        "held_out": names_of(denied.held_out),
        "no_document": locked.empty_records,
        "unknown_pairs": locked.unknown_pairs,
        "listed_until": denied.stop,
        "num_positions": len(np.unique(denied.changed.positions)),
        "num_tokens": int(denied.changed.lengths.sum()),
        "changed": rows_of(denied.changed),
        "seen": None if denied.seen is None else rows_of(denied.seen),
        "digest": dict(zip(("before", "after"), denied.digests, strict=True)),
        "order_without_denials": dict(zip(("before", "after"), denied.order_digests, strict=True)),
        "diff": difference(options.run_path, denied.amended),
    }
    if locked.unknown_pairs:
        say(records_may_be_elsewhere(locked.unknown_pairs))

    def lines() -> Iterator[str]:
        yield from (*record["diff"], "")
        facts = {name: value for name, value in record.items() if name not in ("changed", "seen", "diff")}
        yield from facts_lines("denied" if write else "would deny", facts)
        for name, title in (("changed", "spans that become padding"), ("seen", "spans read before the denial")):
            if rows := record[name]:
                yield f"{title}:"
                yield from _span_table([{**row, "denied": False} for row in rows[:_MOST_SHOWN]])
                if len(rows) > _MOST_SHOWN:
                    yield f"… and {len(rows) - _MOST_SHOWN:,} more spans; --json prints all"
        yield "nothing else moves" if denied.nothing_else_moved else "OTHER SAMPLES MOVE: the digests differ"

    return Answer(record, lines(), 0 if denied.nothing_else_moved else 1)


def _with_steps(table: SpanTable, topology: Topology | None) -> SpanTable:
    return table if topology is None else table.with_steps(topology)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(RunPath, BatchSizes):
    """Read a range of positions again and print its digest, in the form that `check_reading` returns. The digest is a
    sum over positions and tokens; ranks, microbatches and threads do not change this sum. The exit status is 1 if the
    digest differs from --expect.

    Attributes:
        from_position: the first position to read (default: that of --expect, else 0).
        to_position: the position after the last position to read (default: that of --expect, else the end of the run).
        expect: the expected digest, as printed, or only its 32 hex digits.
        expect_file: a file with one expected digest per line, for example the digest of each checkpoint.
        threads: number of reading threads.
        json: print one JSON object per range: digest, run, start, stop, num_samples; if a digest is expected, also
            `expected` and `matches`.
    """

    EITHER: ClassVar[Any] = (("expect", "expect_file"),)

    from_position: Position | None = None
    to_position: Position | None = None
    expect: Annotated[str | None, Written(metavar="DIGEST")] = None
    expect_file: Annotated[str | None, Written(metavar="FILE")] = None
    threads: Count = 1


def replay(options: ReplayOptions) -> Iterator[Answer]:
    opened = Run.open(options.run_path)
    name, dataset = name_of_run(opened.identity), opened.dataset()
    for wanted, expected in _wanted_ranges(options, opened, name):
        if wanted.stop > len(dataset):
            size = f"`{opened.path}` has {len(dataset):,} positions"
            refuse(f"positions {wanted.start}-{wanted.stop} out of range: {size}")
        digest = digest_of_positions(dataset, range(wanted.start, wanted.stop), num_threads=options.threads)
        answer = dataclasses.replace(wanted, run=name, digest=digest)
        record = {"digest": str(answer), "num_samples": digest.num_samples, **members(answer, "run", "start", "stop")}
        is_same, line = expected in (None, digest.hexdigest()), str(answer)
        if expected is not None:
            record |= {"expected": expected, "matches": is_same}
            differs = f"\nexpected sum {expected}: training read other samples, or the data has changed since"
            line += f"  as expected: {digest.num_samples:,} samples" if is_same else differs
        yield Answer(record, line, 0 if is_same else 1)
        if not is_same:
            return


def _wanted_ranges(options: ReplayOptions, opened: Run, name: str) -> list[tuple[RangeDigest, str | None]]:
    """Returns (range, expected sum) of each range to read; a sum is 32 hex digits, or None if nothing is expected."""
    start = options.position_of(options.from_position, opened.lock)
    stop = options.position_of(options.to_position, opened.lock)
    if options.expect_file is not None:
        lines = read_text(options.expect_file, missing="write it with `tokenloom replay`").split("\n")
        given = [_parse_digest(line.strip(), name) for line in lines if line.strip()]
        if not given:
            refuse(f"`{options.expect_file}` has no digests")
        if (start, stop) != (None, None):
            refuse_usage("--expect-file contains the positions: pass no other positions")
        return [(each, each.digest.hexdigest()) for each in given]
    if options.expect is None or re.fullmatch("[0-9a-f]{32}", options.expect):  # a sum without its range
        stop = opened.num_samples if stop is None else stop
        if stop is None:
            refuse_usage("the run is endless: pass --to-position or --to-step")
        if (start := start or 0) > stop:
            refuse(f"range {start}-{stop} ends before it starts")
        return [(RangeDigest(run=name, start=start, stop=stop), options.expect)]
    expected = _parse_digest(options.expect, name)
    own = (expected.start, expected.stop)
    if (wanted := (own[0] if start is None else start, own[1] if stop is None else stop)) != own:
        refuse(f"expected a digest of positions {wanted[0]}-{wanted[1]}, found positions {own[0]}-{own[1]}")
    return [(expected, expected.digest.hexdigest())]


def _parse_digest(text: str, name: str) -> RangeDigest:
    if (digest := RangeDigest.parse(text)).run != name:
        hint = "pass the run.toml of that run: the two runs differ in seed, order or initial data"
        refuse(f"expected a digest of run {name}, found a digest of run {digest.run}", hint=hint)
    return digest
