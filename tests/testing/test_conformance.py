"""The conformance checks of datasets, orders and object store clients: ours pass them, and every fault is named."""

import collections
import dataclasses
import hashlib
import json
import types
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.datasets.conversations import settings as chat_settings
from tests.datasets.kinds import KINDS, make_gpt
from tests.object_store.server import ACCESS_KEY, REGION, SECRET_KEY
from tests.support import make_dataset, write_corpus

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.chat_config import VarlenDatasetConfig
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.conversations import MockVarlenDataset, MockVarlenLowLevelDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConformanceError, TokenloomError, UnavailableError
from tokenloom.order.block_shuffle import BlockShuffle
from tokenloom.order.windows import SpanBatch
from tokenloom.storage.addresses import ObjectVersion, make_client, missing, parse_address
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.stores import replaced
from tokenloom.testing import check_dataset, check_order, check_store

LENGTHS_MATCH = "`lengths` and `padded_lengths` match the samples"
RETURNS_BATCHES = "`batch` returns the samples, stacked"
PACKED = {"inter_document_masking": True, "window_policy": "best_fit"}


def build(cls, prefix, config, num_samples=20):
    data = cls.build_low_level_dataset(prefix, config)
    indices = np.arange(cls.numel_low_level_dataset(data), dtype=np.int32)
    return cls(data, prefix, indices, num_samples, Split.train, config)


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
    assert report.skipped["`spans` and `span_batch` return equal spans within documents"] == "Lines has no `spans`"


def test_two_methods_are_enough():
    report = check_dataset(Rows())
    loaders = [f"{name} yields the samples" for name in ("torch's DataLoader", "ThreadLoader")]
    assert [sentence for sentence in report.passed if "DataLoader" in sentence or "ThreadLoader" in sentence] == loaders
    assert report.skipped["`sample` returns the sample as arrays"] == "Rows has no `sample`"
    assert str(report).splitlines()[:2] == ["Rows: 8 checks passed, 10 skipped", "  passed   the dataset has samples"]


def test_samples_may_be_tuples_texts_and_tensors():
    assert "worker processes yield the samples" in check_dataset(Tuples()).passed
    check_dataset(Words())
    tensors = torch.utils.data.TensorDataset(torch.arange(12).reshape(6, 2))
    report = check_dataset(tensors, num_samples=100, num_workers=0)
    assert report.skipped["worker processes yield the samples"] == "`num_workers` is 0"
    assert "the object cannot be pickled" in check_dataset(rows()).skipped["a pickled copy returns the samples"]


def changed(base, **methods):
    return type("Changed", (base,), methods)()


rows = partial(changed, Rows)
item = Rows.__getitem__


def forgets(self, position):
    self.rows[position, 2] += 1
    return item(self, position)


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
    (rows(__getitem__=forgets), "is the same on every access: expected np.float32(79.0) as `dataset[19]['row'][2]`"),
    (
        rows(__getitem__=lambda self, k: item(self, k % 20)),
        "`IndexError` from `dataset[20]` with 20 samples, found a sample",
    ),
    (
        rows(__getitem__=lambda self, k: item(self, abs(k))),
        "expected np.float32(76.0) as `dataset[-1]['row'][0]`, found np.float32(4.0)",
    ),
    (
        rows(sample=lambda self, k: {"row": self.rows[k]}),
        "expected names ['row', 'number'] in `dataset.sample(0)`, found ['row']",
    ),
    (
        rows(batch=lambda self, k: {"row": self.rows[np.asarray(k)], "number": np.asarray(k, dtype=np.int32)}),
        "expected int64[9] as `dataset.batch(positions)['number']`, found int32[9]",
    ),
    (
        rows(batch=lambda self, k: {"row": self.rows[: len(k)], "number": np.asarray(k)}),
        "as `dataset.batch(positions)['row'][0, 0]`, found np.float32(0.0)",
    ),
    (
        rows(__getitems__=lambda self, positions: [self[position] for position in sorted(positions)]),
        "as `dataset.__getitems__(positions)[0]['row'][0]`, found np.float32(0.0)",
    ),
    (
        rows(__getitem__=row_and_lengths, **LENGTHS),
        "expected np.int64(8) as `dataset.padded_lengths(positions)[0]`, found np.int64(4)",
    ),
    (rows(will_need=announced), "`will_need` does not change samples: expected"),
    (OtherCopies(), "a pickled copy returns the samples: expected np.float32(1.0)"),
]


