"""Data sets in a few lines (a stand-in for a tokenizer, pairs from lists of documents, configurations), and forks."""

import faulthandler
import itertools
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings

from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.preprocess import settings as job_settings

EOD = 9
"""The end-of-document id of most tests."""

IDENTITY_SEED = 57
"""A seed that leaves three documents, and then three samples, in their order."""


def few_examples(test: Callable[..., None]) -> Callable[..., None]:
    """Decorates a property whose examples are costly: a tenth of what the tier draws."""
    # Not a constant: the profile is loaded after this module.
    return settings(max_examples=max(5, settings().max_examples // 10))(test)


class StandInTokenizer:
    """What datasets ask of a tokenizer, with ids of one's choice; a pad of None means that there is none."""

    def __init__(self, *, pad: int | None = None, eod: int | None = EOD, vocab_size: int | None = 100) -> None:
        self._pad = pad
        self._eod = eod
        self.vocab_size = vocab_size
        self.unique_identifiers = {"class": "StandInTokenizer", "vocab_size": vocab_size}

    @property
    def pad(self) -> int:
        if self._pad is None:
            raise NotImplementedError
        return self._pad

    @property
    def eod(self) -> int:
        if self._eod is None:
            raise NotImplementedError
        return self._eod


class CharacterTokenizer(StandInTokenizer):
    """Each id is a character."""

    def __init__(self) -> None:
        super().__init__(vocab_size=60000)

    def tokenize(self, text: str) -> list[int]:
        return [ord(character) - 100 for character in text]

    def detokenize(self, ids: list[int]) -> str:
        return "".join(chr(number + 100) for number in ids)


class StandInWordPieces(StandInTokenizer):
    """A word-piece tokenizer as masked datasets see it: specials from id 0 on, then pieces, some of them continuations.

    A role of None, or no sentinels, means that there is none.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 100,
        pad: int | None = 0,
        cls: int | None = 1,
        sep: int | None = 2,
        mask: int | None = 3,
        bos: int | None = 4,
        eos: int | None = 5,
        num_sentinels: int = 4,
        continuations: Sequence[int] = (),
    ) -> None:
        super().__init__(pad=pad, eod=None, vocab_size=vocab_size)
        self._roles = {"cls": cls, "sep": sep, "mask": mask, "bos": bos, "eos": eos}
        self.first_piece = 6 + num_sentinels
        self.additional_special_tokens_ids = list(range(6, self.first_piece))
        joins = set(continuations)
        self.inv_vocab = {number: f"##{number}" if number in joins else f"w{number}" for number in range(vocab_size)}

    def __getattr__(self, name: str) -> int:
        roles = self.__dict__.get("_roles", {})
        if roles.get(name) is None:
            raise AttributeError(name)
        return roles[name]


def write_sentences(
    prefix: str | os.PathLike[str], documents: Iterable[Sequence[Sequence[int] | np.ndarray]], *, dtype: Any = np.uint16
) -> str:
    """Writes a pair with one sequence per sentence; returns its prefix."""
    with IndexedDatasetBuilder(f"{os.fspath(prefix)}.bin", dtype=dtype) as builder:
        for sentences in documents:
            for sentence in sentences:
                builder.add_item(np.asarray(sentence, dtype=dtype))
            builder.end_document()
        builder.finalize(f"{os.fspath(prefix)}.idx")
    return os.fspath(prefix)


MASKING = {
    "random_seed": IDENTITY_SEED,
    "masking_probability": 0.15,
    "short_sequence_probability": 0.1,
    "masking_max_ngram": 3,
    "masking_do_full_word": True,
    "masking_do_permutation": False,
    "masking_use_longer_ngrams": False,
    "masking_use_geometric_distribution": False,
}
"""Settings of masked datasets, as they are used most."""


@contextmanager
def small_shards() -> Iterator[None]:
    """Lets a job have shards that are smaller than what is of use, so that small corpora have several."""
    least, job_settings.LEAST_SHARD_BYTES = job_settings.LEAST_SHARD_BYTES, 1
    try:
        yield
    finally:
        job_settings.LEAST_SHARD_BYTES = least


def write_corpus(
    prefix: str | os.PathLike[str], documents: Iterable[Sequence[int] | np.ndarray], *, dtype: Any = np.uint16
) -> str:
    """Writes a pair with one sequence per document; returns its prefix."""
    with IndexedDatasetBuilder(f"{os.fspath(prefix)}.bin", dtype=dtype) as builder:
        for document in documents:
            builder.add_document(np.asarray(document, dtype=dtype), [len(document)])
        builder.finalize(f"{os.fspath(prefix)}.idx")
    return os.fspath(prefix)


def random_documents(
    rng: np.random.Generator, *, count: int, longest: int, vocab_size: int, empty_share: float = 0.2
) -> list[np.ndarray]:
    """Draws documents, some of them empty."""
    lengths = rng.integers(1, longest + 1, size=count) * (rng.random(count) >= empty_share)
    return [rng.integers(0, vocab_size, size=length) for length in lengths]


def make_config(prefix: str | None, *, kind: type = GPTDatasetConfig, **changes: Any) -> Any:
    """Returns settings with everything switched off; without a prefix nothing is cached unless a folder is named.

    Args:
        prefix: prefix of a pair, all of it for training; None where `changes` say what is read.
        kind: their class.
        changes: settings that differ.
    """
    settings: dict[str, Any] = {
        "random_seed": IDENTITY_SEED,
        "sequence_length": 4,
        "tokenizer": StandInTokenizer(),
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
    }
    if prefix is not None:
        settings |= {"blend": ([prefix], None), "split": "1,0,0"}
    return kind(**(settings | changes))


def make_dataset(
    prefix: str,
    *,
    num_samples: int | None = None,
    split: Split = Split.train,
    indices: Any = None,
    in_memory: bool = False,
    **changes: Any,
) -> GPTDataset:
    """Returns samples of a pair, of all its documents unless some are named.

    In memory, nothing is cached unless a folder is named.
    """
    config = make_config(None if in_memory else prefix, **changes)
    data = IndexedDataset(prefix, mmap=config.mmap_bin_files)
    chosen = np.arange(len(data), dtype=np.int32) if indices is None else np.asarray(indices, dtype=np.int32)
    return GPTDataset(data, prefix, chosen, num_samples, split, config)


@contextmanager
def forking_from(*modules: str) -> Iterator[Any]:
    """Yields a context whose processes are forks of one that has imported modules: 50 ms each, with torch, not 2 s.

    It is a server of its own, with the environment of now; that of others goes on serving them afterwards.
    """
    from multiprocessing import forkserver

    names = ("ensure_running", "get_inherited_fds", "connect_to_new_process", "set_forkserver_preload")
    before = {name: getattr(forkserver, name) for name in ("_forkserver", *names)}
    server = forkserver.ForkServer()
    for name in names:
        setattr(forkserver, name, getattr(server, name))
    forkserver._forkserver = server  # type: ignore[attr-defined]
    server.set_forkserver_preload(list(modules))
    try:
        yield multiprocessing.get_context("forkserver")
    finally:
        for name, value in before.items():
            setattr(forkserver, name, value)
        if server._forkserver_pid is not None:  # type: ignore[attr-defined]
            # `_stop` waits for its end, which no forked worker that a test left may hold up by an inherited descriptor.
            os.kill(server._forkserver_pid, signal.SIGTERM)  # type: ignore[attr-defined]
        server._stop()  # type: ignore[attr-defined]


def contents(folder: str | os.PathLike[str]) -> dict[str, bytes]:
    """Returns the files of a folder by name; hidden ones included."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def wait_until(
    condition: Callable[[], bool], *, seconds: float = 30.0, process: subprocess.Popen[Any] | None = None
) -> None:
    """Polls; raises when it takes too long, or when a process has ended before."""
    stop = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        if time.monotonic() > stop:
            raise TimeoutError
        time.sleep(0.005)


def flat(nested: Iterable[Iterable[Any]]) -> list[Any]:
    """Returns what lists hold, one after the other."""
    return list(itertools.chain.from_iterable(nested))


def assert_same(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> None:
    """Requires the same samples or batches, in the same order."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert list(mine) == list(theirs)
        for name in mine:
            assert mine[name].dtype == theirs[name].dtype
            assert (mine[name] == theirs[name]).all()


def equal_samples(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two samples or batches have the same names in the same order, dtypes, shapes and values."""
    return list(first) == list(second) and all(
        first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and bool((first[name] == second[name]).all())
        for name in first
    )


LONGEST_SECONDS = 60


@contextmanager
def threads_calling(work, count=3):
    """Calls something over and over in threads, and raises what it raised."""
    stop = threading.Event()

    def work_on():
        while not stop.is_set():
            work()

    with ThreadPoolExecutor(count) as executor:
        done = [executor.submit(work_on) for _ in range(count)]
        try:
            yield
        finally:
            stop.set()
    for each in done:
        each.result()


def fork_result(work) -> int:
    """Returns the exit status of a child that calls something: 0, 1 if it raised, -SIGALRM, with stacks, if it hung."""
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            faulthandler.register(signal.SIGALRM, file=2, chain=True)  # type: ignore[arg-type]
            signal.alarm(LONGEST_SECONDS)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
