"""What stands at positions of a run, and where documents stand; documents taken out of it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.options import JsonOption, Position, Written, arguments_of, refuse, refuse_usage, split_weights
from tokenloom.cli.output import Answer, facts_lines, look_of, members, say, table
from tokenloom.cli.run_options import NO_STEPS, BatchSizes, Dealing, RunPath, SampleOptions, difference, stage_of
from tokenloom.datasets.chat_config import SFTDatasetConfig
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.conversations import SFTDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split, split_indices
from tokenloom.errors import ConfigError, DatasetNotFoundError, TokenizerError
from tokenloom.indexed.layout import prefix_of
from tokenloom.inspect.shown import OpenPair, Shown, shown_document, shown_lines, shown_sample
from tokenloom.inspect.texts import (
    Match,
    find_ids,
    find_text,
    find_whole_texts,
    input_problem,
    read_records,
    span_tokens,
)
from tokenloom.loading.batch_sizes import Topology
from tokenloom.loading.digest import RangeDigest, digest_of_positions, name_of_run
from tokenloom.loading.from_data import tokenizer_of_data
from tokenloom.loading.losses import SpanLoss, losses_folder, span_losses, torn_files
from tokenloom.numbers import items_of, parse_integer, quoted
from tokenloom.rendering.words import counted, printable
from tokenloom.run.amend import Amendment, Documents, deny_documents
from tokenloom.run.audit.source_origins import (
    SourceOrigins,
    origins_missing,
    records_may_be_elsewhere,
    resolve_names,
)
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
_TEXT_WIDTH = 100  # characters of the text of a document that is not asked for whole
_Ranges = tuple[Sequence[range], ...]
_AT_ONCE = 4096  # positions: a million spans of long samples at most
_ASKED = "what is asked: numbers, ranges such as 100:200, lists of these"
_TOLD = "what is told of each span"
Places = dict[tuple[int, int], list[tuple[int, int] | None]]
"""By source and document the stretches of tokens that are asked for, as start and length; None for all of it."""

_MOST_LINES = 1000
_MOST_HELD_OUT = 20
_DOCUMENTS_AT_ONCE = 1000  # whose occurrences are looked for together
_SOUGHT = "what is looked for (one or more of these)"
_NEEDED = "what is needed for that"
_MOST_SHOWN = 10
_DENIED = "what is denied (one or more of these)"
_PRINTED = "what is printed"


def _ranges(text: str) -> list[range]:
    """Returns numbers from 0 on and ranges of them, such as `5,100:200`: from 100 on, up to but without 200."""
    found = []
    for item in items_of(text):
        where = f"expected numbers or ranges such as 5 or 100:200, found {quoted(text)}: {item.place}"
        first, colon, stop = item.text.partition(":")
        start = parse_integer(first.strip(), where, at_least=0)
        found.append(range(start, parse_integer(stop.strip(), where, at_least=0) if colon else start + 1))
        if not found[-1]:
            message = f"{where} ends where it begins, or before"
            raise ConfigError(message, hint="write the first number, and the one behind the last")
    return found


def _ids(text: str) -> list[int]:
    """Returns ids of tokens, such as `17,4,2051`."""
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        message = f"expected ids such as 17,4,2051, found {text!r}"
        raise ConfigError(message) from None


@dataclass(frozen=True, kw_only=True)
class ShowOptions(SampleOptions, JsonOption):
    """Decode a document, or a training sample: a heading per document in it, end of document and other special tokens,
    padding, prompt and answer, and which tokens are labels with loss. Without a tokenizer, named or found by the
    manifest, a document is shown as token ids. A terminal shows as much of a document as a screen holds, `| less` all;
    NO_COLOR and FORCE_COLOR say whether in colour.

    Attributes:
        prefix: path of the pair without .bin or .idx.
        run_path: run.toml of a run, for --position.
        document: show document I.
        sample: show sample K of a split.
        position: show what stands at position N of a run.
        holdout: of a run: show what is held out instead.
        json: print one JSON object: heading, facts, notes, spans, first, num_tokens, and in tokens id, text, kind,
            part, loss and span of each.
        tokenizer: tokenizer.json or its folder (default: that of the data).
        ids: write the id of each token behind it.
        split: 98,1,1 or train=0.99,valid=0.01.
        split_name: split of the sample.
        num_samples: samples asked for (default one epoch).
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
            refuse_usage("name a PREFIX or --run, one of both")
        if (self.run_path is None) != (self.position is None):
            refuse_usage("--run and --position belong together")
        if self.holdout and self.run_path is None:
            refuse_usage("--holdout is about positions of a run")


