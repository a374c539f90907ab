"""The list of report sections; a section that fails is replaced by its error message."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from tokenloom.errors import TokenloomError
from tokenloom.progress import task
from tokenloom_look.html import element, joined
from tokenloom_look.report.blend_section import blend_section
from tokenloom_look.report.contamination_section import contamination_section
from tokenloom_look.report.documents_section import documents_section, parts_section
from tokenloom_look.report.input_section import input_section
from tokenloom_look.report.job_section import job_section
from tokenloom_look.report.ledger_section import ledger_section
from tokenloom_look.report.made_by_section import made_by_section
from tokenloom_look.report.packing_section import packing_section
from tokenloom_look.report.run_sections import held_out_section, passes_section, stages_section
from tokenloom_look.report.samples_section import samples_section, shown_documents_section
from tokenloom_look.report.section import Chart, ReportOptions, Section
from tokenloom_look.report.statistics_section import statistics_section
from tokenloom_look.report.tokens_section import tokens_section
from tokenloom_look.target import Target, TargetKind, open_target

MakeSection = Callable[[Target, ReportOptions], Section | None]
"""Makes a section of a target; returns None if the section would be empty."""

# Errors due to wrong or damaged data or to disks; the message of such an error replaces the section.
_FAILURES = (TokenloomError, OSError, ValueError, LookupError, ArithmeticError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSection:
    """A section type, with the kinds of targets that it applies to."""

    id: str
    title: str
    kinds: Collection[TargetKind]
    make: MakeSection


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SectionResult:
    """The result of making a section. After an error, `section` shows the error message."""

    listed: ListedSection
    section: Section | None
    error: str | None
    seconds: float


_DATA = frozenset({TargetKind.pair, TargetKind.catalogue, TargetKind.blend, TargetKind.run})
_RUNS = frozenset({TargetKind.run})
_BLENDS = frozenset({TargetKind.blend})

SECTIONS: tuple[ListedSection, ...] = (
    ListedSection(id="job", title="Progress of the job", kinds={TargetKind.job}, make=job_section),
    ListedSection(id="blend", title="Blend", kinds=_BLENDS, make=blend_section),
    ListedSection(id="stages", title="Stages and blend", kinds=_RUNS, make=stages_section),
    ListedSection(id="passes", title="Passes over the sources", kinds=_RUNS, make=passes_section),
    ListedSection(id="documents", title="Documents and tokens", kinds=_DATA, make=documents_section),
    ListedSection(id="packing", title="Packing", kinds=_DATA, make=packing_section),
    ListedSection(id="statistics", title="Training loop", kinds=_DATA, make=statistics_section),
    ListedSection(id="contamination", title="Benchmarks in the data", kinds=_DATA, make=contamination_section),
    ListedSection(id="ledger", title="Ledger", kinds=_RUNS, make=ledger_section),
    ListedSection(id="held-out", title="Held-out and denied documents", kinds=_RUNS, make=held_out_section),
    ListedSection(id="parts", title="Parts of the catalogue", kinds={TargetKind.catalogue}, make=parts_section),
    ListedSection(id="input", title="Input records", kinds=_DATA, make=input_section),
    ListedSection(id="made-by", title="Tokenizer and options", kinds=_DATA, make=made_by_section),
    ListedSection(id="tokens", title="Tokens", kinds=_DATA, make=tokens_section),
    ListedSection(id="samples", title="Example samples", kinds=_DATA, make=samples_section),
    ListedSection(id="shown-documents", title="Example documents", kinds=_DATA, make=shown_documents_section),
)
"""All sections in the order of the page: sections with charts first."""


def sections_of(target: Target) -> list[ListedSection]:
    """Returns the section types that apply to the kind of a target."""
    return [listed for listed in SECTIONS if target.kind in listed.kinds]


def charts(*targets: str, tokenizer: str | None = None, options: ReportOptions | None = None) -> list[Chart]:
    """Returns the charts of a report, to show in a notebook or save as pictures.

    Args:
        targets: a run.toml, prefixes, a catalogue, or the folder of a job.
        tokenizer: path of a tokenizer; by default the tokenizer of the data.
        options: options of the report.

    Raises:
        TokenloomError: the target does not exist, or a section fails.
    """
    target, wanted = open_target(targets, tokenizer=tokenizer), ReportOptions() if options is None else options
    sections = (listed.make(target, wanted) for listed in sections_of(target))
    return [chart for section in sections if section is not None for chart in section.charts]


def make_section(listed: ListedSection, target: Target, options: ReportOptions) -> SectionResult:
    began = time.monotonic()
    try:
        section, error = listed.make(target, options), None
    except _FAILURES as failure:
        error = str(failure) if isinstance(failure, TokenloomError) else f"{type(failure).__name__}: {failure}"
        section = _failed(listed, failure, error)
    return SectionResult(listed=listed, section=section, error=error, seconds=time.monotonic() - began)


def make_sections(target: Target, options: ReportOptions) -> Iterator[SectionResult]:
    """Yields the result of each section as soon as it is made."""
    wanted = sections_of(target)
    with task("report", unit="sections", total=len(wanted)) as advance:
        for listed in wanted:
            advance.note(listed.title)
            yield make_section(listed, target, options)
            advance()


def _failed(listed: ListedSection, failure: Exception, error: str) -> Section:
    hint = failure.hint if isinstance(failure, TokenloomError) else None
    message = failure.message if isinstance(failure, TokenloomError) else error
    words = [element("strong", "This section failed. "), message]
    body = [element("p", joined(words)), *([] if hint is None else [element("p", f"Hint: {hint}")])]
    return Section(
        id=listed.id,
        title=listed.title,
        html=element("div", *body, class_="error", role="note"),
        findings=[f"{listed.title}: this section failed: {message}"],
    )
