"""BERT and T5 datasets: samples by hand and against their twins, settings, indexing and errors."""

import copy
import re
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.everywhere import check_everywhere
from tests.datasets.masked import (
    ALL_WORDS,
    BOS,
    CLS,
    EOS,
    KINDS,
    MASK,
    NOTHING_IS_MASKED,
    PAD,
    SENTENCES,
    SEP,
    make_config,
    make_dataset,
    sample_of,
)
from tests.reference import masked as reference
from tests.reference.masked import flat
from tests.support import StandInWordPieces, equal_samples, write_sentences

from tokenloom import (
    BlendedMegatronDatasetBuilder,
    ConfigError,
    IndexCacheError,
    ShortDatasetWarning,
    T5MaskedWordPieceDataset,
    TokenizerError,
)


def test_bert_without_a_head_is_one_segment_padded_with_minus_one_without_a_pad_id(prefix):
    assert sample_of(make_dataset("bert", prefix, **NOTHING_IS_MASKED), 0) == {
        "text": [CLS, 10, 11, 12, 13, 14, 15, SEP, 0, 0, 0, 0],
        "types": [0] * 12,
        "labels": [-1] * 12,
        "is_random": 0,
        "padding_mask": [1] * 8 + [0] * 4,
        "loss_mask": [0] * 12,
        "truncated": 0,
    }
    sample = sample_of(make_dataset("bert", prefix, tokenizer=StandInWordPieces(pad=None), **NOTHING_IS_MASKED), 0)
    assert sample["text"][8:] == sample["labels"][8:] == [0] * 4
    assert sample["types"][8:] == sample["padding_mask"][8:] == [-1] * 4


def test_bert_with_a_head_has_two_segments_of_whole_sentences(prefix):
    dataset = make_dataset("bert", prefix, classification_head=True, num_samples=40, **NOTHING_IS_MASKED)
    texts = {(tuple(dataset[k]["text"]), dataset[k]["is_random"]) for k in range(len(dataset))}
    expected = set()
    for sentences in (SENTENCES[0], SENTENCES[3]):
        for pivot in range(1, len(sentences)):
            halves = [flat(part) for part in (sentences[:pivot], sentences[pivot:])]
            for is_random, (first, second) in enumerate((halves, halves[::-1])):
                text = [CLS, *first, SEP, *second, SEP]
                expected.add((*(tuple(text + [0] * (12 - len(text))),), is_random))
    assert texts == expected
    sample = sample_of(make_dataset("bert", prefix, classification_head=True, **NOTHING_IS_MASKED), 0)
    middle = sample["text"].index(SEP)
    assert sample["types"] == [0] * (middle + 1) + [1] * (8 - middle) + [0] * 3


def test_a_text_that_is_too_long_for_bert_loses_tokens_at_either_end(prefix):
    dataset = make_dataset("bert", prefix, sequence_length=6, num_samples=60, **NOTHING_IS_MASKED)
    texts = {tuple(dataset[k]["text"]) for k in range(len(dataset)) if dataset[k]["truncated"]}
    assert texts >= {(CLS, *range(first, first + 3), SEP, 0) for first in (10, 11, 12, 13)}


def test_every_masked_token_of_bert_has_its_label(prefix):
    settings = {"masking_probability": 0.5, "short_sequence_probability": 0.0}
    dataset = make_dataset("bert", prefix, num_samples=50, **settings)
    outcomes = set()
    for k in range(len(dataset)):
        sample = dataset[k]
        original = np.array([CLS, *flat(dataset.dataset[int(row)] for row in dataset.spans(k).documents), SEP])
        masked = np.flatnonzero(sample["loss_mask"])
        assert (sample["labels"][masked] == original[masked]).all()
        assert (np.delete(sample["labels"], masked) == -1).all()
        unmasked = np.delete(np.arange(len(original)), masked)
        assert (sample["text"][unmasked] == original[unmasked]).all()
        for found, stored in zip(sample["text"][masked], original[masked], strict=True):
            outcomes.add("mask" if found == MASK else "kept" if found == stored else "random")
    assert outcomes == {"mask", "kept", "random"}


