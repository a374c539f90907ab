"""GPT samples: by hand, recorded, and every setting against the slow reference; packs of documents; mock data."""

import json
import pickle
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.everywhere import check_everywhere
from tests.order.computed import InOrder
from tests.reference.gpt import make_sample
from tests.reference.packs import cut
from tests.reference.windows import build_sample_index
from tests.rendering.cards import tables_of
from tests.support import StandInTokenizer, equal_samples, make_config, make_dataset, random_documents, write_corpus

from tokenloom.blending.build_plan import plan_build
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.mock import (
    MockGPTDataset,
    MockGPTLowLevelDataset,
    MockMultimodalDataset,
    MultimodalDatasetConfig,
)
from tokenloom.datasets.splits import Split, split_indices
from tokenloom.datasets.tokenizer import NO_TOKEN
from tokenloom.errors import AmbiguousPadWarning, ConfigError, ShortDatasetWarning
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.order.packs import best_fit_report

DOCUMENTS = [[1, 2, 3, 9], [4, 5, 6, 7, 8, 9], [10, 11, 9]]
"""The seed of `make_dataset` leaves these documents and their three samples of four tokens unshuffled."""


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", DOCUMENTS)


def lists(sample):
    return {name: array.tolist() for name, array in sample.items()}


@pytest.mark.parametrize("mmap_bin_files", [True, False])
def test_three_documents_make_three_samples(prefix, mmap_bin_files):
    dataset = make_dataset(prefix, mmap_bin_files=mmap_bin_files)
    assert len(dataset) == 3
    assert dataset.document_index.tolist() == [0, 1, 2]
    assert dataset.sample_index.tolist() == [[0, 0], [1, 0], [1, 4], [2, 2]]
    assert dataset.shuffle_index.tolist() == [0, 1, 2]
    assert [lists(dataset.sample(k)) for k in range(3)] == [
        {"tokens": [1, 2, 3, 9], "labels": [2, 3, 9, 4], "loss_mask": [1, 1, 1, 1], "position_ids": [0, 1, 2, 3]},
        {"tokens": [4, 5, 6, 7], "labels": [5, 6, 7, 8], "loss_mask": [1, 1, 1, 1], "position_ids": [0, 1, 2, 3]},
        {"tokens": [8, 9, 10, 11], "labels": [9, 10, 11, 9], "loss_mask": [1, 1, 1, 1], "position_ids": [0, 1, 2, 3]},
    ]


def test_dtypes_and_shapes(prefix):
    def layout(sample):
        return {name: (str(array.dtype), tuple(array.shape)) for name, array in sample.items()}

    expected = {
        "tokens": ("int64", (4,)),
        "labels": ("int64", (4,)),
        "attention_mask": ("bool", (1, 4, 4)),
        "loss_mask": ("float32", (4,)),
        "position_ids": ("int64", (4,)),
    }
    for reset in (False, True):
        dataset = make_dataset(prefix, create_attention_mask=True, reset_attention_mask=reset)
        assert layout(dataset.sample(0)) == expected
        assert list(dataset.sample(0)) == list(expected)
        assert layout(dataset[0]) == {name: (f"torch.{dtype}", shape) for name, (dtype, shape) in expected.items()}
        batch = {name: (dtype, (2, *shape)) for name, (dtype, shape) in expected.items()}
        assert layout(dataset.batch([0, 2])) == batch

    dataset = make_dataset(prefix, create_attention_mask=True, inter_document_masking=True)
    del expected["attention_mask"]
    expected |= {"cu_seqlens": ("int32", (5,)), "max_seqlen": ("int32", ())}
    assert layout(dataset.sample(0)) == expected
    assert layout(dataset[0]) == {name: (f"torch.{dtype}", shape) for name, (dtype, shape) in expected.items()}


def test_spans_say_which_tokens_of_which_documents(prefix):
    dataset = make_dataset(prefix)

    def triples(k):
        spans = dataset.spans(k)
        return list(zip(spans.documents.tolist(), spans.starts.tolist(), spans.lengths.tolist(), strict=True))

    assert triples(0) == [(0, 0, 4), (1, 0, 1)]  # the last label is the first token of document 1
    assert triples(1) == [(1, 0, 5)]
    assert triples(2) == [(1, 4, 2), (2, 0, 3)]
    assert triples(-1) == triples(2)
    assert dataset.spans(2).boundaries.tolist() == [0, 2, 5]
    assert [len(spans) for spans in dataset.span_batch([2, 1])] == [2, 1]


