"""Answers within some seconds, or none."""

from __future__ import annotations

import threading

import pytest

from tokenloom.doctor.bounded import answer_within


def test_what_answers_is_returned():
    assert answer_within(60.0, lambda: 7) == 7
    assert answer_within(60.0, lambda: None) is None


def test_what_fails_raises_what_it_raised():
    def fail() -> int:
        message = "no such thing"
        raise OSError(message)

    with pytest.raises(OSError, match="no such thing"):
        answer_within(60.0, fail)


def test_what_hangs_is_left_behind():
    forever = threading.Event()
    try:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
            answer_within(0.01, forever.wait)
    finally:
        forever.set()