@pytest.mark.parametrize(("dataset", "message"), WRONG)
def test_faults_of_datasets_are_named(dataset, message):
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
    with pytest.raises(ConformanceError, match=r"passed as `out`: expected .* as `dataset.batch\(positions"):
        check_dataset(make_gpt(Unfilled, tmp_path))


def test_errors_of_a_dataset_name_the_check():
    broken = rows(batch=lambda self, positions: {}["tokens"])
    with pytest.raises(KeyError) as raised:
        check_dataset(broken)
    assert raised.value.__notes__ == ["raised by the check of Changed that `batch` returns the samples, stacked"]


BLOCKS = {"block_shuffle": BlockShuffle(block_bytes=4096)}
BEST_FIT = {"window_policy": "best_fit"}


@pytest.fixture
def prefix(tmp_path, rng):
    lengths = rng.integers(0, 30, size=60)
    return write_corpus(tmp_path / "text", [rng.integers(0, 90, size=length) for length in lengths])


@pytest.mark.parametrize(
    ("settings", "in_memory"), [({}, True), ({}, False), (BEST_FIT, True), (BEST_FIT, False), (BLOCKS, False)]
)
def test_orders_of_documents_conform(prefix, settings, in_memory):
    dataset = make_dataset(prefix, num_samples=150, sequence_length=8, in_memory=in_memory, **settings)
    report = check_order(dataset.order, lengths=dataset.dataset.sequence_lengths)
    assert "`native_reader` returns the same spans as `spans`" in report.passed
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


@dataclasses.dataclass
class OwnOrder:
    num_samples: int = 10
    identity: str = "in file order"
    is_built: bool = True

    def check(self) -> None:
        """Nothing is stored."""

    def verify(self) -> list[str]:
        return []


class InFileOrder(OwnOrder):
    def spans(self, positions: NDArray[np.int64], *, keep_empty: bool) -> SpanBatch:
        ones = np.ones(len(positions), dtype=np.int64)
        return SpanBatch(positions, ones, 2 * ones, np.arange(len(positions) + 1))

    def native_reader(self) -> None:
        return None


in_order = partial(changed, InFileOrder)


class RoundRobin(OwnOrder):
    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return positions % 2, positions // 2

    def locate_one(self, position: int) -> tuple[int, int]:
        return position % 2, position // 2


def test_a_minimal_order_conforms():
    report = check_order(InFileOrder(), lengths=[4] * 10)
    assert len(report.passed) == 8
    assert report.skipped["`native_reader` returns the same spans as `spans`"] == "`native_reader()` is None"
    assert len(check_order(RoundRobin(), sizes=[5, 5]).passed) == 8


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

    return in_order(spans=spans)


