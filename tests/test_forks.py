"""Threads read samples while processes are forked: every child reads the same samples, and none hangs."""

import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from tests.run.folders import HEAD, write_pair, write_toml
from tests.support import LONGEST_SECONDS, fork_result, make_config, random_documents, threads_calling, write_corpus
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.forks import READING_LOCK, cached_property
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.run import Run
from tokenloom.samplers import MegatronPretrainingSampler

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
]

STAGE = "[[stages]]\nsequence_length = 16\nsamples = 4000\nweights = { web = 3, code = 1 }\n"


def run_of(folder, num_pairs, *, head=HEAD):
    first = 0
    for number in range(num_pairs):
        name = f"web-{number}" if number % 4 else f"code-{number}"
        first += write_pair(folder / name, 40, first=first, seed=number)
    sources = '[sources]\nweb = "web-*"\ncode = "code-*"\n'
    return Run.open(write_toml(folder, STAGE, head=head, sources=sources)).dataset()


def blend_of(folder, num_pairs, **settings):
    rng = np.random.default_rng(1)
    prefixes = [
        write_corpus(folder / f"p{n}", random_documents(rng, count=20, longest=30, vocab_size=90))
        for n in range(num_pairs)
    ]
    blend = (prefixes, [float(1 + n % 3) for n in range(num_pairs)])
    config = make_config(None, blend=blend, split="1,0,0", path_to_cache=str(folder / "cache"), **settings)
    return BlendedMegatronDatasetBuilder(GPTDataset, (2000, 0, 0), lambda: True, config).build()[0]


MAKERS = {
    "run": run_of,
    "packed run": partial(run_of, head=HEAD + 'windows = "best_fit"\n'),
    "blend": blend_of,
    "packed blend": partial(blend_of, window_policy="best_fit"),
    "single": lambda folder, _: blend_of(folder, 1).datasets[0],
}


@pytest.mark.parametrize(
    ("num_pairs", "num_children"), [(6, 2), pytest.param(400, 48, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_children_read_while_threads_of_their_parent_do(tmp_path, make, num_pairs, num_children):
    dataset = make(tmp_path, num_pairs)
    positions = np.random.default_rng(0).permutation(len(dataset))[: 10 * num_pairs]
    expected = dataset.batch(positions)["tokens"]
    state = pickle.dumps(dataset)

    def read_anew():
        """Opens and reads, so that all that is made once is made again."""
        assert np.array_equal(pickle.loads(state).batch(positions)["tokens"], expected)

    def read():
        assert np.array_equal(dataset.batch(positions)["tokens"], expected)
        read_anew()

    with threads_calling(read), threads_calling(read_anew, 1):
        assert [fork_result(read) for _ in range(num_children)] == [0] * num_children


@pytest.mark.parametrize("num_loaders", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_forked_workers_start_while_a_thread_loader_runs(tmp_path, num_loaders):
    dataset = run_of(tmp_path, 6)
    expected = torch.from_numpy(np.asarray(dataset.batch(range(400))["tokens"]))
    state = pickle.dumps(dataset)

    def run_ahead():
        again = pickle.loads(state)
        for _ in ThreadLoader(again, MegatronPretrainingSampler(160, 0, 8, 0, 1), num_threads=2):
            pass

    with threads_calling(run_ahead, 2):
        for _ in range(num_loaders):
            fork = multiprocessing.get_context("fork")
            settings = {"num_workers": 2, "timeout": LONGEST_SECONDS, "multiprocessing_context": fork}
            loader = torch.utils.data.DataLoader(dataset, batch_size=20, sampler=range(400), **settings)
            assert torch.equal(torch.cat([batch["tokens"] for batch in loader]), expected)


USE_OF_A_STORE = """
import sys

from tests.support import fork_result
from tokenloom.errors import StorageError
from tokenloom.storage.objects import RemoteFile

file = None


def read():
    assert RemoteFile(sys.argv[1]).read(0, 5).tobytes() == b"bytes"


def be_refused():
    for use in (read, lambda: file.read(0, 5)):
        try:
            use()
        except StorageError as error:
            print(error)
            continue
        raise AssertionError


assert fork_result(read) == 0, "the parent has used no store"
read()
file = RemoteFile(sys.argv[1])
assert fork_result(be_refused) == 0
read()
"""


def test_a_child_of_a_fork_that_used_a_store_says_so_at_once(bucket):
    command = [sys.executable, "-u", "-c", USE_OF_A_STORE, bucket.put("key", b"bytes of an object")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[:2] == lines[2:]
    message, hint = lines[:2]
    assert re.fullmatch(
        rf"cannot use `s3://{bucket.name}` in process \d+, a fork of process \d+: "
        "the threads of the client do not survive a fork",
        message,
    )
    assert hint == ('hint: start workers with `multiprocessing_context="forkserver"` or `"spawn"`')


def test_a_property_is_computed_by_a_child_whose_parent_computes_it():
    class Answers:
        def __init__(self):
            self.entered, self.go_on = threading.Event(), threading.Event()

        @cached_property
        def answer(self):
            if threading.current_thread() is not threading.main_thread():
                self.entered.set()
                self.go_on.wait(LONGEST_SECONDS)
            return object()

    answers, other = Answers(), Answers()
    with ThreadPoolExecutor(1) as executor:
        found = executor.submit(lambda: answers.answer)
        answers.entered.wait(LONGEST_SECONDS)
        assert fork_result(lambda: other.answer) == 0
        first = answers.answer
        assert first is answers.answer
        answers.go_on.set()
        last = found.result()
    assert (first is last, answers.answer is last) == (False, True)
    assert isinstance(Answers.answer, cached_property)


def test_a_property_may_use_that_of_the_class_above():
    class Above:
        @cached_property
        def answer(self):
            return 20

    class Below(Above):
        @cached_property
        def answer(self):
            return super().answer + 1

    below = Below()
    assert (below.answer, below.answer) == (21, 21)


def test_a_fork_waits_for_what_is_half_made():
    changing, go_on, seen = threading.Event(), threading.Event(), []

    def change():
        with READING_LOCK:
            seen.append("half")
            changing.set()
            go_on.wait(LONGEST_SECONDS)
            seen.append("whole")

    def look():
        with READING_LOCK:
            assert seen == ["half", "whole"]

    with ThreadPoolExecutor(2) as executor:
        done = executor.submit(change)
        changing.wait(LONGEST_SECONDS)
        executor.submit(go_on.set)
        assert fork_result(look) == 0
        done.result()