def test_positions_attention_and_loss_at_an_end_of_document(prefix):
    dataset = make_dataset(prefix, reset_position_ids=True, reset_attention_mask=True, create_attention_mask=True)
    assert dataset.sample(2)["position_ids"].tolist() == [0, 1, 0, 1]
    assert dataset.sample(2)["attention_mask"].astype(int).tolist() == [
        [[0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 1], [1, 1, 0, 0]]
    ]
    assert dataset.sample(0)["position_ids"].tolist() == [0, 1, 2, 3]  # the end token belongs to its document
    dataset = make_dataset(prefix, eod_mask_loss=True)
    assert dataset.batch([0, 1, 2])["loss_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]]


def test_without_extra_token_the_last_label_is_unknown(prefix):
    dataset = make_dataset(prefix, add_extra_token_to_sequence=False)
    assert dataset.sample_index.tolist() == [[0, 0], [0, 4], [1, 4], [2, 2]]
    assert lists(dataset.batch([0, 1, 2])) == {
        "tokens": [[1, 2, 3, 9], [4, 5, 6, 7], [8, 9, 10, 11]],
        "labels": [[2, 3, 9, 0], [5, 6, 7, 0], [9, 10, 11, 0]],
        "loss_mask": [[1, 1, 1, 0]] * 3,
        "position_ids": [[0, 1, 2, 3]] * 3,
    }


def test_document_boundaries_come_from_the_index_and_empty_documents_are_two(prefix, tmp_path):
    dataset = make_dataset(prefix, inter_document_masking=True)
    # Document 1 contributes only the last label to the first sample.
    assert dataset.sample(0)["cu_seqlens"].tolist() == [0, 4, 4, 4, 4]
    assert dataset.sample(2)["cu_seqlens"].tolist() == [0, 2, 4, 4, 4]
    assert dataset.sample(2)["position_ids"].tolist() == [0, 1, 0, 1]
    assert dataset.batch([0, 1, 2])["max_seqlen"].tolist() == [4, 4, 2]
    prefix = write_corpus(tmp_path / "empty", [[1, 2], [], [3, 4, 5]])
    dataset = make_dataset(prefix, inter_document_masking=True)
    assert dataset.document_index.tolist() == [0, 1, 2]
    assert dataset.sample(0)["tokens"].tolist() == [1, 2, 3, 4]
    assert dataset.sample(0)["cu_seqlens"].tolist() == [0, 2, 2, 4, 4]
    assert len(dataset.spans(0)) == 2


def test_a_kept_partial_validation_sample_is_padded(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 9]])
    settings = {"split": Split.valid, "drop_last_partial_validation_sequence": False}
    dataset = make_dataset(prefix, tokenizer=StandInTokenizer(pad=7), **settings)
    assert len(dataset) == 1
    assert lists(dataset.sample(0)) == {
        "tokens": [1, 2, 9, 0],
        "labels": [2, 9, 0, 0],
        "loss_mask": [1, 1, 0, 0],
        "position_ids": [0, 1, 2, 3],
    }
    padded = make_dataset(prefix, inter_document_masking=True, **settings).sample(0)
    assert padded["cu_seqlens"].tolist() == [0, 4, 4, 4, 4]
    assert padded["max_seqlen"] == 4
    for split in (Split.train, Split.test):
        with pytest.warns(ShortDatasetWarning):
            assert len(make_dataset(prefix, **settings | {"split": split})) == 0


@pytest.mark.parametrize("eod", [9, 0])
def test_a_pad_id_that_ends_documents_does_not_mask_their_ends(tmp_path, eod):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, eod], [4, eod]])
    settings = {"split": Split.valid, "drop_last_partial_validation_sequence": False}
    with pytest.warns(AmbiguousPadWarning, match=f"^pad id {eod} is also another special token; padding is found by"):
        dataset = make_dataset(prefix, sequence_length=6, tokenizer=StandInTokenizer(pad=eod, eod=eod), **settings)
    assert sorted(dataset.document_index.tolist()) == [0, 1]
    sample = dataset.sample(0)
    # Every real end-of-document token is a target with loss 1; only the padding has loss 0.
    assert sample["loss_mask"].tolist() == [1, 1, 1, 1, 0, 0]
    assert sample["labels"].tolist().count(eod) == (2 if eod else 4)


