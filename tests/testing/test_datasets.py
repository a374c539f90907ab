"""The conformance checks of datasets: tokenloom's datasets pass them, and every fault is found and named."""

from __future__ import annotations

import collections
from functools import partial

import numpy as np
import pytest
import torch
from tests.datasets.conversations import settings as chat_settings
from tests.datasets.kinds import KINDS, make_gpt

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.chat_config import VarlenDatasetConfig
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.conversations import MockVarlenDataset, MockVarlenLowLevelDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConformanceError, TokenloomError
from tokenloom.testing import check_dataset

LENGTHS_MATCH = "`lengths` and `padded_lengths` match the samples"
RETURNS_BATCHES = "`batch` returns the samples, stacked"
PACKED = {"inter_document_masking": True, "window_policy": "best_fit"}


def build(cls, prefix, config, num_samples=20):
    data = cls.build_low_level_dataset(prefix, config)
    indices = np.arange(cls.numel_low_level_dataset(data), dtype=np.int32)
    return cls(data, prefix, indices, num_samples, Split.train, config)


# --- tokenloom's datasets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, "packed"])
def test_our_datasets_conform(tmp_path, kind):
    cls, make = KINDS.get(kind, (GPTDataset, partial(make_gpt, **PACKED)))
    dataset = make(cls, tmp_path)
    report = check_dataset(dataset)
    assert (LENGTHS_MATCH in report.passed) == (kind == "varlen")
    if kind == "varlen":
        assert "different lengths" in report.skipped[RETURNS_BATCHES]
    else:
        assert RETURNS_BATCHES in report.passed
    if isinstance(dataset, GPTDataset) and kind not in ("mock", "multimodal", "fim"):
        assert report.skipped == {LENGTHS_MATCH: f"{cls.__name__} has no `lengths`"}
        assert len(report.passed) == 17
    blend = check_dataset(BlendedDataset([dataset, dataset], [0.7, 0.3], 10, dataset.config))
    assert (LENGTHS_MATCH in blend.passed) == (kind == "varlen")


def test_mock_conversations_conform(monkeypatch):
    monkeypatch.setattr(MockVarlenLowLevelDataset, "size", 1000)
    check_dataset(build(MockVarlenDataset, None, VarlenDatasetConfig(**chat_settings(None, sequence_length=64))))


# --- custom datasets --------------------------------------------------------------------------------------------------


class Rows:
    def __init__(self, count=20):
        self.rows = np.arange(4 * count, dtype=np.float32).reshape(count, 4)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, position):
        return {"row": self.rows[position], "number": position % len(self)}


Pair = collections.namedtuple("Pair", ["row", "number"])


class Tuples(Rows):
    def __getitem__(self, position):
        return Pair(*super().__getitem__(position).values())


class Words(Rows):
    def __getitem__(self, position):
        return {"text": "word " * (position % len(self) + 1 if self.rows[position].size else 0)}


class Lines(MegatronDataset):
    @staticmethod
    def build_low_level_dataset(dataset_path, config):
        return [f"line {number}" for number in range(5)]

    @staticmethod
    def numel_low_level_dataset(low_level_dataset):
        return len(low_level_dataset)

    def __len__(self):
        return self.num_samples

    def __getitem__(self, idx):
        return {"line": self.dataset[self.indices[range(len(self))[idx] % len(self.indices)]]}


def test_a_class_over_our_base_conforms_in_blends_too():
    config = BlendedMegatronDatasetConfig(random_seed=1, sequence_length=8, blend=(["text"], None), split="1")
    lines = build(Lines, "text", config, num_samples=13)
    report = check_dataset(lines)
    assert {"negative positions count from the end", "a blend returns the samples"} <= set(report.passed)
    report = check_dataset(BlendedDataset([lines, lines], [0.5, 0.5], 20, config))
    assert report.skipped["`spans` and `span_batch` agree and stay within documents"] == "Lines has no `spans`"


def test_two_methods_are_enough():
    report = check_dataset(Rows())
    assert [sentence for sentence in report.passed if "DataLoader" in sentence or "ThreadLoader" in sentence] == [
        "torch's DataLoader yields the samples",
        "ThreadLoader yields the samples",
    ]
    assert report.skipped["`sample` returns the sample as arrays"] == "Rows has no `sample`"
    assert str(report).splitlines()[:2] == ["Rows: 8 checks passed, 10 skipped", "  passed   the dataset has samples"]


