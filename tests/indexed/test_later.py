"""`tokenloom.indexed.later`."""

from __future__ import annotations

import pytest

from tokenloom.indexed.later import SetLater


class Opened:
    one = SetLater("open", when="known")
    two = SetLater("open", when="known")
    calls = 0

    def open(self):
        self.calls += 1
        self.one, self.two = 1, 2


def test_attributes_are_set_together_with_the_first():
    opened = Opened()
    opened.known = True
    assert (opened.two, opened.one, opened.calls) == (2, 1, 1)
    opened.one = 3
    assert (opened.one, opened.calls) == (3, 1)


def test_what_cannot_be_set_is_not_there():
    with pytest.raises(AttributeError, match="'Opened' object has no attribute 'two'"):
        _ = Opened().two
    assert isinstance(Opened.two, SetLater)


def test_an_error_is_raised_each_time():
    class Failing(Opened):
        def open(self):
            raise OSError(self.known)

    failing = Failing()
    failing.known = "why"
    for _ in range(2):
        with pytest.raises(OSError, match="why"):
            _ = failing.one
