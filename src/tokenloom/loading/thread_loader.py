"""Batches read ahead by threads of this process: nothing is pickled, copied between processes or left behind."""

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
"""What batches are made of."""

_STATE_VERSION = 1

_LEAST_AHEAD, _MOST_AHEAD, _AHEAD_BYTES = 4, 16, 8 << 20
"""Batches that are read ahead where nothing else is said."""


@dataclass(slots=True)
class DataWait:
    """How long a training loop waited for its batches: for all, for the last of them, and for the slowest."""

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
    """Fills batches for a loader, each in new memory or in a ring of `num_slots`, of which n + num_slots overwrites n.

    In a ring, nothing is allocated once each slot was used: new memory costs a page fault, and the zeroing of a page,
    for every 4096 bytes; a dense mask consists of nothing else. Safe from several threads, each with another batch.
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
        """Returns the tensors or arrays of a batch, and with `digest` digests of the tokens of each sample.

        These are uint64[num_samples, 2]; None if samples have no tokens.
        """
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
            return self._as_tensors(rows)  # new ones each time: `share_memory_` and queues move a tensor elsewhere
        if self._must_be_asked:
            return self._collated(positions)
        if self._allocates:
            arrays = self._dataset.batch(positions, out=self._allocate(count), **more)
            return _pinned_tensors(arrays) if self._pin_memory else self._as_tensors(arrays)
        tensors = self._as_tensors(self._dataset.batch(positions, **more))
        return {name: tensor.pin_memory() for name, tensor in tensors.items()} if self._pin_memory else tensors

    def _collated(self, positions: Batch) -> dict[str, Any]:
        """Returns a batch of what `dataset[k]` gives, as a DataLoader would make it, or the same as NumPy arrays."""
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
    """Returns what batches are made of, and whether they lie in page-locked memory: as asked, else as can be."""
    if tensors is None:
        tensors = "torch" if is_installed("torch") else "numpy"
    if tensors not in get_args(Tensors):
        choices = " or ".join(map(repr, get_args(Tensors)))
        message = f"expected `tensors` to be {choices}, found {tensors!r}"
        raise ConfigError(message, hint='JAX and others take the arrays of `tensors="numpy"`')
    if pin_memory is not None and type(pin_memory) is not bool:
        message = f"expected `pin_memory` to be True, False or None, found {pin_memory!r}"
        raise ConfigError(message)
    if tensors == "numpy" and pin_memory:
        message = '`pin_memory` needs the tensors of torch, found `tensors="numpy"`'
        raise ConfigError(message, hint="leave `pin_memory` out")
    if tensors == "torch" and pin_memory is None:
        pin_memory = require("torch", extra="torch").cuda.is_available()
    return tensors, bool(pin_memory)


def _check_fills(dataset: Any, setting: str) -> None:
    """Checks that a dataset fills given arrays, as a setting needs it."""
    if not fills_batches(dataset):
        message = f"expected a dataset that fills given arrays, for `{setting}`, found {type(dataset).__name__}"
        if isinstance(dataset, FillsBatches) and (hook := hook_of(dataset, "fills_batches")) is not None:
            message += f", whose samples are those of `{hook}`"
        raise ConfigError(message, hint=f"leave `{setting}` away; GPT datasets and blends of them know it")


def _pinned_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    torch = require("torch", extra="torch")
    kind = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
    array: NDArray[Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
    return array


def _pinned_tensors(arrays: Sample) -> dict[str, Any]:
    """Returns the tensors that arrays of `_pinned_array` are views of, and of other arrays what `to_tensors` does.

    torch keeps the memory of its own tensors until a copy to a device that does not block has ended, also one of a
    slice; of a slice of what it gets from NumPy it does not know whose memory that is.
    """
    torch = require("torch", extra="torch")
    pinned = {name: array.base for name, array in arrays.items() if isinstance(array.base, torch.Tensor)}
    return {**to_tensors(arrays), **pinned}


_Filled = tuple[Batch, dict[str, Any], NDArray[np.uint64] | None]
"""A batch that is ready: positions, tensors, and digests of the tokens of each sample, if they are kept."""


class ThreadLoader:
    """Yields one dict of tensors per micro-batch, in the sampler's order, filled by threads while the loop computes.

    Without a sampler, batches of `batch_size` samples are read in the order of the dataset, which is shuffled already;
    what does not fill up a batch at the end is left out.

    The kernels that fill a batch release the GIL, so threads do what torch's worker processes do, without pickling the
    dataset and moving every batch through shared memory. `dataset.batch` is called from several threads at once where
    `num_threads` is above 1; all datasets of this package allow that.

    Batches lie in this process's own memory; a forked child has a copy. `share_memory_` and queues of torch move a
    tensor: copy a NumPy view that is to outlive that.

    An error in a batch is raised when its turn comes, with a note that says which batch and positions it is about.
    Leaving the loop early stops the threads; `wait` tells how long the loop was kept waiting.

    `state_dict` and `load_state_dict` are those of torchdata's `StatefulDataLoader`: nothing that was read ahead is
    lost or repeated. Over a run the state is a position and the digest of the order before it, and any number of ranks,
    size of micro-batches and number of threads may go on from there.

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
        tensors: "torch" or "numpy", which is all that JAX and others need; None for the former where torch is
        installed. num_threads: number of threads that fill batches. read_ahead: batches that are ready or being filled
        at most; so many lie in memory, and the one in use. None for
            4, or of small batches as many as 8 MB hold, up to 16: a thread fills half of its share in a row.
        pin_memory: whether batches lie in page-locked memory; by default, where CUDA is available to torch.
        reuse_after: None, and every batch is new and yours to keep. With k, batches lie in a ring of buffers, and one
            is overwritten once k further ones were asked for: 1 for a loop that is done with a batch before it asks
            for the next, m for one that collects m micro-batches. A copy to a device that does not block must have
            ended by then, and a queue must have sent it.
        integer_dtype: dtype of tokens, labels and positions, int64 or int32.
        digest: whether to keep a digest of what was handed out, see `digest` and `check_reading`.
    """

    prefetch_factor: None = None
    collate_fn = staticmethod(collate)
    """As torch's loaders call them: what worker processes read ahead, of which there are none, and what makes tensors
    of what the dataset gives for a batch; and `batch_sampler`, the sampler. accelerate goes on with these."""

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
        sampler = batches_of(
            dataset,
            sampler,
            batch_size=batch_size,
            data_parallel_rank=data_parallel_rank,
            data_parallel_size=data_parallel_size,
        )
        self.tensors: Tensors
        """What batches are made of: "torch" or "numpy"."""
        self.pin_memory: bool
        self.tensors, self.pin_memory = tensors_to_make(tensors, pin_memory=pin_memory)
        warn_of_resonance(dataset, sampler)
        self.dataset = dataset
        self.sampler = self.batch_sampler = sampler
        self.num_threads: int = checked_integer("num_threads", num_threads, at_least=1)
        self.read_ahead, self.reuse_after = read_ahead, reuse_after
        for name in ("read_ahead", "reuse_after"):
            if getattr(self, name) is not None:
                checked_integer(name, getattr(self, name), at_least=1)
        self.integer_dtype = integer_dtype
        self._make_buffers()  # complains where it cannot be
        self.wait: DataWait = DataWait()
        self.positions: Batch = ()
        """Positions of the batch that was handed out last, such as for `LossRecorder.append`."""
        self.read: ReadBatches = ReadBatches(dataset, sampler, keeps=digest)
        self._begin(0)
        self._num_to_skip = 0

    def _begin(self, num_batches: int) -> dict[str, Any]:
        """Begins an iteration, whose state has the sampler as it was before reading ahead moved it on."""
        self._progress: dict[str, Any] = {"num_yielded": num_batches, "sampler": _settings_of(self.sampler)}
        return self._progress

    @property
    def digest(self) -> ReadingDigest:
        """The digest of what this loader has handed out since it began, or went on from a state; not read ahead."""
        return self.read.total

    def __len__(self) -> int:
        """Batches of a whole pass, as far as the sampler knows."""
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields batches, from the first one, or from where a loaded state says. One iteration at a time."""
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
            # One thread fills several in a row, of which the loop has one half while the other is filled: to wake a
            # thread takes as long as to fill a batch.
            nonlocal num_ahead
            size = max(1, ahead // (2 * self.num_threads))
            while num_ahead + size <= ahead and (chunk := list(itertools.islice(numbered, size))):
                pending.append(submit(executor, partial(fill, chunk)))
                num_ahead += len(chunk)

        ending = ENDING  # an iterator that is kept may outlive the names of this module
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
            if not ending.is_set():  # else its threads are waited for, or have ended
                executor.shutdown(cancel_futures=True)

    def __repr__(self) -> str:
        sampler = type(self.sampler).__name__
        return f"ThreadLoader({self.dataset!r}, {sampler}, tensors={self.tensors!r}, num_threads={self.num_threads})"

    def _make_buffers(self) -> BatchBuffers:
        """Returns what the batches of one iteration are put into."""
        return BatchBuffers(
            self.dataset,
            tensors=self.tensors,
            pin_memory=self.pin_memory,
            integer_dtype=self.integer_dtype,
            num_slots=0 if self.reuse_after is None else (self.read_ahead or _LEAST_AHEAD) + self.reuse_after,
        )

    def _fill(self, buffers: BatchBuffers, chunk: list[tuple[int, Batch]]) -> list[_Filled | Exception]:
        """Returns numbered batches; in the place of one that fails its error, which is the last."""
        done: list[_Filled | Exception] = []
        for number, positions in chunk:
            if not hasattr(positions, "__len__") or isinstance(positions, (str, bytes)):
                message = f"expected a list of positions from the sampler, found {positions!r}"
                hint = "a sampler of single positions becomes one of batches in `torch.utils.data.BatchSampler`"
                return [*done, ConfigError(message, hint=hint)]
            try:
                done.append((positions, *buffers.fill(number, positions, digest=self.read.keeps)))
            except Exception as error:  # noqa: BLE001  it is raised in its turn
                shown = ", ".join(map(str, positions[:8])) + (f", … {len(positions)} in all" * (len(positions) > 8))
                error.add_note(f"in batch {number} of the sampler, at positions [{shown}]")
                return [*done, error]
        return done

    def state_dict(self) -> dict[str, Any]:
        """Returns where this loader stands: after the last batch that was handed out; the same on every rank.

        Over a run, that is what `loader_state` says, whatever the number of ranks. Where it is known what all ranks
        have read, that is in it, too, as `read`: after `check_reading`, and of one data-parallel rank.
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
            self._begin(0)
            return
        if state.get("version") != _STATE_VERSION:
            if "run" in state:
                consumed_of_state(self.dataset, state)  # says that this dataset is no run
            message = f"expected the state of a ThreadLoader, version {_STATE_VERSION}, found {state!r}"
            raise ConfigError(message)
        if state["sampler"] != (found := _settings_of(self.sampler)):
            message = f"expected the sampler that the state was taken with, {state['sampler']}, found {found}"
            hint = "make the sampler with the settings it had, or go on from consumed samples without a state"
            raise ConfigError(message, hint=hint)
        self._num_to_skip = checked_integer("num_yielded", state["num_yielded"], at_least=0)
        self._begin(self._num_to_skip)


def _num_bytes(batch: Any) -> int:
    """Returns the bytes of the arrays in a batch, which a user's dataset may nest as it likes."""
    if isinstance(batch, (list, tuple, Mapping)):
        return sum(map(_num_bytes, batch.values() if isinstance(batch, Mapping) else batch))
    return int(getattr(batch, "nbytes", 0))


def _settings_of(sampler: Any) -> dict[str, Any]:
    """Returns what decides which batch is the k-th: the class and the plain settings of a sampler, the rank aside.

    All ranks have handed out as many batches, and frameworks keep the state of one of them.
    """
    settings = {
        name: value
        for name, value in sorted(getattr(sampler, "__dict__", {}).items())
        if isinstance(value, (int, str, float, type(None))) and name[0] != "_" and name != "data_parallel_rank"
    }
    return {"class": type(sampler).__name__, **settings}
