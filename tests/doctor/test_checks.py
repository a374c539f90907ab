"""The list of checks."""

from __future__ import annotations

import pytest

from tokenloom.doctor.check import Asked, Finding, Verdict
from tokenloom.doctor.checks import CHECKS, ListedCheck, made_checks
from tokenloom.errors import UnavailableError


def well(_: Asked) -> list[Finding]:
    return [Finding(subject="a", text="there")]


@pytest.mark.parametrize(
    ("error", "text", "hint"),
    [
        (UnavailableError("no store", hint="start one"), "cannot be looked at: no store", "start one"),
        (OSError(5, "Input/output error"), "cannot be looked at: [Errno 5] Input/output error", None),
        (KeyError("MemTotal"), "cannot be looked at: 'MemTotal'", None),
    ],
)
def test_a_check_that_fails_is_a_problem_in_its_place(error, text, hint):
    def broken(_: Asked):
        yield Finding(subject="first", text="seen before")
        raise error

    listed = tuple(ListedCheck(id=look.__name__, title="", look=look) for look in (well, broken, well))
    before, failed, after = made_checks(Asked(), listed)
    assert before.findings == after.findings == (Finding(subject="a", text="there"),)
    assert [finding.text for finding in failed.findings] == ["seen before", text]
    assert (failed.findings[1].subject, failed.findings[1].verdict) == ("broken", Verdict.problem)
    assert failed.findings[1].hint == hint


def test_a_check_is_made_when_it_is_its_turn():
    seen = []
    listed = tuple(
        ListedCheck(id=name, title="", look=lambda _, name=name: seen.append(name) or []) for name in ("one", "two")
    )
    checks = made_checks(Asked(), listed)
    assert next(checks).listed.id == "one"
    assert seen == ["one"]


def test_all_have_names_of_their_own():
    assert len({each.id for each in CHECKS}) == len({each.title for each in CHECKS}) == len(CHECKS)
