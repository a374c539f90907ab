"""Best-fit packing: a few documents by hand, then the kernels against their slow reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.order.exposed import exposed
from tests.reference.packs import cut, pack

from tokenloom._native import PackReader
from tokenloom.errors import ConfigError
from tokenloom.kernels.order import LegacyRandom
from tokenloom.kernels.packs import pack_documents
from tokenloom.order.packs import PackEpochs, best_fit_report, build_best_fit
from tokenloom.order.windows import SpanBatch, span_mismatch

DOCUMENTS = st.lists(st.integers(0, 40), max_size=30)
LENGTHS = st.integers(1, 12)
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


def test_a_report_of_documents():
    report = best_fit_report(int32s(11, 2, 0, 4), sequence_length=4, extra=1)
    assert (report.capacity, report.num_documents, report.num_tokens) == (5, 3, 17)
    assert (report.num_packs, report.num_pieces, report.num_split_documents) == (4, 5, 1)
    assert (report.num_repeated_tokens, report.num_padding_tokens) == (2, 1)
    assert (report.fill, report.documents_per_pack) == (0.95, 1.25)
    nothing = best_fit_report(int32s(), sequence_length=4)
    assert (nothing.num_packs, nothing.fill, nothing.documents_per_pack) == (0, 0.0, 0.0)


def test_epochs_of_packs():
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


@given(
    lengths=DOCUMENTS,
    sequence_length=LENGTHS,
    extra=EXTRA,
    most=st.none() | st.integers(1, 6),
    data=st.data(),
    wide=st.booleans(),
)
def test_the_kernel_packs_as_its_slow_twin(lengths, sequence_length, extra, most, data, wide):
    rule = {"sequence_length": sequence_length, "extra": extra}
    documents = data.draw(st.lists(st.sampled_from(range(len(lengths))), max_size=30) if lengths else st.just([]))
    expected = pack(lengths, documents, most=most, **rule)
    dtype = np.int64 if wide else np.int32
    assert packed(lengths, documents, most=most, dtype=dtype, **rule) == expected
    report = best_fit_report(np.array(lengths, dtype=np.int32), most_documents=most, **rule)
    assert report.num_packs == len(pack(lengths, range(len(lengths)), most=most, **rule))


@given(lengths=DOCUMENTS, sequence_length=LENGTHS, extra=EXTRA)
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
