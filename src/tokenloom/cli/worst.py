"""Documents behind a spike of the loss: those that were read at some positions, by their share of the loss there."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tokenloom.cli.run_options import WIDTH, BatchSizes
from tokenloom.cli.stopping import say
from tokenloom.inspect.texts import span_tokens
from tokenloom.loading.losses import SpanLoss, losses_folder, torn_files
from tokenloom.rendering.words import counted, lines_of, name_of, printable
from tokenloom.run.audit.trace import SpanTable
from tokenloom.run.run import Run

Row = dict[str, Any]
SpanLosses = Mapping[tuple[int, int], SpanLoss]

_HEADING = f"{'share':>9} {'loss':>12} {'per token':>9} {'tokens':>9} {'samples':>7}  document"
_TEXT_WIDTH = WIDTH - len("  origin | ")


def open_losses(opened: Run, named: str | None) -> str | None:
    """Returns the folder of losses that is named, or lies beside `run.toml`; says which files in it are torn."""
    folder = losses_folder(opened, named)
    for file in () if folder is None else torn_files(folder):
        say(f"`{file}` ends within a record, which does not count")
    return folder


def loss_of(row: Row, losses: SpanLosses) -> Row:
    """Returns what is known of a span: `loss`, what it was recorded of, `loss_of`, and `loss_level`."""
    if (found := losses.get((row["position"], row["slot"]))) is None:
        return {"loss": None, "loss_of": None, "loss_level": None}
    return {"loss": found.loss, "loss_of": "document" if found.is_recorded else "sample", "loss_level": found.level}


def per_token(row: Row) -> str:
    """Returns the loss of a row per token, in at most nine characters."""
    return _number(row["loss"] / row["length"])


def worst_documents(
    table: SpanTable, losses: SpanLosses, most: int, text_of: Callable[[Sequence[int]], str]
) -> list[Row]:
    """Returns the documents with the largest share of the loss, those with NaN or infinity first, which have no share.

    Args:
        table: spans, each once.
        losses: of spans.
        most: documents at most.
        text_of: decodes tokens of the first span of a document.
    """
    documents: dict[tuple[str, int], Row] = {}
    for place, row in enumerate(table.rows()):
        found = loss_of(row, losses)
        if found["loss"] is not None:
            kept = {name: row[name] for name in ("source", "document", "file", "record", "pair", "row")}
            new = kept | {"loss": 0.0, "loss_of": found["loss_of"], "length": 0, "positions": [], "place": place}
            document = documents.setdefault((row["source"], row["document"]), new)
            document["loss"] += found["loss"]
            document["length"] += row["length"]
            document["positions"].append(row["position"])
    total = sum(each["loss"] for each in documents.values() if math.isfinite(each["loss"]))
    worst = sorted(documents.values(), key=lambda each: (math.isfinite(each["loss"]), -each["loss"]))[:most]
    tokens = span_tokens(table.take(np.array([each.pop("place") for each in worst], dtype=np.int64)))
    for document, ids in zip(worst, tokens, strict=True):
        document["share"] = document["loss"] / total if total and math.isfinite(document["loss"]) else None
        document["text"] = text_of(ids.tolist())
    return worst


def worst_lines(
    documents: Sequence[Row], positions: Iterable[int], losses: SpanLosses, *, whole_text: bool
) -> Iterator[str]:
    """Yields the documents as a table, each with its origin and its text, or how that begins."""
    asked, known = set(positions), {position for position, _ in losses}
    total = sum(each.loss for each in losses.values())
    missing = f", {len(asked - known):,} without a recorded loss" if asked - known else ""
    yield f"{counted(len(asked), 'position')}{missing}; loss {_number(total)}"
    if documents:
        yield f"\n{_HEADING}"
    for row in documents:
        share = "-" if row["share"] is None else f"{row['share']:.2%}"
        share = f"~{share}" if row["loss_of"] == "sample" else share
        number, samples = str(row["document"]), len(set(row["positions"]))
        numbers = f"{share:>9} {_number(row['loss']):>12} {per_token(row):>9} {row['length']:>9,} {samples:>7,}"
        yield f"{numbers}  {name_of(row['source'], width=27 - len(number))}:{number}"
        origin = f"{row['pair']} row {row['row']:,}" if row["file"] is None else f"{row['file']}:{row['record']}"
        yield f"  origin | {origin if len(origin) <= _TEXT_WIDTH else f'…{origin[1 - _TEXT_WIDTH :]}'}"
        text = printable(row["text"]).removesuffix("\n")
        lines = text.split("\n") if whole_text else lines_of(" ".join(text[: 4 * WIDTH].split()), _TEXT_WIDTH)
        yield from (f"  text   | {line}" for line, _ in zip(lines, lines if whole_text else range(2), strict=False))
    if any(row["loss_of"] == "sample" for row in documents):
        yield "\n~ of the loss of samples, divided among their documents by tokens"


def _number(value: float) -> str:
    return f"{value:,.4g}" if not abs(value) >= 1000 else f"{value:.3e}" if abs(value) >= 1e8 else f"{value:,.0f}"


def deny_lines(options: BatchSizes, opened: Run, documents: Sequence[Row], first: int) -> Iterator[str]:
    """Yields the command that denies documents from a position on, or from the first that is not consumed."""
    position = max(first, opened.lock.consumed)
    where = f"--from-position {position}"
    if (sizes := options.batch_sizes(opened.lock)) is not None:
        step = sizes.step_of_position(position)
        step += sizes.position_of_step(step) < position
        schedule = options.batch_size_schedule
        dealt = f"--global-batch-size {options.global_batch_size}"
        dealt = dealt if schedule is None else f"--batch-size-schedule {shlex.quote(schedule)}"
        where = f"--from-step {step} {dealt}"
    yield "\nto deny them there, once training goes on from a checkpoint before that:"
    names = [f"{row['source']}:{row['document']}" for row in documents]
    line = f"  tokenloom deny {shlex.quote(opened.path)} {where}"
    for word in (f"--document {shlex.quote(name)}" for name in names):
        if len(line) + len(word) + 3 > WIDTH:
            yield f"{line} \\"
            line = "   "
        line += f" {word}"
    yield line
