"""`ThreadLoader`: batches read ahead by threads, without copies between processes."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenloom.datasets.protocols import FillsBatches, order_of
from tokenloom.datasets.sample_arrays import MakeArray, integers_of
from tokenloom.datasets.shortcuts import batch_of, digests_tokens, fills_batches, hook_of, needs_items
from tokenloom.datasets.tensors import Sample, to_tensors
from tokenloom.errors import ConfigError
from tokenloom.loading.check_reading import BatchDigests
from tokenloom.loading.loader import checked_sampler, collate
from tokenloom.loading.read_ahead import Batch, announce_ahead
from tokenloom.loading.resonance import warn_of_resonance
from tokenloom.loading.sample_digests import ReadingDigest, digests_of_batch
from tokenloom.loading.state import consumed_of_state, in_order, loader_state, read_of_state
from tokenloom.numbers import checked_integer
from tokenloom.optional import is_installed, require
from tokenloom.storage.ending import ENDING, daemons_stopped, submit

Tensors = Literal["torch", "numpy"]

_STATE_VERSION = 1
_LEAST_AHEAD, _MOST_AHEAD, _AHEAD_BYTES = 4, 16, 8 << 20  # default limits of the batches read ahead


@dataclass(slots=True)
class DataWait:
    """The seconds that a training loop waited: for the last batch, for all batches, and for the slowest batch."""

    num_batches: int = 0
    last_seconds: float = 0.0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Adds the waiting time of one batch."""
        self.num_batches, self.last_seconds = self.num_batches + 1, seconds
        self.total_seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)


class BatchBuffers:
    """Memory for batches: new arrays for each batch, or a ring, in which batch n + `num_slots` overwrites batch n.

    A full ring allocates nothing; new memory costs a page fault per 4096 bytes. Threads may fill batches in parallel.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        tensors: Tensors = "torch",
        pin_memory: bool = False,
        integer_dtype: DTypeLike = np.int64,
        num_slots: int = 0,
    ) -> None:
        self._dataset = dataset
        self._tensors = tensors
        self._as_tensors: Callable[[Sample], Sample] = to_tensors if tensors == "torch" else dict
        self._pin_memory = pin_memory
        self._integers = integers_of(integer_dtype)
        if self._integers != np.int64:
            _check_fills(dataset, "integer_dtype")
        if num_slots:
            _check_fills(dataset, "reuse_after")
        self._slots: list[tuple[int, Sample]] = [(0, {})] * num_slots
        self._must_be_asked = needs_items(dataset)
        self._allocates = fills_batches(dataset) and (pin_memory or self._integers != np.int64)
        self._digests = digests_tokens(dataset)
        self._empty: MakeArray = _pinned_array if pin_memory else np.empty

    def fill(
        self, number: int, positions: Batch, *, digest: bool = False
    ) -> tuple[dict[str, Any], NDArray[np.uint64] | None]:
        """Returns (batch, hashes uint64[num_samples, 2] of its tokens); hashes are None without `digest` or tokens."""
        if not digest or not self._digests:
            batch = self._fill(number, positions)
            return batch, digests_of_batch(batch, len(positions)) if digest else None
        digests = np.zeros((len(positions), 2), dtype=np.uint64)
        batch = self._fill(number, positions, digests=digests)
        is_filled = digests.size and digests.item(0)  # the kernel that filled the tokens also hashed them
        return batch, digests if is_filled else digests_of_batch(batch, len(positions))

    def _fill(self, number: int, positions: Batch, **more: Any) -> dict[str, Any]:
        count = len(positions)
        if self._slots:
            slot = number % len(self._slots)
            if self._slots[slot][0] < count:
                self._slots[slot] = count, self._allocate(count)
            rows = {name: array[:count] for name, array in self._slots[slot][1].items()}
            self._dataset.batch(positions, out=rows, **more)
            return self._as_tensors(rows)  # new tensors, since `share_memory_` and queues move a tensor's memory
        if self._must_be_asked:
            return self._collated(positions)
        if self._allocates:
            arrays = self._dataset.batch(positions, out=self._allocate(count), **more)
            return _pinned_tensors(arrays) if self._pin_memory else self._as_tensors(arrays)
        tensors = self._as_tensors(self._dataset.batch(positions, **more))
        return {name: tensor.pin_memory() for name, tensor in tensors.items()} if self._pin_memory else tensors

    def _collated(self, positions: Batch) -> dict[str, Any]:
        """Returns a batch read sample by sample (`dataset[k]`), collated as in a DataLoader, or as NumPy arrays."""
        if self._tensors == "numpy":
            return batch_of(self._dataset, positions)
        batch: dict[str, Any] = collate([self._dataset[position] for position in positions])
        if self._pin_memory:
            batch = require("torch.utils.data._utils.pin_memory", extra="torch").pin_memory(batch)
        return batch

    def _allocate(self, count: int) -> Sample:
        batch: Sample = self._dataset.allocate_batch(count, integer_dtype=self._integers, empty=self._empty)
        return batch


def checked_tensors(tensors: Tensors | None, *, pin_memory: bool | None) -> tuple[Tensors, bool]:
    if tensors is None:
        tensors = "torch" if is_installed("torch") else "numpy"
    if tensors not in get_args(Tensors):
        message = f"`tensors`: must be 'torch' or 'numpy', got {tensors!r}"
        raise ConfigError(message, hint='use `tensors="numpy"` for JAX and other libraries')
    if tensors == "numpy" and pin_memory:
        raise ConfigError('`pin_memory` has no effect with `tensors="numpy"`', hint="leave out `pin_memory`")
    if tensors == "torch" and pin_memory is None:
        pin_memory = require("torch", extra="torch").cuda.is_available()
    return tensors, bool(pin_memory)


def _check_fills(dataset: Any, setting: str) -> None:
    if not fills_batches(dataset):
        message = f"`{setting}` needs a dataset that fills given arrays; {type(dataset).__name__} does not"
        if isinstance(dataset, FillsBatches) and (hook := hook_of(dataset, "fills_batches")) is not None:
            message += f": it overrides `{hook}`"
        raise ConfigError(message, hint=f"leave out `{setting}`; GPT datasets and blends of them support it")


def _pinned_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    torch = require("torch", extra="torch")
    kind = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
    array: NDArray[Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
    return array


def _pinned_tensors(arrays: Sample) -> dict[str, Any]:
    # torch keeps its own tensors alive until a non-blocking copy of a slice ends, but not memory owned by NumPy
    torch = require("torch", extra="torch")
    pinned = {name: array.base for name, array in arrays.items() if isinstance(array.base, torch.Tensor)}
    return {**to_tensors(arrays), **pinned}


_Filled = tuple[Batch, dict[str, Any], NDArray[np.uint64] | None]
"""Positions, tensors, and the hash of each sample's tokens, if digests are enabled."""