class Nameless(InFileOrder):
    def __getstate__(self):
        return {**self.__dict__, "identity": f"copy of {self.identity}"}


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (InFileOrder(num_samples=0), "InFileOrder fails the check that the order has samples: expected at least one"),
        (types.SimpleNamespace(num_samples=3, is_built=True), "expected the methods of `SpanOrder` or `BlendOrder`"),
        (in_order(spans=restless), "a sample does not depend on the other positions of a call: expected"),
        (
            in_order(spans=lambda self, k, *, keep_empty: InFileOrder.spans(self, np.sort(k), keep_empty=keep_empty)),
            "as `sample 9, read in another order[0][0]`, found",
        ),
        (in_order(spans=renamed), "expected 'in file order' as `identity` after reading, found read"),
        (
            other_spans(lengths=lambda spans, positions, _: spans.lengths * (positions != 3)),
            "expected lengths above 0 with `keep_empty=False`, found 0",
        ),
        (
            other_spans(starts=lambda spans, _, keep_empty: spans.starts - keep_empty),
            "nonempty spans of spans([0], keep_empty=True)[0]['starts'][0]`, found np.int64(0)",
        ),
        (
            other_spans(starts=lambda spans, *_: spans.starts.astype(np.int32)),
            "expected int64 as `spans(…).starts`, found int32",
        ),
        (InFileOrder(num_samples=11), "expected sequence indices below 10, found [10]"),
        (Nameless(), "as `identity of a pickled copy`"),
        (
            in_order(verify=lambda self: ["sample 3 differs"]),
            "`verify` finds no differences: expected an empty list from `verify()`, found ['sample 3 differs']",
        ),
        (
            changed(RoundRobin, locate_one=lambda self, k: (k % 2, k // 2 + 1)),
            "as `locate_one(0)[1]`, found np.int64(1)",
        ),
        (RoundRobin(num_samples=11), "samples that exist in datasets of [5, 5] samples, found sample 5 of dataset 0"),
    ],
)
def test_faults_of_orders_are_named(order, message):
    with pytest.raises(ConformanceError) as raised:
        check_order(order, lengths=[4] * 10, sizes=[5, 5])
    assert message in str(raised.value)
    with pytest.raises(ConformanceError, match=r"found tokens \[1, 3\) of sequence 7"):
        check_order(InFileOrder(), lengths=[4] * 7 + [2] * 3)


ALL = 12


def test_object_stores_conform(bucket):
    client = make_client(parse_address(bucket.url("any")), ObjectStorageSettings())
    report = check_store(client, bucket.url("folder"))
    assert len(report.passed) == ALL
    assert report.skipped == {}
    assert bucket.keys() == []


@pytest.mark.slow
def test_profiles_conform(bucket, tmp_path, monkeypatch):
    options = {"base_path": bucket.name, "endpoint_url": bucket.proxy.endpoint, "region_name": REGION}
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
    profile = {
        "storage_provider": {"type": "s3", "options": options},
        "credentials_provider": {"type": "S3Credentials", "options": keys},
    }
    name = f"checked-{bucket.name}"  # the library keeps what it knows of a name
    (tmp_path / "msc.json").write_text(json.dumps({"profiles": {name: profile}}))
    monkeypatch.setenv("MSC_CONFIG", str(tmp_path / "msc.json"))
    bucket.put("deep/er/left alone", b"kept")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports
        client = make_client(parse_address(f"msc://{name}/any"), ObjectStorageSettings())
        report = check_store(client, f"msc://{name}/deep/er/", large_bytes=1000)
    assert len(report.passed) == ALL
    assert bucket.keys() == ["deep/er/left alone"]


class MemoryClient:
    def __init__(self):
        self.held = {}

    def version(self, address):
        if address.key not in self.held:
            raise missing(address)
        data = self.held[address.key]
        return ObjectVersion(num_bytes=len(data), etag=self.etag(data))

    def etag(self, data):
        return hashlib.sha256(data).hexdigest()

    def read(self, address, start, stop, version):
        if (found := self.version(address)) != version:
            raise replaced(address, version, found)
        return self.held[address.key][start:stop]

    def upload(self, address, path):
        self.held[address.key] = Path(path).read_bytes()

    def delete(self, address):
        self.held.pop(address.key, None)

    def keys(self, address):
        folder = address.key.removesuffix("/") + "/"
        return [key for key in self.held if key.startswith(folder) and "/" not in key[len(folder) :]]

    def objects(self, address):
        folder = address.key.removesuffix("/") + "/"
        return {
            key: ObjectVersion(num_bytes=len(data), etag=self.etag(data))
            for key, data in self.held.items()
            if key.startswith(folder)
        }


