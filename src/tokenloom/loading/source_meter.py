"""What a training loop reads and loses per source: loss, tokens, samples and passes, with one small all-reduce.

Sums stay on the device of the loss, and nothing waits for it until `reduce`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from tokenloom.distributed.collectives import Channel
from tokenloom.errors import ConfigError
from tokenloom.loading.source_report import SourceMeasure, SourceReport
from tokenloom.optional import require

_VERSION = 1
_COLUMNS = ("loss", "weight", "tokens", "slots", "samples")
_TOTALS = ("tokens", "slots", "samples")


@runtime_checkable
class PackOfSources(Protocol):
    """What a pack says of its sub-samples, as `SourcedPackedSeqParams` does."""

    cu_seqlens_q_padded: Any
    dataset_ids: Any


@runtime_checkable
class HasPasses(Protocol):
    """A run, as far as a meter asks it."""

    def passes(self, position: int) -> Mapping[str, float]:
        """Returns how often each source has been read before a position, by its name."""
        ...


class SourceMeter:
    """Adds up loss and tokens by source while a model trains.

    Call `update` with every micro-batch and its loss, on the last stage of a pipeline and one rank of each
    tensor-parallel group, and `reduce` where you log. Which source a sample is from, its `dataset_id` says: every batch
    of a blend or a run has it, and packs have it for each of their sub-samples.

    A context-parallel rank has a slice of each sequence. The tokens of all slices add up; of the samples, each of c
    ranks counts 1 / c, so that they are counted once.

    Example:
        >>> import torch
        >>> meter = SourceMeter(["web", "code"])
        >>> batch = {"dataset_id": torch.tensor([1, 0]), "loss_mask": torch.tensor([[1.0, 1.0], [1.0, 0.0]])}
        >>> meter.update(batch, torch.tensor([[2.0, 4.0], [5.0, 7.0]]))
        >>> [(source.name, source.loss, source.tokens, source.slots) for source in meter.reduce().sources]
        [('web', 5.0, 1, 2), ('code', 3.0, 2, 2)]

    Args:
        source_names: names, by the number that `dataset_id` is.
        group: the ranks that share the work, data × context parallel: a process group; None is this process alone.
        run: the run whose samples these are, for its passes.
        hooks: are called with each report, on rank 0 of the group.
    """

    def __init__(
        self,
        source_names: Sequence[str],
        *,
        group: Any = None,
        run: HasPasses | None = None,
        hooks: Sequence[Callable[[SourceReport], None]] = (),
    ) -> None:
        if not source_names:
            message = "expected the names of sources, found none"
            raise ConfigError(message)
        self.source_names: tuple[str, ...] = tuple(source_names)
        self._channel = Channel(group)
        self._run = run
        self._hooks = tuple(hooks)
        self._sums: Any = None
        self._totals = {name: [0] * (len(self.source_names) + 1) for name in _TOTALS}

    def update(self, batch: Any, loss_per_token: Any, *, context_parallel_size: int = 1) -> None:
        """Adds a micro-batch.

        Args:
            batch: what a loader gave, a mapping with `loss_mask` [B, S] and `dataset_id` [B]; a pack of
                `wrap_data_iterator`, a mapping with `loss_mask` [T], `dataset_ids` [n] and `cu_seqlens_padded` [n + 1];
                or what `get_batch_on_this_rank_for_sequence_packing` returned. With one source, it need not name it.
            loss_per_token: the loss of each slot, of the shape of `loss_mask`, a slice of context parallelism too;
                before it is masked, summed or averaged. Weights in `loss_mask` other than 0 and 1 weigh.
            context_parallel_size: ranks that have a slice of each sample each; of packs it is known.

        Raises:
            ConfigError: the loss has another shape than the loss mask, or the batch does not name its sources.
        """
        torch = require("torch", extra="torch")
        mask, sources, boundaries = _parts_of(batch, len(self.source_names))
        mask, loss = _alike(mask, loss_per_token.detach())
        if boundaries is None and mask.ndim == 1:  # a single sample
            mask, loss = mask[None], loss[None]
        weights = mask.to(torch.float64)
        kept = weights > 0  # what has no loss may be anything, NaN too
        slots = torch.stack([torch.where(kept, loss.to(torch.float64) * weights, 0.0), weights, kept.to(torch.float64)])
        if boundaries is None:
            sums = slots.reshape(3, len(mask), -1).sum(-1)
            lengths = torch.full_like(sums[0], mask[0].numel() if len(mask) else 0)
            samples = torch.full_like(lengths, 1.0 / context_parallel_size)
        else:
            sums, lengths, samples = _by_sequence(slots.flatten(1), boundaries.to(mask.device, non_blocking=True))
        if sources is None:
            numbers = torch.zeros(len(lengths), dtype=torch.int64, device=mask.device)
        else:
            numbers = torch.as_tensor(sources).to(mask.device, torch.int64, non_blocking=True).reshape(-1)
        if len(numbers) != len(lengths):
            message = f"expected the sources of {len(lengths)} samples, found {len(numbers)}"
            raise ConfigError(message)
        unknown = len(self.source_names)
        numbers = torch.where((numbers < 0) | (numbers > unknown), unknown, numbers)
        if self._sums is None:
            self._sums = torch.zeros((len(_COLUMNS), unknown + 1), dtype=torch.float64, device=mask.device)
        self._sums.index_add_(1, numbers, torch.cat([sums, lengths[None], samples[None]]))

    def reduce(self, *, step: int | None = None, consumed_samples: int | None = None) -> SourceReport:
        """Returns what was read since the last call, of all ranks, and begins anew. Collective.

        One all-reduce of five numbers per source; the only place that waits for the device.

        Args:
            step: of training, for the report.
            consumed_samples: samples of all ranks since the run began: its position, for passes.
        """
        torch = require("torch", extra="torch")
        if self._sums is None:
            shape = (len(_COLUMNS), len(self.source_names) + 1)
            self._sums = torch.zeros(shape, dtype=torch.float64, device=self._channel.device)
        rows = self._channel.all_reduce_sum(self._sums, "sums of sources").tolist()
        self._sums = None
        sums = dict(zip(_COLUMNS, rows, strict=True))
        counts = {name: [round(number) for number in sums[name]] for name in _TOTALS}
        for name, numbers in counts.items():
            self._totals[name] = [total + more for total, more in zip(self._totals[name], numbers, strict=True)]
        passes: Mapping[str, float] = {}
        if self._run is not None and consumed_samples is not None:
            passes = self._run.passes(consumed_samples)
        measures = [
            SourceMeasure(
                name=name,
                loss=sums["loss"][number] / sums["weight"][number] if sums["weight"][number] else math.nan,
                **{column: counts[column][number] for column in _TOTALS},
                **{f"total_{column}": self._totals[column][number] for column in _TOTALS},
                passes=passes.get(name),
            )
            for number, name in enumerate((*self.source_names, "unknown source"))
        ]
        if not measures[-1].total_samples:
            measures.pop()
        report = SourceReport(step=step, consumed_samples=consumed_samples, sources=tuple(measures))
        if self._channel.rank == 0:
            for hook in self._hooks:
                hook(report)
        return report

    def state_dict(self) -> dict[str, Any]:
        """Returns the totals as of the last `reduce`, plain values, the same on every rank."""
        return {
            "version": _VERSION,
            "sources": list(self.source_names),
            **{name: list(numbers) for name, numbers in self._totals.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with totals; sources may have been added since.

        Raises:
            ConfigError: it is no such state, or one of other sources.
        """
        if state.get("version") != _VERSION:
            message = f"expected the state of a SourceMeter, version {_VERSION}, found {dict(state)!r}"
            raise ConfigError(message)
        names, count = tuple(state["sources"]), len(self.source_names)
        if names != self.source_names[: len(names)]:
            message = f"expected the state of a meter of the sources {self.source_names}, found one of {names}"
            raise ConfigError(message)
        for name in _TOTALS:
            *known, unknown = state[name]
            self._totals[name] = [*known, *[0] * (count - len(names)), unknown]
        self._sums = None


