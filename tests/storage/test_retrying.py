"""Asking again: what is repeated, for how long, and what is said in the end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tokenloom import AccessDeniedError, MissingObjectError, ObjectStorageSettings, StorageError, UnavailableError
from tokenloom.storage import object_storage
from tokenloom.storage.object_storage import patiently


def failing(*errors: StorageError) -> Callable[[], str]:
    left = list(errors)

    def attempt() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return attempt


def test_what_may_pass_is_tried_again():
    retries: list[int] = []
    attempt = failing(UnavailableError("a"), AccessDeniedError("b"), UnavailableError("c"))
    assert patiently(attempt, deadline_seconds=5, on_retry=lambda: retries.append(1)) == "done"
    assert len(retries) == 3


def test_what_will_not_pass_is_not_tried_again():
    for attempt, may_be_denied in ((failing(MissingObjectError("a")), False), (failing(AccessDeniedError("b")), True)):
        with pytest.raises(StorageError):
            patiently(attempt, deadline_seconds=60, on_retry=pytest.fail, may_be_denied=may_be_denied)


class Clock(threading.Event):
    """Tells how long was waited for it, and nothing else takes time."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds += timeout or 0.0
        return False


def test_the_deadline_ends_it_and_the_error_tells_how_often(monkeypatch):
    clock, retries = Clock(), []
    monkeypatch.setattr(object_storage, "time", clock)
    with pytest.raises(UnavailableError) as info:
        patiently(
            failing(*[UnavailableError("no answer")] * 100),
            deadline_seconds=0.4,
            on_retry=lambda: retries.append(1),
            stopping=clock,
        )
    assert 100.0 < clock.seconds <= 100.4
    assert info.value.message == (
        f"no answer; given up after {len(retries) + 1} attempts in {clock.seconds - 100:.1f} s"
    )
    assert info.value.hint == "check the endpoint and the network"


def test_the_default_deadline_outlives_an_outage_of_twenty_seconds(monkeypatch):
    clock = Clock()
    back = clock.seconds + 20
    monkeypatch.setattr(object_storage, "time", clock)

    def attempt() -> str:
        if clock.seconds < back:
            message = "nobody listens"
            raise UnavailableError(message)
        return "done"

    settings = ObjectStorageSettings()
    patience = {"deadline_seconds": settings.deadline_seconds, "most_retries": settings.retries}
    assert patiently(attempt, **patience, on_retry=lambda: None, stopping=clock) == "done"
    assert clock.seconds <= back + 5  # the longest pause


def test_retries_are_counted_where_they_are_limited():
    for most, expected in ((0, 1), (3, 4)):
        retries: list[int] = []
        with pytest.raises(UnavailableError, match=rf"no answer; given up after {expected} attempts"):
            patiently(
                failing(*[UnavailableError("no answer")] * 9),
                deadline_seconds=60,
                on_retry=lambda: retries.append(1),  # noqa: B023  called within
                most_retries=most,
            )
        assert len(retries) == most
