"""The conformance suite of datasets: ours pass it, and every way to be wrong is found and named."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.datasets.conversations import settings as chat_settings
from tests.support import MASKING, StandInTokenizer, StandInWordPieces, make_config, make_dataset, write_corpus
from tests.support import write_sentences as write_sentence_pair

from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.conversations import MockVarlenDataset, MockVarlenLowLevelDataset, SFTDataset, VarlenDataset
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.masked import (
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
    T5MaskedWordPieceDataset,
    T5MaskedWordPieceDatasetConfig,
)
from tokenloom.datasets.mock import (
    MockGPTDataset,
    MockGPTLowLevelDataset,
    MockMultimodalDataset,
    MultimodalDatasetConfig,
)
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConformanceError, TokenloomError
from tokenloom.testing import check_dataset


class FimTokenizer(StandInTokenizer):
    """The stand-in, with sentinels, and texts that are ids."""

    def tokenize(self, text):
        return [ord(character) for character in text]

    def detokenize(self, ids):
        return "".join(map(chr, ids))

    def tokens_to_ids(self, tokens):
        return [{"<pre>": 97, "<mid>": 98, "<suf>": 99}.get(token) for token in tokens]


@pytest.fixture
def text(tmp_path, rng):
    """A pair of documents; its cache lies beside it."""
    lengths = rng.integers(1, 30, size=40)
    return write_corpus(tmp_path / "text", [[*rng.integers(10, 90, size=length), 9] for length in lengths])


@pytest.fixture
def sentences(tmp_path, rng):
    """A pair with a sequence per sentence."""
    documents = [[rng.integers(20, 90, size=8) for _ in range(6)] for _ in range(20)]
    return write_sentence_pair(tmp_path / "sentences", documents)


@pytest.fixture
def talks(tmp_path, rng):
    """A pair of conversations."""
    turns = [[(kind, rng.integers(10, 90, size=5).tolist()) for kind in (PROMPT, ANSWER)] for _ in range(30)]
    return write_conversations(tmp_path / "talks", [conversation(*runs) for runs in turns])


def build(cls, prefix, config, num_samples=20):
    data = cls.build_low_level_dataset(prefix, config)
    indices = np.arange(cls.numel_low_level_dataset(data), dtype=np.int32)
    return cls(data, prefix, indices, num_samples, Split.train, config)


def settings_of(config, **changes):
    """Returns what a configuration of another class is made of."""
    names = ("random_seed", "sequence_length", "tokenizer", "reset_position_ids", "reset_attention_mask")
    return {name: getattr(config, name) for name in (*names, "eod_mask_loss", "create_attention_mask")} | changes


# --- ours ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "create_attention_mask": True,
            "reset_attention_mask": True,
            "reset_position_ids": True,
            "eod_mask_loss": True,
        },
        {"inter_document_masking": True, "window_policy": "best_fit"},
        {"mmap_bin_files": False},
    ],
)
def test_gpt_samples_conform(text, changes):
    report = check_dataset(make_dataset(text, num_samples=50, sequence_length=16, **changes))
    assert report.skipped == {"`lengths` and `padded_lengths` match the samples": "GPTDataset has no `lengths`"}
    assert len(report.passed) == 17


def test_rearranged_samples_conform(text):
    tokens = {"prefix": "<pre>", "middle": "<mid>", "suffix": "<suf>"}
    plain = make_config(text, sequence_length=16, tokenizer=FimTokenizer(pad=7))
    where = {"blend": ([text], None), "split": "1"}
    config = GPTFIMDatasetConfig(**settings_of(plain, fim_rate=1.0, fim_spm_rate=0.5, fim_extra_tokens=tokens, **where))
    check_dataset(build(GPTFIMDataset, text, config))


@pytest.mark.parametrize(
    ("cls", "config_class", "further"),
    [
        (BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig, {"classification_head": True}),
        (T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig, {"sequence_length_decoder": 32}),
    ],
)
def test_masked_samples_conform(sentences, cls, config_class, further):
    where = {"blend": ([sentences], None), "split": "1,0,0"}
    config = config_class(
        sequence_length=64, tokenizer=StandInWordPieces(num_sentinels=20), **where, **MASKING, **further
    )
    report = check_dataset(build(cls, sentences, config))
    assert "`batch` returns the samples, stacked" in report.passed


def test_conversations_conform(talks):
    report = check_dataset(build(SFTDataset, talks, SFTDatasetConfig(**chat_settings(talks, sequence_length=24)), 8))
    assert "a blend returns the samples" in report.passed


def test_samples_of_different_lengths_conform(talks):
    report = check_dataset(build(VarlenDataset, talks, VarlenDatasetConfig(**chat_settings(talks, sequence_length=24))))
    assert "`lengths` and `padded_lengths` match the samples" in report.passed
    assert "differ in length" in report.skipped["`batch` returns the samples, stacked"]


def test_made_up_samples_conform(monkeypatch):
    data, indices = MockGPTLowLevelDataset(StandInTokenizer()), np.arange(9, dtype=np.int32)
    check_dataset(MockGPTDataset(data, None, indices, 40, Split.train, make_config(None, sequence_length=16)))
    pictures = MultimodalDatasetConfig(**settings_of(make_config(None), image_h=4, image_w=6))
    check_dataset(MockMultimodalDataset(data, None, indices, 40, Split.train, pictures))
    monkeypatch.setattr(MockVarlenLowLevelDataset, "size", 1000)
    check_dataset(build(MockVarlenDataset, None, VarlenDatasetConfig(**chat_settings(None, sequence_length=64))))


def test_blends_conform(text, talks):
    texts = [make_dataset(text, num_samples=count, sequence_length=16) for count in (30, 20)]
    report = check_dataset(BlendedDataset(texts, [0.7, 0.3], 25, texts[0].config))
    assert "`batch` fills the arrays `out`" in report.passed
    config = VarlenDatasetConfig(**chat_settings(talks, sequence_length=24))
    talking = [build(VarlenDataset, talks, config) for _ in range(2)]
    report = check_dataset(BlendedDataset(talking, [0.5, 0.5], 20, config))
    assert "`lengths` and `padded_lengths` match the samples" in report.passed


# --- a user's own -------------------------------------------------------------------------------------------------


class Rows:
    """The least that a dataset can be."""

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
    """The example of `MegatronDataset`."""

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
    report = check_dataset(build(Lines, "text", config, num_samples=13))
    assert {"negative positions count from the end", "a blend returns the samples"} <= set(report.passed)


def test_a_blend_offers_what_its_datasets_offer():
    config = BlendedMegatronDatasetConfig(random_seed=1, sequence_length=8, blend=(["text"], None), split="1")
    lines = [build(Lines, "text", config, num_samples=13) for _ in range(2)]
    report = check_dataset(BlendedDataset(lines, [0.5, 0.5], 20, config))
    assert report.skipped["`spans` and `span_batch` agree and stay within documents"] == "Lines has no `spans`"


def test_two_methods_are_enough():
    report = check_dataset(Rows())
    assert [sentence for sentence in report.passed if "DataLoader" in sentence or "ThreadLoader" in sentence] == [
        "torch's DataLoader yields the samples",
        "ThreadLoader yields the samples",
    ]
    assert report.skipped["`sample` returns the sample as arrays"] == "Rows has no `sample`"
    assert str(report).splitlines()[:2] == ["Rows: 8 checks passed, 10 skipped", "  passed   it has samples"]


def test_samples_may_be_tuples_texts_and_tensors():
    assert "worker processes yield the samples" in check_dataset(Tuples()).passed
    check_dataset(Words())
    tensors = torch.utils.data.TensorDataset(torch.arange(12).reshape(6, 2))
    check_dataset(tensors, num_samples=100, num_workers=0)


def test_what_is_not_wanted_is_not_checked():
    report = check_dataset(Rows(1), num_workers=0)
    assert report.skipped["worker processes yield the samples"] == "`num_workers` is 0"


def changed(base=Rows, **methods):
    """Returns an instance of a class with other methods."""
    return type("Changed", (base,), methods)()


def forgets(self, position):
    self.rows[position, 2] += 1
    return Rows.__getitem__(self, position)


def announced(self, positions):
    self.rows = np.sort(self.rows)[::-1]


def row_and_lengths(self, position):
    return {"row": self.rows[position], "original_seq_len": np.int32(4), "padded_seq_len": np.int32(8)}


class OtherCopies(Rows):
    def __setstate__(self, state):
        self.rows = state["rows"] * 2


LENGTHS = dict.fromkeys(("lengths", "padded_lengths"), lambda self, positions: np.full(len(positions), 4))
WRONG = [
    (Rows(0), "Rows fails the check that it has samples: expected at least one sample, found 0"),
    (
        changed(__getitem__=forgets),
        "a sample is the same on every access: expected np.float32(79.0) as `dataset[19]['row'][2]`",
    ),
    (
        changed(__getitem__=lambda self, position: Rows.__getitem__(self, position % 20)),
        "expected `IndexError` from `dataset[20]` with 20 samples, found a sample",
    ),
    (
        changed(__getitem__=lambda self, position: Rows.__getitem__(self, abs(position))),
        "expected np.float32(76.0) as `dataset[-1]['row'][0]`, found np.float32(4.0)",
    ),
    (
        changed(sample=lambda self, position: {"row": self.rows[position]}),
        "expected ['row', 'number'] in `dataset.sample(0)`, found ['row']",
    ),
    (
        changed(batch=lambda self, k: {"row": self.rows[np.asarray(k)], "number": np.asarray(k, dtype=np.int32)}),
        "expected int64[9] as `dataset.batch(positions)['number']`, found int32[9]",
    ),
    (
        changed(batch=lambda self, k: {"row": self.rows[: len(k)], "number": np.asarray(k)}),
        "as `dataset.batch(positions)['row'][0, 0]`, found np.float32(0.0)",
    ),
    (
        changed(__getitems__=lambda self, positions: [self[position] for position in sorted(positions)]),
        "as `dataset.__getitems__(positions)[0]['row'][0]`, found np.float32(0.0)",
    ),
    (
        changed(__getitem__=row_and_lengths, **LENGTHS),
        "expected np.int64(8) as `dataset.padded_lengths(positions)[0]`, found np.int64(4)",
    ),
    (changed(will_need=announced), "`will_need` does not change samples: expected"),
    (OtherCopies(), "a pickled copy returns the samples: expected np.float32(1.0)"),
]


@pytest.mark.parametrize(("dataset", "message"), WRONG)
def test_what_is_wrong_is_named(dataset, message):
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


def test_arrays_of_the_callers_own_must_be_filled(text):
    with pytest.raises(
        ConformanceError, match=r"fills the arrays `out`: expected .* as `dataset.batch\(positions, out"
    ):
        check_dataset(build(Unfilled, text, make_config(text, sequence_length=16)))


def test_errors_of_a_dataset_say_what_was_checked():
    broken = changed(batch=lambda self, positions: {}["tokens"])
    with pytest.raises(KeyError) as raised:
        check_dataset(broken)
    assert raised.value.__notes__ == ["raised by the check of Changed that `batch` returns the samples, stacked"]


def test_what_cannot_be_pickled_is_told():
    assert "it cannot be pickled" in check_dataset(changed()).skipped["a pickled copy returns the samples"]
