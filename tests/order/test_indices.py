"""Indices of samples: epochs, windows, packs, shuffles, conversations and sentences, compared with slow twins."""

import itertools
import pickle
import re
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import chat
from tests.reference import sentences as reference
from tests.reference.gpt import count_epochs, count_windows
from tests.reference.packs import cut, pack
from tests.reference.windows import build_sample_index as slow_sample_index
from tests.support import make_config, make_dataset, write_corpus

from tokenloom import BlockShuffle, build_blocks_mapping, build_mapping
from tokenloom._native import PackReader, WindowReader
from tokenloom.errors import ConfigError, ShortDatasetWarning
from tokenloom.kernels.order import LegacyRandom, build_sample_index
from tokenloom.kernels.packs import pack_documents
from tokenloom.order import documents
from tokenloom.order.array_store import join_short_warnings, warn_short
from tokenloom.order.block_shuffle import build_block_document_index, build_block_shuffle_index
from tokenloom.order.conversations import pack_conversations, shuffle_conversations
from tokenloom.order.documents import Documents, Rows, is_range
from tokenloom.order.epochs import EpochPlan, WindowEpochs
from tokenloom.order.packs import PackEpochs, best_fit_report, build_best_fit
from tokenloom.order.sentences import mapping_dtype, sentence_mismatch
from tokenloom.order.shuffles import (
    build_document_and_sample_index,
    build_shuffle_index,
    document_index_dtype,
    shuffle_index_dtype,
)
from tokenloom.order.windows import SpanBatch, Spans, num_windows, span_mismatch


def exposed(lengths: Any, rows: Any) -> Documents:
    return Documents(SimpleNamespace(sequence_lengths=np.asarray(lengths, dtype=np.int32)), Rows.of(rows))  # type: ignore[arg-type]


def plan(tokens, samples, *, length=4, extra=1, keep_partial=False):
    epochs = WindowEpochs(num_tokens=tokens, sequence_length=length, extra=extra, keep_partial=keep_partial)
    return epochs.plan(samples)


def test_large_counts_are_exact_and_an_empty_corpus_has_no_samples():
    assert plan(0, None).num_samples == 0
    message = r"^the documents of the split have no tokens, but 7 samples are requested\nhint: raise"
    with pytest.raises(ConfigError, match=message):
        plan(0, 7)
    tokens = 2**40 + 1
    found = plan(tokens, 2**38, length=2**12)
    # 2**38 windows of 2**12 tokens are 2**50 tokens and one more, of 2**40 + 1 each.
    assert found.num_epochs == 2**10  # 2**10 * (2**40 + 1) = 2**50 + 2**10
    assert found.num_samples == 2**38
    found = plan(tokens, 2**38 + 1, length=2**12)
    assert (found.num_epochs, found.num_samples_sans_final_epoch) == (2**10 + 1, 2**38)
    # A float64 has 53 bits: these counts differ in the 60th.
    assert plan(2**60 + 1, None, length=1).num_samples == 2**60
    assert plan(2**60 + 2, None, length=1, keep_partial=True).num_samples == 2**60 + 1
    assert num_windows(2**60 + 1, 1, extra=1, keep_partial=False) == 2**60
    assert num_windows(2**24 + 2, 1, extra=0, keep_partial=True) == 2**24 + 2
    assert num_windows(0, 4, extra=1, keep_partial=True) == 0


@given(st.integers(1, 60), st.none() | st.integers(0, 40), st.integers(1, 12), st.integers(0, 1), st.booleans())
def test_the_plan_is_that_of_the_slow_twin(tokens, samples, length, extra, keep_partial):
    found = plan(tokens, samples, length=length, extra=extra, keep_partial=keep_partial)
    expected = count_epochs(tokens, samples, sequence_length=length, extra=extra, keep_partial=keep_partial)
    names = ("num_epochs", "num_samples", "num_samples_sans_final_epoch", "separate_final_epoch")
    assert found == EpochPlan(tokens_per_epoch=tokens, **{name: getattr(expected, name) for name in names})
    assert found.num_samples >= (samples or 0)


HUGE = st.integers(1, 2**62)


@given(tokens=HUGE, samples=HUGE, length=st.integers(1, 2**31), extra=st.integers(0, 1))
def test_the_fewest_epochs_that_suffice_are_taken_whatever_the_size(tokens, samples, length, extra):
    found = plan(tokens, samples, length=length, extra=extra)
    wanted = samples * length + extra
    assert found.num_epochs * tokens >= wanted
    assert found.num_epochs == 1 or (found.num_epochs - 1) * tokens < wanted
    assert found.num_samples == (found.num_epochs * tokens - extra) // length


# --- windows over a stream of documents -----------------------------------------------------------------------------
LENGTHS = np.array([4, 6, 3], dtype=np.int32)


