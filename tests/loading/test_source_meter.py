"""Sums per source: those of a count over the dataset, whatever ranks, packs and slices."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from tests.packing.items import sub_sample
from tests.run.folders import make_run
from tests.support import make_dataset, write_corpus
from torch.utils._python_dispatch import TorchDispatchMode

from tokenloom.blending.blended import BlendedDataset
from tokenloom.errors import ConfigError
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.source_meter import SourceMeter
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.packing.batch import build_packed_microbatches, get_batch_on_this_rank_for_sequence_packing
from tokenloom.packing.context_parallel import context_parallel_indices


def batch_of(sources, mask, **more):
    return {"dataset_id": torch.tensor(sources), "loss_mask": torch.tensor(mask, dtype=torch.float32), **more}


def rows(report):
    return {one.name: (one.tokens, one.slots, one.samples) for one in report.sources}


def losses(report):
    return [one.loss for one in report.sources]


def counted(dataset, positions):
    """Returns tokens with loss, slots, samples and the sum of labels with loss, per source, one sample at a time."""
    sums = {}
    for position in positions:
        sample = dataset[position]
        mask = np.asarray(sample["loss_mask"])
        labels = float((np.asarray(sample["labels"]) * mask).sum())
        own = sums.setdefault(int(sample["dataset_id"]), Counter())
        own.update(tokens=int((mask > 0).sum()), slots=len(mask), samples=1, labels=labels)
    return sums


def check(report, expected):
    for number, one in enumerate(report.sources):
        own = expected.get(number, Counter())
        assert (one.tokens, one.slots, one.samples) == (own["tokens"], own["slots"], own["samples"])
        assert one.loss == pytest.approx(own["labels"] / own["tokens"], rel=1e-12)


# --- whole samples --------------------------------------------------------------------------------------------------


def test_losses_are_means_over_tokens_with_loss():
    meter = SourceMeter(["web", "code"])
    meter.update(batch_of([0, 1], [[1, 1], [0, 1]]), torch.tensor([[1.0, 3.0], [100.0, 5.0]]))
    meter.update(batch_of([0], [[1, 0]]), torch.tensor([[8.0, 7.0]]))
    report = meter.reduce(step=7)
    assert report.step == 7
    assert rows(report) == {"web": (3, 4, 2), "code": (1, 2, 1)}
    assert losses(report) == [4.0, 5.0]


def test_weights_of_the_mask_weigh():
    meter = SourceMeter(["web"])
    meter.update({"loss_mask": torch.tensor([[1.0, 0.5, 0.0]])}, torch.tensor([[1.0, 4.0, 9.0]]))
    (web,) = meter.reduce().sources
    assert (web.loss, web.tokens, web.slots) == (2.0, 2, 3)


def test_each_report_begins_anew_and_totals_go_on():
    meter = SourceMeter(["web", "code"])
    for _ in range(2):
        meter.update(batch_of([0], [[1, 1]]), torch.ones(1, 2))
        report = meter.reduce()
    assert [(one.tokens, one.total_tokens, one.total_samples) for one in report.sources] == [(2, 4, 2), (0, 0, 0)]
    assert math.isnan(report.sources[1].loss)
    assert [one.total_slots for one in meter.reduce().sources] == [4, 0]


def test_what_is_no_number_is_seen_in_its_source_only():
    meter = SourceMeter(["web", "code", "books"])
    loss = torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [float("inf"), 3.0]])
    meter.update(batch_of([0, 1, 2], [[1, 1], [1, 1], [0, 1]]), loss)
    found = losses(meter.reduce())
    assert (found[0], found[2]) == (1.5, 3.0)
    assert math.isnan(found[1])


def test_losses_keep_no_graph_and_any_dtype():
    weights = torch.ones(2, requires_grad=True)
    meter = SourceMeter(["web"])
    meter.update({"loss_mask": torch.ones(1, 2, dtype=torch.bool)}, (weights * 3).bfloat16()[None])
    assert not meter._sums.requires_grad
    assert losses(meter.reduce()) == [3.0]


def test_slices_of_context_parallel_ranks_add_up(rng):
    mask = torch.from_numpy((rng.random((3, 8)) < 0.7).astype(np.float32))
    mask[:2, int(rng.integers(8))] = 1  # a source without any has no loss
    loss, sources = torch.from_numpy(rng.random((3, 8))), [1, 0, 1]
    whole, sliced = SourceMeter(["web", "code"]), SourceMeter(["web", "code"])
    whole.update({"dataset_id": torch.tensor(sources), "loss_mask": mask}, loss)
    for part in (slice(0, 2), slice(6, 8)), (slice(2, 4), slice(4, 6)):
        own = [torch.cat([one[:, place] for place in part], dim=1) for one in (mask, loss)]
        batch = {"dataset_id": torch.tensor(sources), "loss_mask": own[0]}
        sliced.update(batch, own[1], context_parallel_size=2)
    expected, found = whole.reduce(), sliced.reduce()
    assert rows(found) == rows(expected)
    assert losses(found) == pytest.approx(losses(expected), rel=1e-12)


# --- blends and runs ------------------------------------------------------------------------------------------------


def test_sums_of_a_blend_are_those_of_its_samples(tmp_path, rng):
    datasets = []
    for number in range(2):
        lengths = rng.integers(1, 30, size=30)
        documents = [[*rng.integers(10, 90, size=length), 9] for length in lengths]
        prefix = write_corpus(tmp_path / f"data{number}", documents)
        datasets.append(make_dataset(prefix, num_samples=20, sequence_length=8, eod_mask_loss=True))
    blend = BlendedDataset(datasets, [0.7, 0.3], 24, datasets[0].config)
    meter = SourceMeter(["web", "code"])
    for batch in ThreadLoader(blend, MegatronPretrainingSampler(24, 0, 4, 0, 1)):
        meter.update(batch, batch["labels"].float())
    check(meter.reduce(), counted(blend, range(24)))


def test_sums_of_a_run_are_those_of_its_samples_with_passes(tmp_path):
    run = make_run(tmp_path)
    dataset = run.dataset()
    meter = SourceMeter([source.name for source in run.lock.sources], run=run)
    samplers = [MegatronPretrainingSampler(len(dataset), 0, 5, rank, 2) for rank in range(2)]
    loaders = [ThreadLoader(dataset, sampler, count=True) for sampler in samplers]
    for loader in loaders:
        for batch in loader:
            meter.update(batch, batch["labels"].double())
    report = meter.reduce(consumed_samples=600)
    for number, one in enumerate(report.sources):
        counts = loaders[0].counts()[number] + loaders[1].counts()[number]
        assert (one.samples, one.slots, one.tokens) == (counts.samples, counts.slots, counts.with_loss)
    check(report, counted(dataset, range(600)))
    assert [one.passes for one in report.sources] == [*run.passes(600).values()]
    assert min(one.passes for one in report.sources) > 0
    assert {one.passes for one in meter.reduce().sources} == {None}


# --- packs ----------------------------------------------------------------------------------------------------------


def packs_of(rng, cp_size, *, num_packs=3):
    """Returns packs of sub-samples of three sources, one of which does not say, and what their sums are."""
    sums, grouped = {}, []
    for number in range(num_packs):
        grouped.append([])
        for place in range(int(rng.integers(1, 6))):
            length = int(rng.integers(1, 12))
            one = sub_sample(10 * number + place, length, -(-length // (2 * cp_size)) * 2 * cp_size)
            source = int(rng.integers(0, 3 if place else 2))  # of a pack that says nothing, nothing can be told
            own = sums.setdefault(source, Counter())
            labels = float((one["labels"] * one["loss_mask"].double()).sum())
            tokens = int((one["loss_mask"] > 0).sum())
            own.update(tokens=tokens, slots=one["padded_seq_len"], samples=1, labels=labels)
            own["weight"] += float(one["loss_mask"].sum())
            grouped[-1].append(one | ({} if source == 2 else {"dataset_id": source}))
    return build_packed_microbatches(grouped, "cpu"), sums


def check_packs(report, sums):
    expected = {name: sums[number] for number, name in enumerate(["web", "code", "unknown source"]) if number in sums}
    for one in report.sources:
        own = expected.get(one.name, Counter())
        assert (one.tokens, one.slots, one.samples) == (own["tokens"], own["slots"], own["samples"])
        assert not own["tokens"] or one.loss == pytest.approx(own["labels"] / own["weight"], rel=1e-9)


@pytest.mark.parametrize("cp_size", [1, 2, 4])
def test_sums_of_packs_are_those_of_their_sub_samples(rng, cp_size):
    packs, sums = packs_of(rng, cp_size)
    meter = SourceMeter(["web", "code"])
    for pack in packs:
        for rank in range(cp_size):
            own = context_parallel_indices(pack["cu_seqlens_padded"], cp_size=cp_size, cp_rank=rank)
            part = pack | {"loss_mask": pack["loss_mask"][own]}
            meter.update(part, pack["labels"][own].double()[None])
    check_packs(meter.reduce(), sums)


def test_packs_are_taken_as_training_gets_them(rng):
    packs, sums = packs_of(rng, 1)
    meter = SourceMeter(["web", "code"])
    iterator = iter(packs)
    for _ in packs:
        batch = get_batch_on_this_rank_for_sequence_packing(iterator)
        meter.update(batch, batch[1].double())
    check_packs(meter.reduce(), sums)


def test_what_is_no_number_stays_in_its_sub_sample():
    samples = [sub_sample(number, 3, 4) | {"dataset_id": number} for number in range(2)]
    (pack,) = build_packed_microbatches([samples], "cpu")
    loss = torch.ones(8)
    loss[1] = float("nan")
    meter = SourceMeter(["web", "code"])
    pack["loss_mask"] = torch.tensor([1.0, 1, 1, 0, 1, 1, 1, 0])
    meter.update(pack, loss)
    found = losses(meter.reduce())
    assert math.isnan(found[0])
    assert found[1] == 1.0


class NoWaiting(TorchDispatchMode):
    """Refuses what would have to wait for a device: numbers for Python, and shapes that depend on them."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        waits = ("_local_scalar_dense", "nonzero", "repeat_interleave", "masked_select", "unique", "equal")
        assert not any(name in str(function) for name in waits), function
        return function(*args, **(kwargs or {}))


