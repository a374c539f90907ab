"""Conversations of several pairs in a computed order: each is whole, once per walk, in the reference's packs."""

from __future__ import annotations

import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import ANSWER, PROMPT, conversation, conversations_strategy, write_conversations
from tests.datasets.conversations import settings as config_settings
from tests.reference import chat as reference
from tests.reference.pack_walks import packs_of_walk
from tests.support import equal_samples, write_corpus

from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
from tokenloom.datasets.conversations import SFTDataset, VarlenDataset
from tokenloom.errors import ConfigError, DatasetNotFoundError, UntrainableWarning
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs, PairToJoin
from tokenloom.kernels.permutation import Key
from tokenloom.kernels.walks import NOT_KNOWN, count_packs_of, make_source_documents, make_walk_reader, sample_numbers
from tokenloom.order.walk_order import WalkOrder

KEY = Key(8, 2)
KINDS = {SFTDataset: SFTDatasetConfig, VarlenDataset: VarlenDatasetConfig}


class InOrder:
    """Returns a dataset of conversations in a computed order, built like in a run."""

    def __init__(self, kind, prefixes, *, denied=(), held=0, reads_held=False, **changes):
        config = KINDS[kind](**config_settings(None, **changes))
        opened = [IndexedDataset(prefix) for prefix in prefixes]
        self.pairs = JoinedPairs(
            [
                PairToJoin(prefix=prefix, num_sequences=len(pair), check=lambda pair: None)
                for prefix, pair in zip(prefixes, opened, strict=True)
            ],
            dtype=opened[0].dtype,
            mmap=config.mmap_bin_files,
        )
        capacity = config.sequence_length if kind.shares_samples else 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UntrainableWarning)
            self.places = [kind.count_slots(pair, config) for pair in opened]
        rule = {"sequence_length": capacity, "extra": 0}
        counts = [
            count_packs_of(places, key=KEY, pair=number, held_documents=held, reads_held=reads_held, **rule)
            for number, places in enumerate(self.places)
        ]
        self.num_windows = sum(counts)
        facts = [
            (len(pair), NOT_KNOWN if kind.shares_samples else count, 0, held)
            for pair, count in zip(opened, counts, strict=True)
        ]
        documents = make_source_documents(facts, key=KEY, reads_held=reads_held)
        taken = kind.joined_conversations(self.pairs, config, name="talks")
        taken.report_slots(documents, shares_samples=kind.shares_samples)
        num_packs = counts if kind.shares_samples else None
        reader = make_walk_reader(documents, is_shuffled=True, denied=denied, num_packs=num_packs, **rule)
        reader.add_walks(0, 0, len(prefixes), self.num_windows)
        self.dataset = kind.in_order(taken, WalkOrder(self.pairs, reader, identity="test"))
        self.windows = np.arange(self.num_windows)

    def walk(self, number):
        return sample_numbers(np.full(self.num_windows, number), self.windows).tolist()


def expected_sample(kind, talks, *, length, multiple, train_on="answers"):
    options = {"length": length, "multiple": multiple, "fill": 7, "train_on": train_on}
    return (
        reference.sft_sample(talks, **options) if kind is SFTDataset else reference.varlen_sample(*talks[0], **options)
    )


@pytest.mark.parametrize("kind", KINDS)
@given(
    pairs=st.lists(conversations_strategy(), min_size=1, max_size=4),
    length=st.sampled_from([4, 8, 16]),
    context=st.sampled_from([None, 2]),
    train_on=st.sampled_from(["answers", "last_answer", "everything"]),
    walk=st.integers(0, 5),
    mmap=st.booleans(),
)
def test_samples_are_those_of_the_twin(kind, pairs, length, context, train_on, walk, mmap) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prefixes = [write_conversations(f"{folder}/{number}", talks) for number, talks in enumerate(pairs)]
        settings = {"sequence_length": length, "context_parallel_size": context, "train_on": train_on}
        source = InOrder(kind, prefixes, mmap_bin_files=mmap, **settings)
        everything = [talk for talks in pairs for talk in talks]
        ahead = 0 if kind is SFTDataset else 1
        usable = [
            number
            for number, (tokens, parts) in enumerate(everything)
            if len(tokens) > ahead and reference.trained_tokens(parts, min(len(tokens), length + ahead), train_on)
        ]
        numbers = source.walk(walk)
        rows = [source.dataset.spans(number).documents.tolist() for number in numbers]
        assert sorted(number for row in rows for number in row) == usable
        for number, row in zip(numbers, rows, strict=True):
            expected = expected_sample(
                kind, [everything[item] for item in row], length=length, multiple=4 if context else 1, train_on=train_on
            )
            assert equal_samples(source.dataset.sample(number), expected)
        if kind is SFTDataset:
            places = [places.tolist() for places in source.places]
            packs = packs_of_walk(places, key=KEY, walk=walk, sequence_length=length, extra=0)
            assert rows == [[document for document, _, _ in pack] for pack in packs]
        elif numbers:
            lengths = [int(source.dataset.sample(number)["original_seq_len"][0]) for number in numbers]
            assert source.dataset.lengths(numbers).tolist() == lengths