def int64s(*values):
    return np.array(values, dtype=np.int64)


def reader_of(lengths, stream, rows, shuffle, *, window_length, extra=1):
    arrays = [np.asarray(each, dtype=np.int32) for each in (lengths, stream, rows)]
    shape = {"window_length": window_length, "extra": extra}
    num_tokens = sum(lengths[document] for document in stream)
    return WindowReader(*arrays, np.asarray(shuffle, dtype=np.uint32), num_tokens=num_tokens, **shape)


WIDTHS = st.sampled_from([np.int32, np.int64])
FEW_LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(FEW_LENGTHS, st.integers(1, 10), st.integers(0, 1), st.booleans(), WIDTHS, WIDTHS, st.data())
def test_windows_are_those_of_the_slow_twins(lengths, length, extra, keep_partial, dtype, documents, data):
    stream = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=30))
    tokens = sum(lengths[document] for document in stream)
    count = num_windows(tokens, length, extra=extra, keep_partial=keep_partial)
    assert count == count_windows(tokens, sequence_length=length, extra=extra, keep_partial=keep_partial)
    shape = {"window_length": length, "extra": extra, "num_windows": count}
    arrays = np.array(lengths, dtype=np.int32), np.array(stream, dtype=documents)
    rows = build_sample_index(*arrays, **shape, dtype=dtype)
    slow = slow_sample_index(lengths, stream, **shape)
    assert (list(map(tuple, rows.tolist())), rows.dtype) == (slow, dtype)

    # Window j must be tokens [j * length, (j + 1) * length + extra) of the stream.
    flat = [(document, offset) for document in stream for offset in range(lengths[document])]
    reader = reader_of(lengths, stream, rows, range(count), window_length=length, extra=extra)
    batch = SpanBatch(*reader.spans(np.arange(count), keep_empty=False))
    assert len(batch) == count
    for number, spans in enumerate(batch):
        parts = zip(spans.documents.tolist(), spans.starts.tolist(), spans.stops.tolist(), strict=True)
        covered = [(document, offset) for document, start, stop in parts for offset in range(start, stop)]
        assert covered == flat[number * length : (number + 1) * length + extra]
    assert span_mismatch(reader, count) is None


def test_spans_know_where_documents_meet():
    spans = Spans(int64s(7, 3), int64s(0, 4), int64s(2, 3))
    assert (len(spans), spans.stops.tolist(), spans.num_tokens) == (2, [2, 7], 5)
    assert spans.boundaries.tolist() == [0, 2, 5]


def test_indices_of_other_data_are_found_out():
    rows = build_sample_index(LENGTHS, int64s(0, 1, 2), window_length=4, extra=1, num_windows=3, dtype=np.int32)

    def misfit(lengths, shuffle=(0, 1, 2)):
        return span_mismatch(reader_of(lengths, [0, 1, 2], rows, shuffle, window_length=4), 3)

    assert misfit([4, 6, 3]) is None
    assert misfit([4, 6, 3], shuffle=(2, 0, 1)) is None
    assert misfit([5, 5, 3]) == "expected sample 0 to cover 5 tokens, found 6"
    assert misfit([3, 7, 3]) == "expected sample 0 to cover 5 tokens, found 4"
    assert "cuts sequence" in misfit([4, 3, 6])
    assert misfit([4, 6, 3], shuffle=(0, 1, 3)) == "shuffle index names window 3 of 3"


# --- the document index and the shuffle index -----------------------------------------------------------------------
def build_document_index(indices, plan, random):
    lengths = np.ones(max(indices, default=0) + 1, dtype=np.int32)  # documents of one token each
    shown = exposed(lengths, indices)
    documents, samples = build_document_and_sample_index(shown, plan, random, window_length=1, extra=0)
    assert samples.tolist() == [[0, 0], *([k, 1] for k in range(plan.num_samples))]
    return documents


def plan_of_ones(tokens, samples):
    return WindowEpochs(num_tokens=tokens, sequence_length=1, extra=0, keep_partial=False).plan(samples)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 200), st.integers(0, 1000))
def test_one_generator_shuffles_documents_and_then_samples(seed, num_documents, samples, first):
    plan = plan_of_ones(num_documents, samples)
    indices = np.arange(first, first + num_documents)
    random = LegacyRandom(seed)
    documents, shuffled = build_document_index(indices, plan, random), build_shuffle_index(plan, random)

    # The order of the draws from NumPy's generator is part of the format.
    numpy_random = np.random.RandomState(seed)
    final = num_documents if plan.separate_final_epoch else 0
    expected = np.tile(indices, plan.num_epochs).astype(np.int32)
    numpy_random.shuffle(expected[: len(expected) - final])
    if final:
        numpy_random.shuffle(expected[-final:])
    assert (documents.dtype, documents.tolist()) == (np.int32, expected.tolist())

    expected = np.arange(plan.num_samples, dtype=np.uint32)
    numpy_random.shuffle(expected[: plan.num_samples_sans_final_epoch])
    if final:
        numpy_random.shuffle(expected[plan.num_samples_sans_final_epoch :])
    assert (shuffled.dtype, shuffled.tolist()) == (np.uint32, expected.tolist())