def show(options: ShowOptions) -> int | Answer:
    try:
        shown = _of_pair(options) if options.run_path is None else _of_run(options.run_path, options)
    except IndexError as error:
        say(f"error: {error}")
        return 1
    return Answer(shown, shown_lines(shown, look_of(ids=options.ids)))


def _of_run(path: str, options: ShowOptions) -> Shown:
    assert options.position is not None  # looked at before
    opened, is_held_out = Run.open(path), options.holdout
    dataset, run = (opened.holdout(), None) if is_held_out else (opened.dataset(), opened)
    shown = shown_sample(dataset, options.position, _tokenizer_of(opened, options.tokenizer), run=run)
    what = "what is held out" if is_held_out else "the run"
    return dataclasses.replace(shown, heading=f"position {options.position:,} of {what}")


def _tokenizer_of(opened: Run, named: str | None) -> TextTokenizer | None:
    """Returns the tokenizer that is named, or that of a run; None if it has none; says if it cannot be used."""
    if named is not None:
        return load_tokenizer(named)
    try:
        return None if opened.lock.tokenizer is None else opened.tokenizer.loaded
    except TokenizerError as error:
        say(f"the tokenizer of the run cannot be used: {error.message}")
        return None


def _of_pair(options: ShowOptions) -> Shown:
    assert options.prefix is not None  # looked at before
    pair, tokenizer = OpenPair(prefix_of(options.prefix)), None
    try:
        tokenizer = tokenizer_of_data(options.tokenizer, [pair.prefix])
    except TokenizerError as error:
        if options.tokenizer is not None or options.document is None:
            raise
        say(f"{error.message}: ids are shown")
    if options.document is not None:
        return shown_document(pair, options.document, tokenizer)
    if pair.data.multimodal:
        message = f"expected text in `{pair.prefix}`, found text and images"
        raise ConfigError(message, hint="samples are of text: show a document with --document")
    assert options.sample is not None
    samples = _samples(options, pair, tokenizer)
    name = f"sample {options.sample:,} of {len(samples):,} ({options.split_name})"
    return dataclasses.replace(shown_sample(samples, options.sample, tokenizer), heading=name)


def _samples(options: ShowOptions, pair: OpenPair, tokenizer: Any) -> GPTDataset | SFTDataset:
    """Returns the samples of a split alone, of conversations if the pair knows prompts from answers."""
    split, kinds = Split[options.split_name], (GPTDatasetConfig, GPTDataset)
    config_class, dataset_class = kinds if pair.roles is None else (SFTDatasetConfig, SFTDataset)
    others = {"random_seed": options.seed, "blend": ([pair.prefix], None), "tokenizer": tokenizer}
    config = config_class(**arguments_of(options, config_class, **others))
    assert config.split_matrix is not None
    if (bounds := config.split_matrix[split.value]) is None:
        refuse(f"the split {options.split!r} leaves nothing for {split.name}")
    data: Any = dataset_class.build_low_level_dataset(pair.prefix, config)
    indices = split_indices(bounds, dataset_class.numel_low_level_dataset(data))
    return dataset_class(data, pair.prefix, indices, options.num_samples, split, config)


def _span_table(rows: Sequence[Row], *more: str, origins: bool = False) -> Iterator[str]:
    """Yields spans as a table, if there are any; `more` are further columns. What is the same in all stands above."""
    if not rows:
        return
    known = [name for name in ("step", "rank", *more, "pass") if any(row[name] is not None for row in rows)]
    same = [name for name in known if len(rows) > 1 and all(row[name] == rows[0][name] for row in rows)]
    if same:
        words = [(name.replace("_", "-"), rows[0][name]) for name in same]
        yield ", ".join(stage_of(value) if name == "stage" else f"{name} {value:,}" for name, value in words)
    names = ["position", *(name for name in known if name not in same), "start", "length"]
    columns = {name.replace("_", "-"): [row[name] for row in rows] for name in names}
    columns["document"] = [f"{row['source']}:{row['document']}" for row in rows]
    said = [_said_of(row) for row in rows]
    if any(map(str, said)):
        columns["loss" if "loss" in rows[0] else ""] = said
    if origins:
        columns["origin"] = [_origin_of(row) for row in rows]
    yield from table([*columns], [*zip(*columns.values(), strict=True)])


