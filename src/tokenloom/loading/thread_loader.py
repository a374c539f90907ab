"""Batches read ahead by threads of this process: nothing is pickled or copied between processes."""

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

from tokenloom.datasets.outputs import MakeArray, integers_of
from tokenloom.datasets.protocols import FillsBatches, order_of
from tokenloom.datasets.shortcuts import batch_of, digests_tokens, fills_batches, hook_of, must_be_asked
from tokenloom.datasets.tensors import Sample, to_tensors
from tokenloom.errors import ConfigError
from tokenloom.loading.check_reading import ReadBatches
from tokenloom.loading.digest import ReadingDigest, digests_of_batch
from tokenloom.loading.loader import batches_of, collate
from tokenloom.loading.read_ahead import Batch, announce_ahead
from tokenloom.loading.resonance import warn_of_resonance
from tokenloom.loading.state import consumed_of_state, in_order, loader_state, read_of_state
from tokenloom.numbers import checked_integer
from tokenloom.optional import is_installed, require
from tokenloom.storage.ending import ENDING, daemons_stopped, submit

Tensors = Literal["torch", "numpy"]

_STATE_VERSION = 1
_LEAST_AHEAD, _MOST_AHEAD, _AHEAD_BYTES = 4, 16, 8 << 20  # batches read ahead by default


@dataclass(slots=True)
class DataWait:
    """Seconds that a training loop waited for its batches: for the last, all, and the slowest."""

    num_batches: int = 0
    last_seconds: float = 0.0
    total_seconds: float = 0.0
    longest_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Counts one batch."""
        self.num_batches, self.last_seconds = self.num_batches + 1, seconds
        self.total_seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)


class BatchBuffers:
    """Fills batches in new memory, or in a ring of `num_slots`: batch n + num_slots overwrites batch n.

    A ring allocates nothing once full: new memory costs a page fault per 4096 bytes. Thread-safe, each
    with another batch.
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
        self._must_be_asked = must_be_asked(dataset)
        self._allocates = fills_batches(dataset) and (pin_memory or self._integers != np.int64)
        self._digests = digests_tokens(dataset)
        self._empty: MakeArray = _pinned_array if pin_memory else np.empty

    def fill(
        self, number: int, positions: Batch, *, digest: bool = False
    ) -> tuple[dict[str, Any], NDArray[np.uint64] | None]:
        """Returns a batch, and with `digest` uint64[num_samples, 2] of its tokens; None if it has none."""
        if not digest or not self._digests:
            batch = self._fill(number, positions)
            return batch, digests_of_batch(batch, len(positions)) if digest else None
        digests = np.zeros((len(positions), 2), dtype=np.uint64)
        batch = self._fill(number, positions, digests=digests)
        is_made = digests.size and digests.item(0)  # while tokens were filled
        return batch, digests if is_made else digests_of_batch(batch, len(positions))

    def _fill(self, number: int, positions: Batch, **more: Any) -> dict[str, Any]:
        count = len(positions)
        if self._slots:
            slot = number % len(self._slots)
            if self._slots[slot][0] < count:
                self._slots[slot] = count, self._allocate(count)
            rows = {name: array[:count] for name, array in self._slots[slot][1].items()}
            self._dataset.batch(positions, out=rows, **more)
            return self._as_tensors(rows)  # new ones each time: `share_memory_` and queues move a tensor's memory
        if self._must_be_asked:
            return self._collated(positions)
        if self._allocates:
            arrays = self._dataset.batch(positions, out=self._allocate(count), **more)
            return _pinned_tensors(arrays) if self._pin_memory else self._as_tensors(arrays)
        tensors = self._as_tensors(self._dataset.batch(positions, **more))
        return {name: tensor.pin_memory() for name, tensor in tensors.items()} if self._pin_memory else tensors

    def _collated(self, positions: Batch) -> dict[str, Any]:
        """Returns a batch of `dataset[k]` one by one, collated as by a DataLoader, or as NumPy arrays."""
        if self._tensors == "numpy":
            return batch_of(self._dataset, positions)
        batch: dict[str, Any] = collate([self._dataset[position] for position in positions])
        if self._pin_memory:
            batch = require("torch.utils.data._utils.pin_memory", extra="torch").pin_memory(batch)
        return batch

    def _allocate(self, count: int) -> Sample:
        batch: Sample = self._dataset.allocate_batch(count, integer_dtype=self._integers, empty=self._empty)
        return batch


def tensors_to_make(tensors: Tensors | None, *, pin_memory: bool | None) -> tuple[Tensors, bool]:
    """Returns the checked settings `tensors` and `pin_memory`, with defaults for None."""
    if tensors is None:
        tensors = "torch" if is_installed("torch") else "numpy"
    if tensors not in get_args(Tensors):
        message = f"`tensors`: must be 'torch' or 'numpy', got {tensors!r}"
        raise ConfigError(message, hint='JAX and others take the arrays of `tensors="numpy"`')
    if tensors == "numpy" and pin_memory:
        raise ConfigError('`pin_memory` needs tensors of torch: leave it out with `tensors="numpy"`')
    if tensors == "torch" and pin_memory is None:
        pin_memory = require("torch", extra="torch").cuda.is_available()
    return tensors, bool(pin_memory)


