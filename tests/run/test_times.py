"""When a run reaches its positions."""

from __future__ import annotations

from datetime import datetime

import pytest
from tests.run.small_runs import lock, segment, source

from tokenloom.errors import ConfigError
from tokenloom.run.times import Pace, tokens_before

RUN = lock([source("web", 50)], [segment(0, 10, [1]), segment(10, None, [1], length=100)])


def test_tokens_are_counted_over_segments():
    assert [tokens_before(RUN, position) for position in (0, 3, 10, 12)] == [0, 30, 100, 300]


def test_dates_are_counted_from_where_a_run_is():
    pace = Pace(tokens_per_second=2, start=datetime(2026, 1, 1), begin=5)
    assert pace.seconds_to(RUN, 10) == 25
    assert pace.date_of(RUN, 0) == datetime(2025, 12, 31, 23, 59, 35)
    assert pace.words(RUN, 12) == "2026-01-01 00:02"
    with pytest.raises(ConfigError, match="up to the year 9999"):
        pace.date_of(RUN, 2**55)


def test_without_a_start_times_are_spans():
    pace = Pace(tokens_per_second=1)
    words = [pace.words(RUN, position) for position in (1, 12, 1000, 10000)]
    assert words == ["after 10.0 seconds", "after 5.0 minutes", "after 27.5 hours", "after 11.6 days"]
    with pytest.raises(ConfigError, match="expected a start"):
        pace.date_of(RUN, 1)