def test_ids_may_fill_their_dtype(tmp_path):
    for dtype in (np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        prefix = write_corpus(tmp_path / np.dtype(dtype).name, [[low, high, low, high, low]], dtype=dtype)
        for mapped in (True, False):
            dataset = make_dataset(prefix, mmap_bin_files=mapped, in_memory=not mapped)
            assert dataset.sample(0)["tokens"].tolist() == [low, high, low, high]
            assert dataset.sample(0)["labels"].tolist() == [high, low, high, low]


def test_none_is_a_sample_without_loss_and_samples_count_from_the_end_too(prefix):
    dataset = make_dataset(prefix)
    for filler in (dataset.sample(None), dataset[None]):
        assert filler["tokens"].tolist() == dataset.sample(0)["tokens"].tolist()
        assert filler["loss_mask"].tolist() == [0, 0, 0, 0]
    batch = dataset.batch([2, None, 1])
    assert batch["loss_mask"].tolist() == [[1] * 4, [0] * 4, [1] * 4]
    assert batch["tokens"].tolist()[1] == [1, 2, 3, 9]
    assert dataset.sample(0)["loss_mask"].tolist() == [1, 1, 1, 1]
    assert equal_samples(dataset.batch([-3, 1, -1]), dataset.batch([0, 1, 2]))
    assert equal_samples(dataset.sample(np.int32(-3)), dataset.sample(0))


@pytest.mark.parametrize("position", [3, -4])
def test_a_sample_that_does_not_exist_is_an_index_error(prefix, position):
    dataset = make_dataset(prefix)
    text = f"^sample {position} out of range: `{prefix}` \\(train\\) has 3 samples$"
    for ask in (dataset.sample, dataset.__getitem__, dataset.spans, lambda k: dataset.batch([0, k])):
        with pytest.raises(IndexError, match=text):
            ask(position)


@pytest.mark.parametrize("mmap_bin_files", [True, False])
def test_a_batch_may_be_empty(prefix, mmap_bin_files):
    dataset = make_dataset(prefix, mmap_bin_files=mmap_bin_files, inter_document_masking=not mmap_bin_files)
    assert dataset.batch([])["tokens"].shape == (0, 4)
    assert len(dataset.__getitems__([])) == 0
    assert len(dataset.span_batch([])) == 0


def test_what_is_done_to_a_sample_does_not_reach_another(prefix):
    dataset = make_dataset(prefix, reset_attention_mask=True, create_attention_mask=True)
    before = [lists(dataset[k]) for k in range(3)]
    for k in (0, 1, 2, None):
        for tensor in dataset[k].values():
            tensor.fill_(0)
        for array in dataset.sample(k).values():
            array.fill(0)
    for tensor in dataset.__getitems__([0, 1]).tensors.values():
        tensor.fill_(0)
    assert [lists(dataset[k]) for k in range(3)] == before
    first, second = dataset[0], dataset[0]
    assert all(first[name].data_ptr() != second[name].data_ptr() for name in first)


def test_only_a_mask_that_is_the_same_for_all_samples_is_shared(prefix):
    dataset = make_dataset(prefix, create_attention_mask=True)
    first, second = dataset[0], dataset[1]
    shared = {name for name in first if first[name].data_ptr() == second[name].data_ptr()}
    assert shared == {"attention_mask"}
    batch = dataset.__getitems__([0, 1, 2]).tensors
    assert batch["attention_mask"].shape == (3, 1, 4, 4)
    assert batch["attention_mask"].stride()[0] == 0  # one mask for the whole batch
    assert torch.equal(batch["attention_mask"][2], first["attention_mask"])
    assert not dataset.sample(0)["attention_mask"].flags.writeable


def test_several_threads_read_the_same_samples(tmp_path, rng):
    prefix = write_corpus(tmp_path / "corpus", [rng.integers(0, 90, size=50) for _ in range(40)])
    for mapped in (True, False):
        dataset = make_dataset(prefix, mmap_bin_files=mapped, reset_position_ids=True)
        check_everywhere(dataset, list(range(len(dataset))) * 3)


def test_a_pickle_is_small_and_gives_the_same_samples(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 3, 9]] * 20_000)
    for changes in ({}, {"mmap_bin_files": False}, {"indices": range(7, 19_000)}):
        dataset = make_dataset(prefix, **changes)
        dataset.sample(0)
        data = pickle.dumps(dataset)
        num_path_bytes = data.count(str(tmp_path).encode()) * len(str(tmp_path))
        assert len(data) - num_path_bytes < 3700  # the indices alone take 320 kB
        copy = pickle.loads(data)
        assert copy.indices.dtype == dataset.indices.dtype
        assert copy.indices.tolist() == dataset.indices.tolist()
        assert equal_samples(copy.batch(range(100)), dataset.batch(range(100)))


