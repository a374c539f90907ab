"""`tokenloom explore`, as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from tests.support import write_corpus

from tokenloom import cli

COMMAND = [sys.executable, "-m", "tokenloom.cli", "explore"]


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


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("explore") / "web"
    write_corpus(prefix, [[1, 2, 3], [4]])
    return prefix


@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGINT, 0, "stopped"), (signal.SIGTERM, 143, "stopped by SIGTERM")]
)
def test_it_serves_until_it_is_stopped(prefix, number, status, said):
    with started(prefix) as process:
        address = process.stdout.readline().strip()
        host, _, token = address.partition("/?token=")
        assert (host.startswith("http://127.0.0.1:"), len(token)) == (True, 43)
        assert build_opener(HTTPCookieProcessor()).open(address, timeout=20).status == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (status, "", f"{said}\n")


def test_others_on_the_network_are_warned_of(prefix):
    with started(prefix, "--host", "0.0.0.0") as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=20)[1]
    assert err.startswith("warning: others on the network can reach 0.0.0.0; who has the address with its token sees")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "expected something to look at as `nowhere`"),
        (["web", "--compare", "web"], "expected two runs to compare, found the pair"),
        (["web", "--port", "70000"], "expected a port in [0, 65535]"),
        (["web", "--tokenizer", "nowhere"], "nowhere"),
        (["web", "--global-batch-size", "8", "--batch-size-schedule", "0:8"], "exclude each other"),
    ],
)
def test_what_cannot_be_explored_is_said_before_anything_is_served(prefix, capsys, monkeypatch, words, message):
    monkeypatch.chdir(prefix.parent)
    try:
        status = cli.main(["explore", *words, "--no-browser"])
    except SystemExit as ended:  # of wrong usage
        status = ended.code
    out, err = capsys.readouterr()
    assert (status in (1, 2), out, message in err) == (True, "", True), err


def test_a_missing_extra_is_named(prefix, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["explore", str(prefix), "--no-browser"]) == 1
    assert "hint: run `pip install tokenloom[explore]`" in capsys.readouterr().err
