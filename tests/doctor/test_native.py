"""Whether the compiled module gives what it must."""

from __future__ import annotations

from tokenloom.doctor import native
from tokenloom.doctor.check import Asked, Verdict


def test_it_is_right():
    (found,) = native.check_native(Asked())
    assert (found.verdict, found.facts["failed"]) == (Verdict.ok, [])
    assert found.text.startswith("loads, and 4 results are right; ")
    assert "_native" in found.facts["path"]


def test_what_it_computes_wrongly_is_named(monkeypatch):
    monkeypatch.setitem(native._TESTS, "blends", lambda: False)
    (found,) = native.check_native(Asked())
    assert found.verdict is Verdict.problem
    assert found.text.startswith("computes something else than it must: blends; ")
    assert "--no-binary tokenloom" in found.hint
