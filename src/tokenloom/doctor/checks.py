"""The list of checks, each made on its own.

A check that fails is a problem in its place: one broken mount does not take the other answers away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tokenloom.doctor.buckets import check_buckets
from tokenloom.doctor.check import Asked, Check, Finding, Verdict
from tokenloom.doctor.credentials import check_credentials
from tokenloom.doctor.environment import check_environment
from tokenloom.doctor.extras import check_extras
from tokenloom.doctor.limits import check_limits
from tokenloom.doctor.native import check_native
from tokenloom.doctor.places import check_places
from tokenloom.errors import TokenloomError

_FAILURES = (TokenloomError, OSError, ValueError, LookupError, ImportError, RuntimeError)
"""What a check may fail with: a strange machine, and what of it nobody has thought of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCheck:
    """A check, as the list has it.

    Attributes:
        id: its name for programs.
        title: its heading.
        look: makes it.
    """

    id: str
    title: str
    look: Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A check that was made.

    Attributes:
        listed: which.
        findings: what it found; the failure alone, where it failed.
        seconds: the time that it took.
    """

    listed: ListedCheck
    findings: tuple[Finding, ...]
    seconds: float


CHECKS: tuple[ListedCheck, ...] = (
    ListedCheck(id="environment", title="This machine", look=check_environment),
    ListedCheck(id="native", title="Compiled code", look=check_native),
    ListedCheck(id="extras", title="Optional packages", look=check_extras),
    ListedCheck(id="limits", title="Limits", look=check_limits),
    ListedCheck(id="places", title="Disks", look=check_places),
    ListedCheck(id="credentials", title="Credentials", look=check_credentials),
    ListedCheck(id="buckets", title="Object stores", look=check_buckets),
)
"""All checks, in the order in which they are made and told. To add one: a module here, and its line."""


def made_checks(asked: Asked, listed: tuple[ListedCheck, ...] = CHECKS) -> Iterator[Checked]:
    """Yields each check once it is made; those without anything to say too."""
    for each in listed:
        began = time.monotonic()
        findings: list[Finding] = []
        try:
            findings.extend(each.look(asked))
        except _FAILURES as error:
            text = f"cannot be looked at: {error.message if isinstance(error, TokenloomError) else error}"
            hint = error.hint if isinstance(error, TokenloomError) else None
            findings.append(Finding(subject=each.id, verdict=Verdict.problem, text=text, hint=hint))
        yield Checked(listed=each, findings=tuple(findings), seconds=time.monotonic() - began)
