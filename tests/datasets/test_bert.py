"""BERT samples that can be checked by hand."""

from __future__ import annotations

import numpy as np
from tests.datasets.masked import CLS, MASK, NOTHING_IS_MASKED, PAD, SENTENCES, SEP, make_dataset, sample_of
from tests.reference.masked import flat
from tests.support import StandInWordPieces


def test_bert_without_a_head_is_one_segment(prefix):
    assert sample_of(make_dataset("bert", prefix, **NOTHING_IS_MASKED), 0) == {
        "text": [CLS, 10, 11, 12, 13, 14, 15, SEP, 0, 0, 0, 0],
        "types": [0] * 12,
        "labels": [-1] * 12,
        "is_random": 0,
        "padding_mask": [1] * 8 + [0] * 4,
        "loss_mask": [0] * 12,
        "truncated": 0,
    }


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