def test_a_random_token_that_is_the_pad_id_is_no_hole_in_the_mask(prefix):
    """About 1 in 10 masked tokens becomes random, and 1 in 40 of the random ones is the pad id."""
    settings = {"masking_probability": 0.9, "masking_max_ngram": 1, "short_sequence_probability": 0.0}
    dataset = make_dataset("bert", prefix, num_samples=300, tokenizer=StandInWordPieces(vocab_size=40), **settings)
    positions = range(len(dataset))
    drawn = [k for k in positions if (dataset[k]["text"][: len_of(dataset, k)] == PAD).any()]
    assert drawn
    for k in drawn:
        assert dataset[k]["padding_mask"].tolist() == [1] * len_of(dataset, k) + [PAD] * (12 - len_of(dataset, k))
    assert (dataset.batch(positions)["padding_mask"] == [dataset[k]["padding_mask"] for k in positions]).all()


def len_of(dataset, k):
    """Returns the number of tokens of a one-segment sample."""
    return int(min(dataset.spans(k).lengths.sum(), dataset.sample_index[k, 2])) + 2


def test_t5_replaces_masked_words_by_sentinels_and_samples_may_have_one_token(tmp_path):
    prefix = write_sentences(tmp_path / "corpus", [[[10, 11], [50, 12]]])
    tokenizer = StandInWordPieces(continuations=[50])
    dataset = make_dataset("t5", prefix, tokenizer=tokenizer, sequence_length_decoder=10, **ALL_WORDS)
    assert sample_of(dataset, 0) == {
        "text_enc": [6, 7, 8] + [0] * 9,
        "text_dec": [BOS, 6, 10, 7, 11, 50, 8, 12, 0, 0],
        "labels": [6, 10, 7, 11, 50, 8, 12, EOS, -1, -1],
        "loss_mask": [1] * 8 + [0] * 2,
        "truncated": 0,
        "enc_mask": [1] * 3 + [0] * 9,
        "dec_mask": [1] * 8 + [0] * 2,
    }
    prefix = write_sentences(tmp_path / "corpus", [[[42]]])
    assert sample_of(make_dataset("bert", prefix, **NOTHING_IS_MASKED), 0)["text"] == [CLS, 42, SEP] + [0] * 9
    assert sample_of(make_dataset("t5", prefix, **ALL_WORDS), 0)["text_dec"][:4] == [BOS, 6, 42, 0]


def test_t5_of_which_nothing_is_masked_and_whose_end_is_lost(prefix):
    dataset = make_dataset("t5", prefix, sequence_length=6, sequence_length_decoder=2, **NOTHING_IS_MASKED)
    assert sample_of(dataset, 0) == {
        "text_enc": [10, 11, 12, 13, 0, 0],
        "text_dec": [BOS, 0],
        "labels": [EOS, -1],
        "loss_mask": [1, 0],
        "truncated": 1,
        "enc_mask": [1] * 4 + [0] * 2,
        "dec_mask": [1, 0],
    }


def test_t5_asks_for_sentinels_and_does_without_cls_sep_and_mask(prefix):
    with pytest.raises(ConfigError, match="has no `additional_special_tokens_ids`"):
        make_config("t5", prefix, tokenizer=StandInWordPieces(num_sentinels=0))
    tokenizer = StandInWordPieces(cls=None, sep=None, mask=None)
    assert make_dataset("t5", prefix, tokenizer=tokenizer)[0]["text_dec"][0] == BOS


def test_too_many_masked_runs_or_tokens_of_the_decoder_name_sample_and_numbers(prefix, caplog):
    dataset = make_dataset("t5", prefix, tokenizer=StandInWordPieces(num_sentinels=1), **ALL_WORDS)
    assert "can have up to 9 masked runs of words, but the tokenizer has 1 sentinels" in caplog.text
    (k,) = np.flatnonzero(dataset.sample_index[:, 0] == 0)
    message = rf"sample {k} of .*corpus` \(train\): 6 runs of words are masked, but the tokenizer has 1 sentinel tokens"
    with pytest.raises(ConfigError, match=message):
        dataset.batch(range(len(dataset)))
    settings = {"tokenizer": StandInWordPieces(num_sentinels=9), "sequence_length_decoder": 12, **ALL_WORDS}
    dataset = make_dataset("t5", prefix, **settings)
    (k,) = np.flatnonzero(dataset.sample_index[:, 0] == 0)
    with pytest.raises(ConfigError, match=f"sample {k} .*the decoder needs 13 tokens, but sequence_length_decoder is"):
        dataset[int(k)]