def test_dtypes_grow_with_the_counts():
    assert document_index_dtype(2**31 - 1) == np.int32
    assert document_index_dtype(2**31) == np.int64
    assert shuffle_index_dtype(2**32 - 3) == np.uint32
    assert shuffle_index_dtype(2**32 - 2) == np.int64


# --- exposed documents ----------------------------------------------------------------------------------------------


LONG_LENGTHS = np.array([4, 6, 3, 0, 2**31 - 1], dtype=np.int32)


@pytest.mark.parametrize("indices", [[], [2], [0, 1, 2], [2, 0], [0, 2, 2], [1, 1, 3, 4], [0, 1, 3, 2, 4]])
@pytest.mark.parametrize("block", [1, 3])
def test_tokens_of_chosen_documents(indices, block, monkeypatch):
    monkeypatch.setattr(documents, "_BLOCK_ROWS", block)
    chosen = np.array(indices, dtype=np.int32)
    consecutive = indices == list(range(indices[0], indices[0] + len(indices))) if indices else False
    assert is_range(chosen, block=block) == consecutive
    found = exposed(LONG_LENGTHS, chosen)
    assert found.count_tokens() == sum(int(LONG_LENGTHS[i]) for i in indices)
    assert [length for part in found.length_blocks() for length in part.tolist()] == LONG_LENGTHS[indices].tolist()
    assert found.rows.consecutive == (range(indices[0], indices[-1] + 1) if consecutive else None)
    assert found.rows.largest == max(indices, default=-1)
    assert (found.rows.array() == chosen).all()
    assert found.rows.array().dtype == np.int32


@pytest.mark.parametrize(
    ("rows", "dtype"), [(range(3, 7), np.int32), (range(2**31, 2**31 + 2), np.int64), (range(0), np.int32)]
)
def test_a_range_is_the_array_of_it(rows, dtype):
    found = Rows.of(rows)
    assert (len(found), found.array().tolist(), found.array().dtype) == (len(rows), list(rows), dtype)
    assert (found.consecutive, found.largest) == (rows, rows[-1] if rows else -1)


def test_rows_of_a_range_are_small_in_a_pickle():
    rows = Rows.of(np.arange(100_000))
    assert len(pickle.dumps(rows)) < 500
    again = pickle.loads(pickle.dumps(rows))
    assert (again.chosen, again.array().dtype) == (range(100_000), np.int64)


# --- the block shuffle: its permutation, locality and degree of mixing ----------------------------------------------
def plan_of(num_epochs: int, num_samples: int = 10) -> EpochPlan:
    sizes = {"num_samples": num_samples, "num_samples_sans_final_epoch": num_samples}
    return EpochPlan(tokens_per_epoch=1, num_epochs=num_epochs, separate_final_epoch=False, **sizes)


def in_blocks(offsets: list[int], blocks: BlockShuffle, *, num_epochs: int = 1, seed: int = 1) -> np.ndarray:
    indices = np.arange(100, 100 + len(offsets), dtype=np.int32)
    numbers = np.array(offsets, dtype=np.int64) // blocks.block_bytes
    stream = build_block_document_index(indices, numbers, plan_of(num_epochs), blocks, seed)
    assert stream.dtype == np.int32
    return stream.reshape(num_epochs, -1) - 100


def neighbour_distance(order: np.ndarray) -> float:
    """Returns the mean distance of file neighbours in an order, as a fraction of its length; 1/3 for a full shuffle."""
    return float(np.abs(np.diff(np.argsort(order, kind="stable"))).mean() / len(order))


SEEDS = st.integers(0, 2**32 - 1)


@given(st.lists(st.integers(0, 50), max_size=80), st.integers(1, 200), st.integers(1, 5), st.integers(1, 3), SEEDS)
def test_every_epoch_is_a_permutation_by_windows_of_blocks(sizes, block_bytes, window_blocks, num_epochs, seed):
    offsets = (np.cumsum(sizes) - sizes).tolist() if sizes else []
    blocks = BlockShuffle(block_bytes=block_bytes, window_blocks=window_blocks)
    epochs = in_blocks(offsets, blocks, num_epochs=num_epochs, seed=seed)
    numbers = np.array(offsets, dtype=np.int64) // block_bytes
    for order in epochs:
        assert sorted(order.tolist()) == list(range(len(offsets)))
        seen = list(dict.fromkeys(numbers[order].tolist()))
        for begin in range(0, len(set(numbers.tolist())), window_blocks):
            # a block ends before the window after its own begins
            later, window = set(seen[begin + window_blocks :]), seen[begin:][:window_blocks]
            last = max((place for place, row in enumerate(order) if numbers[row] in window), default=-1)
            assert not later & set(numbers[order[: last + 1]].tolist())


