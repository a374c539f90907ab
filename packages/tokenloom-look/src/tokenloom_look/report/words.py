"""Shares and durations in few characters, as tables and sentences of a report say them."""

from __future__ import annotations

_HOURS = 3600
_DAYS = 48 * _HOURS


def share(part: float, whole: float) -> str:
    """Returns a share in percent; what is not quite nothing or all does not look so.

    Example:
        >>> share(1, 3), share(1, 10**6), share(999_999, 10**6), share(0, 0)
        ('33.3%', '<0.1%', '>99.9%', '0%')
    """
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    if 99.9 < percent < 100:
        return ">99.9%"
    return f"{percent:.3g}%"


def duration(seconds: float) -> str:
    """Returns a time in milliseconds, seconds, minutes, hours or days.

    Example:
        >>> duration(0.0123), duration(0.25), duration(90), duration(7300), duration(10**6)
        ('12.3 ms', '0.2 s', '2 min', '2.0 h', '11.6 days')
    """
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < _HOURS:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / _HOURS:.1f} h" if seconds < _DAYS else f"{seconds / 86400:.1f} days"