def test_a_corpus_shorter_than_a_sample_gives_none_unless_samples_are_asked_for(prefix):
    with pytest.warns(ShortDatasetWarning) as caught:
        dataset = make_dataset(prefix, sequence_length=13)
    assert str(caught[0].message) == f"`{prefix}` (train) has 13 tokens, too few for one sample of 14 tokens"
    assert len(dataset) == 0
    assert list(dataset) == []
    for ask in (0, None):
        with pytest.raises(IndexError, match=r"^sample 0 out of range: .* \(train\) has 0 samples$"):
            dataset[ask]
    dataset = make_dataset(prefix, sequence_length=100, num_samples=2)
    assert dataset.epoch_plan.num_epochs == 16
    stream = [token for document in dataset.document_index for token in DOCUMENTS[document]]
    windows = [dataset.sample(k)["tokens"].tolist() for k in np.argsort(dataset.shuffle_index)]
    assert windows == [stream[:100], stream[100:200]]


@pytest.mark.parametrize("documents", [[], [[], [], []]])
def test_without_integer_tokens_there_are_no_samples(tmp_path, documents):
    prefix = write_corpus(tmp_path / "corpus", documents)
    for in_memory in (True, False, False):  # built, built and cached, from the cache
        with pytest.warns(ShortDatasetWarning, match=r"\(train\) has 0 tokens, too few for one sample of 5 tokens$"):
            dataset = make_dataset(prefix, in_memory=in_memory)
        assert len(dataset) == 0
        assert dataset.sample_index.shape == (1, 2)
    prefix = write_corpus(tmp_path / "corpus", [[1.5] * 9], dtype=np.float32)
    with pytest.raises(ConfigError, match=r"\(train\): tokens must be integers, got float32$"):
        make_dataset(prefix)


def slow_sample(dataset, documents, k, **options):
    """Returns sample k of the reference implementation, with the shuffles of the dataset."""
    length, extra = dataset.config.sequence_length, int(dataset.config.add_extra_token_to_sequence)
    stream = dataset.document_index.tolist()
    rows = build_sample_index(
        [len(document) for document in documents], stream, window_length=length, extra=extra, num_windows=len(dataset)
    )
    window = int(dataset.shuffle_index[k])
    (first, start), (last, stop) = rows[window], rows[window + 1]
    parts = []
    for i in range(first, last + 1):
        document = documents[stream[i]]
        parts.append(document[start if i == first else 0 : stop + extra if i == last else len(document)])
    return make_sample(parts, sequence_length=length, extra=extra, folds_last_token=True, **options)


@given(data=st.data())
def test_every_setting_gives_what_the_slow_twin_gives(data):
    draw = data.draw
    documents = draw(st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=8))
    dtype = draw(st.sampled_from([np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64]))
    booleans = {
        name: draw(st.booleans(), label=name)
        for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    }
    masking = draw(st.booleans(), label="inter_document_masking")
    if masking:
        booleans["reset_position_ids"] = booleans["reset_attention_mask"] = False
    eod = draw(st.integers(0, 5), label="eod")
    pad = draw(st.none() | st.integers(0, 5), label="pad")
    ambiguous = draw(st.booleans(), label="allow_ambiguous_pad_tokens")
    split = draw(st.sampled_from(Split))
    num_samples = draw(st.none() | st.integers(0, 12)) if any(documents) else None
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = make_dataset(
            write_corpus(f"{folder}/corpus", documents, dtype=dtype),
            in_memory=True,
            random_seed=draw(st.integers(0, 2**32 - 1), label="seed"),
            sequence_length=draw(st.integers(1, 9), label="sequence_length"),
            add_extra_token_to_sequence=draw(st.booleans(), label="extra"),
            drop_last_partial_validation_sequence=draw(st.booleans(), label="drop"),
            mmap_bin_files=draw(st.booleans(), label="mmap"),
            inter_document_masking=masking,
            split=split,
            num_samples=num_samples,
            tokenizer=StandInTokenizer(pad=pad, eod=eod),
            allow_ambiguous_pad_tokens=ambiguous,
            **booleans,
        )
        batch = dataset.batch(range(len(dataset)))
        for k in range(len(dataset)):
            known_pad = NO_TOKEN if pad is None or (pad == eod and not ambiguous) else pad
            options = {"pad": known_pad, "eod": eod, "inter_document_masking": masking, **booleans}
            expected = slow_sample(dataset, documents, k, **options)
            sample = dataset.sample(k)
            assert lists(sample) == lists(dataset[k]) == expected
            assert list(dataset[k]) == list(sample)
            assert equal_samples({name: array[k] for name, array in batch.items()}, sample)