@pytest.mark.parametrize("folder", ["s3://anything", "gs://anything/", "az://any/where/else/"])
def test_a_minimal_client_conforms(folder):
    client = MemoryClient()
    assert len(check_store(client, folder).passed) == ALL
    assert client.held == {}


memory = partial(changed, MemoryClient)


class WithoutEtags(MemoryClient):
    def etag(self, data):
        return None


def test_a_store_without_etags_conforms():
    report = check_store(WithoutEtags(), "s3://anything")
    assert report.skipped["reading an old version raises `ReplacedObjectError`"].startswith("the store has no etags")


class Decoding(WithoutEtags):
    def upload(self, address, path):
        self.held[address.key.replace("+", " ")] = Path(path).read_bytes()

    def version(self, address):
        return super().version(parse_address(str(address).replace("+", " ")))

    def read(self, address, start, stop, version):
        return super().read(parse_address(str(address).replace("+", " ")), start, stop, version)


def silent(self, address):
    known = address.key in self.held
    return MemoryClient.version(self, address) if known else ObjectVersion(num_bytes=0, etag=None)


def other_errors(self, address):
    if address.key not in self.held:
        raise FileNotFoundError(address.key)
    return MemoryClient.version(self, address)


def newest(self, address, start, stop, version):
    self.version(address)
    return self.held[address.key][start:stop]


def written_once(self, address, path):
    if address.key not in self.held:
        MemoryClient.upload(self, address, path)


def deleted_once(self, address):
    if address.key not in self.held:
        raise UnavailableError(f"no `{address}`")
    del self.held[address.key]


def truncated(self, address, path):
    self.held[address.key] = Path(path).read_bytes()[: 8 << 20]


def flat(self, address):
    keys = self.keys(address)
    return {key: found for key, found in MemoryClient.objects(self, address).items() if key in keys}


def prefixes(self, address):
    return [key for key in self.held if key.startswith(address.key) and "deep" not in key]


def one_too_far(self, address, start, stop, version):
    return MemoryClient.read(self, address, start, stop + 1, version)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (
            memory(read=one_too_far),
            "Changed fails the check that a range of bytes is read exactly: expected 1 bytes for bytes [0, 1)",
        ),
        (
            memory(upload=truncated),
            "a large object contains the uploaded bytes: expected 9437184 as `num_bytes` of the version, found 8388608",
        ),
        (Decoding(), "refer to different objects: expected bytes [0, 3) of an object of 3 bytes, found other bytes"),
        (memory(version=silent), "expected `MissingObjectError` from `version` of a missing object, found no error"),
        (
            memory(version=other_errors),
            "`MissingObjectError` from `version` of a missing object, found FileNotFoundError: deep/er/check-",
        ),
        (memory(upload=written_once), "replaces the object and changes its version: expected 1023 as `num_bytes`"),
        (memory(read=newest), "expected `ReplacedObjectError` from `read` of a replaced version, found no error"),
        (
            memory(keys=lambda self, address: list(self.objects(address))),
            "`keys` lists the objects directly in a folder: expected",
        ),
        (memory(keys=prefixes), "`keys` lists the objects directly in a folder: expected"),
        (memory(objects=flat), "`objects` lists all objects below a folder: expected"),
    ],
)
def test_faults_of_stores_are_named(client, message):
    with pytest.raises(ConformanceError) as raised:
        check_store(client, "s3://anything/deep/er")
    assert message in str(raised.value)
    assert client.held == {} or isinstance(client, Decoding)


def test_errors_of_a_client_name_the_check():
    with pytest.raises(UnavailableError) as raised:
        check_store(memory(delete=deleted_once), "s3://anything")
    assert raised.value.__notes__[0].startswith("raised by the check of Changed that a deleted object is missing")
