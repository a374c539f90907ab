"""What a training loop wrote of itself: how long it waited for data, what storage cost, loss by source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tokenloom.inspect.target import Target
from tokenloom.loading.statistics_file import LoaderLine, SourceLine, StatisticsFile, read_statistics
from tokenloom.rendering.html import Cell, Markup, element, facts, joined, table
from tokenloom.rendering.words import size
from tokenloom.storage.statistics import SourceStatistics
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.run_pieces import largest_rows
from tokenloom_look.report.section import Chart, Section, Series
from tokenloom_look.report.words import duration, share

_MOST_LINES = 12
_MUCH_WAITING = 0.05
_MANY_RETRIES = 0.01
_MUCH_FETCHED = 2.0

Float64s = NDArray[np.float64]


class _Between:
    """What happened from each report of a loader to the next, and before the first of a process.

    Attributes:
        steps: int64[num_reports - 1], the step of the later one.
        batches, waited: float64[num_reports - 1], batches handed out, and seconds that the loop waited for them.
        seconds: float64[num_reports - 1], time between the two; NaN where it is not known, or a process began anew.
        storage: what was read of all sources.
        longest: seconds waited for the slowest batch of all.
    """

    def __init__(self, lines: Sequence[LoaderLine]) -> None:
        pairs = list(pairwise(lines))
        self.steps = np.array([later.step for _, later in pairs], dtype=np.int64)
        counts = np.array([_wait_numbers(line) for line in lines], dtype=np.float64).reshape(-1, 2)
        times = np.array([line.unix_seconds for line in lines], dtype=np.float64)
        begun = np.array([_began_anew(before, later) for before, later in pairs], dtype=bool)
        self.batches, self.waited = np.where(begun[:, None], counts[1:], np.diff(counts, axis=0)).T
        self.seconds = np.where(begun, np.nan, np.diff(times))
        self.storage = [
            _total(later) if anew else _minus(_total(later), _total(before))
            for (before, later), anew in zip(pairs, begun.tolist(), strict=True)
        ]
        self.longest = max((line.wait.longest_seconds for line in lines if line.wait is not None), default=0.0)


def statistics_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns what a training loop wrote of itself; None where no file is named.

    Raises:
        InputError: the file is not there, or holds other things than reports.
    """
    if options.statistics is None:
        return None
    return section_of_statistics(options.statistics, read_statistics(options.statistics))


def section_of_statistics(path: str, found: StatisticsFile) -> Section:
    """Returns the same of what was read already.

    Args:
        path: the file.
        found: what is known of it.
    """
    html: list[Cell] = [_facts(path, found)]
    charts: list[Chart] = []
    findings: list[str] = []
    if len(found.loaders) > 1:
        between = _Between(found.loaders)
        charts += [*_waits(between), *_storage(between)]
        findings += _findings(between)
    if any(line.storage for line in found.loaders):
        html.append(_sources(found.loaders))
    if len(found.sources) > 1:
        charts.append(_losses(found.sources))
    if not found.loaders and not found.sources:
        html.append(element("p", "None of its lines is a report of a loader or of sources.", class_="note"))
    return Section(id="statistics", title="Loader and storage", html=joined(html), charts=charts, findings=findings)


def _facts(path: str, found: StatisticsFile) -> Markup:
    last = next((line.wait for line in reversed(found.loaders) if line.wait is not None), None)
    return facts(
        [
            ("file", path),
            ("lines", found.num_lines),
            ("lines left out", found.num_unread or None),
            ("reports of loaders", len(found.loaders)),
            ("reports of sources", len(found.sources)),
            ("batches of the last process", None if last is None else int(last.num_batches)),
            ("seconds that it waited for them", None if last is None else f"{last.total_seconds:,.2f} s"),
            ("seconds for the slowest of them", None if last is None else f"{last.longest_seconds:,.2f} s"),
        ]
    )


def _waits(between: _Between) -> Iterator[Chart]:
    known = between.batches > 0
    if not known.any():
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(known, between.waited / between.batches, np.nan)
        part = np.where(between.seconds > 0, between.waited / between.seconds, np.nan)
    xs, (mean, part) = _by_step(between.steps, mean, part)
    yield Chart(
        id="waits",
        kind="lines",
        title="Waiting for a batch",
        summary=f"The loop waited {duration(float(between.waited.sum() / between.batches.sum()))} for a batch in the "
        f"mean, and {duration(between.longest)} for the slowest.",
        x_label="step",
        x=xs,
        y_label="seconds for a batch",
        y_format="seconds",
        series=[Series("wait", mean)],
        note="Of each report the mean since the one before.",
    )
    timed = between.seconds > 0
    if timed.any():
        whole = share(float(between.waited[timed].sum()), float(between.seconds[timed].sum()))
        yield Chart(
            id="wait-share",
            kind="lines",
            title="Share of the time spent waiting for data",
            summary=f"In all {whole} of the time.",
            x_label="step",
            x=xs,
            y_label="share of the time",
            y_format="share",
            series=[Series("waiting", part)],
        )


