"""Where the time of one path goes: by functions, looked at many times a second; or by what parts of it take alone."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
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
    """Counts which function of the package each busy thread is in, whenever a timer of wall time goes off.

    A signal is handled by the main thread once a call into native code returns, and counts for the function that made
    the call. Threads that wait for others are left out.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._main = _main_thread()

    def __enter__(self) -> Sampler:
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS, INTERVAL_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _look(self, _: int, frame: FrameType | None) -> None:
        for thread, top in sys._current_frames().items():
            start = frame if thread == self._main else top
            if start is not None and not start.f_code.co_filename.endswith(WAITING_FILES):
                self._counts[place_of(start)] += 1

    def shares(self) -> Shares:
        """Returns the share of each function, the largest first; small ones together."""
        total = self._counts.total()
        large = [(place, count / total) for place, count in self._counts.most_common() if count / total >= LEAST_SHARE]
        rest = 1 - sum(share for _, share in large)
        return [*large, ("everything else", rest)] if rest > 0 else large


def _main_thread() -> int:
    import threading

    return threading.main_thread().ident or 0


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