@pytest.fixture
def talks(tmp_path):
    random = np.random.default_rng(0)
    pairs = [
        [
            conversation((PROMPT, random.integers(10, 99, size=3).tolist()), (ANSWER, [*range(10, 11 + size), 9]))
            for size in random.integers(0, 9, size=count)
        ]
        for count in (30, 1, 25)
    ]
    prefixes = [write_conversations(tmp_path / f"p{number}", part) for number, part in enumerate(pairs)]
    return prefixes, [talk for part in pairs for talk in part]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_the_same_in_any_batch_and_thread(kind, talks) -> None:
    prefixes, _ = talks
    source, again = (InOrder(kind, prefixes, sequence_length=16) for _ in range(2))
    numbers = [*source.walk(0), *source.walk(7)]
    samples = [source.dataset.sample(number) for number in numbers]
    orders = [np.random.default_rng(seed).permutation(len(numbers))[:20].tolist() for seed in range(8)]

    def ask(order):
        asked = [numbers[place] for place in order]
        if kind is VarlenDataset:
            return [again.dataset.sample(number) for number in asked]
        batch = again.dataset.batch(asked)
        return [{name: array[row] for name, array in batch.items()} for row in range(len(asked))]

    with ThreadPoolExecutor(4) as pool:
        for order, found in zip(orders, pool.map(ask, orders), strict=True):
            assert all(equal_samples(sample, samples[place]) for place, sample in zip(order, found, strict=True))
    item = again.dataset[numbers[0]]
    assert {name: tensor.tolist() for name, tensor in item.items()} == {
        name: array.tolist() for name, array in samples[0].items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_denied_conversations_are_padding_and_never_read(kind, talks, monkeypatch) -> None:
    prefixes, _ = talks
    denied = (0, 4, 30, 40)
    plain = InOrder(kind, prefixes, sequence_length=16)
    source = InOrder(kind, prefixes, sequence_length=16, denied=denied)
    read = []
    gather = IndexedDataset.gather

    def recorded(pair, sequences, *rest):
        read.append((pair, sequences))
        return gather(pair, sequences, *rest)

    monkeypatch.setattr(IndexedDataset, "gather", recorded)
    hidden = 0
    for number in source.walk(0):
        read.clear()
        after = source.dataset.sample(number)
        firsts = {prefix: source.pairs.first_of(place) for place, prefix in enumerate(prefixes)}
        asked = {firsts[pair.path_prefix] + sequence for pair, sequences in read for sequence in sequences.tolist()}
        assert not asked & {*denied}
        before, spans = plain.dataset.sample(number), plain.dataset.spans(number)
        changed = source.dataset.spans(number)
        assert changed.lengths.tolist() == spans.lengths.tolist()
        assert changed.documents.tolist() == [-1 - d if d in denied else d for d in spans.documents.tolist()]
        for name in after:
            if name not in ("tokens", "labels", "loss_mask"):
                assert np.array_equal(after[name], before[name]), name
        begin = 0
        for document, slots in zip(spans.documents.tolist(), places_of(plain, spans), strict=True):
            own = slice(begin, begin + slots)
            if document in denied:
                hidden += 1
                assert after["tokens"][own].tolist() == [7] * slots
                assert after["labels"][own].tolist() == [-100] * slots
                assert not after["loss_mask"][own].any()
            else:
                assert all(np.array_equal(after[name][own], before[name][own]) for name in after if name == "tokens")
                assert np.array_equal(after["labels"][own], before["labels"][own])
            begin += slots
    assert hidden == len(denied)
    if kind is VarlenDataset:
        numbers = source.walk(0)
        assert source.dataset.lengths(numbers).tolist() == plain.dataset.lengths(numbers).tolist()
        assert source.dataset.padded_lengths(numbers).tolist() == plain.dataset.padded_lengths(numbers).tolist()


def places_of(source, spans):
    everything = np.concatenate(source.places)
    if type(source.dataset) is SFTDataset:
        return everything[spans.documents].tolist()
    return [int(spans.lengths[0]) - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_out_is_disjoint(kind, talks) -> None:
    prefixes, everything = talks
    read = [
        [document for number in source.walk(0) for document in source.dataset.spans(number).documents.tolist()]
        for source in (InOrder(kind, prefixes, sequence_length=16, held=5, reads_held=held) for held in (True, False))
    ]
    assert len(read[0]) == 5 + 1 + 5
    assert sorted(read[0] + read[1]) == list(range(len(everything)))


def test_plain_text_is_for_variable_lengths_alone(tmp_path) -> None:
    prefix = write_corpus(tmp_path / "text", [[1, 2, 3, 9], [4, 9], [], [5]])
    source = InOrder(VarlenDataset, [prefix])
    assert sorted(source.dataset.sample(number)["labels"].tolist() for number in source.walk(2)) == [[2, 3, 9], [9]]
    with pytest.raises(DatasetNotFoundError, match="with the roles of the tokens"):
        InOrder(SFTDataset, [prefix])


def test_what_has_no_answer_is_refused(talks) -> None:
    source = InOrder(SFTDataset, talks[0])
    for ask in (source.dataset.ledger, lambda: source.dataset.document_index, lambda: source.dataset.sample_index):
        with pytest.raises(ConfigError, match="has no indices, as its order is computed"):
            ask()
    with pytest.raises(ConfigError, match="has no indices"):
        InOrder(VarlenDataset, talks[0]).dataset.lengths()
    with pytest.raises(ConfigError, match="longer than a sample of 4"):
        InOrder(SFTDataset, talks[0], sequence_length=4, long_conversations="error")
