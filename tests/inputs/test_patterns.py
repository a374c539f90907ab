"""Names that match patterns."""

from __future__ import annotations

from tokenloom.inputs.patterns import matches


def test_globs_of_many_stars_take_no_longer_than_others():
    pattern = "s3://bucket/" + "**/" * 40 + "x"
    assert not matches("s3://bucket/" + "a/" * 40 + "b", pattern)
    assert matches("s3://bucket/" + "a/" * 40 + "x", pattern)
