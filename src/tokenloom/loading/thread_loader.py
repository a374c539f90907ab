"""Batches read ahead by threads of this process: nothing is pickled, copied between processes or left behind."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom.datasets.protocols import order_of
from tokenloom.errors import ConfigError
from tokenloom.loading.buffers import BatchBuffers, RingBuffers, Tensors, pins_memory, tensors_to_make
from tokenloom.loading.check_reading import ReadBatches
from tokenloom.loading.counts import BatchCounts, RowCounts, SourceCounts, count_rows
from tokenloom.loading.dealing import batches_of, check_positions
from tokenloom.loading.digest import ReadingDigest
from tokenloom.loading.loader import collate
from tokenloom.loading.read_ahead import announce_ahead
from tokenloom.loading.resonance import warn_of_resonance
from tokenloom.loading.state import consumed_of_state, in_order, loader_state, read_of_state
from tokenloom.numbers import checked_integer
from tokenloom.storage.ending import ENDING, daemons_stopped, submit

_STATE_VERSION = 1
_RANK = "data_parallel_rank"


@dataclass(slots=True)
class DataWait:
    """How long a training loop waited for its batches.

    Attributes:
        num_batches: handed out.
        last_seconds: waited for the last of them.
        total_seconds: waited for all of them.
        longest_seconds: waited for the slowest of them.
    """

    num_batches: int = 0
    last_seconds: float = 0.0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Counts one batch."""
        self.num_batches += 1
        self.last_seconds = seconds
        self.total_seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)


@dataclass(slots=True)
class _Filled:
    """A batch that is ready.

    Attributes:
        batch: the batch.
        positions: positions of its samples.
        digests: of the tokens of each; None if none are kept, or there are no tokens.
        counted: what is in it; None if that is not counted.
    """

    batch: dict[str, Any]
    positions: Sequence[int | None]
    digests: NDArray[np.uint64] | None
    counted: RowCounts | None


@dataclass(slots=True)
class _Progress:
    """How far an iteration is.

    Attributes:
        sampler: settings of the sampler when it began, before reading ahead moves it on.
        num_yielded: batches of the sampler that were handed out, or skipped.
    """

    sampler: dict[str, Any]
    num_yielded: int = 0