def test_dense_and_separate_attention_masks_of_t5():
    encoder, decoder = torch.tensor([[5, 6, 0]]), torch.tensor([[4, 0]])
    masks = T5MaskedWordPieceDataset.config_attention_mask(encoder, decoder, None, None, use_local=True)
    expected = ([[1, 1, 0], [1, 1, 0], [0, 0, 0]], [[1, 0], [0, 0]], [[1, 1, 0], [0, 0, 0]])
    assert [(~mask).int().tolist() for mask in masks] == [[[rows]] for rows in expected]
    encoder_mask, decoder_mask = torch.ones(2, 3), torch.zeros(2, 4)
    masks = (encoder_mask, decoder_mask) * 2
    encoder, decoder, cross = T5MaskedWordPieceDataset.config_attention_mask(*masks)
    assert (encoder.shape, decoder) == ((2, 1, 1, 3), None)
    assert [mask.shape for mask in cross] == [(2, 1, 1, 4), (2, 1, 1, 3)]


SETTINGS = st.fixed_dictionaries(
    {
        "random_seed": st.integers(0, 2**32 - 1),
        "sequence_length": st.integers(5, 40),
        "masking_probability": st.floats(0.01, 0.99),
        "short_sequence_probability": st.sampled_from([0.0, 0.3, 1.0]),
        "masking_max_ngram": st.integers(1, 6),
        "masking_do_full_word": st.booleans(),
        "masking_use_longer_ngrams": st.booleans(),
        "distribution": st.sampled_from(["weights", "geometric", "permutation"]),
    }
)
TOKENS = st.one_of(st.integers(106, 130), st.integers(0, 130))
DOCUMENTS = st.lists(st.lists(st.lists(TOKENS, max_size=12), max_size=5), min_size=1, max_size=4)


def options_of(drawn):
    """Returns drawn settings without forbidden combinations, such as geometric lengths with permutation."""
    distribution = drawn.pop("distribution")
    geometric = distribution == "geometric"
    return drawn | {
        "masking_use_geometric_distribution": geometric,
        "masking_do_permutation": distribution == "permutation",
        "masking_use_longer_ngrams": drawn["masking_use_longer_ngrams"] and not geometric,
    }


@given(DOCUMENTS, SETTINGS, st.sampled_from(list(KINDS)), st.booleans(), st.sampled_from([None, 0, 110]))
def test_samples_are_what_their_twins_make(documents, drawn, kind, head, pad):
    documents.append([[106, 107], [108]])
    options = options_of(drawn) | ({"classification_head": head} if kind == "bert" else {"sequence_length_decoder": 90})
    tokenizer = StandInWordPieces(vocab_size=131, pad=pad, num_sentinels=100, continuations=range(107, 131, 3))
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_sentences(f"{folder}/corpus", documents)
        dataset = make_dataset(kind, prefix, num_samples=6, tokenizer=tokenizer, path_to_cache=folder, **options)
        twin = reference.bert_sample if kind == "bert" else reference.t5_sample
        for k, (start, stop, target) in enumerate(dataset.sample_index.tolist()):
            sentences = [dataset.dataset[row].tolist() for row in range(start, stop)]
            expected = twin(sentences, target, k, dataset.config, -1 if pad is None else pad)
            found = {name: np.asarray(value).tolist() for name, value in dataset[k].items()}
            assert found == expected


both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def corpus(tmp_path, rng):
    documents = [[rng.integers(10, 100, size=rng.integers(9)) for _ in range(rng.integers(7))] for _ in range(60)]
    return write_sentences(tmp_path / "random", [*documents, [[10], [11]]])


@both
def test_types_are_those_of_the_reference(prefix, kind):
    dataset = make_dataset(kind, prefix)
    sample = dataset[0]
    for name, value in sample.items():
        assert type(value) is (int if name in ("is_random", "truncated") else np.ndarray)
        assert np.asarray(value).dtype == np.int64
    assert equal_samples({name: np.asarray(value) for name, value in sample.items()}, dataset.sample(0))


