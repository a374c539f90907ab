"""Where the time of one path goes: by functions, looked at many times a second; or by what parts of it take alone."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from types import FrameType
from typing import Any

import numpy as np
import peers
from serve import Outcome, serve
from texts import tokenizer_path, whole_path

PACKAGE = "tokenloom"
INTERVAL_SECONDS = 0.002
LEAST_SHARE = 0.01
WAITING_FILES = ("threading.py", "queue.py", "selectors.py", "connection.py", "thread.py", "_base.py")
WARM_CALLS = 8
TURNS = 7


def prepare(*, folder: str, path: str, **settings: Any) -> Callable[[], Outcome]:
    """Prepares one path, by its name."""
    paths = {"samples": samples, "loader": loader, "index": index, "preprocess": preprocess}
    work = paths[path](folder, **settings)

    def round_() -> Outcome:
        seconds, shares = work()
        return {"work": 1, "seconds": seconds, "shares": shares}

    return round_


Shares = list[tuple[str, float]]


class Sampler:
    """Adds up how long each busy thread is in which function of the package, looking on from a thread of its own.

    Native code lets others run while it works, so that looks come when they are due; one that comes late stands for all
    the time since the one before. Threads that wait for others are left out.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look_on)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look_on(self) -> None:
        before = time.perf_counter()
        while not self._done.wait(INTERVAL_SECONDS):
            now = time.perf_counter()
            for thread, frame in sys._current_frames().items():
                if thread != threading.get_ident() and not frame.f_code.co_filename.endswith(WAITING_FILES):
                    self._seconds[place_of(frame)] += now - before
            before = now

    def shares(self) -> Shares:
        """Returns the share of each function, the largest first; small ones together."""
        total = sum(self._seconds.values())
        ordered = sorted(((took / total, place) for place, took in self._seconds.items()), reverse=True)
        large = [(place, share) for share, place in ordered if share >= LEAST_SHARE]
        rest = 1 - sum(share for _, share in large)
        return [*large, ("everything else", rest)] if rest > 0 else large


def place_of(frame: FrameType) -> str:
    """Returns the innermost function of the package that a frame is in."""
    inner: FrameType | None = frame
    while inner is not None:
        module = inner.f_globals.get("__name__", "")
        if module.startswith(PACKAGE + "."):
            return f"{module.removeprefix(PACKAGE + '.')}.{inner.f_code.co_qualname}"
        inner = inner.f_back
    return "outside the package"


def sampled(work: Callable[[], object]) -> tuple[float, Shares]:
    """Returns the seconds of some work, and where they went."""
    started = time.perf_counter()
    with Sampler() as sampler:
        work()
    return time.perf_counter() - started, sampler.shares()


def index(folder: str, *, prefix: str, num_samples: int) -> Callable[[], tuple[float, Shares]]:
    cache = os.path.join(folder, "profiled-index")
    shutil.rmtree(cache, ignore_errors=True)
    build = peers.gpt_dataset_builder(peers.OURS, os.path.join(folder, prefix))
    return lambda: sampled(
        lambda: build(num_samples=num_samples, path_to_cache=cache, sequence_length=2048).shuffle_index
    )


def preprocess(folder: str, *, megabytes: int) -> Callable[[], tuple[float, Shares]]:
    from tokenloom.cli import main

    command = ["preprocess", whole_path(folder, megabytes), "--append-eod", "--tokenizer", tokenizer_path(folder)]
    command += ["--output-prefix", os.path.join(folder, "profiled-text")]

    def work() -> None:
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
            main(command)

    return lambda: sampled(work)


def samples(folder: str, *, length: int, seconds: float) -> Callable[[], tuple[float, Shares]]:
    """Each part includes the ones before it; what it adds is its share."""
    dataset = open_dataset(folder, length)
    positions = np.random.default_rng(1).permutation(len(dataset)).tolist()
    pairs = buffers(dataset.sample(positions[0]))
    return lambda: nested(
        {
            "copying the bytes, as memcpy does": lambda: each(lambda _: copy(pairs), positions, seconds),
            "finding and widening tokens, labels, masks; arrays of its own": lambda: each(
                dataset.sample, positions, seconds
            ),
            "torch tensors": lambda: each(dataset.__getitem__, positions, seconds),
        }
    )


def loader(folder: str, *, length: int, seconds: float) -> Callable[[], tuple[float, Shares]]:
    """As `samples`, for batches of 8 from `ThreadLoader`."""
    from tokenloom import MegatronPretrainingSampler, ThreadLoader

    dataset = open_dataset(folder, length)
    sampler = MegatronPretrainingSampler(len(dataset), 0, 8, 0, 1)
    groups = list(sampler)
    pairs = buffers(dataset.batch(groups[0]))

    def load() -> float:
        iterator = iter(ThreadLoader(dataset, sampler))
        next(iterator)
        found = each(lambda _: next(iterator), groups[1:-WARM_CALLS], seconds)
        iterator.close()
        return found

    return lambda: nested(
        {
            "copying the bytes, as memcpy does": lambda: each(lambda _: copy(pairs), groups, seconds),
            "finding and widening tokens, labels, masks; new arrays": lambda: each(dataset.batch, groups, seconds),
            "torch tensors, and handing over from the thread": load,
        }
    )


def buffers(sample: dict[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns, for each array, one to copy it into and the array."""
    return [(np.empty_like(array), array) for array in map(np.asarray, sample.values())]


def open_dataset(folder: str, length: int) -> Any:
    return peers.gpt_dataset_builder(peers.OURS, os.path.join(folder, "corpus"))(
        num_samples=None, path_to_cache=os.path.join(folder, "cache"), sequence_length=length
    )


def copy(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    for target, source in pairs:
        np.copyto(target, source)


def each(call: Callable[[Any], object], items: Sequence[Any], seconds: float) -> float:
    """Returns the seconds per call, over some seconds, or all items."""
    for item in items[:WARM_CALLS]:
        call(item)
    count = 0
    started = time.perf_counter()
    for item in items[WARM_CALLS:]:
        call(item)
        count += 1
        if time.perf_counter() - started >= seconds:
            break
    return (time.perf_counter() - started) / count


def nested(parts: dict[str, Callable[[], float]]) -> tuple[float, Shares]:
    """Returns the last of growing times (medians of turns), and what each adds to the one before it, at least 0."""
    turns = [[measure() for measure in parts.values()] for _ in range(TURNS)]
    medians = [statistics.median(times) for times in zip(*turns, strict=True)]
    total, reached, shares = max(medians), 0.0, []
    for name, seconds in zip(parts, medians, strict=True):
        shares.append((name, max(seconds - reached, 0.0) / total))
        reached = max(reached, seconds)
    return total, shares


if __name__ == "__main__":
    serve(prepare)