def test_an_epoch_depends_on_the_seed_and_its_number_alone():
    offsets = list(range(0, 1000, 10))
    blocks = BlockShuffle(block_bytes=50, window_blocks=3)
    three = in_blocks(offsets, blocks, num_epochs=3)
    assert (three[:2] == in_blocks(offsets, blocks, num_epochs=2)).all()
    assert (three[0] != three[1]).any()
    assert (three[0] != in_blocks(offsets, blocks, seed=2)[0]).any()


def test_samples_mix_within_the_bytes_of_a_window():
    blocks = BlockShuffle(block_bytes=100, window_blocks=2)
    shuffled = build_block_shuffle_index(plan_of(1, 100), blocks, sample_bytes=20, seed=3)
    assert shuffled.dtype == np.uint32
    for begin in range(0, 100, 10):
        assert sorted(shuffled[begin : begin + 10].tolist()) == list(range(begin, begin + 10))
    assert (shuffled != np.arange(100)).any()


def test_larger_windows_mix_further_in_a_pinned_order_of_up_to_64_bits():
    offsets = list(range(0, 40000, 10))
    shuffles = [BlockShuffle(block_bytes=400, window_blocks=window) for window in (1, 4, 20, 100)]
    distances = [neighbour_distance(in_blocks(offsets, blocks)[0]) for blocks in shuffles]
    assert distances == sorted(distances)
    assert distances[0] < 0.05
    assert distances[-1] > 0.3
    order = in_blocks(list(range(0, 120, 10)), BlockShuffle(block_bytes=20, window_blocks=2), seed=7)[0]
    assert order.tolist() == [10, 9, 8, 11, 1, 4, 5, 0, 3, 6, 2, 7]
    indices = np.array([1, 2**31, 2**31 + 1])
    stream = build_block_document_index(indices, np.zeros(3, dtype=np.int64), plan_of(2), BlockShuffle(), 1)
    assert stream.dtype == np.int64
    assert sorted(stream[:3].tolist()) == sorted(stream[3:].tolist()) == indices.tolist()


def test_datasets_keep_the_two_orders_apart(tmp_path, rng):
    prefix = write_corpus(tmp_path / "corpus", [rng.integers(0, 100, size=20) for _ in range(200)])
    settings = {"path_to_cache": str(tmp_path / "cache"), "sequence_length": 16}
    blocks = BlockShuffle(block_bytes=400, window_blocks=2)
    for _ in range(2):  # built, then from the cache
        full, local = make_dataset(prefix, **settings), make_dataset(prefix, block_shuffle=blocks, **settings)
        assert full.unique_description_hash != local.unique_description_hash
        assert neighbour_distance(full.document_index) > 0.25 > 0.1 > neighbour_distance(local.document_index)
        assert local.verify_indices() == []
        assert sorted(local.shuffle_index.tolist()) == list(range(len(local)))
    assert len(list((tmp_path / "cache").glob("*-document_index.npy"))) == 2
    with pytest.raises(ConfigError, match="window_blocks"):
        BlockShuffle(window_blocks=0)
    with pytest.raises(ConfigError, match="`block_shuffle`: needs data, got mock data"):
        make_config(None, block_shuffle=BlockShuffle())
    with pytest.raises(ConfigError, match="`block_shuffle` and `window_policy='best_fit'` exclude each other"):
        make_config("some", block_shuffle=BlockShuffle(), window_policy="best_fit")


# --- best-fit packs -------------------------------------------------------------------------------------------------
DOCUMENTS = st.lists(st.integers(0, 40), max_size=30)
SEQUENCE_LENGTHS = st.integers(1, 12)
EXTRA = st.integers(0, 1)


def int32s(*values):
    return np.array(values, dtype=np.int32)


def packed(lengths, documents, *, sequence_length, extra, most=None, dtype=np.int32):
    """Returns the rows of the kernel: lists of (document, start, length)."""
    lengths = np.asarray(lengths, dtype=np.int32)
    chosen = np.asarray(documents, dtype=np.int64)
    report = best_fit_report(lengths[chosen], sequence_length=sequence_length, extra=extra, most_documents=most)
    pieces = np.full((report.num_pieces, 2), -1, dtype=dtype)
    packs = np.full(report.num_packs + 1, report.num_pieces, dtype=dtype)
    options = {"sequence_length": sequence_length, "extra": extra}
    arrays = {"packs": packs[:-1], "pieces": pieces}
    pack_documents(lengths, chosen, first_piece=0, most_pieces=most, **arrays, **options)
    reader = PackReader(lengths, packs, pieces, np.arange(report.num_packs, dtype=np.uint32), **options)
    spans = SpanBatch(*reader.spans(np.arange(report.num_packs), keep_empty=False))
    return [list(zip(*(x.tolist() for x in (row.documents, row.starts, row.lengths)), strict=True)) for row in spans]


