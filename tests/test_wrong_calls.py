"""Calls that a newcomer gets wrong, each with what is said of it."""

from __future__ import annotations

import numpy as np
import pytest

import tokenloom
from tests.support import StandInTokenizer, write_corpus
from tokenloom import errors

WRONG_CALLS = """
>>> load(None, sequence_length=8)
ConfigError: expected data, found None
hint: such as "corpus_text_document", a list of prefixes, or {prefix: weight}

>>> load(5, sequence_length=8)
ConfigError: expected data as the blend, found 5
hint: such as "books", ["books", "web"], {"books": 0.3, "web": 0.7} or (["books", "web"], [0.3, 0.7])

>>> load("nowhere", sequence_length=8)
DatasetNotFoundError: 'nowhere' in the blend: no file `nowhere.idx` and `nowhere.bin`
hint: a prefix is the path without `.bin` or `.idx`

>>> load("lines.jsonl", sequence_length=8)
DatasetNotFoundError: 'lines.jsonl' in the blend: no file `lines.jsonl.idx` and `lines.jsonl.bin`
hint: a file that is not tokenized yet becomes a pair by `preprocess_corpus`, or by `tokenloom preprocess`

>>> load("", sequence_length=8)
ConfigError: expected prefixes in the blend, found ''
hint: such as "books", ["books", "web"], {"books": 0.3, "web": 0.7} or (["books", "web"], [0.3, 0.7])

>>> load([("corpus", 0.5)], sequence_length=8)
ConfigError: expected prefixes and weights in the blend, found ('corpus', 0.5)
hint: such as ["0.3", "books", "0.7", "web"], or [[0.3, "books"], [0.7, "web"]]

>>> load({"corpus": -1}, sequence_length=8)
ConfigError: expected a finite weight above 0 for `corpus` in the blend, found -1

>>> load("corpus", sequence_lenght=8)
ConfigError: expected `sequence_length`, found `sequence_lenght`
hint: the tokens of a sample, such as `sequence_length=4096`

>>> load("corpus")
ConfigError: expected `sequence_length`, found none
hint: the tokens of a sample, such as `sequence_length=4096`

>>> load("corpus", sequence_length="8", tokenizer=TOKENIZER)
ConfigError: expected an integer as sequence_length, found '8'

>>> load("corpus", sequence_length=8)
TokenizerError: expected `tokenizer`, found none, and no manifest beside `corpus` that names one
hint: name the tokenizer that made the data, such as `tokenizer="tokenizer.json"`

>>> load("corpus", sequence_length=8, tokenizer=5)
ConfigError: expected a tokenizer as `tokenizer`, found 5
hint: the path of a tokenizer, a name such as "gpt2", or one that `tokenizers`, `transformers` or `tiktoken` has loaded

>>> load("corpus", sequence_length=8, tokenizer=TOKENIZER, num_samples="many")
ConfigError: expected 3 sizes (train, valid, test) as `num_samples`, or one for train, found 'many'
hint: such as [100_000, 1000, 1000], with None for one epoch

>>> load("corpus", sequence_length=8, tokenizer=TOKENIZER, num_samples=-1)
ConfigError: expected a size of at least 0 for train, found -1

>>> load("corpus", sequence_length=8, tokenizer=TOKENIZER, eos_mask_loss=True)
ConfigError: expected settings of `load` or `GPTDatasetConfig`, found `eos_mask_loss`
hint: did you mean `eod_mask_loss`?

>>> IndexedDataset(5)
ConfigError: expected a path as `path_prefix`, found 5
hint: the path of a pair without `.bin` or `.idx`

>>> IndexedDataset("nowhere")
DatasetNotFoundError: no file `nowhere.idx` and `nowhere.bin`
hint: a prefix is the path without `.bin` or `.idx`

>>> IndexedDatasetBuilder("new.bin", dtype="int3")
ConfigError: dtype 'int3' has no code in the format; expected one of uint8, int8, int16, int32, int64, float64, float32, uint16

>>> BlendedMegatronDatasetBuilder("gpt", 5, None, CONFIG)
ConfigError: expected a dataset class as `cls`, found 'gpt'
hint: such as `GPTDataset`

>>> BlendedMegatronDatasetBuilder(GPTDataset, [1, 2], None, CONFIG)
ConfigError: expected 3 sizes (train, valid, test), found 2

>>> BlendedMegatronDatasetBuilder(GPTDataset, "1", None, CONFIG)
ConfigError: expected 3 sizes (train, valid, test) as `sizes`, or one for train, found '1'
hint: such as [100_000, 1000, 1000], with None for one epoch

>>> BlendedMegatronDatasetBuilder(GPTDataset, 5, CONFIG)
ConfigError: expected a function as `is_built_on_rank`, found the settings
hint: write `config=…`, or `lambda: True` before them

>>> BlendedMegatronDatasetBuilder(GPTDataset, 5)
ConfigError: expected settings as `config`, found none
hint: such as a `GPTDatasetConfig`

>>> BlendedMegatronDatasetBuilder(GPTDataset, 5, True, CONFIG)
ConfigError: expected a function as `is_built_on_rank`, found True
hint: leave it out, or write `lambda: True`, where every process needs the datasets

>>> BlendedMegatronDatasetBuilder(GPTDataset, 5, None, {"sequence_length": 8})
ConfigError: expected settings as `config`, found {'sequence_length': 8}
hint: such as `GPTDatasetConfig(…)`

>>> GPTDataset("corpus", "corpus", range(5), None, Split.train, CONFIG)
ConfigError: expected an open pair, found the text 'corpus'
hint: open it with `IndexedDataset`, or make the samples with `tokenloom.load`

>>> GPTDataset(IndexedDataset("corpus"), "corpus", range(5), None, "train", CONFIG)
ConfigError: expected a `Split` as `index_split`, found 'train'
hint: such as `Split.train`

>>> GPTDatasetConfig(1, 8, blend=5, split="1", tokenizer=TOKENIZER)
ConfigError: expected data as `blend`, found 5
hint: such as "books", ["books", "web"], {"books": 0.3, "web": 0.7} or (["books", "web"], [0.3, 0.7])

>>> GPTDatasetConfig(1, 8, blend="corpus", tokenizer=TOKENIZER)
ConfigError: expected `split` beside `blend`, found none
hint: such as split="99,1,0"

>>> GPTDatasetConfig(1, 8, blend="corpus", split={"train": 1}, tokenizer=TOKENIZER)
ConfigError: expected the weights of train, valid and test as the split, found {'train': 1}
hint: such as "98,1,1" or (98, 1, 1)

>>> GPTDatasetConfig(1, 8, blend_per_split="corpus", tokenizer=TOKENIZER)
ConfigError: expected three blends as `blend_per_split`, found the text 'corpus'
hint: data that are split by weights are named by `blend`, beside `split`

>>> GPTDatasetConfig(1, 8, blend_per_split={"dev": "corpus"}, tokenizer=TOKENIZER)
ConfigError: expected train, valid, test in `blend_per_split`, found 'dev'

>>> GPTDatasetConfig(1, 8)
ConfigError: expected `tokenizer`, found none
hint: the one that made the data, such as `tokenizer="tokenizer.json"`

>>> GPTDatasetConfig(1, 8, tokenizer=TOKENIZER, object_storage={"retries": 3})
ConfigError: expected `ObjectStorageSettings` as `object_storage`, found {'retries': 3}
hint: such as `object_storage=ObjectStorageSettings(…)`

>>> ThreadLoader("corpus", batch_size=8)
ConfigError: expected a dataset, found the text 'corpus'
hint: open it with `tokenloom.load`

>>> ThreadLoader(None, batch_size=8)
ConfigError: expected a dataset, found None
hint: what is built is None for a split without data, and on ranks without it

>>> ThreadLoader(range(20))
ConfigError: expected `batch_size` or a sampler, found neither
hint: such as `batch_size=8`

>>> ThreadLoader(range(20), 8)
ConfigError: expected a sampler, which yields the positions of one batch after the other, found 8
hint: write `batch_size=8`

>>> ThreadLoader(range(20), [[1]], batch_size=8)
ConfigError: a sampler and `batch_size` exclude each other, found both
hint: the sampler decides how many samples a batch has, and whose they are

>>> ThreadLoader(range(20), batch_size=30)
ConfigError: expected at least one batch of 30 samples, found 20 samples
hint: use smaller batches, or a dataset of more samples: shorter ones, more epochs

>>> ThreadLoader(range(20), batch_size=8, tensors="jax")
ConfigError: expected `tensors` to be 'torch' or 'numpy', found 'jax'
hint: JAX and others take the arrays of `tensors="numpy"`

>>> ThreadLoader(range(20), batch_size=8, pin_memory="yes")
ConfigError: expected `pin_memory` to be True, False or None, found 'yes'

>>> MegatronPretrainingSampler(0, 0, 4, 0, 1)
ConfigError: expected total_samples of at least 1, found 0
hint: the dataset is empty

>>> preprocess_corpus(5, "out", "byte")
ConfigError: expected a list of paths as `inputs`, found 5
hint: such as "corpus.jsonl" or ["crawl/", "books.jsonl"]

>>> preprocess_corpus("lines.jsonl", ".", "byte")
ConfigError: expected a path that ends with a name as `output_prefix`, found '.'
hint: such as './corpus'

>>> preprocess_corpus("lines.jsonl", "out", "byte", {"append_eod": True})
ConfigError: expected `CorpusSettings` as `settings`, found {'append_eod': True}
hint: such as `CorpusSettings(append_eod=True)`

>>> preprocess_chat("lines.jsonl", "out", "byte")
TokenizerError: expected a Hugging Face tokenizer, found `byte` of the kind 'byte'
hint: which tokens belong to an answer is told by their offsets, which other libraries do not give

>>> Run.open("nowhere.toml")
DatasetNotFoundError: expected a run at `nowhere.toml`, found no such file
hint: write one, or make one with `tokenloom run init`

>>> merge_datasets(5, "out")
ConfigError: expected a list of paths as `prefixes`, found 5
hint: such as ["books", "web"]

>>> merge_datasets("corpus", "out")
ConfigError: expected a list of paths as `prefixes`, found 'corpus'
hint: write ['corpus']

>>> merge_datasets([], "out")
ConfigError: expected at least one dataset to merge, got none

>>> load_tokenizer(None)
ConfigError: expected a tokenizer as `tokenizer`, found None
hint: the path of a tokenizer, a name such as "gpt2", or one that `tokenizers`, `transformers` or `tiktoken` has loaded
"""  # noqa: E501 - the text of an error is one line
"""Each call, with its error."""


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the calls name, in a folder with a pair and a file that is not tokenized."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", "cache")
    write_corpus("corpus", [np.ones(30, dtype=np.uint16)] * 20)
    (tmp_path / "lines.jsonl").write_text('{"text": "a b"}\n')
    tokenizer = StandInTokenizer()
    config = tokenloom.GPTDatasetConfig(1, 8, blend="corpus", split="1", tokenizer=tokenizer)
    return {**{name: getattr(tokenloom, name) for name in NAMES}, "TOKENIZER": tokenizer, "CONFIG": config}


NAMES = (*tokenloom.__all__, "MegatronPretrainingSampler", "Split", "parse_blend")


@pytest.mark.parametrize("entry", WRONG_CALLS.strip().split("\n\n"), ids=lambda entry: entry.splitlines()[0][4:])
def test_what_is_said(names, entry):
    call, said = entry.removeprefix(">>> ").split("\n", 1)
    with pytest.raises(errors.TokenloomError) as caught:
        eval(call, names)
    assert f"{type(caught.value).__name__}: {caught.value}" == said
    assert "\n" not in caught.value.message
    assert not caught.value.message.endswith(".")


def test_a_pair_whose_documents_do_not_end_is_a_warning(names, tmp_path):
    tokenloom.preprocess_corpus("lines.jsonl", "out", "byte")
    with pytest.warns(errors.MissingEodWarning, match="no document ends with one: the data were made without"):
        tokenloom.load("out_text_document", sequence_length=2, eod_mask_loss=True)
