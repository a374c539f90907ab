"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol


class Verdict(Enum):
    """What is to be thought of something, from good to bad."""

    ok = 0
    warning = 1
    """It works, but slower or less than it could, or not for all."""
    problem = 2
    """Something that is asked for will not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact, and what is to be thought of it.

    Attributes:
        subject: what it is about, in a word or two.
        verdict: what is to be thought of it.
        text: the fact, for people.
        hint: what to do about it, or what it is good for; None where there is nothing to do.
        facts: the same for programs: names with their units, and values that JSON can have. Never a secret.
    """

    subject: str
    verdict: Verdict = Verdict.ok
    text: str
    hint: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is looked at beside the machine itself.

    Attributes:
        paths: files, folders and prefixes of pairs that somebody means to read or write, in the local file systems.
        addresses: the same in object stores.
        measures_speed: whether to write to disks, and read from buckets, to see how fast they are.
        encoding: encoding of standard output; None where it has none.
        say: tells a person, before it is done, what takes time or writes something.
    """

    paths: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    measures_speed: bool = True
    encoding: str | None = "utf-8"
    say: Callable[[str], None] = lambda _: None


class Check(Protocol):
    """Looks at one thing. Takes a few seconds at most, leaves nothing behind, and raises only what surprises it."""

    def __call__(self, asked: Asked, /) -> Iterable[Finding]:
        """Yields what it finds, in the order in which it is to be read."""
        ...