class ThreadLoader:
    """Yields one dict of tensors per micro-batch, in the sampler's order, filled by threads while the loop computes.

    Tensors are torch's where torch is installed, and NumPy's arrays where it is not, which is all that JAX and others
    need: `tensors` asks for either, and says which they are. Without a sampler, batches of `batch_size` samples are
    read in the order of the dataset, which is shuffled already; what does not fill up a batch at the end is left out.

    The kernels that fill a batch release the GIL, so threads do what torch's worker processes do, without starting
    them, pickling the dataset for them, and moving every batch through shared memory. `dataset.batch` is called from
    several threads at once where `num_threads` is above 1; all datasets of this package allow that.

    Batches lie in this process's own memory; a forked child has a copy. `share_memory_` and queues of torch move a
    tensor: copy a NumPy view that is to outlive that.

    An error in a batch is raised when its turn comes, with a note that says which batch and positions it is about.
    Leaving the loop early stops the threads; `wait` tells how long the loop was kept waiting.

    `state_dict` and `load_state_dict` are those of torchdata's `StatefulDataLoader`: the state says how many batches
    were handed out, so nothing that was read ahead is lost or repeated. Over a run it is a position and the digest of
    the order before it, and any number of ranks, size of micro-batches and number of threads may go on from there.

    Of data in object storage, what later batches need is fetched while earlier ones are used, as by `build_dataloader`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tokenloom import IndexedDatasetBuilder, ThreadLoader, load
        >>> prefix = f"{tempfile.mkdtemp()}/numbers"
        >>> with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        ...     builder.add_document(list(range(1041)), [1041])
        ...     builder.finalize(f"{prefix}.idx")
        >>> dataset = load(prefix, sequence_length=16, tokenizer="null:2000")
        >>> loader = ThreadLoader(dataset, batch_size=4, tensors="numpy")
        >>> [batch["tokens"].shape for batch in loader][:2], loader.wait.num_batches
        ([(4, 16), (4, 16)], 16)

    Args:
        dataset: gives batches by positions, such as `GPTDataset` or `BlendedDataset`.
        sampler: yields the positions of one micro-batch after the other; None with `batch_size`.
        batch_size: samples of a batch, where there is no sampler.
        data_parallel_rank, data_parallel_size: which rank this is, of how many that share the samples, where there is
            no sampler. They must be said where `torch.distributed` has several ranks.
        tensors: "torch" or "numpy"; None for the former where torch is installed, else the latter.
        num_threads: number of threads that fill batches.
        read_ahead: batches that are ready or being filled at most; so many lie in memory, and the one in use.
        pin_memory: whether batches lie in page-locked memory; by default, where CUDA is available to torch.
        reuse_after: None, and every batch is new and yours to keep. With k, batches lie in a ring of buffers, and one
            is overwritten once k further ones were asked for: 1 for a loop that is done with a batch before it asks
            for the next, m for one that collects m micro-batches. A copy to a device that does not block must have
            ended by then, and a queue must have sent it. Saves allocating memory for each batch, which is most of the
            time of dense masks.
        integer_dtype: dtype of tokens, labels and positions, int64 or int32.
        count: whether to count what is handed out, for `counts`; batches then have a `loss_mask` of 0 and 1. Threads
            that fill batches read that mask again for it, which takes about a sixth of their time.
        digest: whether to keep a digest of what was handed out, see `digest` and `check_reading`.

    Raises:
        ConfigError: a number is out of range; the dataset is none, or cannot fill given arrays and a setting needs it;
            there is neither a sampler nor a batch size, or both.
        MissingExtraError: torch is asked for, and is not installed.
    """

    prefetch_factor: None = None
    """What worker processes read ahead, by the name that torch's loaders have for it: there are none."""

    def __init__(
        self,
        dataset: Any,
        sampler: Iterable[Sequence[int | None]] | None = None,
        *,
        batch_size: int | None = None,
        data_parallel_rank: int | None = None,
        data_parallel_size: int | None = None,
        tensors: Tensors | None = None,
        num_threads: int = 1,
        read_ahead: int = 4,
        pin_memory: bool | None = None,
        reuse_after: int | None = None,
        integer_dtype: DTypeLike = np.int64,
        count: bool = False,
        digest: bool = True,
    ) -> None:
        sampler = batches_of(
            dataset,
            sampler,
            batch_size=batch_size,
            data_parallel_rank=data_parallel_rank,
            data_parallel_size=data_parallel_size,
        )
        self.tensors: Tensors = tensors_to_make(tensors)
        """What batches are made of: "torch" or "numpy"."""
        warn_of_resonance(dataset, sampler)
        self.dataset = dataset
        self.sampler = sampler
        self.num_threads: int = checked_integer("num_threads", num_threads, at_least=1)
        self.read_ahead: int = checked_integer("read_ahead", read_ahead, at_least=1)
        self.pin_memory: bool = pins_memory(self.tensors, pin_memory=pin_memory)
        self.reuse_after: int | None = (
            None if reuse_after is None else checked_integer("reuse_after", reuse_after, at_least=1)
        )
        self.integer_dtype = integer_dtype
        self._counts = BatchCounts() if count else None
        self._make_buffers()  # complains where it cannot be
        self.wait: DataWait = DataWait()
        self.read: ReadBatches = ReadBatches(dataset, sampler, keeps=digest)
        self._progress = _Progress(_settings_of(sampler))
        self._num_to_skip = 0

    @property
    def digest(self) -> ReadingDigest:
        """The digest of what this loader has handed out since it began, or went on from a state; not read ahead.

        Raises:
            ConfigError: the loader keeps none, or samples have no tokens.
        """
        return self.read.total

    @property
    def batch_sampler(self) -> Iterable[Sequence[int | None]]:
        """The sampler, by the name that torch's loaders have for it: who goes on in it looks there."""
        return self.sampler

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """What makes torch tensors of what the dataset gives for a batch, by the name that torch's loaders have."""
        return collate

    def __len__(self) -> int:
        """Batches of a whole pass, as far as the sampler knows."""
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields batches, from the first one, or from where a loaded state says. One iteration at a time."""
        first, self._num_to_skip = self._num_to_skip, 0
        progress = self._progress = _Progress(_settings_of(self.sampler), first)
        self.read.begin(first)
        fill = partial(self._fill, self._make_buffers())
        batches = announce_ahead(self.dataset, itertools.islice(self.sampler, first, None))
        numbered = enumerate(batches, first)
        executor = ThreadPoolExecutor(max_workers=self.num_threads, thread_name_prefix="tokenloom-loader")
        pending: deque[Future[_Filled]] = deque()
        ending = ENDING  # an iterator that is kept may outlive the names of this module
        try:
            with daemons_stopped():
                for number, positions in itertools.islice(numbered, self.read_ahead):
                    pending.append(submit(executor, partial(fill, number, positions)))
            while pending:
                started = time.perf_counter()
                with daemons_stopped():
                    filled = pending.popleft().result()
                    self.wait.add(time.perf_counter() - started)
                    for number, positions in itertools.islice(numbered, 1):
                        pending.append(submit(executor, partial(fill, number, positions)))
                if self.read.keeps:
                    self.read.add(filled.positions, filled.digests)
                progress.num_yielded += 1
                if self._counts is not None and filled.counted is not None:
                    self._counts.add_rows(filled.counted)
                yield filled.batch
        finally:
            if not ending.is_set():  # else its threads are waited for, or have ended
                executor.shutdown(cancel_futures=True)

    def __repr__(self) -> str:
        sampler = type(self.sampler).__name__
        return f"ThreadLoader({self.dataset!r}, {sampler}, tensors={self.tensors!r}, num_threads={self.num_threads})"

    def _make_buffers(self) -> BatchBuffers:
        """Returns what the batches of one iteration are put into."""
        settings: dict[str, Any] = {
            "tensors": self.tensors,
            "pin_memory": self.pin_memory,
            "integer_dtype": self.integer_dtype,
        }
        if self.reuse_after is None:
            return BatchBuffers(self.dataset, **settings)
        return RingBuffers(self.dataset, num_slots=self.read_ahead + self.reuse_after, **settings)

    def _fill(self, buffers: BatchBuffers, number: int, positions: Sequence[int | None]) -> _Filled:
        """Returns a batch with what is kept of it."""
        check_positions(positions)
        try:
            if self.read.keeps:
                batch, digests = buffers.fill_and_digest(number, positions)
            else:
                batch, digests = buffers.fill(number, positions), None
            return _Filled(batch, positions, digests, None if self._counts is None else count_rows(batch, positions))
        except Exception as error:
            error.add_note(f"in batch {number} of the sampler, at positions {_short(positions)}")
            raise

    def counts(self) -> dict[int, SourceCounts]:
        """Returns what was handed out since this loader was made, by number of the source or dataset: `dataset_id`.

        Samples that only fill up a batch are not in it. Over a run, the counts of all ranks add up to those that the
        run's `ledger` has of the same positions.

        Raises:
            ConfigError: the loader does not count.
        """
        if self._counts is None:
            message = "expected a ThreadLoader that counts, found one without `count`"
            raise ConfigError(message, hint="make it with `count=True`")
        return self._counts.by_source()

    def state_dict(self) -> dict[str, Any]:
        """Returns where this loader stands: after the last batch that was handed out; the same on every rank.

        Over a run, that is what `loader_state` says, whatever the number of ranks. Where it is known what all ranks
        have read, that is in it, too, as `read`: after `check_reading`, and of one data-parallel rank.

        Raises:
            ConfigError: the dataset is that of a run, and the sampler yields another order than that of positions.
        """
        if order_of(self.dataset) is not None:
            sampler = in_order(self.sampler, self.dataset)
            state = loader_state(self.dataset, sampler.position_after(self._progress.num_yielded))
            read = self.read.of_all_ranks()
            if read is not None and read.stop == state["position"]:
                state["read"] = str(read)
            return state
        progress = self._progress
        return {"version": _STATE_VERSION, "num_yielded": progress.num_yielded, "sampler": progress.sampler}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on, with the next iteration, after the last batch that was handed out when the state was taken.

        Over a run, the sampler begins there from now on, in every iteration, as one made with those consumed samples.
        Of another dataset, it must be made as it was, and iterations after the next one are whole again.

        Raises:
            ConfigError: it is the state of a loader whose sampler begins elsewhere or is made otherwise. Over a run: it
                is of another run, of another past, of data that were replaced since, or beyond the end.
        """
        if order_of(self.dataset) is not None:
            consumed = consumed_of_state(self.dataset, state)
            read = read_of_state(state)
            in_order(self.sampler, self.dataset).begin_at(consumed)
            self.read.go_on(read)
            self._progress = _Progress(_settings_of(self.sampler))
            return
        if state.get("version") != _STATE_VERSION:
            if "run" in state:
                consumed_of_state(self.dataset, state)  # says that this dataset is no run
            message = f"expected the state of a ThreadLoader, version {_STATE_VERSION}, found {state!r}"
            raise ConfigError(message)
        expected = {name: value for name, value in state["sampler"].items() if name != _RANK}  # earlier states have it
        if expected != (found := _settings_of(self.sampler)):
            message = f"expected the sampler that the state was taken with, {expected}, found {found}"
            hint = "make the sampler with the settings it had, or go on from consumed samples without a state"
            raise ConfigError(message, hint=hint)
        self._num_to_skip = checked_integer("num_yielded", state["num_yielded"], at_least=0)
        self._progress = _Progress(found, self._num_to_skip)


def _settings_of(sampler: Any) -> dict[str, Any]:
    """Returns what decides which batch is the k-th: the class and the plain settings of a sampler, the rank aside.

    All ranks have handed out as many batches, and frameworks keep the state of one of them.
    """
    settings = {
        name: value
        for name, value in sorted(getattr(sampler, "__dict__", {}).items())
        if isinstance(value, (int, str, float, type(None))) and not name.startswith("_") and name != _RANK
    }
    return {"class": type(sampler).__name__, **settings}


def _short(positions: Sequence[int | None]) -> str:
    shown = ", ".join(map(str, positions[:8]))
    return f"[{shown}, … {len(positions)} in all]" if len(positions) > 8 else f"[{shown}]"
