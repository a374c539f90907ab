"""Commands that somebody stops: they clean up as after Ctrl-C, and say by their exit status what stopped them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.preprocess.corpus import byte_level_json, leftovers, write_lines
from tests.support import wait_until, write_corpus

HOW_TO_GO_ON = (
    "(nothing was written: run the same command again to begin anew"
    "|[0-9]+ of [0-9]+ shards (is|are) done: run the same command again to go on)"
)
COMMAND = [sys.executable, "-m", "tokenloom"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text for a long run, and a tokenizer."""
    folder = tmp_path_factory.mktemp("stopping")
    rng = np.random.default_rng(0)
    words = ["alpha ", "beta(", ") = gamma\n", "delta_1 "]
    write_lines(folder / "in.jsonl", [{"text": "".join(rng.choice(words, 300))} for _ in range(300)] * 25)
    (folder / "tokenizer.json").write_text(byte_level_json())
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("data") / "data", [np.arange(40) for _ in range(2000)])


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    """Starts a command whose signals do what they do by default, whatever the tests were started with."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    settings: dict[str, object] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "preexec_fn": lambda: [signal.signal(number, signal.SIG_DFL) for number in numbers] and None,
    }
    return subprocess.Popen([*COMMAND, *map(str, arguments)], **(settings | options))  # type: ignore[call-overload,no-any-return]


def preprocess_command(folder: Path, out: Path, *more: object) -> list[object]:
    out.mkdir()
    tokenizer = ("--tokenizer", folder / "tokenizer.json", "--output-prefix", out / "p")
    return ["preprocess", folder / "in.jsonl", *tokenizer, "--engine", "tokenizers", *more]


def children_of(process: subprocess.Popen[str]) -> list[int]:
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(number) for number in tasks.read_text().split()]


def is_alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def has_begun(out: Path) -> bool:
    return any(path.is_file() for path in out.rglob("*"))


@pytest.mark.slow
def test_a_stopped_corpus_job_cleans_up_and_leaves_no_process(folder, tmp_path):
    number, name = signal.SIGTERM, "SIGTERM"
    work = ("--processes", "2", "--workers", "1", "--shard-bytes", "500KB")
    process = start(*preprocess_command(folder, tmp_path / "out", *work))
    try:
        wait_until(
            lambda: has_begun(tmp_path / "out") and len(children_of(process)) == 2,
            seconds=300,
            process=process,
        )
        children = children_of(process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number
    assert re.fullmatch(rf"stopped by {name}; {HOW_TO_GO_ON}\n", errors), errors
    # One that was just being started ends once it finds its parent gone.
    wait_until(lambda: not any(is_alive(child) for child in children), seconds=300)
    assert [name for name in leftovers(tmp_path / "out") if name != "p.job"] == []


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


def stopped_while_cleaning() -> subprocess.Popen[str]:
    """Starts a command and stops it; it cleans up until it is given a line."""
    command = [sys.executable, "-c", SLOW_CLEANUP]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "cleaning\n"
    return process


def test_signals_that_come_together_are_one():
    process = stopped_while_cleaning()
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate("\n", timeout=300)
    assert (process.returncode, output) == (143, "clean\n")


@pytest.mark.parametrize(
    ("command", "status"), [("info DATA", 141), pytest.param("info --help", 0, marks=pytest.mark.slow)]
)
def test_output_that_nobody_reads_ends_a_command_quietly(data, command, status):
    read, write = os.pipe()
    os.close(read)
    process = start(*command.replace("DATA", data).split(), stdout=write)
    os.close(write)
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (status, "")


def test_output_that_does_not_fit_the_disk_is_an_error(data):
    with open("/dev/full", "w") as full:
        process = start("info", data, stdout=full)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (1, "error: cannot write the output: No space left on device\n")