def test_updates_wait_for_no_device(rng):
    (pack,), _ = packs_of(rng, 1, num_packs=1)
    meter = SourceMeter(["web", "code"])
    pack["dataset_ids"] = torch.zeros(len(pack["cu_seqlens"]) - 1, dtype=torch.int64)
    with NoWaiting():
        meter.update(batch_of([0, 1], [[1, 1], [0, 1]]), torch.ones(2, 2))
        meter.update(pack, pack["labels"].double())
    assert meter.reduce().sources[0].tokens > 0


# --- the rest -------------------------------------------------------------------------------------------------------


def test_numbers_without_a_name_are_told():
    meter = SourceMeter(["web"])
    meter.update(batch_of([0, 1, -1, 900], [[1]] * 4), torch.ones(4, 1))
    assert rows(meter.reduce()) == {"web": (1, 1, 1), "unknown source": (3, 3, 3)}


def test_a_single_sample_is_a_batch_of_one():
    meter = SourceMeter(["web", "code"])
    meter.update(batch_of(1, [1, 1, 0]), torch.ones(3))
    assert rows(meter.reduce()) == {"web": (0, 0, 0), "code": (2, 3, 1)}


def test_hooks_are_called_with_each_report():
    reports = []
    meter = SourceMeter(["web"], hooks=[reports.append])
    assert [meter.reduce(step=1), meter.reduce(step=2)] == reports