# --- by hand ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "documents", "rule", "rows"),
    [
        # 6 opens a row (room 4), so does 5 (room 5); 4 fills the first, and 3 and 2 the second.
        ([3, 6, 2, 5, 4], range(5), (9, 1), [[(1, 0, 6), (4, 0, 4)], [(3, 0, 5), (0, 0, 3), (2, 0, 2)]]),
        # At most two documents per pack.
        ([3, 6, 2, 5, 4], range(5), (9, 1, 2), [[(1, 0, 6), (4, 0, 4)], [(3, 0, 5), (0, 0, 3)], [(2, 0, 2)]]),
        # Ties between documents, or between packs of equal free space, go to the first.
        ([6, 6, 3, 3], [1, 0, 3, 2], (10, 0), [[(1, 0, 6), (3, 0, 3)], [(0, 0, 6), (2, 0, 3)]]),
        # A long document is cut like windows: with the extra token, labels 1 to 4, 5 to 8, 9 and 10.
        ([11, 2], [0, 1], (4, 1), [[(0, 0, 5)], [(0, 4, 5)], [(0, 8, 3), (1, 0, 2)]]),
        # A document whose last label is already in a piece leaves no rest.
        ([9], [0], (4, 1), [[(0, 0, 5)], [(0, 4, 5)]]),
    ],
)
def test_packs_by_hand(lengths, documents, rule, rows):
    assert packed(lengths, documents, **dict(zip(("sequence_length", "extra", "most"), rule, strict=False))) == rows


def test_a_report_of_documents_and_epochs_of_packs():
    report = best_fit_report(int32s(11, 2, 0, 4), sequence_length=4, extra=1)
    assert (report.capacity, report.num_documents, report.num_tokens) == (5, 3, 17)
    assert (report.num_packs, report.num_pieces, report.num_split_documents) == (4, 5, 1)
    assert (report.num_repeated_tokens, report.num_padding_tokens) == (2, 1)
    assert (report.fill, report.documents_per_pack) == (0.95, 1.25)
    nothing = best_fit_report(int32s(), sequence_length=4)
    assert (nothing.num_packs, nothing.fill, nothing.documents_per_pack) == (0, 0.0, 0.0)
    ten = PackEpochs(num_tokens=100, report=best_fit_report(int32s(*[10] * 10), sequence_length=10, extra=0))
    plan = ten.plan(25)
    assert (plan.num_epochs, plan.num_samples, plan.num_samples_sans_final_epoch) == (3, 30, 20)
    assert plan.separate_final_epoch
    assert not ten.plan(28).separate_final_epoch
    assert ten.plan(None).num_samples == 10
    none = PackEpochs(num_tokens=0, report=best_fit_report(int32s(), sequence_length=10))
    assert none.plan(None).num_samples == 0
    with pytest.raises(ConfigError, match="have no tokens, but 3 samples are requested"):
        none.plan(3)


# --- against the slow twin ----------------------------------------------------------------------------------------


@given(DOCUMENTS, SEQUENCE_LENGTHS, EXTRA, st.none() | st.integers(1, 6), st.data(), st.booleans())
def test_the_kernel_packs_as_its_slow_twin(lengths, sequence_length, extra, most, data, wide):
    rule = {"sequence_length": sequence_length, "extra": extra}
    documents = data.draw(st.lists(st.sampled_from(range(len(lengths))), max_size=30) if lengths else st.just([]))
    expected = pack(lengths, documents, most=most, **rule)
    dtype = np.int64 if wide else np.int32
    assert packed(lengths, documents, most=most, dtype=dtype, **rule) == expected
    report = best_fit_report(np.array(lengths, dtype=np.int32), most_documents=most, **rule)
    assert report.num_packs == len(pack(lengths, range(len(lengths)), most=most, **rule))


@given(lengths=DOCUMENTS, sequence_length=SEQUENCE_LENGTHS, extra=EXTRA)
def test_every_token_is_an_input_or_a_label_as_often_as_it_must(lengths, sequence_length, extra):
    rows = packed(lengths, range(len(lengths)), sequence_length=sequence_length, extra=extra)
    seen = [np.zeros(length, dtype=int) for length in lengths]
    labels = [np.zeros(length, dtype=int) for length in lengths]
    for row in rows:
        assert 0 < sum(taken for *_, taken in row) <= sequence_length + extra
        for document, start, taken in row:
            seen[document][start : start + taken] += 1
            labels[document][start + 1 : start + taken] += 1
    for document, length in enumerate(lengths):
        pieces = cut(length, sequence_length=sequence_length, extra=extra)
        expected = np.ones(length, dtype=int)
        expected[[start for start, _ in pieces[1:]]] += extra  # the last label of a piece begins the next
        assert seen[document].tolist() == expected.tolist()
        if extra:
            assert labels[document].tolist() == [0, *[1] * (length - 1)][:length]


