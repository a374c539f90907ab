"""GPT samples: three documents checked by hand, then every setting against the slow reference."""

from __future__ import annotations

import pickle
import tempfile
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.everywhere import check_everywhere
from tests.reference.gpt import make_sample
from tests.reference.windows import build_sample_index
from tests.support import StandInTokenizer, equal_samples, make_dataset, write_corpus

from tokenloom.datasets.splits import Split
from tokenloom.datasets.tokenizer import NO_TOKEN
from tokenloom.errors import AmbiguousPadWarning, ConfigError, ShortDatasetWarning

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


def test_positions_and_attention_restart_after_an_end_of_document(prefix):
    dataset = make_dataset(prefix, reset_position_ids=True, reset_attention_mask=True, create_attention_mask=True)
    assert dataset.sample(2)["position_ids"].tolist() == [0, 1, 0, 1]
    assert dataset.sample(2)["attention_mask"].astype(int).tolist() == [
        [[0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 1], [1, 1, 0, 0]]
    ]
    assert dataset.sample(0)["position_ids"].tolist() == [0, 1, 2, 3]  # the end token belongs to its document


def test_loss_can_be_masked_where_the_input_is_an_end_of_document(prefix):
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


def test_document_boundaries_come_from_the_index(prefix):
    dataset = make_dataset(prefix, inter_document_masking=True)
    # Document 1 contributes only the last label to the first sample.
    assert dataset.sample(0)["cu_seqlens"].tolist() == [0, 4, 4, 4, 4]
    assert dataset.sample(2)["cu_seqlens"].tolist() == [0, 2, 4, 4, 4]
    assert dataset.sample(2)["position_ids"].tolist() == [0, 1, 0, 1]
    assert dataset.batch([0, 1, 2])["max_seqlen"].tolist() == [4, 4, 2]


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
    with pytest.warns(AmbiguousPadWarning, match=f"^pad id {eod} is also another special token; padding is found by"):
        dataset = make_dataset(
            prefix,
            sequence_length=6,
            split=Split.valid,
            drop_last_partial_validation_sequence=False,
            tokenizer=StandInTokenizer(pad=eod, eod=eod),
        )
    assert sorted(dataset.document_index.tolist()) == [0, 1]
    sample = dataset.sample(0)
    # Every real end-of-document token is a target with loss 1; only the padding has loss 0.
    assert sample["loss_mask"].tolist() == [1, 1, 1, 1, 0, 0]
    assert sample["labels"].tolist().count(eod) == (2 if eod else 4)


def test_a_pad_id_that_ends_documents_masks_their_ends_only_when_asked(prefix):
    with pytest.warns(AmbiguousPadWarning, match=r"`allow_ambiguous_pad_tokens` masks it in the data too$"):
        dataset = make_dataset(prefix, allow_ambiguous_pad_tokens=True, tokenizer=StandInTokenizer(pad=9))
    assert dataset.sample(0)["labels"].tolist() == [2, 3, 0, 4]
    assert dataset.sample(0)["loss_mask"].tolist() == [1, 1, 0, 1]


def test_ids_may_fill_their_dtype(tmp_path):
    for dtype in (np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        prefix = write_corpus(tmp_path / np.dtype(dtype).name, [[low, high, low, high, low]], dtype=dtype)
        for mapped in (True, False):
            dataset = make_dataset(prefix, mmap_bin_files=mapped, in_memory=not mapped)
            assert dataset.sample(0)["tokens"].tolist() == [low, high, low, high]
            assert dataset.sample(0)["labels"].tolist() == [high, low, high, low]


def test_none_is_a_sample_without_loss(prefix):
    dataset = make_dataset(prefix)
    for filler in (dataset.sample(None), dataset[None]):
        assert filler["tokens"].tolist() == dataset.sample(0)["tokens"].tolist()
        assert filler["loss_mask"].tolist() == [0, 0, 0, 0]
    batch = dataset.batch([2, None, 1])
    assert batch["loss_mask"].tolist() == [[1] * 4, [0] * 4, [1] * 4]
    assert batch["tokens"].tolist()[1] == [1, 2, 3, 9]
    assert dataset.sample(0)["loss_mask"].tolist() == [1, 1, 1, 1]


def test_samples_count_from_the_end_too(prefix):
    dataset = make_dataset(prefix)
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


def test_a_corpus_shorter_than_a_sample_gives_none_of_its_own(prefix):
    with pytest.warns(ShortDatasetWarning) as caught:
        dataset = make_dataset(prefix, sequence_length=13)
    assert str(caught[0].message) == f"`{prefix}` (train) has 13 tokens, too few for one sample of 14 tokens"
    assert len(dataset) == 0
    assert list(dataset) == []
    for ask in (0, None):
        with pytest.raises(IndexError, match=r"^sample 0 out of range: .* \(train\) has 0 samples$"):
            dataset[ask]


def test_a_corpus_shorter_than_a_sample_is_repeated_when_samples_are_asked_for(prefix):
    dataset = make_dataset(prefix, sequence_length=100, num_samples=2)
    assert dataset.epoch_plan.num_epochs == 16
    stream = [token for document in dataset.document_index for token in DOCUMENTS[document]]
    windows = [dataset.sample(k)["tokens"].tolist() for k in np.argsort(dataset.shuffle_index)]
    assert windows == [stream[:100], stream[100:200]]


@pytest.mark.parametrize("documents", [[], [[], [], []]])
def test_without_tokens_there_are_no_samples(tmp_path, documents):
    prefix = write_corpus(tmp_path / "corpus", documents)
    for in_memory in (True, False, False):  # built, built and cached, from the cache
        with pytest.warns(ShortDatasetWarning, match=r"\(train\) has 0 tokens, too few for one sample of 5 tokens$"):
            dataset = make_dataset(prefix, in_memory=in_memory)
        assert len(dataset) == 0
        assert dataset.sample_index.shape == (1, 2)


def test_tokens_must_be_integers(tmp_path):
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
            expected = slow_sample(
                dataset,
                documents,
                k,
                pad=NO_TOKEN if pad is None or (pad == eod and not ambiguous) else pad,
                eod=eod,
                inter_document_masking=masking,
                **booleans,
            )
            sample = dataset.sample(k)
            assert lists(sample) == expected
            assert equal_samples({name: array[k] for name, array in batch.items()}, sample)
            tensors = dataset[k]
            assert list(tensors) == list(sample)
            assert lists(tensors) == expected


def test_an_empty_document_is_a_boundary_twice(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2], [], [3, 4, 5]])
    dataset = make_dataset(prefix, inter_document_masking=True)
    assert dataset.document_index.tolist() == [0, 1, 2]
    assert dataset.sample(0)["tokens"].tolist() == [1, 2, 3, 4]
    assert dataset.sample(0)["cu_seqlens"].tolist() == [0, 2, 2, 4, 4]
    assert len(dataset.spans(0)) == 2


def test_a_pad_id_in_the_data_is_masked_and_zeroed(prefix):
    dataset = make_dataset(prefix, tokenizer=StandInTokenizer(pad=5))
    assert dataset.sample(1)["tokens"].tolist() == [4, 0, 6, 7]
    assert dataset.sample(1)["labels"].tolist() == [0, 6, 7, 8]
    assert dataset.sample(1)["loss_mask"].tolist() == [0, 1, 1, 1]