def _check_fills(dataset: Any, setting: str) -> None:
    if not fills_batches(dataset):
        message = f"`{setting}` needs a dataset that fills given arrays, which {type(dataset).__name__} does not"
        if isinstance(dataset, FillsBatches) and (hook := hook_of(dataset, "fills_batches")) is not None:
            message += f": `{hook}` makes its samples"
        raise ConfigError(message, hint=f"leave out `{setting}`; GPT datasets and blends of them support it")


def _pinned_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    torch = require("torch", extra="torch")
    kind = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
    array: NDArray[Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
    return array


def _pinned_tensors(arrays: Sample) -> dict[str, Any]:
    # torch keeps its own tensors until a non-blocking copy of a slice has ended; it cannot do so for NumPy's memory.
    torch = require("torch", extra="torch")
    pinned = {name: array.base for name, array in arrays.items() if isinstance(array.base, torch.Tensor)}
    return {**to_tensors(arrays), **pinned}


_Filled = tuple[Batch, dict[str, Any], NDArray[np.uint64] | None]
"""A batch: positions, tensors, and digests of the tokens of each sample, if they are kept."""


class ThreadLoader:
    """Yields one dict of tensors per micro-batch, in the sampler's order, filled by threads while the loop computes.

    Without a sampler, batches of `batch_size` samples are read in the order of the dataset, which is shuffled already;
    an incomplete batch at the end is dropped.

    The kernels that fill a batch release the GIL, so threads replace torch's worker processes, without pickling the
    dataset or moving batches through shared memory. With `num_threads` above 1, `dataset.batch` is called from several
    threads at once; all datasets of this package allow that.

    Batches lie in this process's own memory; a forked child has a copy. `share_memory_` and queues of torch move a
    tensor: copy a NumPy view taken before.

    An error in a batch is raised in its turn, with a note of batch and positions. Leaving the loop early stops the
    threads; `wait` has the seconds that the loop waited.

    `state_dict` and `load_state_dict` are those of torchdata's `StatefulDataLoader`: batches read ahead are neither
    lost nor repeated. Over a run the state is a position and the digest of the order before it; the number of ranks,
    micro-batch size and number of threads may change on resuming.

    Data in object storage are prefetched, as by `build_dataloader`.

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
        sampler: yields the positions of each micro-batch; None with `batch_size`.
        batch_size: samples of a batch, without a sampler.
        data_parallel_rank, data_parallel_size: this rank, and the number of ranks that share the samples, without a
            sampler; required if `torch.distributed` has several ranks.
        tensors: "torch", or "numpy" for JAX and others; None for "torch" if torch is installed.
        num_threads: threads that fill batches.
        read_ahead: most batches in memory beside the one in use; None for 4, or as many small ones as 8 MB hold, up to
            16. A thread fills half of its share in a row.
        pin_memory: whether batches lie in page-locked memory; by default, if CUDA is available to torch.
        reuse_after: None for new batches, yours to keep. With k, batches lie in a ring of buffers, and one is
            overwritten once k further ones were requested: 1 if a batch is done before the next, m to collect m
            micro-batches. Non-blocking copies and queues must be done with a batch by then.
        integer_dtype: dtype of tokens, labels and positions, int64 or int32.
        digest: whether to keep a digest of all batches, see `digest` and `check_reading`.
    """

    # Names of torch's loaders, which accelerate reads, as `batch_sampler`.
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
        sampler = batches_of(dataset, sampler, batch_size, data_parallel_rank, data_parallel_size)
        self.tensors: Tensors
        self.pin_memory: bool
        self.tensors, self.pin_memory = tensors_to_make(tensors, pin_memory=pin_memory)
        warn_of_resonance(dataset, sampler)
        self.dataset = dataset
        self.sampler = sampler
        self.batch_sampler = sampler
        self.num_threads: int = checked_integer("num_threads", num_threads, at_least=1)
        for name, value in (("read_ahead", read_ahead), ("reuse_after", reuse_after)):
            if value is not None:
                checked_integer(name, value, at_least=1)
        self.read_ahead = read_ahead
        self.reuse_after = reuse_after
        self.integer_dtype = integer_dtype
        self._make_buffers()  # checks the settings
        self.wait: DataWait = DataWait()
        self.positions: Batch = ()
        """Positions of the last batch, for `LossRecorder.append`."""
        self.read: ReadBatches = ReadBatches(dataset, sampler, keeps=digest)
        self._begin(0)
        self._num_to_skip = 0

    def _begin(self, num_batches: int) -> dict[str, Any]:
        """Begins an iteration; its state has the sampler's settings before reading ahead."""
        self._progress: dict[str, Any] = {"num_yielded": num_batches, "sampler": _settings_of(self.sampler)}
        return self._progress

    @property
    def digest(self) -> ReadingDigest:
        """The digest of all batches yielded since this loader began or resumed."""
        return self.read.total

    def __len__(self) -> int:
        """Batches of a whole pass: the length of the sampler."""
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields batches from the first one, or from a loaded state on. One iteration at a time."""
        first, self._num_to_skip = self._num_to_skip, 0
        progress = self._begin(first)
        self.read.begin(first)
        fill = partial(self._fill, self._make_buffers())
        batches = announce_ahead(self.dataset, itertools.islice(self.sampler, first, None))
        numbered = enumerate(batches, first)
        executor = ThreadPoolExecutor(max_workers=self.num_threads, thread_name_prefix="tokenloom-loader")
        pending: deque[Future[list[_Filled | Exception]]] = deque()
        ahead, num_ahead = self.read_ahead or _LEAST_AHEAD, 0
        grows = self.read_ahead is None and self.reuse_after is None  # a ring has its slots

        def read_more() -> None:
            # A thread fills several in a row, half of those ahead: waking a thread takes as long as filling a batch.
            nonlocal num_ahead
            size = max(1, ahead // (2 * self.num_threads))
            while num_ahead + size <= ahead and (chunk := list(itertools.islice(numbered, size))):
                pending.append(submit(executor, partial(fill, chunk)))
                num_ahead += len(chunk)

        ending = ENDING  # an iterator may outlive the names of this module
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
                    if self.read.keeps:
                        self.read.add(positions, digests)
                    progress["num_yielded"] += 1
                    self.positions = positions
                    yield batch
        finally:
            if not ending.is_set():  # else its threads are joined already
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
        """Returns the batches up to the first that fails, and its error."""
        done: list[_Filled | Exception] = []
        for number, positions in chunk:
            if not hasattr(positions, "__len__") or isinstance(positions, (str, bytes)):
                message = f"the sampler must yield lists of positions, got {positions!r}"
                hint = "`torch.utils.data.BatchSampler` makes batches of a sampler of single positions"
                return [*done, ConfigError(message, hint=hint)]
            try:
                done.append((positions, *buffers.fill(number, positions, digest=self.read.keeps)))
            except Exception as error:  # noqa: BLE001  it is raised in its turn
                shown = ", ".join(map(str, positions[:8])) + (f", … {len(positions)} in all" * (len(positions) > 8))
                error.add_note(f"in batch {number} of the sampler, at positions [{shown}]")
                return [*done, error]
        return done

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last batch that was yielded; the same on every rank.

        Over a run it is that of `loader_state`, and `read`, the digest of all ranks, after `check_reading` or with one
        data-parallel rank.
        """
        if order_of(self.dataset) is not None:
            sampler = in_order(self.sampler, self.dataset)
            state = loader_state(self.dataset, sampler.position_after(self._progress["num_yielded"]))
            read = self.read.of_all_ranks()
            if read is not None and read.stop == state["position"]:
                state["read"] = str(read)
            return state
        return {"version": _STATE_VERSION, **self._progress}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration begin after the last batch of the state.

        Over a run, the sampler begins there in every later iteration, like one made with those consumed samples. Over
        another dataset, the sampler must have the same settings, and iterations after the next one are whole again.

        Raises:
            ConfigError: the state is of a sampler with other settings. Over a run: of another run, past or data, or
                beyond the end.
        """
        if order_of(self.dataset) is not None:
            consumed = consumed_of_state(self.dataset, state)
            read = read_of_state(state)
            in_order(self.sampler, self.dataset).begin_at(consumed)
            self.read.go_on(read)
            self._begin(0)
            return
        if state.get("version") != _STATE_VERSION:
            if "run" in state:
                consumed_of_state(self.dataset, state)  # raises: this dataset is no run
            raise ConfigError(f"{state!r} is no state of a ThreadLoader, version {_STATE_VERSION}")
        if state["sampler"] != (found := _settings_of(self.sampler)):
            message = f"sampler of the state: expected {state['sampler']}, found {found}"
            hint = "make the sampler with the same settings, or resume from consumed samples without a state"
            raise ConfigError(message, hint=hint)
        self._num_to_skip = checked_integer("num_yielded", state["num_yielded"], at_least=0)
        self._begin(self._num_to_skip)


def _num_bytes(batch: Any) -> int:
    """Returns the bytes of the arrays in a batch, nested at will by a user's dataset."""
    if isinstance(batch, (list, tuple, Mapping)):
        return sum(map(_num_bytes, batch.values() if isinstance(batch, Mapping) else batch))
    return int(getattr(batch, "nbytes", 0))


def _settings_of(sampler: Any) -> dict[str, Any]:
    """Returns class and plain settings of a sampler; not the rank, as frameworks keep the state of one rank."""
    settings = {
        name: value
        for name, value in sorted(getattr(sampler, "__dict__", {}).items())
        if isinstance(value, (int, str, float, type(None))) and name[0] != "_" and name != "data_parallel_rank"
    }
    return {"class": type(sampler).__name__, **settings}
