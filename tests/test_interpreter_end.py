"""The interpreter ends while threads read: with the exit code of the user's program, and nothing on standard error."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import write_corpus

SETUP = """
import itertools, os, sys, threading, time
import numpy as np
from tests.support import make_dataset
from tokenloom import IndexedDataset, ThreadLoader, build_dataloader
from tokenloom.kernels.order import blending_counts
from tokenloom.kernels.order import LegacyRandom

prefix = sys.argv[1]
pair = IndexedDataset(prefix)
lengths = np.full(200_000, 10, dtype=np.int32)
order = np.arange(200_000, dtype=np.int32)
dataset = make_dataset(prefix, num_samples=4000, in_memory=True)

def shuffle_windows():
    parts = np.array([[len(order), 10 * len(order)]])
    LegacyRandom(1).shuffle_windows(
        order.copy(), lengths, parts=parts, window_length=100, extra=1, num_windows=20_000, dtype=np.dtype("int32")
    )
"""

READING = """
def read():
    while True:
        {reader}
        num_rounds.append(1)

num_rounds = []
threads = [threading.Thread(target=read, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
while len(num_rounds) < {num_rounds}:
    time.sleep(0.001)
"""

READERS = {
    "samples": "[dataset.sample(k) for k in range(400)]",
    "batches": "[dataset.batch(range(k, k + 64)) for k in range(0, 400, 64)]",
    "sequences": "[pair[0 : len(pair)] for _ in range(9)]",
    "a kernel with a thread": "shuffle_windows()",
    "a blend": "blending_counts(np.array([0.2, 0.8]), 4_000_000)",
}
"""What a thread does over and over."""

ENDS = {
    "": (0, ""),
    "sys.exit(3)": (3, ""),
    "raise RuntimeError('of the user')": (1, "RuntimeError: of the user"),
}
"""How a script ends, with which exit code and last line on standard error."""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 50, size=200) for _ in range(500)]
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", documents)


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def slow_but(chosen, *values):
    """Returns all combinations of values; those that are not chosen are slow."""
    every = itertools.product(*values)
    return [pytest.param(*each, marks=() if each in chosen else pytest.mark.slow) for each in every]


BY_DEFAULT = {("samples", "sys.exit(3)"), ("batches", "raise RuntimeError('of the user')"), ("a blend", "")}


@pytest.mark.parametrize(("reader", "end"), slow_but(BY_DEFAULT, READERS, ENDS))
def test_daemon_threads_that_read_do_not_change_how_a_program_ends(prefix, reader, end):
    done = run_script(SETUP + READING.format(reader=READERS[reader], num_rounds=8) + end, prefix)
    exit_code, last_line = ENDS[end]
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert done.stderr.count("Traceback") == (1 if last_line else 0)
    assert done.stderr.strip().rpartition("\n")[2] == last_line


REMOTE_READERS = {
    "announced": "[batch for batch in ThreadLoader(dataset, sampler, read_ahead=2)]",
    "single": "[dataset.sample(k) for k in range(5)]",
    "many": "[dataset.batch(range(k, k + 8)) for k in range(0, 16, 8)]",
    "versions": "IndexedDataset(prefix)",
}


@pytest.mark.parametrize("reader", slow_but({("many",)}, REMOTE_READERS))
def test_daemon_threads_that_read_object_storage_do_not_either(bucket, prefix, reader):
    address = bucket.put_pair(prefix, "data/corpus")
    script = SETUP.replace("4000", "400") + "sampler = [list(range(k, k + 4)) for k in range(0, 40, 4)]\n"
    done = run_script(script + READING.format(reader=REMOTE_READERS[reader], num_rounds=2) + "sys.exit(3)", address)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


LEAVING = {
    "a loop that is left": "for batch in ThreadLoader(dataset, sampler, read_ahead=8, num_threads=2): break",
    "a loop that is kept": "batches = iter(ThreadLoader(dataset, sampler, read_ahead=8)); next(batches)",
    "a loader of torch": "batches = iter(build_dataloader(dataset, sampler)); next(batches)",
    "workers of torch": "batches = iter(build_dataloader(dataset, sampler, num_workers=2)); next(batches)",
    "an announcement": "dataset.will_need(range(400))",
}


@pytest.mark.parametrize(("leaving", "latency"), slow_but({("a loop that is left", 0.3)}, LEAVING, (0.0, 0.3)))
def test_what_was_read_ahead_ends_quietly(bucket, prefix, leaving, latency):
    address = bucket.put_pair(prefix, "data/corpus")
    script = SETUP.replace("4000", "400") + "sampler = [list(range(k, k + 4)) for k in range(0, 400, 4)]\n"
    bucket.proxy.faults.latency_seconds = latency
    done = run_script(script + LEAVING[leaving], address)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