def test_samples_may_be_tuples_texts_and_tensors():
    assert "worker processes yield the samples" in check_dataset(Tuples()).passed
    check_dataset(Words())
    tensors = torch.utils.data.TensorDataset(torch.arange(12).reshape(6, 2))
    report = check_dataset(tensors, num_samples=100, num_workers=0)
    assert report.skipped["worker processes yield the samples"] == "`num_workers` is 0"


def changed(base=Rows, **methods):
    return type("Changed", (base,), methods)()


def forgets(self, position):
    self.rows[position, 2] += 1
    return Rows.__getitem__(self, position)


def announced(self, positions):
    self.rows = np.sort(self.rows)[::-1]


def row_and_lengths(self, position):
    return {"row": self.rows[position], "original_seq_len": np.int32(4), "padded_seq_len": np.int32(8)}


class OtherCopies(Rows):
    def __setstate__(self, state):
        self.rows = state["rows"] * 2


LENGTHS = dict.fromkeys(("lengths", "padded_lengths"), lambda self, positions: np.full(len(positions), 4))
WRONG = [
    (Rows(0), "Rows fails the check that the dataset has samples: expected at least one sample, found 0"),
    (
        changed(__getitem__=forgets),
        "a sample is the same on every access: expected np.float32(79.0) as `dataset[19]['row'][2]`",
    ),
    (
        changed(__getitem__=lambda self, position: Rows.__getitem__(self, position % 20)),
        "expected `IndexError` from `dataset[20]` with 20 samples, found a sample",
    ),
    (
        changed(__getitem__=lambda self, position: Rows.__getitem__(self, abs(position))),
        "expected np.float32(76.0) as `dataset[-1]['row'][0]`, found np.float32(4.0)",
    ),
    (
        changed(sample=lambda self, position: {"row": self.rows[position]}),
        "expected ['row', 'number'] in `dataset.sample(0)`, found ['row']",
    ),
    (
        changed(batch=lambda self, k: {"row": self.rows[np.asarray(k)], "number": np.asarray(k, dtype=np.int32)}),
        "expected int64[9] as `dataset.batch(positions)['number']`, found int32[9]",
    ),
    (
        changed(batch=lambda self, k: {"row": self.rows[: len(k)], "number": np.asarray(k)}),
        "as `dataset.batch(positions)['row'][0, 0]`, found np.float32(0.0)",
    ),
    (
        changed(__getitems__=lambda self, positions: [self[position] for position in sorted(positions)]),
        "as `dataset.__getitems__(positions)[0]['row'][0]`, found np.float32(0.0)",
    ),
    (
        changed(__getitem__=row_and_lengths, **LENGTHS),
        "expected np.int64(8) as `dataset.padded_lengths(positions)[0]`, found np.int64(4)",
    ),
    (changed(will_need=announced), "`will_need` does not change samples: expected"),
    (OtherCopies(), "a pickled copy returns the samples: expected np.float32(1.0)"),
]


@pytest.mark.parametrize(("dataset", "message"), WRONG)
def test_faults_are_named(dataset, message):
    with pytest.raises(ConformanceError) as raised:
        check_dataset(dataset)
    assert message in str(raised.value)
    assert isinstance(raised.value, (AssertionError, TokenloomError))


class Unfilled(GPTDataset):
    def __getitem__(self, position):
        return super().__getitem__(position)

    def batch(self, positions, *, out=None):
        found = super().batch(positions)
        return found if out is None else out


def test_out_arrays_must_be_filled(tmp_path):
    with pytest.raises(ConformanceError, match=r"fills the arrays `out`: expected .* as `dataset.batch\(positions"):
        check_dataset(make_gpt(Unfilled, tmp_path))


def test_errors_of_a_dataset_name_the_check():
    broken = changed(batch=lambda self, positions: {}["tokens"])
    with pytest.raises(KeyError) as raised:
        check_dataset(broken)
    assert raised.value.__notes__ == ["raised by the check of Changed that `batch` returns the samples, stacked"]


def test_a_dataset_that_cannot_be_pickled():
    assert "it cannot be pickled" in check_dataset(changed()).skipped["a pickled copy returns the samples"]
