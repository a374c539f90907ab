"""`tokenloom explore` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support import write_corpus

from tokenloom import cli

COMMAND = [sys.executable, "-m", "tokenloom", "explore"]


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    signals = (signal.SIGINT, signal.SIGTERM)
    without_display = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=without_display,
        preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in signals] and None,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return write_corpus(tmp_path / "web", [[1, 2, 3], [4]])


def test_the_server_runs_until_it_is_stopped(prefix):
    with started(prefix, "--host", "0.0.0.0") as process:
        address = process.stdout.readline().strip()
        host, _, token = address.partition("/?token=")
        assert (host.startswith("http://"), len(token)) == (True, 43)
        address = f"http://127.0.0.1:{host.rpartition(':')[2]}/?token={token}"
        assert urlopen(address, timeout=300).status == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err.splitlines()[-1]) == (143, "", "stopped by SIGTERM")
    assert err.startswith("warning: other machines can reach 0.0.0.0, and the connection is not encrypted: ")


def test_wrong_targets_and_ports_are_errors(prefix, capsys):
    assert cli.main(["explore", f"{prefix}-missing"]) == 1
    assert f"no dataset, run or job at `{prefix}-missing`" in capsys.readouterr().err
    assert cli.main(["explore", prefix, "--port", "70000", "--no-browser"]) == 1
    assert "the port must be in [0, 65535], got 70000" in capsys.readouterr().err
