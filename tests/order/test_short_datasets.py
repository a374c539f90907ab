"""The warning about datasets without samples: one warning for all datasets of a build."""

from __future__ import annotations

import warnings

import pytest

from tokenloom.errors import ShortDatasetWarning
from tokenloom.order.arrays import join_short_warnings, warn_short


def messages(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    assert {warning.category for warning in caught} <= {ShortDatasetWarning}
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


def together(*texts, error=None):
    try:
        with join_short_warnings(unless=KeyError):
            for text in texts:
                warn_short(text)
            if error is not None:
                raise error
    except (KeyError, ValueError):
        pass


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ("", []),
        ("a", ["a"]),
        ("abcd", ["4 datasets have no samples: a; b; c; d"]),
        ("x" * 1234, ["1,234 datasets have no samples: x; x; x; x; and 1,230 more"]),
    ],
)
def test_together_they_are_one(texts, expected):
    assert messages(lambda: [warn_short(text) for text in texts[:2]]) == list(texts[:2])
    assert messages(lambda: together(*texts)) == expected
    assert messages(lambda: together(*texts, error=ValueError())) == expected
    assert messages(lambda: together(*texts, error=KeyError())) == []
