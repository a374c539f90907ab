"""Creates the results page from the JSON."""

from __future__ import annotations

from harness.results import DIFFERENT, EQUAL, ProfileResult, Results, RowResult
from harness.tables import COLUMNS, cells, format_bytes, format_times, format_value

_INTRODUCTION = """\
# Benchmarks

Made by `make bench` from [benchmarks.json](benchmarks.json); do not edit. Each row is one job on the same data in one
run: the sides take turns, round by round, so that whatever disturbs the machine disturbs all of them. Numbers are
medians with the lowest and the highest round. **Ratios are what to look at**: absolute numbers are this machine's.

*Of the limit*: which share a side reaches of what the machine can do at all; each row says what that is.
"""
_AGREEMENT = {EQUAL: "Outputs were compared, and are equal. ", DIFFERENT: "**Outputs differ.** "}


def results_page(results: Results) -> str:
    """Returns the page as Markdown."""
    parts = [
        _INTRODUCTION,
        _circumstances(results),
        "![tokenloom beside its peers](benchmarks.svg)",
        _overview(results),
    ]
    parts += [_section(row) for row in results.rows]
    if results.profiles:
        parts.append(_profiles(results.profiles))
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _circumstances(results: Results) -> str:
    machine = results.machine
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(results.libraries.items()))
    memory = format_bytes(float(machine["memory_bytes"]))
    unmeasured = f"\nInterrupted before: {', '.join(results.unmeasured)}.\n" if results.unmeasured else ""
    return (
        f"Run of {results.date}, mode `{results.mode}`, {results.seconds / 60:.0f} minutes: {machine['cores']} "
        f"cores of "
        f"{machine['processor']}, {memory}, {machine['system']}, Python {machine['python']}.\n\n{libraries}.\n"
        f"{unmeasured}"
    )


def _overview(results: Results) -> str:
    lines = ["## Overview", "", *_header(("job", "tokenloom", "best peer", "tokenloom is", "of the limit"))]
    for row in results.rows:
        peers = [side for side in row.peers if side.median is not None]
        # Without a ratio there is nothing to compare: ours failed.
        best = min(peers, key=lambda side: row.times_better(side) or 0.0) if peers else None
        times = row.times_better(best) if best else None
        share = row.share_of_limit(row.ours)
        ours = row.ours.median
        lines.append(
            _line(
                [
                    row.name,
                    format_value(ours, row.quantity, row.unit) if ours else "not measured",
                    f"{format_value(best.median, row.quantity, row.unit)} ({best.name})" if best else "",
                    format_times(times, row.quantity) if times else "",
                    f"{share:.0%}" if share else "",
                ]
            )
        )
    return "\n".join(lines)


def _section(row: RowResult) -> str:
    lines = [
        f"## {row.name[0].upper()}{row.name[1:]}",
        "",
        f"*Compares* {row.compares}.",
        "",
        f"*Fair:* {_AGREEMENT.get(row.agreement, '')}{row.fairness}",
        "",
        f"*Limit:* {row.limit}.",
        "",
        *_header(COLUMNS),
        *(_line(cells(row, side)) for side in row.sides),
    ]
    return "\n".join(lines)


def _profiles(profiles: tuple[ProfileResult, ...]) -> str:
    lines = ["## Where the time goes"]
    for profile in profiles:
        told = f"not measured: {profile.failure}" if profile.failure else format_value(profile.seconds, "seconds", "")
        lines += ["", f"### {profile.name[0].upper()}{profile.name[1:]} ({told})", "", f"{profile.method}.", ""]
        lines += [*_header(("what", "share")), *(_line([where, f"{share:.1%}"]) for where, share in profile.shares)]
    return "\n".join(lines)


def _header(columns: tuple[str, ...]) -> list[str]:
    return [_line(list(columns)), _line(["---"] + ["---:"] * (len(columns) - 1))]


def _line(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
