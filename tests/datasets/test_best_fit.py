"""GPT samples of packed documents: by hand, against the slow reference, and through blends and caches."""

from __future__ import annotations

import numpy as np
import pytest
from tests.datasets.everywhere import check_everywhere
from tests.order.computed import InOrder
from tests.reference.gpt import make_sample
from tests.reference.packs import cut
from tests.support import equal_samples, make_config, make_dataset, random_documents, write_corpus

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.plan import plan_build
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.order.packs import best_fit_report

DOCUMENTS = [[1, 2, 9], [3, 4, 5, 6, 7, 8, 9], [10, 9]]


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", DOCUMENTS)


def by_spans(dataset):
    return {tuple(dataset.spans(k).documents.tolist()): dataset.sample(k) for k in range(len(dataset))}


@pytest.mark.parametrize("mmap_bin_files", [True, False])
def test_three_documents_make_two_packs(prefix, mmap_bin_files):
    dataset = make_dataset(
        prefix, sequence_length=6, window_policy="best_fit", inter_document_masking=True, mmap_bin_files=mmap_bin_files
    )
    samples = by_spans(dataset)
    assert set(samples) == {(1,), (0, 2)}
    assert {name: array.tolist() for name, array in samples[1,].items()} == {
        "tokens": [3, 4, 5, 6, 7, 8],
        "labels": [4, 5, 6, 7, 8, 9],
        "loss_mask": [1] * 6,
        "position_ids": [0, 1, 2, 3, 4, 5],
        "cu_seqlens": [0] + [6] * 6,
        "max_seqlen": 6,
    }
    assert {name: array.tolist() for name, array in samples[0, 2].items()} == {
        "tokens": [1, 2, 9, 10, 9, 0],
        "labels": [2, 9, 10, 9, 0, 0],
        "loss_mask": [1, 1, 1, 1, 0, 0],
        "position_ids": [0, 1, 2, 0, 1, 2],
        "cu_seqlens": [0, 3, 6, 6, 6, 6, 6],
        "max_seqlen": 3,
    }


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
    dataset = make_dataset(
        prefix,
        num_samples=150,
        sequence_length=16,
        window_policy="best_fit",
        add_extra_token_to_sequence=extra,
        mmap_bin_files=mmap_bin_files,
        **options,
    )
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
    # Empty documents, documents of exactly one sample, and documents of many samples.
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


def test_only_packs_change_the_name_of_the_cache(prefix):
    packs, windows = make_dataset(prefix, window_policy="best_fit"), make_dataset(prefix, window_policy="concat")
    assert "window_policy" not in windows.unique_description
    assert packs.unique_identifiers["window_policy"] == "best_fit"
    assert packs.unique_description_hash != windows.unique_description_hash
