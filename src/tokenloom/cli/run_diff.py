"""`tokenloom run diff`: from which position on two runs differ, in what, and what they have in common."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from tokenloom.cli.json_output import add_json, print_json
from tokenloom.cli.run_common import WIDTH, lock_at, stage_of
from tokenloom.cli.values import whole_number
from tokenloom.rendering.words import name_of, short
from tokenloom.run.audit.differences import RunDifferences, SharedSource, differences
from tokenloom.run.dataset import Place

_MOST_ROWS = 12
_NAME = 20
_HEADINGS = ("tokens of samples", "in A", "in B", "common", "of A", "data in common")
_WIDTHS = (_NAME, 9, 9, 9, 8, 16)


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "diff",
        description="Compare two runs by their locks: the first position that differs and what stands there in each, "
        "which settings differ, and per source the tokens of samples that both read, wherever in the run, and of data "
        "with the same checksums under any name. Each is named by its run.toml or by a lock, such as an older one. "
        "The exit status is 0 if all positions are the same, 1 if not. --json prints position, before, after, reason, "
        "runs, ends, stop, settings and sources.",
    )
    parser.add_argument("before", metavar="A", help="a run.toml, or a lock")
    parser.add_argument("after", metavar="B", help="another")
    parser.add_argument(
        "--until-position", type=whole_number, metavar="N", help="compare the positions before N (default: all)"
    )
    parser.add_argument("--all", action="store_true", help=f"all settings and sources, not {_MOST_ROWS}")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
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
    _print_row(_HEADINGS)
    ranked = sorted(sources, key=lambda source: -(source.tokens_before + source.tokens_after))
    shown = ranked if most is None or len(ranked) <= most else ranked[: most - 1]
    for source in shown:
        share = f"{source.common_tokens / source.tokens_before:.3%}" if source.tokens_before else ""
        data = f"{short(source.common_data)} of {short(source.data_before)}" if source.data_before else ""
        counts = (source.tokens_before, source.tokens_after, source.common_tokens)
        _print_row((source.name, *map(short, counts), share, data))
    for source in shown:
        others = [name for name in source.names_after if name != source.name]
        if others:
            print(f"  data of {name_of(source.name)} are in B as {', '.join(map(name_of, others[:3]))}")
    if rest := ranked[len(shown) :]:
        print(f"  … and {len(rest):,} others; --all shows them")


def _print_row(cells: tuple[str, ...]) -> None:
    line = f"{name_of(cells[0], width=_WIDTHS[0]):<{_WIDTHS[0]}}" + "".join(
        f" {cell:>{width}}" for cell, width in zip(cells[1:], _WIDTHS[1:], strict=True)
    )
    print(line.rstrip())


def _print_text(text: str, indent: str) -> None:
    print(textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    "))
