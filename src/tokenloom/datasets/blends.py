"""Parses and validates blends in settings: prefixes and weights, in any of several forms."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenloom.errors import ConfigError, DuplicateDataWarning
from tokenloom.indexed.layout import prefix_of
from tokenloom.numbers import finite_or_none, number_or_none, quoted
from tokenloom.overrides import level_outside
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.secrets import admit, redacted

Blend = tuple[list[str], list[float] | None]
"""(prefixes, weights or None)."""

BlendLike = Blend | str | os.PathLike[str] | Sequence[Any] | Mapping[str, float]
"""The forms of a blend that `checked_blend` accepts."""

_PAIRS = 'pass ["0.3", "books", "0.7", "web"] or [[0.3, "books"], [0.7, "web"]]'
_FORMS = 'pass "books", ["books", "web"], {"books": 0.3, "web": 0.7} or (["books", "web"], [0.3, 0.7])'

_WARNED: set[int] = set()
"""A hash of the prefixes of each blend about which `warn_of_duplicates` has warned."""


def checked_blend(blend: Any, where: str) -> Blend:
    """Validates a blend in any form and returns it as (prefixes, weights or None).

    Forms: (prefixes, weights or None), one prefix, a list of prefixes, a list of alternating weights and prefixes,
    [[weight, prefix], …], or {prefix: weight}. `where` is the name of the blend in errors, such as "`blend`".
    """
    prefixes, weights = _parts(blend, where)
    for values, name in ((prefixes, "prefixes"), ([] if weights is None else weights, "weights")):
        if not hasattr(values, "__len__"):
            raise ConfigError(f"{where}: {name} must be a list, got {values!r}")
    if not len(prefixes):
        raise ConfigError(f"{where}: must have at least one prefix, got none")
    for prefix in prefixes:
        if not _is_text(prefix) or not os.fspath(prefix).strip():
            raise ConfigError(f"{where}: prefixes must be paths, got {prefix!r}", hint=_FORMS)
    prefixes = [admit(text) if is_remote(text) else text for text in map(os.fspath, prefixes)]
    if weights is None:
        return prefixes, None
    if len(prefixes) != len(weights):
        raise ConfigError(f"{where}: must have one weight per prefix, got {len(weights)} for {len(prefixes)} prefixes")
    for prefix, weight in zip(prefixes, weights, strict=True):
        check_weight(weight, f"`{prefix}` in {where}")
    return prefixes, list(weights)


def is_pairs(entries: Sequence[Any]) -> bool:
    """Returns whether all entries are pairs [weight, prefix] of a number and a text."""
    return bool(len(entries)) and all(
        isinstance(entry, (list, tuple))
        and len(entry) == 2
        and (finite_or_none(entry[0]) is not None or isinstance(entry[0], float))
        and _is_text(entry[1])
        for entry in entries
    )


def check_weight(weight: float, name: str) -> None:
    """Raises unless a weight is finite and above 0; `name` is the prefix with this weight, for the error."""
    number = finite_or_none(weight)
    if number is None or not number > 0:
        hint = "remove the prefix from the blend" if number == 0 else None
        raise ConfigError(f"weight of {name}: must be finite and above 0, got {weight!r}", hint=hint)


def flat_entries(entries: Sequence[Any], where: str) -> list[str]:
    """Returns the entries of a blend as a flat list of strings; a list [weight, prefix] becomes two entries."""
    if isinstance(entries, (str, bytes)) or not isinstance(entries, Sequence):
        raise ConfigError(f"{where}: must be a list of entries, got {entries!r}")
    pairs = [entry for entry in entries if isinstance(entry, (list, tuple))]
    if pairs and len(pairs) == len(entries):
        for number, pair in enumerate(pairs, 1):
            if len(pair) != 2 or (isinstance(pair[0], str) and number_or_none(pair[0], f"pair {number}") is None):
                raise ConfigError(f"{where}: must have pairs of weight and prefix, got {pair!r}", hint=_PAIRS)
        entries = [part for pair in pairs for part in pair]
    return [_as_text(entry, where) for entry in entries]


def parse_alternating(entries: Sequence[str], where: str) -> Blend:
    """Parses entries as the reference does: `weight, prefix, …` if entries 1, 3, … are numbers; else prefixes only."""
    if not entries:
        raise ConfigError(f"{where}: must have at least one entry, got none")
    prefixes, weights = list(entries), None
    if len(entries) % 2 == 0:
        numbers = [weight_of(entry, row, where) for row, entry in enumerate(entries) if row % 2 == 0]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            prefixes, weights = list(entries[1::2]), known
        elif known:
            number, name = numbers.index(known[0]), numbers.index(None)
            raise ConfigError(
                f"{where}: must be alternating weights and prefixes, or prefixes only; entry {2 * number + 1} is the "
                f"number {entries[2 * number]!r}, but entry {2 * name + 1} is {entries[2 * name]!r}"
            )
    prefixes = [prefix.strip() for prefix in prefixes]
    if "" in prefixes:
        raise ConfigError(f"{where}: prefixes must not be empty")
    for prefix, weight in zip(prefixes, weights or [], strict=False):
        check_weight(weight, f"`{prefix}` in {where}")
    return prefixes, weights


def weight_of(entry: str, row: int, where: str) -> float | None:
    """Returns an entry as a number, or None if the entry is not a number but a prefix."""
    return number_or_none(entry, f"entry {row + 1} {quoted(entry)} in {where}")


def warn_of_duplicates(
    blends: Sequence[tuple[str, Blend]], *, same: Callable[[str], str] = prefix_of, again: bool = False
) -> None:
    """Warns about data that appear twice in `blends`, a list of (name, blend); the warning names the caller's line.

    `same` maps all prefixes of the same data to one name. With `again`, warns even if an earlier call has warned.
    """
    seen: dict[str, str] = {}
    marks = {hash(tuple(prefixes)) for _, (prefixes, _) in blends}
    for where, (prefixes, _) in blends:
        for prefix in prefixes:
            name = same(prefix)
            if name in seen and (again or not marks <= _WARNED):
                place = f"twice in {where}" if seen[name] == where else f"in both {seen[name]} and {where}"
                message = f"`{redacted(prefix)}` appears {place}"
                warnings.warn(message, DuplicateDataWarning, stacklevel=level_outside())
            seen[name] = where
    if len(seen) < sum(len(prefixes) for _, (prefixes, _) in blends):
        _WARNED.update(marks)


def _parts(blend: Any, where: str) -> tuple[Any, Any]:
    """Returns the prefixes and weights of a blend in any form, without validating them."""
    if _is_text(blend):
        return [blend], None
    if isinstance(blend, Mapping):
        return list(blend), list(blend.values())
    if isinstance(blend, bytes) or not isinstance(blend, Sequence):
        raise ConfigError(f"{where}: must be a blend of prefixes, got {redacted(repr(blend))}", hint=_FORMS)
    if is_pairs(blend):
        return [prefix for _, prefix in blend], [weight for weight, _ in blend]
    if len(blend) == 2 and (blend[1] is None or (_is_list(blend[1]) and not any(map(_is_text, blend[1])))):
        prefixes, weights = blend
        return [prefixes] if _is_text(prefixes) else prefixes, weights
    prefixes, weights = parse_alternating(flat_entries(blend, where), where)
    return (list(blend), None) if weights is None else (prefixes, weights)


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _is_list(values: Any) -> bool:
    return hasattr(values, "__len__") and not isinstance(values, (str, bytes, Mapping))


def _as_text(entry: object, where: str) -> str:
    if isinstance(entry, (str, os.PathLike)):
        return os.fspath(entry)
    if type(entry) in (int, float):
        return str(entry)
    if (number := finite_or_none(entry)) is None:
        raise ConfigError(f"{where}: must have weights and prefixes, got {entry!r}", hint=_PAIRS)
    return repr(number)
