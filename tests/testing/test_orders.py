"""The conformance checks of orders: tokenloom's orders pass them, and every fault is found and named."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support import make_dataset, write_corpus

from tokenloom.blending.blended import BlendedDataset
from tokenloom.errors import ConformanceError
from tokenloom.order.block_shuffle import BlockShuffle
from tokenloom.order.windows import SpanBatch
from tokenloom.testing import check_order

BLOCKS = {"block_shuffle": BlockShuffle(block_bytes=4096)}


@pytest.fixture
def prefix(tmp_path, rng):
    lengths = rng.integers(0, 30, size=60)
    return write_corpus(tmp_path / "text", [rng.integers(0, 90, size=length) for length in lengths])


# --- tokenloom's orders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "in_memory"),
    [
        ({}, True),
        ({}, False),
        ({"window_policy": "best_fit"}, True),
        ({"window_policy": "best_fit"}, False),
        (BLOCKS, False),
    ],
)
def test_orders_of_documents_conform(prefix, settings, in_memory):
    dataset = make_dataset(prefix, num_samples=150, sequence_length=8, in_memory=in_memory, **settings)
    report = check_order(dataset.order, lengths=dataset.dataset.sequence_lengths)
    assert "`native_reader` returns the spans of `spans`" in report.passed
    assert report.skipped == dict.fromkeys(
        ("`locate` returns samples that exist", "`locate_one` agrees with `locate`"),
        f"{type(dataset.order).__name__} has no `locate`",
    )


def test_orders_of_blends_conform(prefix, tmp_path):
    members = [make_dataset(prefix, num_samples=count, sequence_length=8) for count in (100, 40)]
    config = dataclasses.replace(members[0].config, path_to_cache=str(tmp_path / "cache"))
    for where in (members[0].config, config):
        blend = BlendedDataset(members, [0.7, 0.3], 90, where)
        report = check_order(blend.order, sizes=[len(member) for member in members])
        assert "`locate_one` agrees with `locate`" in report.passed


# --- custom orders ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class InFileOrder:
    num_samples: int = 10
    identity: str = "in file order"
    is_built: bool = True

    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        ones = np.ones(len(positions), dtype=np.int64)
        return SpanBatch(positions, ones, 2 * ones, np.arange(len(positions) + 1))

    def native_reader(self) -> None:
        return None

    def check(self) -> None:
        """Nothing is stored."""

    def verify(self) -> list[str]:
        return []


@dataclasses.dataclass
class RoundRobin:
    num_samples: int = 10
    identity: str = "in turns"
    is_built: bool = True

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return positions % 2, positions // 2

    def locate_one(self, position: int) -> tuple[int, int]:
        return position % 2, position // 2

    def check(self) -> None:
        """Nothing is stored."""

    def verify(self) -> list[str]:
        return []


def test_a_minimal_order_conforms():
    report = check_order(InFileOrder(), lengths=[4] * 10)
    assert len(report.passed) == 8
    assert report.skipped["`native_reader` returns the spans of `spans`"] == "`native_reader()` is None"
    assert len(check_order(RoundRobin(), sizes=[5, 5]).passed) == 8


def changed(base=InFileOrder, **methods):
    return type("Changed", (base,), methods)()


def restless(self, positions, *, keep_empty):
    self.num_asked = getattr(self, "num_asked", 0) + 1
    return InFileOrder.spans(self, (positions + self.num_asked) % 10, keep_empty=keep_empty)


def renamed(self, positions, *, keep_empty):
    self.identity = "read"
    return InFileOrder.spans(self, positions, keep_empty=keep_empty)


def other_spans(**columns):
    """Returns an order whose spans have other columns, each a function of spans, positions and `keep_empty`."""

    def spans(self, positions, *, keep_empty):
        found = InFileOrder.spans(self, positions, keep_empty=keep_empty)
        return dataclasses.replace(found, **{name: of(found, positions, keep_empty) for name, of in columns.items()})

    return changed(spans=spans)


class Nameless(InFileOrder):
    def __getstate__(self):
        return {**self.__dict__, "identity": f"copy of {self.identity}"}


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (InFileOrder(num_samples=0), "InFileOrder fails the check that the order has samples: expected at least one"),
        (
            types.SimpleNamespace(num_samples=3, is_built=True),
            "expected the methods of `SpanOrder` or `BlendOrder`",
        ),
        (changed(spans=restless), "a sample does not depend on the other positions of a call: expected"),
        (
            changed(spans=lambda self, k, *, keep_empty: InFileOrder.spans(self, np.sort(k), keep_empty=keep_empty)),
            "as `sample 9, in another order[0][0]`, found",
        ),
        (changed(spans=renamed), "expected 'in file order' as `identity` after reading, found read"),
        (
            other_spans(lengths=lambda spans, positions, _: spans.lengths * (positions != 3)),
            "expected only spans with tokens without `keep_empty`, found 0",
        ),
        (
            other_spans(starts=lambda spans, _, keep_empty: spans.starts - keep_empty),
            "tokens of spans([0], keep_empty=True)[0]['starts'][0]`, found np.int64(0)",
        ),
        (
            other_spans(starts=lambda spans, *_: spans.starts.astype(np.int32)),
            "expected int64 as `spans(…).starts`, found int32",
        ),
        (InFileOrder(num_samples=11), "expected sequences below 10, found [10]"),
        (Nameless(), "as `identity of a pickled copy`"),
        (
            changed(verify=lambda self: ["sample 3 differs"]),
            "`verify` finds no differences: expected no differences from `verify()`, found ['sample 3 differs']",
        ),
        (
            changed(RoundRobin, locate_one=lambda self, k: (k % 2, k // 2 + 1)),
            "as `locate_one(0)[1]`, found np.int64(1)",
        ),
        (RoundRobin(num_samples=11), "samples of datasets with [5, 5] samples, found sample 5 of dataset 0"),
    ],
)
def test_faults_are_named(order, message):
    with pytest.raises(ConformanceError) as raised:
        check_order(order, lengths=[4] * 10, sizes=[5, 5])
    assert message in str(raised.value)


def test_spans_end_with_their_sequence():
    with pytest.raises(ConformanceError, match=r"found tokens \[1, 3\) of sequence 7"):
        check_order(InFileOrder(), lengths=[4] * 7 + [2] * 3)