def _parts_of(batch: Any, num_sources: int) -> tuple[Any, Any, Any]:
    """Returns loss mask, sources and boundaries of a batch; the last two None where there are none."""
    sources = boundaries = None
    if isinstance(batch, Mapping):
        mask = batch.get("loss_mask")
        if "cu_seqlens_padded" in batch:
            sources, boundaries = batch.get("dataset_ids"), batch["cu_seqlens_padded"]
        else:
            sources = batch.get("dataset_id")
    else:
        _, _, mask, _, _, params, _ = batch
        boundaries = params.cu_seqlens_q_padded
        sources = params.dataset_ids if isinstance(params, PackOfSources) else None
    if mask is None:
        message = "expected a `loss_mask` in a batch, found none"
        raise ConfigError(message, hint="call `update` on the last stage of a pipeline only")
    if sources is None and num_sources > 1:
        message = "expected a batch that names its sources, found none named"
        hint = (
            "batches of a blend or a run have `dataset_id`, packs of their samples `dataset_ids`; keep it in the batch"
        )
        raise ConfigError(message, hint=hint)
    return mask, sources, boundaries


def _alike(mask: Any, loss: Any) -> tuple[Any, Any]:
    """Returns loss mask and loss in one shape, on the device of the loss."""
    shape = tuple(mask.shape)
    if shape[:1] == (1,) and loss.ndim == 1:
        loss = loss[None]
    if loss.ndim == 2 and len(loss) == 1 and len(shape) == 1:
        loss = loss[0]
    if tuple(loss.shape) != shape:
        message = f"expected a loss of the shape of the loss mask, {list(shape)}, found {list(loss.shape)}"
        raise ConfigError(message, hint="give the loss of each token, before it is averaged")
    return mask.to(loss.device, non_blocking=True), loss


def _by_sequence(slots: Any, boundaries: Any) -> tuple[Any, Any, Any]:
    """Returns sums, slots and samples of each sequence of a pack, or of what a context-parallel rank has of it.

    Each of c ranks has one c-th of each sequence, in order: its boundaries are those of the pack divided by c, and c
    follows from the number of slots.

    Args:
        slots: float64[3, T / c].
        boundaries: int32[n + 1], of the whole pack.
    """
    torch = require("torch", extra="torch")
    count = slots.shape[1]
    whole = boundaries.to(torch.int64)
    own = whole * count // whole[-1].clamp(min=1)
    places = torch.arange(count, device=slots.device)
    sequence = torch.searchsorted(own[1:].contiguous(), places, right=True).clamp(max=len(own) - 2)
    sums = torch.zeros((3, len(own) - 1), dtype=slots.dtype, device=slots.device).index_add_(1, sequence, slots)
    lengths = own.diff().to(slots.dtype)
    return sums, lengths, torch.full_like(lengths, count) / whole[-1].clamp(min=1)