def test_a_pad_id_in_the_data_is_masked_and_zeroed_and_ends_of_documents_only_when_asked(prefix):
    dataset = make_dataset(prefix, tokenizer=StandInTokenizer(pad=5))
    assert dataset.sample(1)["tokens"].tolist() == [4, 0, 6, 7]
    assert dataset.sample(1)["labels"].tolist() == [0, 6, 7, 8]
    assert dataset.sample(1)["loss_mask"].tolist() == [0, 1, 1, 1]
    with pytest.warns(AmbiguousPadWarning, match=r"`allow_ambiguous_pad_tokens` masks it in the data too$"):
        dataset = make_dataset(prefix, allow_ambiguous_pad_tokens=True, tokenizer=StandInTokenizer(pad=9))
    assert dataset.sample(0)["labels"].tolist() == [2, 3, 0, 4]
    assert dataset.sample(0)["loss_mask"].tolist() == [1, 1, 0, 1]


GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "inter_document_masking.npz")
CASES = sorted({name.split("_")[0] for name in GOLDEN.files}, key=lambda name: int(name.removeprefix("case")))
assert len(CASES) == 12  # without cases, their test would only be skipped
FIELDS = ["tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen"]


@pytest.mark.parametrize("mapped", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_samples_are_those_of_the_reference(tmp_path, case, mapped):
    recorded = json.loads(str(GOLDEN[f"{case}_settings"]))
    tokens, lengths = GOLDEN[f"{case}_documents"], GOLDEN[f"{case}_lengths"]
    prefix = write_corpus(tmp_path / "corpus", np.split(tokens, np.cumsum(lengths)[:-1]), dtype=tokens.dtype)
    config = make_config(
        prefix,
        tokenizer=StandInTokenizer(pad=recorded.pop("pad"), eod=recorded.pop("eod"), vocab_size=recorded["vocab_size"]),
        inter_document_masking=True,
        mmap_bin_files=mapped,
        **{name: value for name, value in recorded.items() if name != "vocab_size"},
    )
    data = IndexedDataset(prefix, mmap=mapped)
    compared = 0
    for split in Split:
        if f"{case}_{split.name}_tokens" not in GOLDEN.files:
            continue
        expected = {name: GOLDEN[f"{case}_{split.name}_{name}"] for name in FIELDS}
        bounds = config.split_matrix[split.value]
        dataset = GPTDataset(data, prefix, split_indices(bounds, len(data)), None, split, config)
        count = len(expected["tokens"])
        batch = dataset.batch(range(count))
        assert list(batch) == FIELDS
        for k in range(count):
            golden, tensors = {name: expected[name][k] for name in FIELDS}, dataset[k]
            for found in (dataset.sample(k), tensors, {name: batch[name][k] for name in FIELDS}):
                assert equal_samples({name: np.asarray(value) for name, value in found.items()}, golden), (split, k)
            compared += 1
    assert compared


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize(
    ("lengths", "boundaries", "longest"),
    [
        ([1, 4, 1], [0, 1, 8], 7),  # the last token begins a document: padding extends the document before it
        ([1, 4, 2], [0, 1, 5, 8], 4),
        ([1, 1, 1], [0, 1, 8], 7),
        ([4, 0, 1], [0, 4, 8], 4),
        ([1, 4, 0], [0, 1, 5, 8], 4),
        ([1, 4, 1, 0], [0, 1, 5, 6, 8], 4),
        ([2], [0, 8], 8),
        ([8, 1], [0, 8], 8),  # full
        ([4, 4, 1], [0, 4, 8], 4),
    ],
)
def test_a_partial_sample_ends_before_its_last_token(tmp_path, lengths, boundaries, longest, mapped):
    prefix = write_corpus(tmp_path / "corpus", [[number + 1] * length for number, length in enumerate(lengths)])
    orders = ((seed, np.random.RandomState(seed).permutation(len(lengths))) for seed in range(10_000))
    unshuffled = next(seed for seed, order in orders if (np.diff(order) > 0).all())
    settings = {"sequence_length": 8, "random_seed": unshuffled, "inter_document_masking": True}
    settings |= {"drop_last_partial_validation_sequence": False, "mmap_bin_files": mapped, "split": Split.valid}
    dataset = make_dataset(prefix, **settings)
    sample = dataset.sample(len(dataset) - 1)
    bounds = [*boundaries, *[8] * (9 - len(boundaries))]
    assert (sample["cu_seqlens"].tolist(), int(sample["max_seqlen"])) == (bounds, longest)
    assert sample["position_ids"].tolist() == [k - max(at for at in boundaries if at <= k) for k in range(8)]


@pytest.mark.parametrize("mmap_bin_files", [True, False])
def test_three_documents_make_two_packs_of_a_name_of_their_own(tmp_path, mmap_bin_files, prefix):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 9], [3, 4, 5, 6, 7, 8, 9], [10, 9]])
    settings = {"sequence_length": 6, "inter_document_masking": True, "mmap_bin_files": mmap_bin_files}
    dataset = make_dataset(prefix, window_policy="best_fit", **settings)
    samples = {tuple(dataset.spans(k).documents.tolist()): dataset.sample(k) for k in range(len(dataset))}
    assert set(samples) == {(1,), (0, 2)}
    assert lists(samples[1,]) == {
        "tokens": [3, 4, 5, 6, 7, 8],
        "labels": [4, 5, 6, 7, 8, 9],
        "loss_mask": [1] * 6,
        "position_ids": [0, 1, 2, 3, 4, 5],
        "cu_seqlens": [0] + [6] * 6,
        "max_seqlen": 6,
    }
    assert lists(samples[0, 2]) == {
        "tokens": [1, 2, 9, 10, 9, 0],
        "labels": [2, 9, 10, 9, 0, 0],
        "loss_mask": [1, 1, 1, 1, 0, 0],
        "position_ids": [0, 1, 2, 0, 1, 2],
        "cu_seqlens": [0, 3, 6, 6, 6, 6, 6],
        "max_seqlen": 3,
    }
    packs, windows = make_dataset(prefix, window_policy="best_fit"), make_dataset(prefix, window_policy="concat")
    assert "window_policy" not in windows.unique_description
    assert packs.unique_identifiers["window_policy"] == "best_fit"
    assert packs.unique_description_hash != windows.unique_description_hash


