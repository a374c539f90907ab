"""Batches of worker processes through memory that both sides map."""

from __future__ import annotations

import gc
import os
import pickle

import numpy as np
import pytest

from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.worker_slots import WorkerSlots

torch = pytest.importorskip("torch")

# Forking with threads about, which newer versions of Python warn of, is what torch does by default.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def sent(slots: WorkerSlots, batch, worker: int = 0):
    """Returns what arrives of a batch, and whether it came through a slot."""
    put = slots.put(worker, batch)
    return pickle.loads(pickle.dumps(put)), put is not batch


def test_a_batch_arrives_with_its_values_dtypes_and_shapes():
    slots = WorkerSlots(2, 3)
    batch = {
        "tokens": torch.arange(6).view(2, 3),
        "loss_mask": torch.tensor([[0.5, 1], [0, 2]]),
        "attention_mask": torch.ones((1, 1, 3, 3), dtype=torch.bool).tril().expand(2, 1, 3, 3),
        "halves": torch.tensor([1.5, 2], dtype=torch.bfloat16),
        "number": torch.tensor(7),
        "none": torch.empty((0, 4), dtype=torch.int32),
        "turned": torch.arange(6).view(2, 3).T,
    }
    for worker in (0, 1):
        found, is_in_slot = sent(slots, batch, worker)
        assert is_in_slot
        assert list(found) == list(batch)
        for name, tensor in batch.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            assert torch.equal(found[name], tensor)
        assert found["attention_mask"].stride(0) == 0
    found["tokens"][0, 0] = 5  # a batch is its owner's


@pytest.mark.parametrize(
    "batch",
    [
        [{"tokens": torch.zeros(2), "original_seq_len": torch.tensor(2)}],
        {"tokens": torch.zeros(2), "name": "text"},
        {"tokens": torch.zeros(2).to_sparse()},
        {"tokens": torch.zeros(2, requires_grad=True)},
        {"tokens": torch.nn.Parameter(torch.zeros(2))},
        {"tokens": torch.zeros(2000)},
        "text",
    ],
)
def test_anything_else_is_sent_as_it_is(batch):
    slots = WorkerSlots(1, 1, slot_bytes=4096)
    assert slots.put(0, batch) is batch


def test_a_slot_is_taken_as_long_as_anything_refers_to_its_tensors():
    slots = WorkerSlots(2, 2)
    first, _ = sent(slots, {"a": torch.tensor([1]), "b": torch.tensor([2])})
    second, _ = sent(slots, {"a": torch.tensor([3])})
    kept = {"a": torch.tensor([4])}
    assert slots.put(0, kept) is kept  # no slot is free
    assert sent(slots, kept, worker=1)[1]  # of another worker there is
    part = first.pop("b")[:1]
    del first
    gc.collect()
    assert slots.put(0, kept) is kept  # a view of one is left
    assert part.item() == 2
    del part
    third, is_in_slot = sent(slots, kept)
    assert is_in_slot
    assert (second["a"].item(), third["a"].item()) == (3, 4)


def test_a_process_that_was_forked_while_a_batch_was_there_frees_no_slot():
    slots = WorkerSlots(1, 1)
    batch = {"a": torch.tensor([1])}
    found, _ = sent(slots, batch)
    child = os.fork()
    if not child:
        del found
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert slots.put(0, batch) is batch
    del found
    assert slots.put(0, batch) is not batch


class Numbers:
    """Sample i is i, many times."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        if number == 63:
            message = "no such number"
            raise IndexError(message)
        return {"tokens": np.full(50, number), "half": np.float32(number / 2)}


POSITIONS = [[4 * number + each for each in range(4)] for number in range(15)]


def batches(**options) -> list[dict[str, torch.Tensor]]:
    return list(build_dataloader(Numbers(), POSITIONS, **options))


def same(first: list[dict[str, torch.Tensor]], second: list[dict[str, torch.Tensor]]) -> bool:
    return len(first) == len(second) and all(
        list(a) == list(b) and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.usefixtures("forkserver")
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_give_what_this_process_gives_though_all_batches_are_kept(context):
    kept = batches(num_workers=2, multiprocessing_context=context)
    assert same(kept, batches())


def test_an_error_in_a_worker_is_raised_here():
    loader = build_dataloader(Numbers(), [[0], [63]], num_workers=1)
    with pytest.raises(IndexError, match="no such number"):
        list(loader)
