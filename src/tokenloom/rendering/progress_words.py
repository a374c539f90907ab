"""Formats the progress of long work as one line, with the most important facts first: a terminal may cut the line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tokenloom.rendering.words import short, size

_WINDOW_SECONDS = 30.0  # for measuring the speed, which changes during a long job
_LONGEST_SECONDS = 1e8


@dataclass(frozen=True, slots=True)
class Amounts:
    """The progress of a task.

    Attributes:
        unit: unit of `done` and `total`: "bytes", or a plural such as "documents".
        done, total: amount so far, and amount at the end of the task, in `unit`; `total` is None if unknown.
        num_tokens: number of tokens produced so far; 0 for tasks without tokens.
        notes: short texts such as "12 rejected" or "shards 4 of 11".
    """

    unit: str
    done: int
    total: int | None = None
    num_tokens: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Speed:
    """Speeds: `done` in `Amounts.unit` per second, `tokens` in tokens per second; 0 if unknown."""

    done: float = 0.0
    tokens: float = 0.0


class Pace:
    """Measures the speed of a task from its amounts at several times."""

    def __init__(self, start: float, amounts: Amounts) -> None:
        self._seen: deque[tuple[float, Amounts]] = deque([(start, amounts)])
        self._first = start, amounts

    def add(self, now: float, amounts: Amounts) -> None:
        """Records the amounts at time `now`, in seconds."""
        self._seen.append((now, amounts))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW_SECONDS:
            self._seen.popleft()

    def speed(self) -> Speed:
        """Returns the speed in the last 30 seconds; if nothing was done in this time, the speed since the start."""
        last, found = self._seen[-1]
        for since, before in (self._seen[0], self._first):
            if last > since and found.done > before.done:
                seconds = last - since
                return Speed(
                    (found.done - before.done) / seconds, max(0, found.num_tokens - before.num_tokens) / seconds
                )
        return Speed()


def duration(seconds: float) -> str:
    """Formats a duration with at most two units.

    Example:
        >>> duration(0.4), duration(18.2), duration(125), duration(3700), duration(200_000)
        ('1 s', '18 s', '2 min 5 s', '1 h 1 min', '2 days 7 h')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    if whole < 48 * 3600:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
    return f"{whole // 86400} days {whole % 86400 // 3600} h"


def plain_line(description: str, amounts: Amounts, speed: Speed = Speed(), *, inner: str = "") -> str:
    """Formats a progress line; `inner` is the progress line of a task within this task.

    Example:
        >>> of_bytes = Amounts("bytes", 1_200_000_000, 2_800_000_000, 9 * 10**8, ("0 rejected", "shards 4 of 11"))
        >>> plain_line("preprocess", of_bytes, Speed(85e6, 21.4e6))
        'preprocess: 42 % (1.2 of 2.8 GB), 19 s left, 85 MB/s, 21.4M tokens/s, 0 rejected, shards 4 of 11'
    """
    left = ((amounts.total or 0) - amounts.done) / speed.done if speed.done else 0.0
    remaining = f"{duration(left)} left" if 0 < left < _LONGEST_SECONDS else ""
    parts = [_done_of_total(amounts), remaining, *_rates(amounts, speed)]
    parts += [inner, *amounts.notes]
    return f"{description}: {', '.join(filter(None, parts))}"


def end_line(description: str, amounts: Amounts, seconds: float, *, before: Amounts) -> str:
    """Formats the last line of a task that took `seconds`; `before` are the amounts at the start of the task.

    Example:
        >>> end_line("merge", Amounts("bytes", 6 * 10**9, 6 * 10**9), 75, before=Amounts("bytes", 0))
        'merge: done, 6 GB in 1 min 15 s, 80 MB/s'
    """
    num_done, num_tokens = amounts.done - before.done, amounts.num_tokens - before.num_tokens
    speed = Speed(num_done / seconds, num_tokens / seconds) if seconds > 0 else Speed()
    parts = ["done", f"{_amount(num_done, amounts.unit)} in {duration(seconds)}", *_rates(amounts, speed)]
    return f"{description}: {', '.join([*parts, *amounts.notes])}"


def _done_of_total(amounts: Amounts) -> str:
    if not amounts.total:
        return _amount(amounts.done, amounts.unit)
    counts = f"{short(amounts.done)} of {short(amounts.total)} {amounts.unit}"
    if amounts.unit == "bytes":
        done, total = size(amounts.done), size(amounts.total)
        number, _, unit = done.partition(" ")
        counts = f"{number if total.endswith(f' {unit}') else done} of {total}"
    percent = min(100, 100 * amounts.done // amounts.total)  # rounded down: 100 % only when complete
    return f"{percent} % ({counts})"


def _amount(number: int, unit: str) -> str:
    return size(number) if unit == "bytes" else f"{short(number)} {unit.removesuffix('s') if number == 1 else unit}"


def _rates(amounts: Amounts, speed: Speed) -> Iterator[str]:
    if speed.done and amounts.unit == "bytes":
        yield f"{size(round(speed.done)).replace('bytes', 'B')}/s"
    elif speed.done >= 1:
        yield f"{short(round(speed.done))} {amounts.unit}/s"
    if speed.tokens >= 1:
        yield f"{short(round(speed.tokens))} tokens/s"
