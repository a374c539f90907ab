"""Whether the compiled module loads, and gives what it must."""

from __future__ import annotations

import subprocess
import sys

from tokenloom.doctor import native
from tokenloom.doctor.check import Asked, Verdict


def test_it_loads_and_is_right():
    (found,) = native.check_native(Asked())
    assert (found.verdict, found.facts["failed"]) == (Verdict.ok, [])
    assert found.text.startswith("loads, and 4 results are right; ")


def test_what_it_computes_wrongly_is_named(monkeypatch):
    monkeypatch.setitem(native._TESTS, "blends", lambda: False)
    (found,) = native.check_native(Asked())
    assert found.verdict is Verdict.problem
    assert found.text.startswith("computes something else than it must: blends; ")


def test_where_it_cannot_be_loaded_all_else_is_still_told():
    program = (
        "import sys; sys.modules['tokenloom._native'] = None\n"
        "from tokenloom import cli; sys.exit(cli.main(['doctor', '--no-speed']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "problem  native         cannot be loaded: " in done.stdout
    assert "pip install --force-reinstall --no-deps tokenloom" in " ".join(done.stdout.split())
    assert "problems: 1\n" in done.stdout