@pytest.mark.parametrize(("kind", "mmap_bin_files"), [("bert", True), ("t5", False)])
def test_a_sample_is_the_same_everywhere(corpus, kind, mmap_bin_files):
    dataset = make_dataset(kind, corpus, num_samples=200, mmap_bin_files=mmap_bin_files)
    check_everywhere(dataset, list(range(0, len(dataset), 7)))


@both
def test_a_position_of_none_gives_a_sample_without_loss(corpus, kind):
    dataset = make_dataset(kind, corpus, masking_probability=0.5)
    trained = next(number for number in range(len(dataset)) if dataset.sample(number)["loss_mask"].any())
    batch = dataset.batch([None, trained])  # a sample of empty sentences has no loss anyway
    assert not batch["loss_mask"][0].any()
    assert batch["loss_mask"][1].any()
    assert not dataset[None]["loss_mask"].any()


@both
def test_blends_and_splits_are_built_over_documents(tmp_path, kind, rng):
    prefixes = [
        write_sentences(tmp_path / name, [[rng.integers(10, 100, size=5) for _ in range(4)] for _ in range(20)])
        for name in "ab"
    ]
    config = make_config(kind, None, blend=(prefixes, [0.75, 0.25]), split="8,2,0", path_to_cache=str(tmp_path / "c"))
    train, valid, test = BlendedMegatronDatasetBuilder(KINDS[kind][0], [40, 8, 0], lambda: True, config).build()
    assert (len(train) >= 40, len(valid) >= 8, test) == (True, True, None)
    assert train.datasets[0].indices.tolist() == list(range(16))
    assert valid.datasets[0].indices.tolist() == list(range(16, 20))
    documents = {row // 4 for row in train.spans(0).documents.tolist()}
    assert documents <= set(range(16))
    batch = train.batch(range(8))
    for k in range(8):
        sample = train.sample(k)
        assert all((batch[name][k] == value).all() for name, value in sample.items())
    assert train.verify_indices() == []


@both
def test_indices_come_from_the_cache_and_are_checked(corpus, kind, tmp_path):
    cache = tmp_path / "cache"
    first = make_dataset(kind, corpus, num_samples=100, path_to_cache=str(cache))
    (path,) = cache.glob("*-sample_index.npy")
    assert path.name == f"{first.unique_description_hash}-{type(first).__name__}-sample_index.npy"
    modified = path.stat().st_mtime_ns
    for changes in ({}, {"defer_npy_index_mmap": True}, {"fast_cache_load": True}):
        again = make_dataset(kind, corpus, num_samples=100, path_to_cache=str(cache), **changes)
        assert np.array_equal(again.sample_index, first.sample_index)
        assert again.verify_indices() == []
    assert path.stat().st_mtime_ns == modified


@both
def test_a_cached_index_that_cannot_be_right_is_built_again(corpus, kind, tmp_path, caplog):
    cache = tmp_path / "cache"
    first = make_dataset(kind, corpus, num_samples=100, path_to_cache=str(cache))
    expected = first.sample_index.copy()
    (path,) = cache.glob("*-sample_index.npy")
    for wrong, message in (
        (expected.astype(np.int64), rf"expected uint32\[any, 3\], found int64\[{len(expected)}, 3\]"),
        (expected[:5], "the index has 5 samples, but 100 are requested"),
        (expected[:, ::-1].copy(), "which are not in one document of this split"),
        (expected[::-1].copy(), "expected sample_index '.*', found '"),
    ):
        np.save(path, wrong)
        caplog.clear()
        rebuilt = make_dataset(kind, corpus, num_samples=100, path_to_cache=str(cache))
        assert np.array_equal(rebuilt.sample_index, expected)
        assert re.search(message, caplog.text)


@both
def test_a_damaged_index_is_not_the_end_of_the_data(corpus, kind):
    dataset = make_dataset(kind, corpus)
    damaged = copy.copy(dataset)
    for row, message in (
        ([0, 2**31, 5], "sentences beyond the"),
        ([5, 2, 5], "sentences beyond the"),
        ([0, 2, 1000], "its target length is 1000 tokens, which must be at most"),
    ):
        damaged.order.opened = {"sample_index": np.array([row], dtype=np.uint32)}
        with pytest.raises(IndexCacheError, match=f"do not match the data: sample 0: {message}"):
            damaged[0]


EXCLUSIVE = "masking_use_geometric_distribution", "masking_do_permutation"


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("bert", {"classification_head": None}, "no `classification_head` given"),
        ("bert", {"tokenizer": None}, "no `tokenizer` given"),
        ("bert", {"masking_probability": None}, "no `masking_probability` given"),
        ("bert", {"masking_probability": 0.0}, r"`masking_probability`: must be in \(0, 1\), got 0.0"),
        ("bert", {"masking_probability": 1.0}, r"`masking_probability`: must be in \(0, 1\), got 1.0"),
        ("bert", {"short_sequence_probability": 1.1}, r"`short_sequence_probability`: must be in \[0, 1\], got 1.1"),
        ("bert", {"masking_max_ngram": 0}, "`masking_max_ngram`: must be 1 or more, got 0"),
        ("bert", dict.fromkeys(EXCLUSIVE, True), f"`{EXCLUSIVE[0]}` and `{EXCLUSIVE[1]}` exclude each other"),
        ("bert", {"sequence_length": 3}, "`sequence_length`: must be [45] or more, got 3"),
        ("bert", {"tokenizer": StandInWordPieces(mask=None)}, "the tokenizer StandInWordPieces has no `mask`"),
        ("t5", {"tokenizer": StandInWordPieces(eos=None)}, "the tokenizer StandInWordPieces has no `eos`"),
        ("t5", {"sequence_length_decoder": None}, "no `sequence_length_decoder` given"),
        ("t5", {"sequence_length_decoder": 0}, "`sequence_length_decoder`: must be"),
    ],
)
def test_settings_that_make_no_sense(prefix, kind, changes, message):
    with pytest.raises(ConfigError, match=message):
        make_config(kind, prefix, **changes)
    assert make_config("t5", prefix).sequence_length_encoder == 12