def test_totals_go_on_from_a_state():
    meter, other = SourceMeter(["web"]), SourceMeter(["web", "code"])
    meter.update({"loss_mask": torch.ones(2, 3)}, torch.ones(2, 3))
    meter.reduce()
    other.load_state_dict(meter.state_dict())
    assert [one.total_tokens for one in other.reduce().sources] == [6, 0]
    assert other.state_dict()["samples"] == [2, 0, 0]
    with pytest.raises(ConfigError, match=r"expected the state of a meter of the sources \('web',\), found one of"):
        meter.load_state_dict(other.state_dict())
    with pytest.raises(ConfigError, match="expected the state of a SourceMeter, version 1, found"):
        meter.load_state_dict({})


@pytest.mark.parametrize(
    ("batch", "loss", "message"),
    [
        ({"loss_mask": torch.ones(2, 3)}, torch.ones(2, 3), "expected a batch that names its sources, found none"),
        (batch_of([0, 1], [[1, 1]] * 2), torch.ones(2), r"of the shape of the loss mask, \[2, 2\], found \[2\]"),
        (batch_of([0, 1], [[1, 1]] * 2), torch.tensor(1.0), r"found \[\]\nhint: give the loss of each token"),
        (batch_of([0, 1, 1], [[1, 1]] * 2), torch.ones(2, 2), "expected the sources of 2 samples, found 3"),
        ({"tokens": torch.ones(2)}, torch.ones(2), "expected a `loss_mask` in a batch, found none"),
    ],
)  # fmt: skip
def test_wrong_batches_are_told(batch, loss, message):
    with pytest.raises(ConfigError, match=message):
        SourceMeter(["web", "code"]).update(batch, loss)


def test_a_meter_needs_names():
    with pytest.raises(ConfigError, match="expected the names of sources, found none"):
        SourceMeter([])
