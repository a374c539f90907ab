"""The setting of how long ranks may be silent."""

from __future__ import annotations

import pytest

import tokenloom
from tokenloom.distributed.ranks import rank_silence_seconds
from tokenloom.errors import ConfigError


@pytest.fixture(autouse=True)
def _reset(monkeypatch):
    monkeypatch.delenv("TOKENLOOM_RANK_SILENCE_SECONDS", raising=False)
    yield
    tokenloom.set_rank_silence_seconds(None)


def test_the_call_counts_before_the_environment_and_that_before_the_default(monkeypatch):
    assert rank_silence_seconds() == 60
    monkeypatch.setenv("TOKENLOOM_RANK_SILENCE_SECONDS", "90.5")
    assert rank_silence_seconds() == 90.5
    tokenloom.set_rank_silence_seconds(30)
    assert rank_silence_seconds() == 30


@pytest.mark.parametrize("text", ["soon", "", "1e999", "nan", "0.5", "-3"])
def test_what_is_no_time_or_too_short_is_refused(monkeypatch, text):
    monkeypatch.setenv("TOKENLOOM_RANK_SILENCE_SECONDS", text)
    with pytest.raises(ConfigError, match=r"^expected .*`TOKENLOOM_RANK_SILENCE_SECONDS`.*, found"):
        rank_silence_seconds()


@pytest.mark.parametrize("seconds", [0, 0.99, -1, float("inf"), float("nan")])
def test_a_limit_that_a_busy_rank_would_miss_is_refused(seconds):
    with pytest.raises(ConfigError, match=r"^expected the seconds of silence of at least 1, found"):
        tokenloom.set_rank_silence_seconds(seconds)
