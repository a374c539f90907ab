"""Results as text: the terminal table, and the cells of all other tables."""

from __future__ import annotations

from collections.abc import Sequence

from harness.results import DIFFERENT, EQUAL, ProfileResult, RowResult, SideResult
from harness.row import LIMIT

COLUMNS = ("side", "median", "lowest", "highest", "tokenloom is", "of the limit", "memory")
_FAILURE_CHARACTERS = 60


def format_value(value: float, quantity: str, unit: str) -> str:
    """Returns a number with its unit: `12.3 M tokens/s`, `45.6 ms`, `78.9 MB`."""
    if quantity == "bytes":
        return format_bytes(value)
    if quantity == "seconds":
        return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"
    if quantity == "ratio":
        return f"{value:.3f} {unit}"
    scaled, prefix = next(
        ((value / size, name) for size, name in ((1e9, "G "), (1e6, "M "), (1e3, "k ")) if value >= size), (value, "")
    )
    return f"{three_digits(scaled)} {prefix}{unit}/s"


def format_bytes(value: float) -> str:
    """Returns bytes as decimal megabytes or gigabytes."""
    return f"{three_digits(value / 1e9)} GB" if value >= 1e9 else f"{three_digits(value / 1e6)} MB"


def three_digits(value: float) -> str:
    """Formats a number with three significant digits."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def cells(row: RowResult, side: SideResult) -> list[str]:
    """Returns the cells of one side."""
    if side.failure:
        failure = side.failure.split("\n")[0]
        return [side.name, f"not measured: {failure[:_FAILURE_CHARACTERS]}", "", "", "", "", ""]
    low, high = min(side.values), max(side.values)
    times, share = row.times_better(side), row.share_of_limit(side)
    beside = side is not row.ours and side.library != LIMIT and times is not None
    return [
        side.name,
        format_value(side.median, row.quantity, row.unit),
        format_value(low, row.quantity, row.unit),
        format_value(high, row.quantity, row.unit),
        format_times(times, row.quantity) if beside else "",
        f"{share:.0%}" if share is not None and side.library != LIMIT else "",
        format_bytes(side.memory_bytes) if side.memory_bytes and row.quantity != "bytes" else "",
    ]


def format_times(times: float, quantity: str) -> str:
    """Formats a ratio, such as `12.3x as fast`, or `as small` for memory and ratios."""
    return f"{three_digits(times)}x as {'small' if quantity in ('bytes', 'ratio') else 'fast'}"


def heading(row: RowResult) -> str:
    """Returns the name of a row, and whether its sides agree."""
    notes = {EQUAL: "  [outputs equal]", DIFFERENT: "  [OUTPUTS DIFFER]"}
    return row.name + notes.get(row.agreement, "")


def text_table(rows: Sequence[RowResult]) -> str:
    """Returns one table of all rows for the terminal."""
    bodies = [[cells(row, side) for side in row.sides] for row in rows]
    lines = [list(COLUMNS), *(line for body in bodies for line in body)]
    # Failures are longer than numbers, and have the rest of the line to themselves.
    widths = [
        max(len(line[i]) for line in lines if i == 0 or not line[1].startswith("not m")) for i in range(len(COLUMNS))
    ]
    out = [_aligned(COLUMNS, widths)]
    for row, body in zip(rows, bodies, strict=True):
        out += ["", heading(row), *(_aligned(line, widths) for line in body)]
    return "\n".join(out)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join(["  " + first, *others]).rstrip()


def text_profiles(profiles: Sequence[ProfileResult]) -> str:
    """Returns the time shares, one block per path."""
    blocks = []
    for profile in profiles:
        told = f"not measured: {profile.failure}" if profile.failure else format_value(profile.seconds, "seconds", "")
        lines = [f"where the time goes: {profile.name} ({told})"]
        lines += [f"  {share:6.1%}  {where}" for where, share in profile.shares]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