def test_epochs_hold_the_same_documents_in_other_packs(rng):
    lengths = rng.integers(0, 30, size=300).astype(np.int32)
    indices = np.arange(20, 280, dtype=np.int32)
    documents = exposed(lengths, indices)
    report = best_fit_report(lengths[indices], sequence_length=16)
    plan = PackEpochs(num_tokens=report.num_tokens, report=report).plan(2 * report.num_packs + 1)
    arrays = dict(build_best_fit(documents, plan, report, LegacyRandom(5), sequence_length=16, extra=1))
    again = dict(build_best_fit(documents, plan, report, LegacyRandom(5), sequence_length=16, extra=1))
    assert all((arrays[name] == again[name]).all() for name in arrays)
    epochs = arrays["piece_index"].reshape(3, report.num_pieces, 2)
    assert sorted(map(tuple, epochs[0].tolist())) == sorted(map(tuple, epochs[1].tolist()))
    assert (epochs[0] != epochs[1]).any()
    assert (np.diff(arrays["pack_index"]) > 0).all()
    assert arrays["pack_index"][[0, -1]].tolist() == [0, 3 * report.num_pieces]


# --- wrong input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "documents", "counts", "message"),
    [
        ([3, 3], [2], (1, 1), "documents hold sequence 2, but there are 2"),
        ([3, 3], [1], (2, 1), "the documents make 1 rows of 1 pieces, but 2 and 1 were counted"),
        ([9], [0], (1, 2), "fill more rows than were counted"),
        ([9], [0], (2, 1), "more pieces than were counted"),
    ],
)
def test_wrong_documents_and_counts_are_refused(lengths, documents, counts, message):
    packs, pieces = np.empty(counts[0], dtype=np.int32), np.empty((counts[1], 2), dtype=np.int32)
    options = {"sequence_length": 4, "extra": 1, "first_piece": 0, "packs": packs, "pieces": pieces}
    with pytest.raises(IndexError, match=message):
        pack_documents(int32s(*lengths), int32s(*documents), **options)
    with pytest.raises(IndexError, match="sequence 1 has a length of -1 tokens"):
        best_fit_report(int32s(3, -1), sequence_length=4)


def misfit(lengths, packs, pieces, shuffle=(0,)):
    arrays = (int32s(*lengths), int32s(*packs), int32s(*pieces), np.array(shuffle, dtype=np.uint32))
    return span_mismatch(PackReader(*arrays, sequence_length=4, extra=1), len(shuffle))


def test_indices_of_other_data_are_told():
    assert misfit([2, 3], [0, 2], [[0, 0], [1, 0]]) is None
    assert misfit([2, 4], [0, 2], [[0, 0], [1, 0]]) == "expected sample 0 to hold at most 5 tokens, found 6"
    assert misfit([4], [0, 1], [[0, 4]]) == "piece 0 starts at token 4 of sequence 0, which has 4"
    assert misfit([9], [0, 1], [[0, 3]]) == "piece 0 starts at token 3 of sequence 0, which has 9"
    assert misfit([4], [0, 1], [[1, 0]]) == "piece 0 is of sequence 1 of 1"
    assert misfit([4], [0, 2], [[0, 0]]) == "pack 0 holds pieces 0 to 2 of 1"
    assert misfit([4], [0, 1], [[0, 0]], shuffle=(1,)) == "shuffle index names pack 1 of 1"


def test_large_capacities_need_several_levels_of_the_tree(rng):
    for capacity in (63, 64, 65, 4095, 4097, 262_145):
        lengths = rng.integers(1, capacity + 1, size=400)
        expected = pack(lengths.tolist(), range(400), sequence_length=capacity, extra=0)
        assert packed(lengths, range(400), sequence_length=capacity, extra=0) == expected


# --- conversations: shuffled epochs, and packs by next fit ----------------------------------------------------------
def test_a_small_order_is_what_the_legacy_shuffle_gives():
    random = np.random.RandomState(5)
    epochs = []
    for _ in range(2):
        epoch = np.array([10, 20, 30, 40])
        random.shuffle(epoch)
        epochs += epoch.tolist()
    assert shuffle_conversations(int32s(10, 20, 30, 40), 7, seed=5).tolist() == epochs[:7]
    stream, starts = pack_conversations(int32s(10, 20, 30, 40), int32s(3, 3, 3, 3), 3, capacity=6, seed=5)
    assert stream.tolist() == epochs[:6]
    assert starts.tolist() == [0, 2, 4, 6]


