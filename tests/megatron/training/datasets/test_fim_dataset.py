"""`tokenloom.megatron.training.datasets.fim_dataset`: samples recorded with Megatron 0.19.2."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import StandInTokenizer, write_corpus
from torch.utils.data import DataLoader

from tokenloom.datasets.splits import Split
from tokenloom.megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.training.datasets.fim_dataset import GPTFIMDataset, GPTFIMDatasetConfig

SPECIAL = {"<p>": 90, "<m>": 91, "<s>": 92, "<pad>": 93, "<eod>": 94, "<split>": 95}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHOWN = dict(zip(range(90, 96), "()|_.;", strict=True)) | dict(enumerate(LETTERS))


class Library:
    """The inner object of Megatron's tokenizers: one id per letter, and special tokens."""

    def ids_to_text(self, ids, remove_special_tokens=False):
        assert remove_special_tokens
        return "".join(LETTERS[number] for number in ids if number < 26)

    def text_to_ids(self, text):
        return [LETTERS.index(letter) for letter in text]

    def tokens_to_ids(self, tokens):
        return SPECIAL[tokens] if isinstance(tokens, str) else [SPECIAL[token] for token in tokens]


class Wrapper(StandInTokenizer):
    def __init__(self):
        super().__init__(pad=93, eod=94)
        self._tokenizer = Library()
        self.tokenize = self.detokenize = lambda _: None  # not called


class Own(StandInTokenizer):
    def __init__(self):
        super().__init__(pad=93, eod=94)
        self.tokens_to_ids = Library().tokens_to_ids
        self.tokenize = Library().text_to_ids

    def detokenize(self, ids):
        return Library().ids_to_text(ids, remove_special_tokens=True)


@pytest.fixture
def prefix(tmp_path):
    texts = ["abcdef.", "ghij;klm;;n..", "o.", "pqrstuvwxyz."]
    tokens = {shown: number for number, shown in SHOWN.items()}
    return write_corpus(tmp_path / "corpus", [[tokens[each] for each in text] for text in texts])


SETTINGS = {
    "random_seed": 5,
    "sequence_length": 14,
    "split": "1,0,0",
    "reset_position_ids": True,
    "create_attention_mask": False,
    "fim_rate": 1.0,
    "fim_spm_rate": 0.5,
    "fim_fragment_rate": 0.7,
    "fim_extra_tokens": {"prefix": "<p>", "middle": "<m>", "suffix": "<s>", "pad": "<pad>", "eod": "<eod>"},
}


def make(prefix, *, num_samples=4, kind=GPTFIMDataset, **changes):
    config = GPTFIMDatasetConfig(**(SETTINGS | {"blend": ([prefix], None), "tokenizer": Wrapper()} | changes))
    return kind(IndexedDataset(prefix), prefix, np.arange(4, dtype=np.int32), num_samples, Split.train, config)


def shown(tokens):
    return "".join(SHOWN[number] for number in np.asarray(tokens).tolist())


def texts_of(dataset):
    return [shown(dataset._query_document_sample_shuffle_indices(k)[0]) for k in range(4)]


CASES = [
    ({}, ["(|vwxyz)pqrstu.", "(|def)abc.(ghij", "(|)mn.(a|)bcdef", "(|lmn)hijk.(|o)"]),
    ({"fim_split_sample": "<split>"}, ["(|vwxyz)pqrstu.", "(|def)abc.ghij;", "(|)m;(|)n.(|ef)", "(|)hij;(|)klm;("]),
    (
        {"fim_rate": 0.5, "fim_no_prefix": "a"},
        ["pqrstuvwxyz.(|o", "abcdef.(|m)ghij", "m;;n.abcdef.(|h", "(hijk|n)lm.o.(|"],
    ),
]


@pytest.mark.parametrize(("settings", "expected"), CASES)
def test_texts_equal_megatrons(prefix, settings, expected):
    assert texts_of(make(prefix, **settings)) == expected
    assert texts_of(make(prefix, tokenizer=Own(), **settings)) == expected


@pytest.mark.parametrize("version", [(0, 16, 1), (0, 19, 2)])
def test_samples_depend_on_the_order_of_reading(prefix, monkeypatch, version):
    for module in ("core.datasets.gpt_dataset", "training.datasets.fim_dataset"):
        monkeypatch.setattr(f"tokenloom.megatron.{module}.reference_version", lambda: version)
    assert len(make(prefix)._query_document_sample_shuffle_indices(0)) == (2 if version < (0, 19) else 3)
    batches = list(DataLoader(make(prefix), batch_size=3))
    found = [shown(row) for batch in batches for row in batch["tokens"]]
    assert found[:4] == [text[:-1] for text in CASES[0][1]]
    assert batches[0]["position_ids"][0].tolist() == list(range(14))
    assert batches[0]["position_ids"][1].tolist() == [*range(10), *range(4)]
    assert batches[0]["labels"][0].tolist() == [*batches[0]["tokens"][0, 1:].tolist(), 94]


def test_the_builder(prefix, tmp_path):
    config = make(prefix, path_to_cache=str(tmp_path)).config
    train, _, _ = BlendedMegatronDatasetBuilder(GPTFIMDataset, [4, 0, 0], lambda: True, config).build()
    assert (train.fim_rate, train.fim_spm_rate, train.fragment_fim_rate) == (1.0, 0.5, 0.7)
    assert (train.prefix_tok_id, train.middle_tok_id, train.suffix_tok_id) == (90, 91, 92)
    assert (train.pad_tok_id, train.eod_tok_id, train.fim_split_sample) == (93, 94, None)
    assert texts_of(train) == CASES[0][1]


def test_an_overridden_hook_is_called(prefix):
    class Reversed(GPTFIMDataset):
        def _fim_permute_sequence(self, sequence, rate):
            return sequence[::-1]

    dataset = make(prefix, kind=Reversed)
    assert texts_of(dataset)[0] == "zyxwvutsrqp.o.a"
    (batch,) = DataLoader(dataset, batch_size=4)
    assert shown(batch["tokens"][0]) == "zyxwvutsrqp.o."


def test_truncate_or_pad_keeps_the_length(prefix):
    dataset = make(prefix)
    ids = {"suffix_tok_id": 92, "prefix_tok_id": 90, "middle_tok_id": 91, "pad_tok_id": 93}
    text = np.arange(10)
    for _ in range(20):
        moved = dataset._permute(text, 1.0, 0.5, Wrapper(), **ids)
        assert len(moved) == 10
    longer = np.array([*range(5), 95, 95, 95, 95, 95])
    assert (dataset._permute(longer, 1.0, 0.0, Wrapper(), **ids) == 93).sum() == 2
    assert dataset._permute(text, 0.0, 0.5, Wrapper(), **ids) is text


def test_errors_are_assertion_errors(prefix):
    with pytest.raises(AssertionError, match=r"`fim_fragment_rate`: must be in \[0, 1\], got None"):
        make(prefix, fim_split_sample="<split>", fim_fragment_rate=None)
    tokenizer = Own()
    del tokenizer.tokenize
    with pytest.raises(AssertionError, match="the tokenizer Own has no `tokenize`"):
        make(prefix, tokenizer=tokenizer)
