"""A sample of a blend: that of a dataset, whatever it is made of, with the number of the dataset in front."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol, runtime_checkable

from tokenloom.errors import ConfigError

NAME = "dataset_id"


def with_dataset_id(number: Any, sample: Any) -> Any:
    """Returns a sample with the number of its dataset in front.

    Example:
        >>> with_dataset_id(3, {"text": "a"}), with_dataset_id(3, ("a", "b"))
        ({'dataset_id': 3, 'text': 'a'}, (3, 'a', 'b'))

    Args:
        number: the dataset's number in its blend.
        sample: named fields, as a dict or a named tuple; a tuple; or a list.

    Raises:
        ConfigError: it is something else, which has no place for the number.
    """
    if isinstance(sample, Mapping):
        return {NAME: number, **sample}
    if isinstance(sample, tuple) and isinstance(sample, _Named):
        return _numbered(type(sample).__name__, tuple(sample._fields), (number, *sample))
    if isinstance(sample, (tuple, list)):
        return type(sample)((number, *sample)) if type(sample) in (tuple, list) else (number, *sample)
    message = f"expected samples of a blend to be dicts, tuples or lists, found {type(sample).__name__}"
    raise ConfigError(message, hint=f"give each sample a name, such as {{'image': …}}; `{NAME}` comes beside it")


@runtime_checkable
class _Named(Protocol):
    """Whatever `collections.namedtuple` or `typing.NamedTuple` has made."""

    _fields: tuple[str, ...]


def _numbered(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _type_of(name, fields)._make(values)


@cache
def _type_of(name: str, fields: tuple[str, ...]) -> Any:
    """Returns the type of named tuples with one field more, whose objects any process can unpickle."""

    def reduced(self: Any) -> tuple[Any, ...]:
        return _numbered, (name, fields, tuple(self))

    kind = namedtuple(name, (NAME, *fields))  # type: ignore[misc]
    return type(name, (kind,), {"__slots__": (), "__reduce__": reduced})