def _said_of(row: Row) -> object:
    if row["denied"]:
        return "denied"
    if row.get("loss") is not None:
        from rich.text import Text

        words = f"{'~' if row['loss_of'] == 'sample' else ''}{_number(row['loss'] / row['length'])}"
        return Text(words, style=("", "yellow", "bold red")[row["loss_level"]])
    return {True: "seen", False: "to come", None: ""}[row.get("seen")]


def _number(value: float) -> str:
    return f"{value:,.4g}" if not abs(value) >= 1000 else f"{value:.3e}" if abs(value) >= 1e8 else f"{value:,.0f}"


def _origin_of(row: Row) -> str:
    return f"{row['pair']} row {row['row']:,}" if row["file"] is None else f"{row['file']}:{row['record']}"


def _text_lines(rows: Sequence[Row], *names: str) -> Iterator[str]:
    """Yields texts of documents, each line behind the name of its document."""
    for row, name in itertools.product(rows, names):
        if row.get(name) is not None:
            lines = printable(row[name]).removesuffix("\n").split("\n")
            yield from (f"{row['source']}:{row['document']} {name} | {line}" for line in lines)


@dataclass(frozen=True, kw_only=True)
class TraceOptions(RunPath, Dealing):
    """Print what stands at steps or positions of a run: the spans of documents that each sample is made of, with source
    and pass, and the line or row of the input file that each document was made of. Nothing is read of the tokens unless
    their text is asked for. With --worst the documents are ranked by their share of the loss that a training loop
    recorded there (`LossRecorder`), and the command that denies them is printed. The exit status is 0 if all is well, 1
    for an error or where --check-inputs finds a problem, and 2 for wrong usage.

    Attributes:
        step: steps, from 0 on.
        position: positions: samples from 0 on.
        rank: only these data-parallel ranks.
        holdout: positions of what is held out instead.
        text: its text, decoded.
        from_input: the record of the input file, read again.
        check_inputs: whether input files are what they were.
        worst: instead the N documents with the largest share of the loss, with origin and how they begin, or --text.
        losses: folder of recorded losses, for --worst (default: `losses` beside run.toml).
        tokenizer: tokenizer.json or its folder (default: that of the run).
        path_to_cache: folder of the index cache, with order = "megatron".
        json: print one JSON object per span, a line each: position, step, rank, micro_batch, source, pass, document,
            start, length, file, record (from 1), slot, denied, stage, walk, window, pair, row, run, and with --text and
            --from-input text and input; null where something is not known. With --worst one per document: source,
            document, file, record, pair, row, loss, loss_of (document, or sample: a share by tokens), length,
            positions, share and text.
    """

    EITHER: ClassVar[Any] = (("step", "position"), ("worst", "from_input"), ("worst", "check_inputs"))
    ONE_OF: ClassVar[Any] = {"--step or --position": ("step", "position")}

    step: Annotated[_Ranges, Written(parse=_ranges, is_repeated=True, group=_ASKED)] = ()
    position: Annotated[
        _Ranges, Written(names=("--position", "--sample"), metavar="N", parse=_ranges, is_repeated=True, group=_ASKED)
    ] = ()
    rank: Annotated[_Ranges, Written(metavar="R", parse=_ranges, is_repeated=True, group=_ASKED)] = ()
    holdout: Annotated[bool, Written(group=_ASKED)] = False
    text: Annotated[bool, Written(group=_TOLD)] = False
    from_input: Annotated[bool, Written(group=_TOLD)] = False
    check_inputs: Annotated[bool, Written(group=_TOLD)] = False
    worst: Annotated[Count | None, Written(metavar="N", group=_TOLD)] = None
    losses: Annotated[str | None, Written(metavar="FOLDER", group=_TOLD)] = None
    tokenizer: Annotated[str | None, Written(metavar="PATH", group=_TOLD)] = None
    path_to_cache: Annotated[str | None, Written(metavar="FOLDER", group=_TOLD)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step and not self.has_batch_sizes:
            refuse_usage(NO_STEPS)
        if self.rank and self.micro_batch_size is None:
            refuse_usage("--rank needs --micro-batch-size and --data-parallel-size")
        if self.holdout and (self.step or self.has_batch_sizes):
            refuse_usage("--holdout is about positions: what is held out has no steps")
        if self.holdout and self.worst is not None:
            refuse_usage("--worst is about losses of training: what is held out has none")
        if self.losses is not None and self.worst is None:
            refuse_usage("--losses needs --worst")


def trace(options: TraceOptions) -> Iterator[Answer]:
    opened = Run.open(options.run_path, path_to_cache=options.path_to_cache)
    topology = options.topology(opened.lock)
    dataset = opened.holdout() if options.holdout else opened.dataset()
    origins, problems = SourceOrigins(opened.lock), dict[int, str | None]()
    tokenizer = _tokenizer_of(opened, options.tokenizer) if options.text or options.worst is not None else None
    heading = [f"run {opened.identity}"]
    asked = _asked(options, topology, len(dataset))
    if options.worst is not None:
        yield _worst(options, opened, np.unique(np.concatenate(list(asked))), origins, tokenizer)
        return
    for positions in asked:
        table = trace_dataset(dataset, positions) if options.holdout else opened.trace(positions)
        table = _with_steps(table.with_origins(origins), topology)
        rows = list(table.rows())
        assert table.files is not None  # as of a table with origins
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
            is_there = problems[file] is None and bool(chosen)
            found = read_records(origins.files[file], table.records[chosen].tolist()) if is_there else {}
            for place in chosen:
                rows[place]["input"] = found.get(int(table.records[place]))
        for row in rows if options.from_input else ():
            row.setdefault("input", None)
        is_changed = options.check_inputs and any(problems.values())
        drawn = _span_table(rows, "micro_batch", "stage", "slot", origins=True)
        yield Answer(iter(rows), [*heading, *drawn, *_text_lines(rows, "text", "input")], 1 if is_changed else 0)
        heading = []
    if origins.missing:
        say(origins_missing(origins.missing))


def _asked(options: TraceOptions, topology: Topology | None, end: int) -> Iterator[NDArray[np.int64]]:
    """Yields the positions that are asked for, some thousand at a time."""
    ranks, num_ranks = _flat(options.rank), options.data_parallel_size
    if ranks and num_ranks and (largest := max(each.stop for each in ranks) - 1) >= num_ranks:
        refuse(f"expected ranks below {num_ranks}, as --data-parallel-size says, found {largest}")
    for start, stop in _stretches(options, topology, end):
        for begin in range(start, stop, _AT_ONCE):
            chosen = np.arange(begin, min(begin + _AT_ONCE, stop), dtype=np.int64)
            if topology is not None and ranks:
                chosen = chosen[np.isin(topology.ranks(chosen), [*itertools.chain(*ranks)])]
            yield chosen


def _stretches(options: TraceOptions, topology: Topology | None, end: int) -> Iterator[tuple[int, int]]:
    """Yields the same of all ranks, as first position and one past the last."""
    asked, what = _flat(options.position), "what is held out" if options.holdout else "the run"
    if (last := max((each.stop for each in asked), default=0)) > end:
        refuse(f"expected positions below {end:,}, where {what} ends, found {last - 1:,}")
    yield from ((each.start, each.stop) for each in asked)
    if not options.step:
        return
    assert topology is not None  # a step has batch sizes
    sizes, steps = topology.batch_sizes, _flat(options.step)
    last = max(each.stop for each in steps) - 1
    if (stop := sizes.position_of_step(last + 1)) > end:
        found = f"step {last:,}, which reads positions {sizes.position_of_step(last):,} to {stop - 1:,}"
        message = f"expected a step of the run, which has {end:,} positions, found {found}"
        raise ConfigError(message, hint=f"it has {sizes.step_of_position(end):,} whole steps, from 0 on")
    for step in itertools.chain(*steps):
        yield sizes.position_of_step(step), sizes.position_of_step(step + 1)


def _flat(given: Sequence[Sequence[range]]) -> list[range]:
    return [*itertools.chain(*given)]


def _worst(
    options: TraceOptions, opened: Run, positions: NDArray[np.int64], origins: SourceOrigins, tokenizer: Any
) -> Answer:
    """Returns the documents with the largest share of the loss, those with NaN or infinity first, which have no share;
    and how they are denied."""
    if (folder := _open_losses(opened, options.losses)) is None:
        message = f"expected losses that training recorded, in `losses` beside `{opened.path}`, found no such folder"
        raise DatasetNotFoundError(message, hint="record them with `LossRecorder`, and name the folder with --losses")
    losses = span_losses(opened, folder, positions.tolist())
    table = opened.trace(positions).with_origins(origins)
    documents: dict[tuple[str, int], Row] = {}
    for place, row in enumerate(table.rows()):
        if (found := _loss_of(row, losses))["loss"] is not None:
            kept = {name: row[name] for name in ("source", "document", "file", "record", "pair", "row")}
            new = kept | {"loss": 0.0, "loss_of": found["loss_of"], "length": 0, "positions": [], "place": place}
            document = documents.setdefault((row["source"], row["document"]), new)
            document["loss"] += found["loss"]
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


def _open_losses(opened: Run, named: str | None) -> str | None:
    """Returns the folder of losses that is named, or lies beside `run.toml`; says which files in it are torn."""
    folder = losses_folder(opened, named)
    for file in () if folder is None else torn_files(folder):
        say(f"`{file}` ends within a record, which does not count")
    return folder


def _loss_of(row: Row, losses: Mapping[tuple[int, int], SpanLoss]) -> Row:
    """Returns what is known of a span: `loss`, what it was recorded of, `loss_of`, and `loss_level`."""
    if (found := losses.get((row["position"], row["slot"]))) is None:
        return {"loss": None, "loss_of": None, "loss_level": None}
    return {"loss": found.loss, "loss_of": "document" if found.is_recorded else "sample", "loss_level": found.level}


def _worst_lines(
    documents: Sequence[Row], positions: Iterable[int], losses: Mapping[tuple[int, int], SpanLoss], *, whole_text: bool
) -> Iterator[str]:
    """Yields the documents as a table, each with its origin and its text, or how that begins."""
    asked, known = set(positions), {position for position, _ in losses}
    total = sum(each.loss for each in losses.values())
    missing = f", {len(asked - known):,} without a recorded loss" if asked - known else ""
    yield f"{counted(len(asked), 'position')}{missing}; loss {_number(total)}"
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
        yield "\n~ of the loss of samples, divided among their documents by tokens"


def _deny_lines(options: BatchSizes, opened: Run, documents: Sequence[Row], first: int) -> Iterator[str]:
    """Yields the command that denies documents from a position on, or from the first that is not consumed."""
    position = max(first, opened.lock.consumed)
    words: list[object] = ["--from-position", position]
    if (sizes := options.batch_sizes(opened.lock)) is not None:
        step = sizes.step_of_position(position)
        words = ["--from-step", step + (sizes.position_of_step(step) < position)]
        for name in ("global_batch_size", "batch_size_schedule"):
            if (value := getattr(options, name)) is not None:
                words += [f"--{name.replace('_', '-')}", value]
    words += itertools.chain(*(("--document", f"{row['source']}:{row['document']}") for row in documents))
    yield "\nto deny them there, once training goes on from a checkpoint before that:"
    yield f"  {shlex.join(['tokenloom', 'deny', opened.path, *map(str, words)])}"


@dataclass(frozen=True, kw_only=True)
class WhenOptions(RunPath, Dealing):
    """Print every position of a run at which documents are read, past and to come, with pass and stage. By arithmetic,
    whatever the length of the run; only texts and tokens are looked for in the data. The exit status is 0 also if
    nothing reads the tokens, 1 for an error and 2 for wrong usage.

    Attributes:
        document: document N, from 0, of source NAME.
        record: what line or row N, from 1, of FILE became.
        text_file: documents of this text, by their hashes.
        tokens: this text within documents; all data are read.
        ids: the same, given as ids of tokens.
        until_position: before position N.
        tokenizer: tokenizer.json or its folder (default: that of the run).
        path_to_cache: folder of the index cache, with order = "megatron".
        losses: folder of recorded losses, shown per token, in colour where it is high (default: `losses` beside
            run.toml, where there is one).
        json: print one JSON object per span, a line each: what `trace --json` has, and match, the first of the tokens
            that were looked for, num_matched, how many these are, and seen, whether training has consumed the position,
            as far as run.lock knows; null where something is not known. Where losses were recorded, also loss and
            loss_of (document, or sample: a share by tokens) and loss_level (1, 2: above 1.5 and 3 times the median).
    """

    ONE_OF: ClassVar[Any] = {
        "--document, --record, --text-file, --tokens or --ids": ("document", "record", "text_file", "tokens", "ids")
    }

    document: Annotated[tuple[str, ...], Written(metavar="NAME:N", is_repeated=True, group=_SOUGHT)] = ()
    record: Annotated[tuple[str, ...], Written(metavar="FILE:N", is_repeated=True, group=_SOUGHT)] = ()
    text_file: Annotated[str | None, Written(metavar="FILE", group=_SOUGHT)] = None
    tokens: Annotated[str | None, Written(metavar="TEXT", group=_SOUGHT)] = None
    ids: Annotated[Sequence[int] | None, Written(metavar="I,I,…", parse=_ids, group=_SOUGHT)] = None
    until_position: Annotated[Position | None, Written(group="where (default: in the whole run)")] = None
    tokenizer: Annotated[str | None, Written(metavar="PATH", group=_NEEDED)] = None
    path_to_cache: Annotated[str | None, Written(metavar="FOLDER", group=_NEEDED)] = None
    losses: Annotated[str | None, Written(metavar="FOLDER", group=_NEEDED)] = None


def when(options: WhenOptions) -> Iterator[Answer]:
    opened = Run.open(options.run_path, path_to_cache=options.path_to_cache)
    topology = options.topology(opened.lock)
    stop = options.position_of(options.until_position, opened.lock)
    if stop is None and opened.num_samples is None:
        message = f"expected where to stop, since the last stage of `{options.run_path}` has no end, found nothing"
        raise ConfigError(message, hint="give --until-position or --until-step")
    places = _places_of(options, opened)
    origins = SourceOrigins(opened.lock)
    folder, consumed, documents = _open_losses(opened, options.losses), opened.lock.consumed, sorted(places)

    def rows() -> Iterator[Row]:
        """Yields the spans that hold something of what is looked for, once for each of these."""
        parts = (documents[at : at + _DOCUMENTS_AT_ONCE] for at in range(0, len(documents), _DOCUMENTS_AT_ONCE))
        tables: Iterable[SpanTable] = (opened.occurrences(_by_source(part), stop=stop) for part in parts)
        losses = None
        if folder is not None:  # of all documents, as files of losses are read from end to end
            tables = list(tables)
            losses = span_losses(opened, folder, itertools.chain(*(table.positions.tolist() for table in tables)))
        for found in tables:
            table = _with_steps(found.with_origins(origins), topology)
            for source, row in zip(table.sources.tolist(), table.rows(), strict=True):
                row |= {} if losses is None else _loss_of(row, losses)
                seen = row["position"] < consumed if consumed else None
                for place in places[source, row["document"]]:
                    start, length = place or (None, None)
                    if place is None or (row["start"] < sum(place) and place[0] < row["start"] + row["length"]):
                        yield row | {"match": start, "num_matched": length, "seen": seen}

    def lines() -> Iterator[str]:
        yield f"run {opened.identity}"
        num_places = sum(map(len, places.values()))
        more = f", with {counted(num_places, 'place')}" if num_places > len(places) else ""
        yield f"{counted(len(places), 'document')}{more}"
        for source, numbers in _by_source(places).items():
            held = are_held_out(opened.lock, source, np.array(numbers, dtype=np.int64))
            for document in np.array(numbers)[held][:_MOST_HELD_OUT].tolist():
                yield f"{opened.lock.sources[source].name}:{document} is held out: training never reads it"
        found = rows()
        first = list(itertools.islice(found, _MOST_LINES))
        yield from _span_table(first)
        num_rows = len(first) + sum(1 for _ in found)
        where = "" if stop is None else f" before position {stop:,}"
        yield f"{counted(num_rows, 'span')}{where}" if num_rows else f"never read{where}"
        if num_rows > _MOST_LINES:
            yield f"the first {_MOST_LINES:,} are shown; --json prints all"

    yield Answer(rows(), lines())
    if origins.missing and options.json:
        say(origins_missing(origins.missing))


def _places_of(options: WhenOptions, opened: Run) -> Places:
    """Returns what is looked for."""
    lock, places = opened.lock, Places()
    names = [source.name for source in lock.sources]
    asked = [*options.document, *(record_name(each, names) for each in options.record)]
    found = resolve_names([parse_name(each, names) for each in asked], lock.sources)
    for source, documents in found.by_source:
        places.update(((source, document), [None]) for document in documents)
    for name in found.empty_records:
        say(f"{name} gave no document of this run: it was blank, bad, a duplicate, or went into other data")
    if found.unknown_pairs:
        say(origins_missing(found.unknown_pairs))
    if options.text_file is not None:
        for place in _whole_texts(options.text_file, opened):
            places.setdefault(place, []).append(None)
    matches: list[Match] = []
    if options.tokens is not None:
        tokenizer = opened.tokenizer.loaded if options.tokenizer is None else load_tokenizer(options.tokenizer)
        try:
            matches += find_text(lock, options.tokens, tokenizer)
        except ConfigError as error:
            raise ConfigError(error.message, hint=(error.hint or "").replace("the ids themselves", "--ids")) from error
    if options.ids is not None:
        matches += find_ids(lock, options.ids)
    for match in matches:
        places.setdefault((match.source, match.document), []).append((match.start, match.length))
    return places


def _whole_texts(path: str, opened: Run) -> list[tuple[int, int]]:
    text = read_text(path, missing="name a file with the text")
    texts = [text, text.removesuffix("\n"), text.removesuffix("\r\n"), f"{text}\n"]
    try:
        found, missing = find_whole_texts(opened.lock, texts)
    except ConfigError as error:
        hint = "tokenize with `tokenloom preprocess --document-hashes`, or look for a part of the text with --tokens"
        raise ConfigError(error.message, hint=hint) from error
    if missing:
        say(f"{counted(len(missing), 'pair')} without hashes were not looked at: `{missing[0]}`, …")
    return found


def _by_source(places: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    by_source = itertools.groupby(sorted(places), key=lambda place: place[0])
    return {source: [document for _, document in found] for source, found in by_source}


@dataclass(frozen=True, kw_only=True)
class DenyOptions(RunPath, Dealing):
    """Deny documents from a position on, which training has not read yet: they become padding without loss, and all
    else stays where it is. Adds a [[denied]] to run.toml and locks the run anew; both files change or none. Prints the
    steps that change, and digests that show that nothing else moved.

    Attributes:
        document: document N, from 0, of source NAME.
        record: what line or row N, from 1, of FILE became.
        documents_file: a list of both, one a line.
        reason: why; kept in run.toml.
        from_position: from where on, as samples from 0 on.
        until_position: list changes before position N.
        since_start: also at which steps before that the documents were trained on.
        dry_run: only say what would change.
        json: print one JSON object: path, written, position, reason, documents, already_denied, held_out and
            no_document (names), unknown_pairs (prefixes that do not know their input), listed_until, num_positions,
            num_tokens, changed and seen (spans as `trace --json` has them; seen is null without --since-start), digest
            and order_without_denials (before and after), and diff.
    """

    ONE_OF: ClassVar[Any] = {
        "--document, --record or --documents-file": ("document", "record", "documents_file"),
        "--from-step or --from-position": ("from_position",),
    }

    document: Annotated[tuple[str, ...], Written(metavar="NAME:N", is_repeated=True, group=_DENIED)] = ()
    record: Annotated[tuple[str, ...], Written(metavar="FILE:N", is_repeated=True, group=_DENIED)] = ()
    documents_file: Annotated[str | None, Written(metavar="FILE", group=_DENIED)] = None
    reason: Annotated[str | None, Written(metavar="TEXT", group=_DENIED)] = None
    from_position: Position | None = None
    until_position: Annotated[Position | None, Written(group=_PRINTED)] = None
    since_start: Annotated[bool, Written(group=_PRINTED)] = False
    dry_run: bool = False


def deny(options: DenyOptions) -> Answer:
    lock = read_lock(lock_path(options.run_path))
    position = options.position_of(options.from_position, lock)
    assert position is not None  # one of both is needed
    topology = options.topology(lock)
    until = options.position_of(options.until_position, lock)
    names = [source.name for source in lock.sources]
    denial = Amendment(
        position=position,
        denied_documents=(*options.document, *(record_name(record, names) for record in options.record)),
        denied=options.documents_file,
        reason=options.reason,
    )
    denied = deny_documents(
        options.run_path, denial, until=until, since_start=options.since_start, write=not options.dry_run
    )
    locked = denied.amended.locked

    def names_of(documents: Documents) -> list[str]:
        known = locked.lock.sources
        return [f"{known[source].name}:{number}" for source, chosen in documents.items() for number in chosen.tolist()]

    def rows_of(table: SpanTable) -> list[Row]:
        return list(_with_steps(table, topology).rows())

    record = {
        "path": options.run_path,
        "written": not options.dry_run,
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
        told = {name: value for name, value in record.items() if name not in ("changed", "seen", "diff")}
        yield from facts_lines("denied" if record["written"] else "to be denied", told)
        for name, what in (("changed", "become padding"), ("seen", "were trained on before, or are about to be")):
            if rows := record[name]:
                yield f"{what}:"
                yield from _span_table([{**row, "denied": False} for row in rows[:_MOST_SHOWN]])
                if len(rows) > _MOST_SHOWN:
                    yield f"… and {len(rows) - _MOST_SHOWN:,} more spans; --json prints all"
        yield "nothing else moves" if denied.nothing_else_moved else "SOMETHING ELSE MOVES: the digests differ"

    return Answer(record, lines(), 0 if denied.nothing_else_moved else 1)


def _with_steps(table: SpanTable, topology: Topology | None) -> SpanTable:
    return table if topology is None else table.with_steps(topology)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(RunPath, BatchSizes):
    """Read a range of positions again and print its digest: a sum over positions and tokens, the same for any ranks,
    micro-batches and threads, as `check_reading` gives it at a checkpoint. With --expect the exit status is 0 if it is
    that one, and 1 if it is not.

    Attributes:
        from_position: the first position (default: that of --expect, else 0).
        to_position: the position behind the last (default: that of --expect, else the end).
        expect: what it should be.
        expect_file: a digest per line, one for each range to read, such as of each checkpoint.
        threads: threads that read.
        json: print one JSON object: digest, run, start, stop and num_samples, and with --expect also expected and
            matches.
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
    for asked, expected in _wanted(options, opened, name):
        if asked.stop > len(dataset):
            found = f"{asked.start}-{asked.stop}"
            refuse(f"expected a range of the {len(dataset):,} positions of `{opened.path}`, found {found}")
        positions: Sequence[int] = range(asked.start, asked.stop)
        if asked.share is not None:
            positions = list(itertools.chain.from_iterable(asked.share.positions(asked.start, asked.stop)))
        digest = digest_of_positions(dataset, positions, num_threads=options.threads)
        answer = dataclasses.replace(asked, run=name, digest=digest)
        record = {"digest": str(answer), "num_samples": digest.num_samples, **members(answer, "run", "start", "stop")}
        is_same, said = expected in (None, digest.hexdigest()), str(answer)
        if expected is not None:
            record |= {"expected": expected, "matches": is_same}
            otherwise = f"\nexpected sum {expected}: something else was read, or the data have changed since"
            said += f"  as expected: {digest.num_samples:,} samples" if is_same else otherwise
        yield Answer(record, said, 0 if is_same else 1)
        if not is_same:
            return


def _wanted(options: ReplayOptions, opened: Run, name: str) -> list[tuple[RangeDigest, str | None]]:
    """Returns the ranges to read, and the sum expected of each, as 32 hex digits."""
    start = options.position_of(options.from_position, opened.lock)
    stop = options.position_of(options.to_position, opened.lock)
    if options.expect_file is not None:
        lines = read_text(options.expect_file, missing="`replay` prints digests").split("\n")
        given = [_parsed(line.strip(), name) for line in lines if line.strip()]
        if not given:
            refuse(f"expected a digest per line in `{options.expect_file}`, found none")
        if (start, stop) != (None, None):
            refuse_usage("--expect-file says itself which positions to read")
        return [(each, each.digest.hexdigest()) for each in given]
    if options.expect is None or re.fullmatch("[0-9a-f]{32}", options.expect):  # the sum alone, of a loader
        stop = opened.num_samples if stop is None else stop
        if stop is None:
            refuse_usage("a run without an end needs --to-position or --to-step")
        if (start := start or 0) > stop:
            refuse(f"expected a range of positions, found {start}-{stop}")
        return [(RangeDigest(run=name, start=start, stop=stop), options.expect)]
    expected = _parsed(options.expect, name)
    asked = (expected.start if start is None else start, expected.stop if stop is None else stop)
    if asked != (expected.start, expected.stop):
        found = f"{expected.start}-{expected.stop}"
        refuse(f"expected the digest of positions {asked[0]}-{asked[1]}, found one of {found}")
    return [(expected, expected.digest.hexdigest())]


def _parsed(text: str, name: str) -> RangeDigest:
    """Returns a digest of this run."""
    found = RangeDigest.parse(text)
    if found.run != name:
        message = f"expected a digest of this run, {name}, found one of {found.run}"
        raise ConfigError(message, hint="another seed, another order or other data at its beginning make another run")
    return found
