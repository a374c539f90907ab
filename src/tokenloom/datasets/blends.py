"""A blend as settings take it: prefixes and weights, in whatever form a program has them."""

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
"""What is taken for a blend, see `checked_blend`."""

_PAIRS = 'such as ["0.3", "books", "0.7", "web"], or [[0.3, "books"], [0.7, "web"]]'
_FORMS = 'such as "books", ["books", "web"], {"books": 0.3, "web": 0.7} or (["books", "web"], [0.3, 0.7])'

_SAID: set[int] = set()
"""Hashes of the prefixes that a warning was about."""


def checked_blend(blend: Any, where: str) -> Blend:
    """Returns a blend as (prefixes, weights or None).

    It may be that, one prefix, a list of prefixes or of weights and prefixes by turns, pairs `[[weight, prefix], …]`,
    or {prefix: weight}. `where` is what messages call it, such as "`blend`".
    """
    prefixes, weights = _parts(blend, where)
    for values, what in ((prefixes, "prefixes"), (weights, "weights")):
        if not hasattr(values, "__len__") and not (values is None and what == "weights"):
            message = f"expected a list of {what} in {where}, found {values!r}"
            raise ConfigError(message)
    if not len(prefixes):
        message = f"expected at least one prefix in {where}, found none"
        raise ConfigError(message)
    for prefix in prefixes:
        if not isinstance(prefix, (str, os.PathLike)) or not os.fspath(prefix).strip():
            message = f"expected prefixes in {where}, found {prefix!r}"
            raise ConfigError(message, hint=_FORMS)
    prefixes = [admit(text) if is_remote(text) else text for text in map(os.fspath, prefixes)]
    if weights is None:
        return prefixes, None
    if len(prefixes) != len(weights):
        message = f"expected as many weights as prefixes in {where}, found {len(weights)} for {len(prefixes)}"
        raise ConfigError(message)
    for prefix, weight in zip(prefixes, weights, strict=True):
        check_weight(weight, f"`{prefix}` in {where}")
    return prefixes, list(weights)


def is_pairs(entries: Sequence[Any]) -> bool:
    """Whether entries are pairs [weight, prefix], each with a number before a text: no other form of a blend is."""
    return bool(len(entries)) and all(
        isinstance(entry, (list, tuple))
        and len(entry) == 2
        and (finite_or_none(entry[0]) is not None or isinstance(entry[0], float))
        and isinstance(entry[1], (str, os.PathLike))
        for entry in entries
    )


def check_weight(weight: float, name: str) -> None:
    """Checks that a blend can use a weight."""
    number = finite_or_none(weight)
    if number is None or not number > 0:
        message = f"expected a finite weight above 0 for {name}, found {weight!r}"
        raise ConfigError(message, hint="leave the dataset out" if number == 0 else None)


def flat_entries(entries: Sequence[Any], where: str) -> list[str]:
    """Returns entries as texts, weights and prefixes by turns, whether they are given so or as pairs."""
    if isinstance(entries, (str, bytes)) or not isinstance(entries, Sequence):
        kind = "string" if isinstance(entries, str) else type(entries).__name__
        message = f"expected a list of entries in {where}, found the {kind} {entries!r}"
        raise ConfigError(message)
    pairs = [entry for entry in entries if isinstance(entry, (list, tuple))]
    if pairs and len(pairs) == len(entries):
        for number, pair in enumerate(pairs, 1):
            if len(pair) != 2 or (isinstance(pair[0], str) and number_or_none(pair[0], f"pair {number}") is None):
                message = f"expected prefixes and weights in {where}, found {pair!r}"
                raise ConfigError(message, hint=_PAIRS)
        entries = [part for pair in pairs for part in pair]
    return [_as_text(entry, where) for entry in entries]


def by_turns(entries: Sequence[str], where: str) -> Blend:
    """Returns (prefixes, weights or None) of weights and prefixes by turns, or of prefixes; the reference's rule."""
    if not entries:
        message = f"expected at least one entry in {where}, found none"
        raise ConfigError(message)
    prefixes, weights = list(entries), None
    if len(entries) % 2 == 0:
        numbers = [weight_of(entry, row, where) for row, entry in enumerate(entries) if row % 2 == 0]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            prefixes, weights = list(entries[1::2]), known
        elif known:
            number, name = numbers.index(known[0]), numbers.index(None)
            message = (
                f"expected weights and prefixes by turns in {where}, or prefixes only, found the number "
                f"{entries[2 * number]!r} at entry {2 * number + 1} and no number, {entries[2 * name]!r}, "
                f"at entry {2 * name + 1}"
            )
            raise ConfigError(message)
    prefixes = [prefix.strip() for prefix in prefixes]
    if "" in prefixes:
        message = f"expected prefixes in {where}, found an empty one"
        raise ConfigError(message)
    for prefix, weight in zip(prefixes, weights or [], strict=False):
        check_weight(weight, f"`{prefix}` in {where}")
    return prefixes, weights


def weight_of(entry: str, row: int, where: str) -> float | None:
    """Returns the weight that an entry is; None for a prefix."""
    return number_or_none(entry, f"entry {row + 1} {quoted(entry)} in {where}")


def warn_of_duplicates(
    blends: Sequence[tuple[str, Blend]], *, same: Callable[[str], str] = prefix_of, again: bool = False
) -> None:
    """Warns of data that are named twice, at the line outside of this package that names them.

    Args:
        blends: what each blend is called, and the blend.
        same: what is equal for two names of the same data.
        again: whether to say it of blends of which it was said before.
    """
    seen: dict[str, str] = {}
    marks = {hash(tuple(prefixes)) for _, (prefixes, _) in blends}
    for where, (prefixes, _) in blends:
        for prefix in prefixes:
            name = same(prefix)
            if name in seen and (again or not marks <= _SAID):
                place = f"twice in {where}" if seen[name] == where else f"in {seen[name]} and in {where}"
                message = f"the data of `{redacted(prefix)}` are {place}"
                warnings.warn(message, DuplicateDataWarning, stacklevel=level_outside())
            seen[name] = where
    if len(seen) < sum(len(prefixes) for _, (prefixes, _) in blends):
        _SAID.update(marks)


def _parts(blend: Any, where: str) -> tuple[Any, Any]:
    """Returns prefixes and weights, neither of them checked."""
    if isinstance(blend, (str, os.PathLike)):
        return [blend], None
    if isinstance(blend, Mapping):
        return list(blend), list(blend.values())
    if isinstance(blend, bytes) or not isinstance(blend, Sequence):
        message = f"expected data as {where}, found {redacted(repr(blend))}"
        raise ConfigError(message, hint=_FORMS)
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
        message = f"expected prefixes and weights in {where}, found {entry!r}"
        raise ConfigError(message, hint=_PAIRS)
    return repr(number)