@both
def test_data_of_another_tokenizer_name_the_token(tmp_path, kind):
    prefix = write_sentences(tmp_path / "corpus", [[[10, 11], [12, 900]]])
    dataset = make_dataset(kind, prefix)
    with pytest.raises(TokenizerError, match=r"sample 0 of .*: token 900 is not in the vocabulary of the tokenizer"):
        dataset[0]


@both
def test_data_without_samples(tmp_path, kind):
    prefix = write_sentences(tmp_path / "corpus", [[], [[10] * 600, [11]], []])
    message = "none of 3 documents gives a sample: each has fewer than 1 sentences, or several"
    with pytest.raises(ConfigError, match=message):
        make_dataset(kind, prefix, num_samples=1)
    with pytest.warns(ShortDatasetWarning, match=message):
        assert len(make_dataset(kind, prefix)) == 0
    assert len(make_dataset(kind, prefix, num_samples=0)) == 0
    with pytest.warns(ShortDatasetWarning, match="none of 0 documents"):
        assert len(make_dataset(kind, prefix, indices=[])) == 0


@both
def test_documents_must_be_consecutive_and_exist(prefix, kind):
    for indices in ([0, 2], [3, 4], [1, 0]):
        with pytest.raises(ConfigError, match="documents must be consecutive and in \\[0, 4\\)"):
            make_dataset(kind, prefix, indices=indices)
    with pytest.raises(ConfigError, match="`num_samples` must be 0 or more, got -1"):
        make_dataset(kind, prefix, num_samples=-1)


def test_samples_do_not_depend_on_the_order_of_the_vocabulary(corpus):
    shuffled = StandInWordPieces()
    shuffled.inv_vocab = dict(reversed(shuffled.inv_vocab.items()))
    settings = {"masking_probability": 0.9, "path_to_cache": None}
    first, second = (make_dataset("bert", corpus, tokenizer=one, **settings) for one in (StandInWordPieces(), shuffled))
    assert equal_samples(first.batch(range(20)), second.batch(range(20)))
