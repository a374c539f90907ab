"""A blend in settings: prefixes and weights, in any of several forms."""

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
"""Prefixes, and their weights or None."""

BlendLike = Blend | str | os.PathLike[str] | Sequence[Any] | Mapping[str, float]
"""The forms of a blend, see `checked_blend`."""

_PAIRS = 'such as ["0.3", "books", "0.7", "web"], or [[0.3, "books"], [0.7, "web"]]'
_FORMS = 'such as "books", ["books", "web"], {"books": 0.3, "web": 0.7} or (["books", "web"], [0.3, 0.7])'

_WARNED: set[int] = set()
"""Hashes of the prefixes in earlier warnings."""


def checked_blend(blend: Any, where: str) -> Blend:
    """Returns a blend as (prefixes, weights or None).

    Forms: that, one prefix, a list of prefixes or of weights and prefixes by turns, pairs `[[weight, prefix], …]`, or
    {prefix: weight}. `where` is its name in messages, such as "`blend`".
    """
    prefixes, weights = _parts(blend, where)
    for values, what in ((prefixes, "prefixes"), ([] if weights is None else weights, "weights")):
        if not hasattr(values, "__len__"):
            raise ConfigError(f"{where}: {what} must be a list, got {values!r}")
    if not len(prefixes):
        raise ConfigError(f"{where}: no prefix")
    for prefix in prefixes:
        if not _is_text(prefix) or not os.fspath(prefix).strip():
            raise ConfigError(f"{where}: prefixes must be paths, got {prefix!r}", hint=_FORMS)
    prefixes = [admit(text) if is_remote(text) else text for text in map(os.fspath, prefixes)]
    if weights is None:
        return prefixes, None
    if len(prefixes) != len(weights):
        raise ConfigError(f"{where}: {len(weights)} weights for {len(prefixes)} prefixes")
    for prefix, weight in zip(prefixes, weights, strict=True):
        check_weight(weight, f"`{prefix}` in {where}")
    return prefixes, list(weights)


def is_pairs(entries: Sequence[Any]) -> bool:
    """Whether entries are pairs [weight, prefix], a number and a text each."""
    return bool(len(entries)) and all(
        isinstance(entry, (list, tuple))
        and len(entry) == 2
        and (finite_or_none(entry[0]) is not None or isinstance(entry[0], float))
        and _is_text(entry[1])
        for entry in entries
    )


def check_weight(weight: float, name: str) -> None:
    """Checks that a weight is finite and above 0."""
    number = finite_or_none(weight)
    if number is None or not number > 0:
        hint = "leave the dataset out" if number == 0 else None
        raise ConfigError(f"weight of {name}: must be finite and above 0, got {weight!r}", hint=hint)


def flat_entries(entries: Sequence[Any], where: str) -> list[str]:
    """Returns entries, given by turns or as pairs, as texts by turns."""
    if isinstance(entries, (str, bytes)) or not isinstance(entries, Sequence):
        raise ConfigError(f"{where}: must be a list of entries, got {entries!r}")
    pairs = [entry for entry in entries if isinstance(entry, (list, tuple))]
    if pairs and len(pairs) == len(entries):
        for number, pair in enumerate(pairs, 1):
            if len(pair) != 2 or (isinstance(pair[0], str) and number_or_none(pair[0], f"pair {number}") is None):
                raise ConfigError(f"{where}: not a weight and a prefix: {pair!r}", hint=_PAIRS)
        entries = [part for pair in pairs for part in pair]
    return [_as_text(entry, where) for entry in entries]


def by_turns(entries: Sequence[str], where: str) -> Blend:
    """Returns (prefixes, weights or None) of weights and prefixes by turns, or of prefixes; the reference's rule."""
    if not entries:
        raise ConfigError(f"{where}: no entry")
    prefixes, weights = list(entries), None
    if len(entries) % 2 == 0:
        numbers = [weight_of(entry, row, where) for row, entry in enumerate(entries) if row % 2 == 0]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            prefixes, weights = list(entries[1::2]), known
        elif known:
            number, name = numbers.index(known[0]), numbers.index(None)
            raise ConfigError(
                f"{where}: must be weights and prefixes by turns, or prefixes only, got the number "
                f"{entries[2 * number]!r} at entry {2 * number + 1} and no number, {entries[2 * name]!r}, "
                f"at entry {2 * name + 1}"
            )
    prefixes = [prefix.strip() for prefix in prefixes]
    if "" in prefixes:
        raise ConfigError(f"{where}: a prefix is empty")
    for prefix, weight in zip(prefixes, weights or [], strict=False):
        check_weight(weight, f"`{prefix}` in {where}")
    return prefixes, weights


def weight_of(entry: str, row: int, where: str) -> float | None:
    """Returns the weight of an entry; None for a prefix."""
    return number_or_none(entry, f"entry {row + 1} {quoted(entry)} in {where}")


def warn_of_duplicates(
    blends: Sequence[tuple[str, Blend]], *, same: Callable[[str], str] = prefix_of, again: bool = False
) -> None:
    """Warns of data that are named twice, at the caller's line outside of this package.

    Args:
        blends: the name of each blend, and the blend.
        same: maps names of the same data to one name.
        again: warn of these blends again.
    """
    seen: dict[str, str] = {}
    marks = {hash(tuple(prefixes)) for _, (prefixes, _) in blends}
    for where, (prefixes, _) in blends:
        for prefix in prefixes:
            name = same(prefix)
            if name in seen and (again or not marks <= _WARNED):
                place = f"twice in {where}" if seen[name] == where else f"in {seen[name]} and in {where}"
                message = f"the data of `{redacted(prefix)}` are {place}"
                warnings.warn(message, DuplicateDataWarning, stacklevel=level_outside())
            seen[name] = where
    if len(seen) < sum(len(prefixes) for _, (prefixes, _) in blends):
        _WARNED.update(marks)


def _parts(blend: Any, where: str) -> tuple[Any, Any]:
    """Returns prefixes and weights, unchecked."""
    if _is_text(blend):
        return [blend], None
    if isinstance(blend, Mapping):
        return list(blend), list(blend.values())
    if isinstance(blend, bytes) or not isinstance(blend, Sequence):
        raise ConfigError(f"{where}: must name data, got {redacted(repr(blend))}", hint=_FORMS)
    if is_pairs(blend):
        return [prefix for _, prefix in blend], [weight for weight, _ in blend]
    if len(blend) == 2 and (blend[1] is None or (_is_list(blend[1]) and not any(map(_is_text, blend[1])))):
        prefixes, weights = blend
        return [prefixes] if _is_text(prefixes) else prefixes, weights
    prefixes, weights = by_turns(flat_entries(blend, where), where)
    return (list(blend), None) if weights is None else (prefixes, weights)  # a number among them is refused


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
        raise ConfigError(f"{where}: not a weight or a prefix: {entry!r}", hint=_PAIRS)
    return repr(number)