def _storage(between: _Between) -> Iterator[Chart]:
    if not any(entry.requests or entry.bytes_used for entry in between.storage):
        return
    hits = np.array([entry.hits for entry in between.storage], dtype=np.float64)
    reads = hits + np.array([entry.waits for entry in between.storage], dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(reads > 0, hits / reads, np.nan)
    retries = np.array([entry.retries for entry in between.storage], dtype=np.float64)
    xs, (part, retries) = _by_step(between.steps, part, retries)
    yield Chart(
        id="cache-hits",
        kind="lines",
        title="Reads that found their bytes here",
        summary=f"In all {share(float(hits.sum()), float(reads.sum()))} of the reads did not wait for the store.",
        x_label="step",
        x=xs,
        y_label="share of the reads",
        y_format="share",
        series=[Series("hits", part)],
    )
    yield Chart(
        id="retries",
        kind="lines",
        title="Requests that were repeated",
        summary=f"{int(retries.sum()):,} requests were repeated.",
        x_label="step",
        x=xs,
        y_label="requests since the report before",
        y_format="count",
        series=[Series("retries", retries)],
    )


def _sources(lines: Sequence[LoaderLine]) -> Markup:
    """Returns what was read of each source, by all processes that wrote reports."""
    sums: dict[str, SourceStatistics] = {}
    for before, later in pairwise([None, *lines]):
        assert later is not None
        anew = before is None or _began_anew(before, later)
        for path, entry in later.storage.items():
            earlier = SourceStatistics() if anew or before is None else before.storage.get(path, SourceStatistics())
            sums[path] = sums.get(path, SourceStatistics()) + _minus(entry, earlier)

    def cells(entries: Sequence[tuple[str, SourceStatistics]]) -> list[Cell]:
        entry = sum((each for _, each in entries), start=SourceStatistics())
        return [
            size(entry.bytes_used),
            size(entry.bytes_fetched),
            f"{entry.amplification:.2f}",
            entry.requests,
            entry.retries,
            share(entry.hits, entry.hits + entry.waits),
            duration(entry.wait_seconds),
        ]

    rows = largest_rows(
        list(sums.items()), lambda each: each[1].bytes_fetched, lambda each: [each[0], *cells([each])], cells
    )
    columns = ["source", "used", "fetched", "fetched per used", "requests", "retries", "reads that hit", "waited"]
    return table(columns, rows, caption="Object storage")


def _losses(lines: Sequence[SourceLine]) -> Chart:
    names = list(dict.fromkeys(name for line in lines for name in line.losses))[:_MOST_LINES]
    values = np.array([[line.losses.get(name, np.nan) for name in names] for line in lines], dtype=np.float64)
    xs, columns = _by_step(np.array([line.step for line in lines], dtype=np.int64), *values.T)
    known = [column[np.isfinite(column)] for column in columns]
    ends = [f"{name} {column[-1]:.3g}" for name, column in zip(names, known, strict=True) if len(column)][:3]
    left_out = len({name for line in lines for name in line.losses}) - len(names)
    return Chart(
        id="losses",
        kind="lines",
        title="Loss by source",
        summary=f"At the end the losses are {', '.join(ends)}." if ends else "No source has a loss.",
        x_label="step",
        x=xs,
        y_label="loss",
        series=[Series(name, column) for name, column in zip(names, columns, strict=True)],
        note=f"{left_out:,} more sources are left out." if left_out else "",
    )


def _findings(between: _Between) -> Iterator[str]:
    timed = between.seconds > 0
    if timed.any() and between.waited[timed].sum() > _MUCH_WAITING * between.seconds[timed].sum():
        part = share(float(between.waited[timed].sum()), float(between.seconds[timed].sum()))
        yield f"The training loop waited for its data {part} of the time."
    total = sum(between.storage, start=SourceStatistics())
    if total.retries > _MANY_RETRIES * total.requests:
        yield f"{share(total.retries, total.requests)} of the requests to object storage were repeated."
    if total.amplification > _MUCH_FETCHED:
        yield f"{total.amplification:.1f} bytes were fetched of object storage for each that was used."


def _by_step(steps: NDArray[np.int64], *columns: Float64s) -> tuple[NDArray[np.int64], list[Float64s]]:
    """Returns numbers in the order of their steps: a run that was resumed may come to a step again."""
    order = np.argsort(steps, kind="stable")
    return steps[order], [column[order] for column in columns]


def _wait_numbers(line: LoaderLine) -> tuple[float, float]:
    return (0.0, 0.0) if line.wait is None else (float(line.wait.num_batches), line.wait.total_seconds)


def _began_anew(before: LoaderLine, later: LoaderLine) -> bool:
    """Whether another process wrote the later report: it counts from 0 on."""
    return _wait_numbers(later)[0] < _wait_numbers(before)[0] or any(
        entry.requests > later.storage.get(path, SourceStatistics()).requests for path, entry in before.storage.items()
    )


def _total(line: LoaderLine) -> SourceStatistics:
    return sum(line.storage.values(), start=SourceStatistics())


def _minus(later: SourceStatistics, before: SourceStatistics) -> SourceStatistics:
    numbers = zip(later.numbers(), before.numbers(), strict=True)
    return SourceStatistics.from_numbers(max(0, mine - theirs) for mine, theirs in numbers)
