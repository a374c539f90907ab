"""Running checks one after the other, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenloom.errors import ConformanceError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What was checked of an object, all of which holds. Printed, it is a line per check.

    Attributes:
        name: what was checked.
        passed: what holds, a sentence each.
        skipped: what was not checked, and why: mostly since it is optional, and the object does not offer it.
    """

    name: str
    passed: tuple[str, ...]
    skipped: Mapping[str, str]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.name}: {len(self.passed)} checks passed, {len(self.skipped)} skipped",
                *(f"  passed   {sentence}" for sentence in self.passed),
                *(f"  skipped  {sentence}: {reason}" for sentence, reason in self.skipped.items()),
            ]
        )


class NotCheckedError(Exception):
    """A check does not apply to this object; the message says why."""


def run_checks(name: str, checks: Mapping[str, Callable[[], None]]) -> CheckReport:
    """Runs checks in their order, up to the first that fails.

    Args:
        name: name of the object, for messages.
        checks: functions by the sentence that each checks; one that does not apply raises `NotCheckedError`.

    Raises:
        ConformanceError: what a sentence says does not hold.
    """
    passed: list[str] = []
    skipped: dict[str, str] = {}
    for sentence, check in checks.items():
        try:
            check()
        except NotCheckedError as reason:
            skipped[sentence] = str(reason)
        except ConformanceError as error:
            message = f"{name} fails the check that {sentence}: {error.message}"
            raise ConformanceError(message, hint=error.hint) from error.__cause__
        except Exception as error:
            error.add_note(f"while it was checked of {name} that {sentence}")
            raise
        else:
            passed.append(sentence)
    return CheckReport(name=name, passed=tuple(passed), skipped=skipped)
