"""A third-party order defined in this file: documents in file order, without shuffles, caches or indices."""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support import assert_same, make_config, write_corpus

from tokenloom import BlendedDataset, BlendedMegatronDatasetBuilder, GPTDataset
from tokenloom.errors import ConfigError
from tokenloom.order import policies
from tokenloom.order.array_store import ArrayStore
from tokenloom.order.documents import Documents
from tokenloom.order.epochs import EpochPlan, Epochs, WindowEpochs
from tokenloom.order.policies import SampleShape, policy_of, register_policy
from tokenloom.order.protocols import BlendOrder, SpanOrder
from tokenloom.order.windows import SpanBatch


@dataclass(frozen=True)
class FileOrder:
    """Windows over the documents in file order, repeated for every epoch."""

    documents: Documents
    num_samples: int
    length: int
    extra: int
    identity: str = "file order"
    is_built: bool = True

    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        rows, lengths = self.documents.rows.array(), np.concatenate([*self.documents.length_blocks()]).astype(np.int64)
        ends, spans, offsets = np.cumsum(lengths), [], [0]
        for position in positions.tolist():
            begin = position * self.length
            stop = begin + self.length + self.extra
            while begin < stop:
                token = begin % int(ends[-1])
                row = int(np.searchsorted(ends, token, side="right"))
                taken = min(int(ends[row]) - token, stop - begin)
                spans.append((rows[row], lengths[row] - (ends[row] - token), taken))
                begin += taken
            offsets.append(len(spans))
        columns = np.array(spans, dtype=np.int64).reshape(-1, 3)
        return SpanBatch(*(np.ascontiguousarray(column) for column in columns.T), np.array(offsets))

    def native_reader(self) -> None:
        return None

    def check(self) -> None:
        """Nothing is stored."""

    def verify(self) -> list[str]:
        return []


@dataclass(frozen=True)
class FilePolicy:
    shape: SampleShape

    def epochs(self, num_tokens: int, lengths: Iterable[NDArray[np.int32]]) -> WindowEpochs:
        length, extra = self.shape.sequence_length, self.shape.extra
        return WindowEpochs(num_tokens=num_tokens, sequence_length=length, extra=extra, keep_partial=False)

    def order(
        self, documents: Documents, epochs: Epochs, plan: EpochPlan, *, seed: int, store: ArrayStore
    ) -> FileOrder:
        return FileOrder(documents, plan.num_samples, self.shape.sequence_length, self.shape.extra)


DOCUMENTS = [[1, 2, 3, 9], [4, 5, 6, 7, 8, 9], [], [10, 11, 9], [12] * 7]
STREAM = [token for document in DOCUMENTS for token in document] * 9


@pytest.fixture(autouse=True, scope="module")
def registered():
    register_policy("file", FilePolicy)
    yield
    del policies._POLICIES["file"]  # other tests expect only the built-in policies


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", DOCUMENTS)


def build(*prefixes: str, **settings: Any) -> GPTDataset | BlendedDataset:
    weights = [1.0] * len(prefixes) if len(prefixes) > 1 else None
    given = {"blend": (list(prefixes), weights), "split": "1", "sequence_length": 4, "window_policy": "file"}
    config = make_config(None, **given | settings)
    return BlendedMegatronDatasetBuilder(GPTDataset, [30, 0, 0], lambda: True, config).build()[0]


def expected(position: int) -> list[int]:
    return STREAM[4 * position : 4 * position + 5]


@pytest.mark.parametrize("mmap", [True, False])
def test_it_drives_a_dataset(prefix, mmap):
    dataset = build(prefix, mmap_bin_files=mmap)
    assert isinstance(dataset.order, SpanOrder)
    assert len(dataset) == dataset.order.num_samples == 34  # all samples of the epochs that 30 samples need
    for k in (0, 7, 29, -1):
        row = expected(k % 34)
        assert (dataset[k]["tokens"].tolist(), dataset[k]["labels"].tolist()) == (row[:4], row[1:])
        assert dataset.spans(k).num_tokens == 5
    batch = dataset.batch([3, 1, None])
    assert batch["tokens"][:2].tolist() == [expected(3)[:4], expected(1)[:4]]
    assert not batch["loss_mask"][2].any()
    assert_same([dataset[k] for k in range(30)], [pickle.loads(pickle.dumps(dataset))[k] for k in range(30)])
    assert dataset.verify_indices() == []
    with pytest.raises(ConfigError, match="has no document_index: its `window_policy` is 'file'"):
        _ = dataset.document_index


def test_a_blend_takes_any_order_of_its_samples(prefix, tmp_path):
    class RoundRobin:
        num_samples, identity, is_built = 20, "round robin", True

        def locate(self, positions):
            return positions % 2, positions // 2

        def locate_one(self, position):
            return position % 2, position // 2

        def check(self):
            """Nothing is stored."""

        def verify(self):
            return []

    other = write_corpus(tmp_path / "other", [[20, 21, 22, 23, 24, 9]] * 5)
    members = build(prefix, other).datasets
    assert isinstance(RoundRobin(), BlendOrder)
    blend = BlendedDataset(members, [0.5, 0.5], 20, members[0].config, order=RoundRobin())
    assert [int(blend[k]["dataset_id"]) for k in range(4)] == [0, 1, 0, 1]
    assert blend.batch(range(20))["tokens"].tolist() == [members[k % 2][k // 2]["tokens"].tolist() for k in range(20)]
    assert blend[-1]["tokens"].tolist() == members[1][9]["tokens"].tolist()
    assert blend.dataset_sample_index.tolist() == [k // 2 for k in range(20)]
    assert blend.verify_indices() == []


def test_names_keep_their_meaning():
    assert register_policy("file", FilePolicy) is None  # registering the same class again is allowed
    with pytest.raises(ConfigError, match="policy 'concat' is already registered"):
        register_policy("concat", FilePolicy)
    with pytest.raises(ConfigError, match=r"`window_policy` must be one of 'concat', 'best_fit'.*, got 'none'"):
        policy_of("none", SampleShape(sequence_length=4, extra=1))
