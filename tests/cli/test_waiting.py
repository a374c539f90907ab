"""Commands that wait for others say so within seconds, and end at once when they are stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from tests.preprocess.corpus import byte_level_json
from tests.support import write_corpus


@contextmanager
def running(arguments: list[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Starts Python; ends it with the block."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def stopped(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Sends Ctrl-C; returns the exit status, and what was said then."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_named_with_its_setting(silent_server):
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    with running(["-m", "tokenloom", "info", "s3://bucket/data"], AWS_ENDPOINT_URL=silent_server, **keys) as process:
        assert re.fullmatch(
            rf"waiting for an answer of `s3://bucket` for \d+ s \(attempt 1; AWS_ENDPOINT_URL={silent_server}\)\n",
            line_of(process.stderr),
        )
        assert stopped(process) == (130, "interrupted\n")


STOPPED_WITHIN = """
import sys, time
from tokenloom import cli
import {module} as module
def wait(*_, **__):
    print("ready", file=sys.stderr, flush=True)
    while True:  # one long sleep could begin just after the signal, and Python would act on it at its end
        time.sleep(0.01)
module.{name} = wait
sys.exit(cli.main({arguments!r}))
"""


@pytest.mark.parametrize(
    ("command", "place", "words"),
    [
        (
            "merge PREFIX PREFIX --output-prefix OUT/all",
            "tokenloom.indexed.writing.concatenate.put_piece",
            "nothing was written: run the same command again to begin anew",
        ),
        pytest.param(
            "prepare-cache --data-path PREFIX --split 1,0,0 --sequence-length 8 --train-samples 20 --path-to-cache OUT "
            "--tokenizer TOKENIZER",
            "tokenloom.order.arrays.IndexCacheWriter",
            "indices that are complete are kept: run the same command again to go on",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["merge", "prepare-cache"],
)
def test_a_command_that_is_stopped_says_what_it_leaves(tmp_path: Path, command: str, place: str, words: str):
    prefix = tmp_path / "data"
    write_corpus(prefix, [np.arange(40) for _ in range(20)])
    (tmp_path / "out").mkdir()
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    module, _, name = place.rpartition(".")
    paths = {"PREFIX": prefix, "OUT": tmp_path / "out", "TOKENIZER": tmp_path / "tokenizer.json"}
    for word, path in paths.items():
        command = command.replace(word, str(path))
    script = STOPPED_WITHIN.format(module=module, name=name, arguments=command.split())
    with running(["-c", script]) as process:
        assert line_of(process.stderr) == "ready\n"
        assert stopped(process) == (130, f"interrupted; {words}\n")
    assert list((tmp_path / "out").iterdir()) == []
