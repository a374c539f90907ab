"""`tokenloom run diff`: from which position on two runs differ, in what, and what they have in common."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Annotated

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Written
from tokenloom.cli.run_common import WIDTH, largest, lock_at, print_row, stage_of
from tokenloom.rendering.words import name_of, short
from tokenloom.run.audit.differences import RunDifferences, SharedSource, differences
from tokenloom.run.dataset import Place
from tokenloom.setting_types import Number

_MOST_ROWS = 12
_NAME = 20
_HEADINGS = ("tokens of samples", "in A", "in B", "common", "of A", "data in common")
_WIDTHS = (_NAME, 9, 9, 9, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare two runs by their locks: the first position that differs and what stands there in each, which settings
    differ, and per source the tokens of samples that both read, wherever in the run, and of data with the same
    checksums under any name. Each is named by its run.toml or by a lock, such as an older one. The exit status is 0 if
    all positions are the same, 1 if not.

    Attributes:
        before: a run.toml, or a lock.
        after: another.
        until_position: compare the positions before N (default: all).
        all: all settings and sources, not only the first and largest.
        json: print one JSON object: position, before, after, reason, runs, ends, stop, settings and sources.
    """

    before: Annotated[str, Written(metavar="A", is_positional=True)]
    after: Annotated[str, Written(metavar="B", is_positional=True)]
    until_position: Number | None = None
    all: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Prints how they differ; returns 1 if they do."""
    found = differences(lock_at(options.before), lock_at(options.after), until=options.until_position)
    if options.json:
        print_json(found.as_json())
    else:
        _print(found, None if options.all else _MOST_ROWS)
    return 0 if found.are_equal else 1


def _print(found: RunDifferences, most: int | None) -> None:
    for label, identity, end in zip("AB", found.runs, found.ends, strict=True):
        print(f"{label}: run {identity[:16]}, {'positions without end' if end is None else f'{end:,} positions'}")
    if found.position is None:
        what = "all positions" if found.stop is None or found.stop in found.ends else f"positions before {found.stop:,}"
        print(f"{what} are the same")
    else:
        same = f"the first {found.position:,} positions are the same; " if found.position else ""
        print(f"{same}position {found.position:,} is")
        for label, place, end in zip("AB", (found.before, found.after), found.ends, strict=True):
            print(f"  {label}: {_place(place, found.position, end)}")
        if found.reason is not None and (found.before == found.after):
            _print_text(found.reason, "  ")
    for changed in found.settings[:most]:
        _print_text(f"{changed.name}: {changed.before} → {changed.after}", "")
    if most is not None and len(found.settings) > most:
        print(f"… and {len(found.settings) - most:,} more; --all shows them")
    if found.sources is not None:
        _print_sources(found.sources, most)
    elif found.stop is None:
        print("neither run has an end: --until-position N tells what they have in common")


def _place(place: Place | None, position: int, end: int | None) -> str:
    if place is None:
        return "behind the end" if end is not None and position >= end else "another sample"
    return (
        f"{stage_of(place.stage)}, source {name_of(place.source)}, pass {place.pass_number}: "
        f"sample {place.window:,} of walk {place.walk}"
    )


def _print_sources(sources: tuple[SharedSource, ...], most: int | None) -> None:
    print_row(_HEADINGS, _WIDTHS, indent="")
    shown, rest = largest(sources, lambda source: source.tokens_before + source.tokens_after, most)
    for source in shown:
        share = f"{source.common_tokens / source.tokens_before:.3%}" if source.tokens_before else ""
        data = f"{short(source.common_data)} of {short(source.data_before)}" if source.data_before else ""
        counts = (source.tokens_before, source.tokens_after, source.common_tokens)
        print_row((source.name, *map(short, counts), share, data), _WIDTHS, indent="")
    for source in shown:
        others = [name for name in source.names_after if name != source.name]
        if others:
            print(f"  data of {name_of(source.name)} are in B as {', '.join(map(name_of, others[:3]))}")
    if rest:
        print(f"  … and {len(rest):,} others; --all shows them")


def _print_text(text: str, indent: str) -> None:
    print(textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    "))