def test_surplus_documents_go_to_other_samples(tmp_path, rng):
    prefix = write_corpus(tmp_path / "corpus", random_documents(rng, count=120, longest=9, vocab_size=100))
    options = {"sequence_length": 32, "window_policy": "best_fit", "inter_document_masking": True}
    free = make_dataset(prefix, path_to_cache=str(tmp_path / "cache"), **options)
    limited = make_dataset(prefix, path_to_cache=str(tmp_path / "cache"), most_documents=3, **options)
    spans = [limited.spans(k) for k in range(len(limited))]
    assert max(len(each.documents) for each in spans) == 3 < max(len(free.spans(k).documents) for k in range(len(free)))
    assert len(free) < len(limited) == limited.epochs.report.num_packs
    assert sum(int(each.lengths.sum()) for each in spans) == limited.epochs.report.num_tokens
    with pytest.raises(ConfigError, match="`most_documents`: not supported by `window_policy="):
        make_dataset(prefix, most_documents=3)
    with pytest.raises(ConfigError, match="`most_documents`: must be 1 or more, got 0"):
        make_dataset(prefix, window_policy="best_fit", most_documents=0)


def test_a_split_without_tokens_has_no_packs(tmp_path):
    prefix = write_corpus(tmp_path / "empty", [[], []])
    with pytest.warns(UserWarning, match="too few for one sample"):
        assert len(make_dataset(prefix, window_policy="best_fit")) == 0
    with pytest.raises(ConfigError, match="have no tokens, but 1 samples are requested"):
        make_dataset(prefix, window_policy="best_fit", num_samples=1)


@pytest.mark.parametrize(
    ("mmap_bin_files", "extra", "masking"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, True)],
)
def test_samples_are_those_of_the_slow_twin(tmp_path, rng, mmap_bin_files, extra, masking):
    documents = random_documents(rng, count=60, longest=40, vocab_size=100)
    prefix = write_corpus(tmp_path / "corpus", documents)
    options = {"reset_position_ids": True, "eod_mask_loss": True} if not masking else {"inter_document_masking": True}
    settings = {"window_policy": "best_fit", "add_extra_token_to_sequence": extra, "mmap_bin_files": mmap_bin_files}
    dataset = make_dataset(prefix, num_samples=150, sequence_length=16, **settings, **options)
    assert len(dataset) >= 150
    batch = dataset.batch(range(len(dataset)))
    for k in range(len(dataset)):
        spans = dataset.spans(k)
        parts = [
            documents[document][start:stop].tolist()
            for document, start, stop in zip(spans.documents, spans.starts, spans.stops, strict=True)
        ]
        expected = make_sample(parts, sequence_length=16, extra=int(extra), eod=9 if not masking else -1, **options)
        assert {name: array[k].tolist() for name, array in batch.items()} == expected


