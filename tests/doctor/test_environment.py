"""Python, the system, processor and memory, and what standard output can show."""

from __future__ import annotations

import platform

import pytest

from tokenloom import __version__
from tokenloom.doctor import environment
from tokenloom.doctor.check import Asked, Verdict
from tokenloom.doctor.environment import check_environment
from tokenloom.machine import Memory


def findings(encoding: str | None = "utf-8"):
    return {finding.subject: finding for finding in check_environment(Asked(encoding=encoding))}


def test_this_machine_is_described():
    found = findings()
    assert found["tokenloom"].text == __version__
    assert platform.python_version() in found["python"].text
    assert platform.release() in found["system"].text
    assert found["cores"].facts["num_allowed_cores"] >= 1
    assert 0 < found["memory"].facts["num_available_bytes"] <= found["memory"].facts["num_total_bytes"]
    assert found["output"].verdict is Verdict.ok


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", None])
def test_an_output_that_cannot_show_all_texts_is_warned_of(encoding):
    found = findings(encoding)["output"]
    assert found.verdict is Verdict.warning
    assert "LC_ALL=C.UTF-8" in found.hint


def test_a_share_of_the_cores_is_warned_of(monkeypatch):
    monkeypatch.setattr(environment, "allowed_cores", lambda: (8, 1.5))
    found = findings()["cores"]
    assert found.verdict is Verdict.warning
    assert found.text.startswith("8 cores")
    assert found.text.endswith(", of which a control group gives the time of 1.5")
    monkeypatch.setattr(environment, "allowed_cores", lambda: (8, 8.0))
    assert findings()["cores"].verdict is Verdict.ok


def test_little_memory_is_warned_of(monkeypatch):
    def of(available: int, limit: int | None) -> Memory:
        return Memory(total_bytes=64 << 30, available_bytes=available, limit_bytes=limit)

    for available, limit, verdict in (
        (32 << 30, None, Verdict.ok),
        (32 << 30, 8 << 30, Verdict.ok),
        (32 << 30, 1 << 30, Verdict.warning),
        (1 << 30, None, Verdict.warning),
    ):
        monkeypatch.setattr(environment, "memory", lambda available=available, limit=limit: of(available, limit))
        assert findings()["memory"].verdict is verdict


def test_an_older_processor_is_warned_of(monkeypatch):
    monkeypatch.setattr(environment, "processor", lambda: ("Some CPU", frozenset({"sse4_1"})))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = findings()["processor"]
    assert (found.verdict, found.text) == (Verdict.warning, "Some CPU, with sse4_1, no avx2")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert findings()["processor"].verdict is Verdict.ok


@pytest.mark.parametrize(
    ("version", "verdict", "text"),
    [
        ("0.16.1", Verdict.ok, "0.16.1"),
        ("99.0.1", Verdict.warning, "99.0.1, not known"),
        ("", Verdict.warning, "of an unknown version, not known"),
    ],
)
def test_a_megatron_that_is_not_known_is_warned_of(monkeypatch, version, verdict, text):
    monkeypatch.setattr(environment, "installed_version", lambda: version)
    found = findings()["megatron-core"]
    assert (found.verdict, found.text) == (verdict, text)
    monkeypatch.setattr(environment, "installed_version", lambda: None)
    assert "megatron-core" not in findings()