SLOTS = st.lists(st.integers(1, 9), min_size=1, max_size=30)


@given(SLOTS, st.none() | st.integers(0, 40), st.integers(0, 20), st.none() | st.integers(1, 4), SEEDS)
def test_packs_agree_with_the_twin_and_are_stable(slots, count, more, most, seed):
    sequences = np.arange(100, 100 + len(slots), dtype=np.int32)
    sizes = np.array(slots, dtype=np.int32)
    options = {"capacity": 9, "most_sequences": most, "seed": seed}
    stream, starts = pack_conversations(sequences, sizes, count, **options)
    rows = [stream[start:stop].tolist() for start, stop in itertools.pairwise(starts)]
    assert [number for row in rows for number in row] == stream.tolist()
    expected = chat.next_fit([slots[number - 100] for number in stream.tolist()], 9, most)
    assert [len(row) for row in rows] == [len(row) for row in expected]
    if count is None:
        assert sorted(stream.tolist()) == sequences.tolist()
        return
    assert len(rows) == count
    longer, longer_starts = pack_conversations(sequences, sizes, count + more, **options)
    assert longer[: len(stream)].tolist() == stream.tolist()
    assert longer_starts[: count + 1].tolist() == starts.tolist()


def test_samples_of_nothing_are_an_error():
    nothing = np.empty(0, dtype=np.int32)
    with pytest.raises(ConfigError, match="2 samples are requested, but there is no conversation"):
        shuffle_conversations(nothing, 2, seed=1)
    with pytest.raises(ConfigError, match="2 samples are requested, but there is no conversation"):
        pack_conversations(nothing, nothing, 2, capacity=4, seed=1)
    assert shuffle_conversations(nothing, None, seed=1).tolist() == []
    stream, starts = pack_conversations(nothing, nothing, None, capacity=4, seed=1)
    assert (stream.tolist(), starts.tolist()) == ([], [0])


# --- the sentences of each sample of masked datasets ----------------------------------------------------------------
SETTINGS = {"max_sequence_length": 10, "short_sequence_probability": 0.0, "seed": 1, "min_sentences": 1}


def rows_of(boundaries, lengths, **changes):
    """Returns the rows of a mapping in text order."""
    rows = build_mapping(np.array(boundaries), np.array(lengths, dtype=np.int32), **(SETTINGS | changes))
    return sorted(rows.tolist())


@pytest.mark.parametrize(
    ("boundaries", "lengths", "changes", "rows"),
    [
        ([0, 6], [5] * 6, {}, [[0, 2, 10], [2, 4, 10], [4, 6, 10]]),  # a sample ends once it holds the target
        ([0, 5], [5] * 5, {}, [[0, 2, 10], [2, 5, 10]]),  # a single last sentence joins the sample before it
        ([0, 2, 3], [1, 1, 3], {}, [[0, 2, 10], [2, 3, 10]]),  # a document that ends early is a sample
        ([0, 6], [20, 1, 20, 1, 1, 1], {"min_sentences": 2}, [[0, 2, 10], [2, 4, 10], [4, 6, 10]]),
        ([0, 1, 3], [5, 5, 5], {"min_sentences": 2}, [[1, 3, 10]]),
        ([0, 2, 4, 5], [512, 1, 513, 1, 600], {}, [[0, 2, 10], [4, 5, 10]]),  # too long, unless it is alone
        ([0, 0, 2, 2], [1, 1], {}, [[0, 2, 10]]),
        ([0], [], {}, []),
    ],
)
def test_samples_by_hand(boundaries, lengths, changes, rows):
    assert rows_of(boundaries, lengths, **changes) == rows


def test_epochs_repeat_until_there_are_enough_and_are_complete():
    assert len(rows_of([0, 1, 2], [3, 3], num_epochs=5)) == 10
    assert len(rows_of([0, 1, 2], [3, 3], num_epochs=5, max_num_samples=3)) == 4
    assert rows_of([0, 1, 2], [3, 3], num_epochs=5, max_num_samples=0) == []
    # A loop over the epochs would take years.
    assert rows_of([0, 1], [3], num_epochs=2**62, max_num_samples=2**62, min_sentences=2) == []


def test_blocks_leave_room_for_the_title():
    arrays = np.array([0, 4, 8]), np.full(8, 5, dtype=np.int32), int32s(0, 5)
    rows = build_blocks_mapping(*arrays, max_sequence_length=10, seed=1, use_one_sentence_blocks=True)
    assert sorted(rows.tolist()) == [[0, 2, 0, 0], [2, 4, 0, 1], [4, 5, 1, 2], [5, 6, 1, 3], [6, 7, 1, 4], [7, 8, 1, 5]]