def test_several_epochs_a_cache_and_a_pickle_give_the_same_samples(tmp_path, rng):
    prefix = write_corpus(tmp_path / "corpus", random_documents(rng, count=50, longest=30, vocab_size=100))
    options = {"sequence_length": 12, "window_policy": "best_fit", "num_samples": 200}
    built = make_dataset(prefix, path_to_cache=str(tmp_path / "cache"), **options)
    assert built.epoch_plan.num_epochs > 2
    assert built.verify_indices() == []
    deferred = make_dataset(prefix, path_to_cache=str(tmp_path / "cache"), defer_npy_index_mmap=True, **options)
    assert len(deferred) == len(built)
    positions = rng.permutation(len(built)).tolist()
    check_everywhere(built, positions, deferred, make_dataset(prefix, in_memory=True, **options))


@pytest.mark.parametrize("weights", [None, [3.0, 1.0]])
def test_a_plan_says_what_a_blend_of_packs_will_be(tmp_path, rng, weights):
    prefixes = [
        write_corpus(tmp_path / name, [*random_documents(rng, count=count - 1, longest=30, vocab_size=100), range(9)])
        for name, count in (("a", 40), ("b", 90))
    ]  # the last document has tokens, so the validation split is never empty
    config = make_config(None, blend=(prefixes, weights), split="80,20,0", sequence_length=12, window_policy="best_fit")
    sizes = [None if weights is None else 100, None if weights is None else 10, 0]
    plan = plan_build(config, sizes)
    train, valid, _ = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    for split, built in ((Split.train, train), (Split.valid, valid)):
        planned = plan.splits[split.value]
        assert planned.num_samples == len(built)
        for each, dataset in zip(planned.datasets, built.datasets, strict=True):
            assert each.num_samples_built == len(dataset)
            assert each.num_epochs_built == dataset.epoch_plan.num_epochs
            lengths = dataset.dataset.sequence_lengths[dataset.indices]
            assert each.packing == best_fit_report(lengths, sequence_length=12)
            assert each.num_epochs_owed == each.num_samples_owed / each.packing.num_packs
    windows = make_config(None, blend=(prefixes, weights), split="80,20,0", sequence_length=12)
    assert plan_build(windows, sizes, policy="best_fit") == plan


COMPUTED = [
    {},
    {"inter_document_masking": True},
    {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True, "create_attention_mask": True},
    {"add_extra_token_to_sequence": False},
]


def computed_corpora():
    """Returns empty documents, documents of exactly one sample, and documents of many samples."""
    random = np.random.default_rng(3)
    return [
        [[*random.integers(10, 99, size=size).tolist(), 9] if size else [] for size in sizes]
        for sizes in ([3, 0, 15, 16, 14, 31, 200, 5, 7], [0], random.integers(0, 20, size=40).tolist())
    ]


@pytest.mark.parametrize(("settings", "mmap_bin_files"), [*zip(COMPUTED, [True, False, True, False], strict=True)])
def test_packs_in_a_computed_order_are_filled_from_their_spans(tmp_path, settings, mmap_bin_files):
    config = make_config(None, sequence_length=16, window_policy="best_fit", mmap_bin_files=mmap_bin_files, **settings)
    source = InOrder(GPTDataset, tmp_path, computed_corpora(), config)
    corpus = [document for corpus in computed_corpora() for document in corpus]
    numbers = np.arange(source.num_windows)
    batch = source.batch(numbers)
    seen = []
    for number in numbers.tolist():
        spans = source.dataset.spans(number)
        pieces = list(zip(spans.documents.tolist(), spans.starts.tolist(), spans.lengths.tolist(), strict=True))
        seen += pieces
        expected = make_sample(
            [corpus[document][start : start + length] for document, start, length in pieces],
            sequence_length=16,
            extra=source.dataset.config.num_extra_tokens,
            pad=0,
            eod=9,
            **{name: value for name, value in settings.items() if name != "add_extra_token_to_sequence"},
        )
        for name, array in expected.items():
            assert np.array_equal(batch[name][number], array), name
        assert equal_samples(source.dataset.sample(number), {name: array[number] for name, array in batch.items()})
    extra = source.dataset.config.num_extra_tokens
    assert sorted(seen) == sorted(
        (number, start, length)
        for number, document in enumerate(corpus)
        for start, length in cut(len(document), sequence_length=16, extra=extra)
    )


DATA = MockGPTLowLevelDataset(StandInTokenizer(vocab_size=100))


def make_mock(**changes):
    return MockGPTDataset(DATA, None, np.arange(50, dtype=np.int32), 200, Split.train, make_config(None, **changes))


