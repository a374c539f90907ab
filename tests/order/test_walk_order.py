"""GPT samples in a computed order: every setting, mapped or not, with and without denied documents."""

import numpy as np
import pytest
from tests.order.computed import InOrder
from tests.reference.occurrences import rows_of, scanned
from tests.support import EOD, make_config

from tokenloom.datasets.gpt import GPTDataset
from tokenloom.errors import ChangedFileError, DatasetFormatError
from tokenloom.order.protocols import SpanOrder

SETTINGS = [
    {},
    {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True, "create_attention_mask": True},
    {"inter_document_masking": True},
    {"inter_document_masking": True, "eod_mask_loss": True},
    {"add_extra_token_to_sequence": False},
]
MAPPED = [*zip([*SETTINGS, {"window_policy": "best_fit"}], [True, False, True, False, True, True], strict=True)]


def corpora(seed=0):
    random = np.random.default_rng(seed)
    return [
        [[*random.integers(10, 99, size=random.integers(0, 12)).tolist(), EOD] for _ in range(count)]
        for count in (40, 3, 25)
    ]


def make(folder, *, documents=None, denied=(), check=lambda pair: None, **settings):
    config = make_config(None, sequence_length=16, **settings)
    documents = corpora() if documents is None else documents
    is_packed = config.window_policy == "best_fit"
    return InOrder(GPTDataset, folder, documents, config, denied=denied, is_packed=is_packed, check=check)


@pytest.mark.parametrize("settings", SETTINGS)
def test_samples_are_the_tokens_of_their_spans(tmp_path, settings):
    made = make(tmp_path, **settings)
    dataset, numbers = made.dataset, np.arange(made.num_windows)
    batch, unmapped = made.batch(numbers), make(tmp_path, mmap_bin_files=False, **settings).batch(numbers)
    assert batch.keys() == unmapped.keys()
    for name, array in batch.items():
        assert np.array_equal(array, unmapped[name]), name
    everything = [document for corpus in corpora() for document in corpus]
    for number in numbers.tolist():
        spans = dataset.spans(number)
        pieces = zip(spans.documents.tolist(), spans.starts.tolist(), spans.lengths.tolist(), strict=True)
        text = [everything[d][s : s + n] for d, s, n in pieces]
        tokens = [token for piece in text for token in piece]
        assert batch["tokens"][number].tolist() == tokens[:16]
        if dataset.config.num_extra_tokens:
            assert batch["labels"][number].tolist() == tokens[1:]
        single = dataset.sample(number)
        assert all(np.array_equal(single[name], array[number]) for name, array in batch.items())


@pytest.mark.parametrize(("settings", "mmap"), MAPPED)
def test_denied_documents_are_padding_without_loss(tmp_path, settings, mmap):
    made = make(tmp_path, **settings)
    denied = tuple(range(3, 60, 4))
    plain, numbers = made.dataset, np.arange(made.num_windows)
    before = made.batch(numbers)
    after = make(tmp_path, mmap_bin_files=mmap, denied=denied, **settings).batch(numbers)
    seen = 0
    for number in numbers.tolist():
        spans = plain.spans(number)
        is_denied = np.resize(np.repeat(np.isin(spans.documents, denied), spans.lengths), 17)
        is_denied[spans.num_tokens :] = False  # padding
        starts = np.cumsum(spans.lengths) - spans.lengths
        inputs, labels = is_denied[:16], is_denied[1:17]
        seen += int(inputs.sum())
        kept = before["tokens"][number].copy()
        kept[inputs] = 0
        assert after["tokens"][number].tolist() == kept.tolist()
        loss = before["loss_mask"][number].copy()
        loss[: len(labels)][labels] = 0
        loss[inputs] = 0
        assert after["loss_mask"][number].tolist() == loss.tolist()
        targets = before["labels"][number].copy()
        targets[: len(labels)][labels] = 0
        assert after["labels"][number].tolist() == targets.tolist()
        if settings.get("reset_attention_mask"):
            for first, length, document in zip(starts, spans.lengths, spans.documents, strict=True):
                if document in denied and first + length < 16:  # no later token attends to it
                    assert after["attention_mask"][number][0, first + length :, : first + length].all()
        if settings.get("inter_document_masking"):
            assert after["cu_seqlens"][number].tolist() == before["cu_seqlens"][number].tolist()
    assert seen > 20


def test_denied_tokens_are_never_read(tmp_path):
    made = make(tmp_path, mmap_bin_files=False, denied=(0, 1, 2))
    pairs = made.pairs
    asked_for = []
    gather = type(pairs).gather
    pairs.gather = lambda sequences, starts, lengths: (
        asked_for.extend(sequences.tolist()) or gather(pairs, sequences, starts, lengths)
    )
    made.dataset.batch(np.arange(made.num_windows))
    assert asked_for
    assert not {0, 1, 2} & set(asked_for)


def test_it_is_an_order_of_spans(tmp_path):
    made = make(tmp_path)
    dataset, num_windows = made.dataset, made.num_windows
    assert isinstance(dataset.order, SpanOrder)
    assert dataset.order.verify() == []
    assert dataset.order.is_built
    everything = np.arange(len(dataset.dataset), dtype=np.int64)
    found = dataset.order.occurrences(np.array([0, 1]), everything)
    assert rows_of(found) == scanned(dataset.order.native_reader(), [0, 1], everything, num_windows=num_windows)
    assert set(found.documents.tolist()) <= set(everything.tolist())


def test_another_pair_than_was_meant(tmp_path):
    def refuse(pair):
        message = "changed"
        raise ChangedFileError(message)

    with pytest.raises(ChangedFileError):
        make(tmp_path, check=refuse).dataset.spans(0)
    shorter = [[document[:-1] for document in corpus] for corpus in corpora()]
    with pytest.raises(DatasetFormatError, match="expected documents of"):
        make(tmp_path, documents=shorter).dataset.spans(0)