def test_wide_rows_hold_the_same(monkeypatch):
    corpus, titles = (np.array([0, 30, 60]), np.full(60, 4, dtype=np.int32)), np.zeros(2, dtype=np.int32)

    def both():
        return build_mapping(*corpus, **SETTINGS), build_blocks_mapping(*corpus, titles, max_sequence_length=8, seed=1)

    narrow = both()
    with monkeypatch.context() as patched:
        patched.setattr("tokenloom.order.sentences._UINT32_MAX", 59)
        wide = both()
    assert [rows.dtype for rows in (*narrow, *wide)] == [np.uint32, np.uint32, np.uint64, np.uint64]
    assert [rows.tolist() for rows in narrow] == [rows.tolist() for rows in wide]
    assert [mapping_dtype(count) for count in (2**32 - 1, 2**32)] == [np.uint32, np.uint64]


lengths_of_sentences = st.lists(st.one_of(st.integers(0, 40), st.sampled_from([0, 512, 513])), max_size=25)


@st.composite
def corpora(draw):
    """Draws document boundaries and sentence lengths."""
    lengths = draw(lengths_of_sentences)
    inner = draw(st.lists(st.integers(0, len(lengths)), max_size=8))
    return np.array([0, *sorted(inner), len(lengths)]), np.array(lengths, dtype=np.int32)


counts = {
    "num_epochs": st.integers(1, 4),
    "max_num_samples": st.sampled_from([0, 1, 5, 1000]),
    "max_sequence_length": st.integers(2, 60),
    "seed": st.integers(0, 2**32 - 1),
}


sentences = {"short_sequence_probability": st.sampled_from([0.0, 0.1, 0.3, 1.0]), "min_sentences": st.integers(1, 3)}


@given(corpora(), st.fixed_dictionaries(counts | sentences))
def test_a_mapping_is_what_its_twin_builds(corpus, settings):
    rows = build_mapping(*corpus, **settings)
    assert rows.tolist() == [list(row) for row in reference.build_mapping(*map(np.ndarray.tolist, corpus), **settings)]
    assert sentence_mismatch(rows, corpus[0], max_sequence_length=settings["max_sequence_length"]) is None


@given(corpora(), st.fixed_dictionaries({**counts, "use_one_sentence_blocks": st.booleans()}), st.data())
def test_a_mapping_of_blocks_is_what_its_twin_builds(corpus, settings, data):
    size = len(corpus[0]) - 1
    titles = np.array(data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), dtype=np.int32)
    rows = build_blocks_mapping(*corpus, titles, **settings)
    arguments = [array.tolist() for array in (*corpus, titles)]
    assert rows.tolist() == [list(row) for row in reference.build_blocks_mapping(*arguments, **settings)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_sequence_length": 0}, "max_sequence_length"),
        ({"max_sequence_length": 1, "short_sequence_probability": 0.1}, "max_sequence_length"),
        ({"short_sequence_probability": 1.5}, r"`short_sequence_probability` must be in \[0, 1\], got 1.5"),
        ({"seed": -1}, "a seed"),
    ],
)
def test_numbers_out_of_range_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        rows_of([0, 1], [3], **changes)
    with pytest.raises(IndexError, match="document 0 owns sentences"):
        rows_of([0, 5], [3])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0, 3, 10], r"sample 0 has sentences \[0, 3\), which are not in one document"),
        ([1, 1, 10], r"sentences \[1, 1\)"),
        ([4, 5, 10], r"sentences \[4, 5\)"),
        ([0, 2, 11], r"a target of 11 tokens, which must be in \[1, 10\]"),
        ([0, 2, 0], "a target of 0 tokens"),
    ],
)
def test_rows_of_other_data_are_found_out(row, message):
    misfit = sentence_mismatch(np.array([row], dtype=np.uint32), np.array([0, 2, 4]), max_sequence_length=10)
    assert misfit is not None
    assert re.search(message, misfit)


# --- one warning for all datasets of a build that have no samples ---------------------------------------------------
def messages(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    assert {warning.category for warning in caught} <= {ShortDatasetWarning}
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


def together(*texts, error=None):
    try:
        with join_short_warnings(unless=KeyError):
            for text in texts:
                warn_short(text)
            if error is not None:
                raise error
    except (KeyError, ValueError):
        pass


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ("", []),
        ("a", ["a"]),
        ("abcd", ["4 datasets have no samples: a; b; c; d"]),
        ("x" * 1234, ["1,234 datasets have no samples: x; x; x; x; and 1,230 more"]),
    ],
)
def test_together_they_are_one(texts, expected):
    assert messages(lambda: [warn_short(text) for text in texts[:2]]) == list(texts[:2])
    assert messages(lambda: together(*texts)) == expected
    assert messages(lambda: together(*texts, error=ValueError())) == expected
    assert messages(lambda: together(*texts, error=KeyError())) == []
