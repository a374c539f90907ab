"""Plans a build: computes numbers of tokens, samples and epochs per split and dataset, from `.idx` files alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tokenloom.blending.quota import Quota, Sizes, normalize, quotas, remedy_for, sufficient_surplus
from tokenloom.datasets.blends import Blend
from tokenloom.datasets.config import BlendedMegatronDatasetConfig, GPTDatasetConfig
from tokenloom.datasets.data_match import check_kind
from tokenloom.datasets.splits import Split, split_range
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.verify import check_sum
from tokenloom.order.epochs import Epochs
from tokenloom.order.packs import BestFitReport, PackEpochs
from tokenloom.order.policies import SampleShape, policy_of
from tokenloom.rendering.card import HasFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPlan:
    """The plan of one dataset in one split.

    Attributes:
        name: path of the dataset.
        num_sequences: number of sequences of the dataset in the split.
        num_tokens: number of tokens of these sequences, that is, of one epoch.
        weight: configured weight; None if it is not configured or has no effect.
        share: fraction of the split's samples that come from the dataset, in [0, 1].
        num_samples_owed: number of samples that the split takes from the dataset.
        num_epochs_owed: number of epochs that `num_samples_owed` samples cover, such as 2.4.
        num_samples_built: number of samples that the build creates; less than `num_samples_owed` only with a `Problem`.
        num_epochs_built: number of epochs that the build creates.
        packing: result of packing one epoch; None if the samples are windows.
    """

    name: str
    num_sequences: int
    num_tokens: int
    weight: float | None
    share: float
    num_samples_owed: int
    num_epochs_owed: float
    num_samples_built: int
    num_epochs_built: int
    packing: BestFitReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A dataset with too few samples for a split: the build will fail, or the split will be empty.

    Attributes:
        split: the split.
        dataset: index of the dataset in `SplitPlan.datasets`.
        name: path of the dataset.
        owed: number of samples that the split takes from the dataset.
        available: number of samples of the dataset that the build would create.
        surplus: a `mid_level_dataset_surplus` that solves the problem; None if no value does.
        remedy: hint on how to fix the problem.
    """

    split: Split
    dataset: int
    name: str
    owed: int
    available: int
    surplus: float | None
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """The plan of one split.

    Attributes:
        split: the split.
        kind: "single", "list", "weighted" or "proportional", see `Quota`.
        size: requested minimum number of samples; None for one epoch.
        num_samples: number of samples that the build creates.
        num_tokens: number of tokens in one epoch of all datasets together.
        datasets: the datasets, in the order of the blend.
        problems: a `Problem` for each dataset with too few samples; empty if all have enough.
    """

    split: Split
    kind: str
    size: int | None
    num_samples: int
    num_tokens: int
    datasets: tuple[DatasetPlan, ...]
    problems: tuple[Problem, ...]

    def _rows(self) -> list[dict[str, Any]]:
        short = {problem.dataset for problem in self.problems}
        return [
            {"dataset": each.name, "tokens": each.num_tokens}
            | {"weight": None if each.weight is None else f"{each.weight:g}", "share": f"{each.share:.2%}"}
            | {"samples": each.num_samples_owed, "epochs": f"{each.num_epochs_owed:,.4g}"}
            | {"built": each.num_samples_built}
            | ({"": "short" if number in short else ""} if short else {})
            for number, each in enumerate(self.datasets)
        ]

    def _packed_rows(self) -> list[dict[str, Any]]:
        return [
            {"dataset": each.name, "packs": found.num_packs, "fill": f"{found.fill:.4%}"}
            | {"documents per pack": f"{found.documents_per_pack:,.2f}", "padding tokens": found.num_padding_tokens}
            | {"documents cut": f"{found.num_split_documents:,} of {found.num_documents:,}"}
            for each in self.datasets
            if (found := each.packing) is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan(HasFacts):
    """The plan of a build of train, valid and test.

    Attributes:
        sequence_length: tokens per sample.
        splits: plans of train, valid and test; None for a split without data.
    """

    sequence_length: int
    splits: tuple[SplitPlan | None, ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """One `Problem` for each dataset with too few samples for a split; empty if all have enough."""
        return tuple(problem for split in self.splits if split is not None for problem in split.problems)

    @property
    def surplus(self) -> float | None:
        """A `mid_level_dataset_surplus` that solves all problems; None if no value does, or there are no problems."""
        needed = [problem.surplus for problem in self.problems]
        known = [surplus for surplus in needed if surplus is not None]
        return max(known) if known and len(known) == len(needed) else None

    def facts(self) -> dict[str, Any]:
        """Returns the facts that `repr` and the CLI show: problems, and the tokens and samples of each split."""
        splits = [split for split in self.splits if split is not None]
        return {
            "problems": [
                f"{each.split.name}, {each.name}: {each.owed:,} samples needed, has {each.available:,}; {each.remedy}"
                for each in self.problems
            ],
            "sequence length": self.sequence_length,
            **{f"{split.split.name} tokens": split.num_tokens for split in splits},
            **{f"{split.split.name} samples": split.num_samples for split in splits},
            "surplus that is needed": None if self.surplus is None else repr(self.surplus),
            **{f"{split.split.name} ({split.kind})": split._rows() for split in splits},
            **{f"{split.split.name}, packed": split._packed_rows() for split in splits},
        }


def plan_build(config: BlendedMegatronDatasetConfig, sizes: Sizes, *, policy: str | None = None) -> BuildPlan:
    """Returns the exact plan of the datasets that `BlendedMegatronDatasetBuilder(GPTDataset, sizes, …)` will build.

    Opens each pair and reads two rows of its index per split, or, for packs, all sequence lengths. Counting the samples
    of weighted blends takes 10 to 100 ns per sample. If a dataset has too few samples, the plan has a `Problem`.

    Example:
        >>> import os, tempfile
        >>> from tokenloom import BlendedMegatronDatasetConfig, IndexedDatasetBuilder
        >>> prefix = os.path.join(tempfile.mkdtemp(), "corpus")
        >>> builder = IndexedDatasetBuilder(f"{prefix}.bin")
        >>> builder.add_document([1] * 100, [100])
        >>> builder.finalize(f"{prefix}.idx")
        >>> config = BlendedMegatronDatasetConfig(
        ...     random_seed=0, sequence_length=8, blend=([prefix], None), split="1"
        ... )
        >>> dataset = plan_build(config, [30, None, None]).splits[0].datasets[0]
        >>> dataset.num_tokens, dataset.num_samples_owed, dataset.num_epochs_owed, dataset.num_epochs_built
        (100, 30, 2.4, 3)

    Args:
        config: the settings; a tokenizer is not needed. Defaults of `GPTDatasetConfig` replace missing settings.
        sizes: minimum numbers of samples of train, valid and test; None for one epoch.
        policy: `window_policy` to use instead of the config's.

    Raises:
        ConfigError: the config has mock data, or a weighted blend has no size.
        DatasetNotFoundError, DatasetFormatError: a pair cannot be opened.
    """
    if config.mock:
        raise ConfigError("cannot plan mock data", hint="set `blend` or `blend_per_split`")
    all_quotas = quotas(config, sizes)
    found: dict[tuple[Split, int], tuple[int, Epochs]] = {}
    places: dict[str | None, list[tuple[Quota, int]]] = {}
    for quota in filter(None, all_quotas):
        for number, prefix in enumerate(quota.prefixes):
            places.setdefault(prefix, []).append((quota, number))
    for prefix, each in places.items():
        assert prefix is not None
        data = IndexedDataset(prefix, mmap=False, object_storage=config.storage_settings)
        check_kind(data, config, name=f"`{prefix}`", reads="documents")
        for quota, number in each:
            rows = split_range(quota.bounds, len(data))
            lengths = _checked_lengths(data, rows)
            found[quota.split, number] = (
                len(rows),
                epochs_of(config, quota.split, data.count_tokens(rows), lengths, policy),
            )
    return BuildPlan(
        sequence_length=config.sequence_length,
        splits=tuple(
            None
            if quota is None
            else _plan_split(config, quota, [found[quota.split, number] for number in range(len(quota.prefixes))])
            for quota in all_quotas
        ),
    )


def _checked_lengths(data: IndexedDataset, rows: range) -> Iterator[NDArray[np.int32]]:
    """Yields a single array, the sequence lengths of `rows`; reads and validates the lengths only on request."""
    lengths = data.sequence_lengths[rows.start : rows.stop]
    check_sum(data, rows, int(lengths.sum(dtype=np.int64)))
    yield lengths


def epochs_of(
    config: BlendedMegatronDatasetConfig,
    split: Split,
    num_tokens: int,
    lengths: Iterable[NDArray[np.int32]],
    policy: str | None = None,
) -> Epochs:
    """Returns the object that computes numbers of samples and epochs of a `GPTDataset`; see `OrderPolicy.epochs`.

    The defaults of `GPTDatasetConfig` replace missing settings. `policy` replaces the config's `window_policy`.
    """
    shape, name = SampleShape(sequence_length=config.sequence_length, extra=1), "concat"
    if isinstance(config, GPTDatasetConfig):
        shape, name = replace(config.shape_of(split), blocks=None), config.window_policy
    return policy_of(policy or name, shape).epochs(num_tokens, lengths)


def _plan_split(config: BlendedMegatronDatasetConfig, quota: Quota, found: Sequence[tuple[int, Epochs]]) -> SplitPlan:
    epochs = [each for _, each in found]
    requested = list(quota.num_samples)
    lengths = [each.num_samples(count) for each, count in zip(epochs, requested, strict=True)]
    if quota.is_blend:
        owed = quota.owed(lengths)
    else:
        owed = [length if quota.size is None else quota.size for length in lengths]
    if quota.kind == "weighted" and config.extend_short_datasets:
        for number, (length, count) in enumerate(zip(lengths, owed, strict=True)):
            if count > length:
                requested[number], lengths[number] = count, epochs[number].num_samples(count)
    total = sum(owed)
    datasets = tuple(
        _plan_dataset(quota, number, *each, requested[number], owed[number], total) for number, each in enumerate(found)
    )
    problems = (_problem(quota, number, dataset, epochs[number]) for number, dataset in enumerate(datasets))
    return SplitPlan(
        split=quota.split,
        kind=quota.kind,
        size=quota.size,
        num_samples=total if quota.is_blend else sum(lengths),
        num_tokens=sum(each.num_tokens for each in epochs),
        datasets=datasets,
        problems=tuple(problem for problem in problems if problem is not None),
    )


def _plan_dataset(
    quota: Quota, number: int, num_sequences: int, epochs: Epochs, requested: int | None, owed: int, total: int
) -> DatasetPlan:
    plan = None if requested and epochs.num_tokens == 0 else epochs.plan(requested)
    return DatasetPlan(
        name=str(quota.prefixes[number]),
        num_sequences=num_sequences,
        num_tokens=epochs.num_tokens,
        weight=None if quota.weights is None else quota.weights[number],
        share=owed / total if total else 0.0,
        num_samples_owed=owed,
        num_epochs_owed=epochs.passes(owed),
        num_samples_built=0 if plan is None else plan.num_samples,
        num_epochs_built=0 if plan is None else plan.num_epochs,
        packing=epochs.report if isinstance(epochs, PackEpochs) else None,
    )


def _problem(quota: Quota, number: int, dataset: DatasetPlan, epochs: Epochs) -> Problem | None:
    owed, available = dataset.num_samples_owed, dataset.num_samples_built
    has_none = available == 0 and quota.num_samples[number] != 0
    if owed <= available and not has_none:
        return None
    surplus = None if has_none else sufficient_surplus(quota.targets()[number], owed)
    remedy = remedy_for(surplus)
    if has_none:
        other = "change the weight of the split" if quota.kind == "single" else "remove the dataset"
        remedy = f"it has too few tokens for one sample: lower `sequence_length`, or {other}"
    return Problem(
        split=quota.split,
        dataset=number,
        name=dataset.name,
        owed=owed,
        available=available,
        surplus=surplus,
        remedy=remedy,
    )


def sizes_read_once(config: BlendedMegatronDatasetConfig) -> list[int | None]:
    """Returns per split the largest size at which the weighted `blend` repeats no dataset, or None without data."""
    prefixes, weights = cast(Blend, config.blend)
    assert weights is not None
    shares = normalize(weights)
    unweighted = copy(config)
    unweighted.blend = prefixes, None
    sizes: list[int | None] = []
    for split in plan_build(unweighted, [None] * len(Split)).splits:
        if split is None:
            sizes.append(None)
            continue
        lengths = [dataset.num_samples_built for dataset in split.datasets]
        sizes.append(max(1, int(min(length / share for length, share in zip(lengths, shares, strict=True)))))
    return sizes