class ThreadLoader:
    """A loader that yields one dict of tensors per micro-batch; threads fill later batches during training.

    Batches have the order of the sampler. Without a sampler, the loader reads batches of `batch_size` samples in the
    order of the dataset, which is already shuffled, and drops an incomplete last batch.

    The kernels that fill a batch release the GIL, so no worker processes are needed. With `num_threads` above 1,
    several threads call `dataset.batch` at once; all datasets of this package allow that. An error in a thread is
    raised when the loop requests the failed batch, with a note of the batch's index and positions. Leaving the loop
    early stops the threads. `wait` has the seconds that the loop waited for batches.

    Batches are in private memory of this process. `share_memory_` and torch's queues move the memory of a tensor and
    invalidate its existing NumPy views: copy such views first.

    `state_dict` and `load_state_dict` work as in torchdata's `StatefulDataLoader`: batches that were read ahead are
    neither lost nor repeated. The state of a run is a position and the digest of the order before that position; on
    resuming, micro-batch size, number of ranks and number of threads may change. Data in object storage are prefetched.

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
        dataset: returns batches by positions, such as `GPTDataset` or `BlendedDataset`.
        sampler: yields the positions of each micro-batch; None if `batch_size` is given.
        batch_size: samples per batch, if there is no sampler.
        data_parallel_rank, data_parallel_size: this rank, and the number of ranks that share samples, if there is no
            sampler; required if `torch.distributed` has several ranks.
        tensors: "torch", or "numpy" for JAX and other libraries; None for "torch" if torch is installed.
        num_threads: threads that fill batches.
        read_ahead: maximum number of batches in memory besides the batch in use; None for as many batches as 8 MB hold,
            but at least 4 and at most 16.
        pin_memory: whether batches are in page-locked memory; None means yes if CUDA is available to torch.
        reuse_after: number of later batches after which a batch may be overwritten; None allocates memory for each
            batch. With a number, batches are stored in a ring of buffers: pass 1 if the loop finishes each batch before
            the next, m if it collects m micro-batches. A non-blocking copy must end before the batch is overwritten.
        integer_dtype: dtype of tokens, labels and position ids: int64 or int32.
        digest: whether to compute digests of the batches, for the property `digest` and for `check_reading`.
    """

    # The library accelerate reads these attributes and `batch_sampler`, which torch's loaders have.
    prefetch_factor: None = None
    collate_fn: staticmethod[Any, Any] = staticmethod(collate)

    def __init__(
        self,
        dataset: Any,
        sampler: Iterable[Batch] | None = None,
        *,
        batch_size: int | None = None,
        data_parallel_rank: int | None = None,
        data_parallel_size: int | None = None,
        tensors: Tensors | None = None,
        num_threads: int = 1,
        read_ahead: int | None = None,
        pin_memory: bool | None = None,
        reuse_after: int | None = None,
        integer_dtype: DTypeLike = np.int64,
        digest: bool = True,
    ) -> None:
        sampler = checked_sampler(dataset, sampler, batch_size, data_parallel_rank, data_parallel_size)
        self.tensors: Tensors
        self.pin_memory: bool
        self.tensors, self.pin_memory = checked_tensors(tensors, pin_memory=pin_memory)
        warn_of_resonance(dataset, sampler)
        self.dataset = dataset
        self.sampler: Any = sampler
        self.batch_sampler: Any = sampler
        self.num_threads: int = checked_integer("num_threads", num_threads, at_least=1)
        for name, value in (("read_ahead", read_ahead), ("reuse_after", reuse_after)):
            if value is not None:
                checked_integer(name, value, at_least=1)
        self.read_ahead = read_ahead
        self.reuse_after = reuse_after
        self.integer_dtype = integer_dtype
        self._make_buffers()  # validates the settings
        self.wait: DataWait = DataWait()
        self.positions: Batch = ()
        """Positions of the last yielded batch, for `LossRecorder.append`."""
        self.read: BatchDigests = BatchDigests(dataset, sampler, enabled=digest)
        self._begin(0)
        self._num_to_skip = 0

    def _begin(self, num_batches: int) -> dict[str, Any]:
        """Starts an iteration; returns its state, with the settings that the sampler had before the first batch."""
        self._progress: dict[str, Any] = {"num_yielded": num_batches, "sampler": _settings_of(self.sampler)}
        return self._progress

    @property
    def digest(self) -> ReadingDigest:
        """The digest of all batches that this loader has yielded since it started or resumed."""
        return self.read.total

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the batches, from the first batch or from a loaded state on; only one iteration may run at a time."""
        first, self._num_to_skip = self._num_to_skip, 0
        progress = self._begin(first)
        self.read.start_after(first)
        fill = partial(self._fill, self._make_buffers())
        batches = announce_ahead(self.dataset, itertools.islice(self.sampler, first, None))
        numbered = enumerate(batches, first)
        executor = ThreadPoolExecutor(max_workers=self.num_threads, thread_name_prefix="tokenloom-loader")
        pending: deque[Future[list[_Filled | Exception]]] = deque()
        ahead, num_ahead = self.read_ahead or _LEAST_AHEAD, 0
        grows = self.read_ahead is None and self.reuse_after is None  # the number of slots of a ring is fixed

        def read_more() -> None:
            # Waking a thread takes as long as filling a batch, so each task fills several batches.
            nonlocal num_ahead
            size = max(1, ahead // (2 * self.num_threads))
            while num_ahead + size <= ahead and (chunk := list(itertools.islice(numbered, size))):
                pending.append(submit(executor, partial(fill, chunk)))
                num_ahead += len(chunk)

        ending = ENDING  # the iterator may outlive the globals of this module
        try:
            with daemons_stopped():
                read_more()
            while pending:
                started = time.perf_counter()
                with daemons_stopped():
                    ready = deque(pending.popleft().result())
                waited = time.perf_counter() - started
                while ready:
                    with daemons_stopped():
                        filled = ready.popleft()
                        if isinstance(filled, Exception):
                            raise filled
                        positions, batch, digests = filled
                        self.wait.add(waited)
                        num_ahead -= 1
                        if grows:
                            ahead = min(max(_AHEAD_BYTES // max(_num_bytes(batch), 1), _LEAST_AHEAD), _MOST_AHEAD)
                            grows = False
                        if not ready:
                            read_more()
                    waited = 0.0
                    if self.read.enabled:
                        self.read.add(positions, digests)
                    progress["num_yielded"] += 1
                    self.positions = positions
                    yield batch
        finally:
            if not ending.is_set():  # otherwise the threads are already joined
                executor.shutdown(cancel_futures=True)

    def __repr__(self) -> str:
        sampler = type(self.sampler).__name__
        return f"ThreadLoader({self.dataset!r}, {sampler}, tensors={self.tensors!r}, num_threads={self.num_threads})"

    def _make_buffers(self) -> BatchBuffers:
        return BatchBuffers(
            self.dataset,
            tensors=self.tensors,
            pin_memory=self.pin_memory,
            integer_dtype=self.integer_dtype,
            num_slots=0 if self.reuse_after is None else (self.read_ahead or _LEAST_AHEAD) + self.reuse_after,
        )

    def _fill(self, buffers: BatchBuffers, chunk: list[tuple[int, Batch]]) -> list[_Filled | Exception]:
        """Fills and returns the batches of `chunk`; if a batch fails, returns the batches before it, then the error."""
        done: list[_Filled | Exception] = []
        for number, positions in chunk:
            if not hasattr(positions, "__len__") or isinstance(positions, (str, bytes)):
                message = f"the sampler must yield lists of positions, got {positions!r}"
                return [*done, ConfigError(message, hint="wrap the sampler in `torch.utils.data.BatchSampler`")]
            try:
                done.append((positions, *buffers.fill(number, positions, digest=self.read.enabled)))
            except Exception as error:  # noqa: BLE001  raised when the loop requests this batch
                shown = ", ".join(map(str, positions[:8])) + (f", … {len(positions)} in all" * (len(positions) > 8))
                error.add_note(f"in batch {number} of the sampler, at positions [{shown}]")
                return [*done, error]
        return done

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last yielded batch; equal on all ranks.

        For a run, this is the result of `loader_state`. The state also has `read`, the digest of all ranks, right
        after `check_reading` or if there is only one data-parallel rank.
        """
        if order_of(self.dataset) is not None:
            sampler = in_order(self.sampler, self.dataset)
            state = loader_state(self.dataset, sampler.position_after(self._progress["num_yielded"]))
            read = self.read.global_digest()
            if read is not None and read.stop == state["position"]:
                state["read"] = str(read)
            return state
        return {"version": _STATE_VERSION, **self._progress}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration start with the batch that was next when the state was saved.

        For a run, all later iterations start at that batch, as if the sampler's `consumed_samples` were the state's
        position. For other datasets, only the next iteration starts there; the sampler must have the saved settings.

        Raises:
            ConfigError: the sampler's settings differ from those in the state. For a run: the position, order or data
                in the state do not match the run.
        """
        if order_of(self.dataset) is not None:
            consumed = consumed_of_state(self.dataset, state)
            read = read_of_state(state)
            in_order(self.sampler, self.dataset).begin_at(consumed)
            self.read.restore(read)
            self._begin(0)
            return
        if state.get("version") != _STATE_VERSION:
            if "run" in state:
                consumed_of_state(self.dataset, state)  # raises, because this dataset is not a run
            raise ConfigError(f"{state!r} is not a ThreadLoader state of version {_STATE_VERSION}")
        if state["sampler"] != (found := _settings_of(self.sampler)):
            message = f"sampler of the state: expected {state['sampler']}, found {found}"
            raise ConfigError(message, hint="use the saved settings, or create the sampler with `consumed_samples`")
        self._num_to_skip = checked_integer("num_yielded", state["num_yielded"], at_least=0)
        self._begin(self._num_to_skip)


def _num_bytes(batch: Any) -> int:
    if isinstance(batch, (list, tuple, Mapping)):
        return sum(map(_num_bytes, batch.values() if isinstance(batch, Mapping) else batch))
    return int(getattr(batch, "nbytes", 0))


def _settings_of(sampler: Any) -> dict[str, Any]:
    """Returns a sampler's class and plain settings without the rank: frameworks save only the state of one rank."""
    settings = {
        name: value
        for name, value in sorted(getattr(sampler, "__dict__", {}).items())
        if isinstance(value, (int, str, float, type(None))) and name[0] != "_" and name != "data_parallel_rank"
    }
    return {"class": type(sampler).__name__, **settings}
