"""Stopped commands clean up and print how to resume; waiting commands print what they wait for."""

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
from typing import Any

import numpy as np
import pytest
from tests.preprocess.corpus import byte_level_json, leftovers, write_lines
from tests.support import wait_until, write_corpus

HOW_TO_GO_ON = (
    "(nothing was written: run the same command again to start over"
    "|[0-9]+ of [0-9]+ shards (is|are) done: run the same command again to go on)"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("data") / "data", [np.arange(40) for _ in range(2000)])


@contextmanager
def running(*words: object, program: Any = ("-m", "tokenloom"), **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Starts a command with default signal handlers; kills it at the end of the block."""

    def reset() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": reset} | options
    process = subprocess.Popen([sys.executable, *program, *map(str, words)], **settings)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], number: int | None = None) -> tuple[int, str]:
    """Sends a signal, if any; returns the exit status and the rest of stderr."""
    if number is not None:
        process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def line_of(stream: Any) -> str:
    return stream.readline()


def is_alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_stopped_corpus_job_cleans_up_and_leaves_no_process(tmp_path):
    rng, out = np.random.default_rng(0), tmp_path / "out"
    words = ["alpha ", "beta(", ") = gamma\n", "delta_1 "]
    write_lines(tmp_path / "in.jsonl", [{"text": "".join(rng.choice(words, 300))} for _ in range(300)] * 25)
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    out.mkdir()
    command = f"preprocess {tmp_path}/in.jsonl --tokenizer {tmp_path}/tokenizer.json --output-prefix {out}/p"
    work = "--engine tokenizers --processes 2 --workers 1 --shard-bytes 500KB"
    with running(*command.split(), *work.split()) as process:

        def children() -> list[int]:
            tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            return [int(number) for number in tasks.read_text().split()]

        has_begun = lambda: any(path.is_file() for path in out.rglob("*"))  # noqa: E731
        wait_until(lambda: has_begun() and len(children()) == 2, seconds=300, process=process)
        begun = children()
        status, errors = ended(process, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert re.fullmatch(rf"stopped by SIGTERM; {HOW_TO_GO_ON}\n", errors), errors
    # One that was just being started ends once it finds its parent gone.
    wait_until(lambda: not any(is_alive(child) for child in begun), seconds=300)
    assert [name for name in leftovers(out) if name != "p.job"] == []


SLOW_CLEANUP = """
import sys, time
from tokenloom import cli
from tokenloom.cli import datasets
def run(options):
    try:
        print("ready", flush=True)
        while True:  # one long sleep could begin just after the signal, and Python would act on it at its end
            time.sleep(0.01)
    finally:
        print("cleaning", flush=True)
        sys.stdin.readline()
        print("clean", flush=True)
run.__annotations__ = {"options": datasets.InfoOptions}
datasets.info = run
sys.exit(cli.main(["info", "x"]))
"""


def test_signals_that_come_together_are_one():
    with running(program=("-c", SLOW_CLEANUP), stdin=subprocess.PIPE) as process:
        for line, number in (("ready", signal.SIGTERM), ("cleaning", signal.SIGHUP)):
            assert line_of(process.stdout) == f"{line}\n"
            process.send_signal(number)
        output, _ = process.communicate("\n", timeout=300)
        assert (process.returncode, output) == (143, "clean\n")


@pytest.mark.parametrize(
    ("command", "status"), [("info DATA", 141), pytest.param("info --help", 0, marks=pytest.mark.slow)]
)
def test_output_that_nobody_reads_ends_a_command_quietly(data, command, status):
    read, write = os.pipe()
    os.close(read)
    with running(*command.replace("DATA", data).split(), stdout=write) as process:
        os.close(write)
        assert ended(process) == (status, "")


def test_output_that_does_not_fit_the_disk_is_an_error(data):
    with open("/dev/full", "w") as full, running("info", data, stdout=full) as process:
        assert ended(process) == (1, "error: cannot write to standard output: No space left on device\n")


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_named_with_its_setting():
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections and never answers
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        environment = {**os.environ, **keys, "AWS_ENDPOINT_URL": address}
        with running("info", "s3://bucket/data", env=environment) as process:
            assert re.fullmatch(
                rf"waiting for an answer of `s3://bucket` for \d+ s \(attempt 1; AWS_ENDPOINT_URL={address}\)\n",
                line_of(process.stderr),
            )
            assert ended(process, signal.SIGINT) == (130, "interrupted\n")


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
            "nothing was written: run the same command again to start over",
        ),
        pytest.param(
            "prepare-cache --data-path PREFIX --split 1,0,0 --sequence-length 8 --train-samples 20 --path-to-cache OUT "
            "--tokenizer TOKENIZER",
            "tokenloom.order.arrays.IndexCacheWriter",
            "complete indices are kept: run the same command again to resume",
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
    with running(program=("-c", script)) as process:
        assert line_of(process.stderr) == "ready\n"
        assert ended(process, signal.SIGINT) == (130, f"interrupted; {words}\n")
    assert list((tmp_path / "out").iterdir()) == []