def test_a_document_counts_up_and_ends_also_in_parts():
    assert len(DATA) == MockGPTDataset.numel_low_level_dataset(DATA) == 100_000
    assert DATA.sequence_lengths[:3].tolist() == [3484, 2609, 2094]
    document = DATA[1]
    assert document.tolist() == [(i + 1) % 100 for i in range(2608)] + [9]
    assert document.dtype == np.int64
    assert DATA.get(1, 98, 3).tolist() == [99, 0, 1]
    assert DATA.get(1, 2600).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert DATA.get(1, 2600, 100).tolist() == DATA.get(1, 2600).tolist()
    assert DATA.get(1, 2609).tolist() == []
    several = DATA.gather(np.array([1, 2, 1]), np.array([2606, 0, 5]), np.array([3, 2, 0]))
    assert several.tolist() == [7, 8, 9, 1, 2]
    nothing = np.empty(0, dtype=np.int64)
    assert DATA.gather(nothing, nothing, nothing).tolist() == []


def test_samples_follow_the_documents():
    dataset = make_mock()
    stream = np.concatenate([DATA[int(i)] for i in dataset.document_index])
    for k in (0, 7, 199):
        start = int(dataset.shuffle_index[k]) * 4
        assert dataset.sample(k)["tokens"].tolist() == stream[start : start + 4].tolist()
        assert dataset[k]["labels"].tolist() == stream[start + 1 : start + 5].tolist()


def test_nothing_is_cached_unless_a_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = make_mock()
    assert list(tmp_path.iterdir()) == []
    cached = make_mock(path_to_cache="cache")
    assert len(list((tmp_path / "cache").iterdir())) == 5
    assert equal_samples(cached.batch(range(200)), dataset.batch(range(200)))


def make_images(**changes):
    settings = {"random_seed": 1234, "sequence_length": 16, "image_h": 4, "image_w": 6}
    config = make_config(None, kind=MultimodalDatasetConfig, **(settings | changes))
    return MockMultimodalDataset(DATA, None, np.arange(9, dtype=np.int32), 40, Split.train, config)


def test_a_sample_is_text_and_an_image():
    dataset = make_images()
    plain = make_config(None, random_seed=1234, sequence_length=16)
    text = MockGPTDataset(DATA, None, np.arange(9, dtype=np.int32), 40, Split.train, plain).sample(3)
    sample = dataset.sample(3)
    image = sample.pop("image")
    assert equal_samples(sample, text)
    assert (image.shape, image.dtype, image.any()) == ((3, 4, 6), np.float32, np.False_)
    assert list(dataset[3])[-1] == "image"
    assert dataset[3]["image"].shape == (3, 4, 6)
    batch = dataset.batch([3, 5])
    assert batch["image"].shape == (2, 3, 4, 6)
    assert equal_samples(pickle.loads(pickle.dumps(dataset)).batch([3, 5]), batch)
    batch["image"][0] = 1  # the array belongs to the caller
    assert not dataset.sample(3)["image"].any()


def test_samples_are_preprocessed():
    dataset = make_images(preprocess_func=lambda each: {"image": each["image"] + 1, "twice": each["tokens"] * 2})
    assert list(dataset[3]) == ["image", "twice"]
    sampler = MegatronPretrainingSampler(40, 0, 4, data_parallel_rank=0, data_parallel_size=1)
    batch = next(iter(build_dataloader(dataset, sampler)))
    assert batch["image"].tolist() == np.ones((4, 3, 4, 6)).tolist()
    assert batch["twice"].tolist() == (make_images().batch(range(4))["tokens"] * 2).tolist()


@pytest.mark.parametrize("name", ["image_h", "image_w"])
@pytest.mark.parametrize("pixels", [None, 0])
def test_an_image_has_a_size(name, pixels):
    with pytest.raises(ConfigError, match=f"^`{name}`: must be 1 or more, got {pixels!r}$"):
        make_images(**{name: pixels})


def test_gpt_samples_show_their_epochs_and_their_pair(tmp_path):
    dataset = make_dataset(write_corpus(tmp_path / "a", DOCUMENTS), num_samples=5)
    (shown,) = tables_of(dataset._repr_html_())
    assert "; ".join(": ".join(row) for row in shown[1:]) == (
        "split: train; samples: 6; epochs: 2; tokens of an epoch: 13; documents exposed: 3 of 3; windows: concat; "
        f"sequence length: 4; seed: {dataset.config.random_seed:,}; path of the pair: {shown[0][1]}; "
        "documents of the pair: 3; sequences of the pair: 3; tokens of the pair: 13; dtype of the pair: uint16; "
        "bytes of the pair: 26"
    )
