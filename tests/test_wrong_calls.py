"""Exact error texts of likely wrong calls."""

import numpy as np
import pytest

import tokenloom
from tests.support import StandInTokenizer, write_corpus
from tokenloom import errors

WRONG_CALLS = """
>>> load(None, sequence_length=8)
ConfigError: `data` is None
hint: pass a prefix, a list of prefixes, or {prefix: weight}
>>> load(5, sequence_length=8)
ConfigError: the blend: must be a blend of prefixes, got 5
hint: pass "books", ["books", "web"], {"books": 0.3, "web": 0.7} or (["books", "web"], [0.3, 0.7])
>>> load("nowhere", sequence_length=8)
DatasetNotFoundError: 'nowhere' in the blend: no file `nowhere.idx` and `nowhere.bin`
hint: pass the path of the pair without `.bin` or `.idx`
>>> load("lines.jsonl", sequence_length=8)
DatasetNotFoundError: 'lines.jsonl' in the blend: no file `lines.jsonl.idx` and `lines.jsonl.bin`
hint: tokenize the file with `tokenloom preprocess` or `preprocess_corpus`, and pass the prefix of the output
>>> load("", sequence_length=8)
ConfigError: the blend: prefixes must be paths, got ''
hint: pass "books", ["books", "web"], {"books": 0.3, "web": 0.7} or (["books", "web"], [0.3, 0.7])
>>> load([("corpus", 0.5)], sequence_length=8)
ConfigError: the blend: must have pairs of weight and prefix, got ('corpus', 0.5)
hint: pass ["0.3", "books", "0.7", "web"] or [[0.3, "books"], [0.7, "web"]]
>>> load("corpus", sequence_lenght=8)
ConfigError: `sequence_length` is missing, got `sequence_lenght`
hint: pass the number of tokens per sample, such as `sequence_length=4096`
>>> load("corpus", sequence_length=8)
TokenizerError: no `tokenizer` given, and no manifest beside `corpus` names a tokenizer
hint: pass the tokenizer of the data, such as `tokenizer="tokenizer.json"`
>>> load("corpus", sequence_length=8, tokenizer=5)
ConfigError: `tokenizer`: must be a tokenizer, got 5
hint: give a path, a name such as "gpt2", or an object of `tokenizers`, `transformers` or `tiktoken`
>>> load("corpus", sequence_length=8, tokenizer=TOKENIZER, num_samples="many")
ConfigError: `num_samples`: must be 3 sizes (train, valid, test), or one size for train, got 'many'
hint: pass sizes such as [100_000, 1000, None], with None for one epoch
>>> load("corpus", sequence_length=8, tokenizer=TOKENIZER, eos_mask_loss=True)
ConfigError: `eos_mask_loss` is not a setting of `load` or `GPTDatasetConfig`
hint: did you mean `eod_mask_loss`?
>>> IndexedDataset(5)
ConfigError: `path_prefix`: must be a path, got 5
hint: the path of a pair without `.bin` or `.idx`
>>> IndexedDatasetBuilder("new.bin", dtype="int3")
ConfigError: `dtype`: must be one of uint8, int8, int16, int32, int64, float64, float32, uint16, got 'int3'
>>> BlendedMegatronDatasetBuilder("gpt", 5, None, CONFIG)
ConfigError: `cls`: must be a dataset class, got 'gpt'
hint: pass a class such as `GPTDataset`
>>> BlendedMegatronDatasetBuilder(GPTDataset, 5, CONFIG)
ConfigError: `is_built_on_rank`: must be a function, got GPTDatasetConfig
hint: pass `lambda: True` or nothing if every process needs the datasets; pass settings as `config=…`
>>> BlendedMegatronDatasetBuilder(GPTDataset, 5)
ConfigError: `config`: must be a config, got None
hint: pass `GPTDatasetConfig(…)`
>>> GPTDataset("corpus", "corpus", range(5), None, Split.train, CONFIG)
ConfigError: `indexed_dataset`: must be an open dataset, got the path 'corpus'
hint: pass `IndexedDataset(path)`, or call `tokenloom.load`
>>> GPTDataset(IndexedDataset("corpus"), "corpus", range(5), None, "train", CONFIG)
ConfigError: `index_split`: must be a `Split`, got 'train'
hint: pass `Split.train`
>>> GPTDatasetConfig(1, 8, blend="corpus", tokenizer=TOKENIZER)
ConfigError: no `split` given for `blend`
hint: add a split such as split="99,1,0"
>>> GPTDatasetConfig(1, 8, blend_per_split="corpus", tokenizer=TOKENIZER)
ConfigError: `blend_per_split`: must be three blends, got the text 'corpus'
hint: set `blend` and `split` to divide one blend by weights
>>> GPTDatasetConfig(1, 8, blend_per_split={"dev": "corpus"}, tokenizer=TOKENIZER)
ConfigError: `blend_per_split`: keys must be train, valid, test, got 'dev'
>>> GPTDatasetConfig(1, 8)
ConfigError: no `tokenizer` given
hint: pass the tokenizer that made the data, such as `tokenizer="tokenizer.json"`
>>> GPTDatasetConfig(1, 8, tokenizer=TOKENIZER, object_storage={"retries": 3})
ConfigError: `object_storage`: must be of class `ObjectStorageSettings`, got {'retries': 3}
hint: pass `object_storage=ObjectStorageSettings(…)`
>>> ThreadLoader("corpus", batch_size=8)
ConfigError: 'corpus' is not a dataset
hint: create a dataset with `tokenloom.load`
>>> ThreadLoader(None, batch_size=8)
ConfigError: None is not a dataset
hint: a dataset is None for a split without data, and on ranks that do not build the dataset
>>> ThreadLoader(range(20))
ConfigError: neither `batch_size` nor a sampler given
hint: pass `batch_size`, such as `batch_size=8`
>>> ThreadLoader(range(20), 8)
ConfigError: 8 is not a sampler: it must yield lists of positions
hint: pass the number of samples per batch, such as `batch_size=8`
>>> ThreadLoader(range(20), [[1]], batch_size=8)
ConfigError: `batch_size`, `data_parallel_rank` and `data_parallel_size` cannot be passed with a sampler
hint: leave out these arguments, or the sampler
>>> ThreadLoader(range(20), batch_size=30)
ConfigError: 20 samples are too few for a batch of 30 on each of 1 ranks
hint: use smaller batches, shorter samples or more epochs
>>> ThreadLoader(range(20), batch_size=8, tensors="jax")
ConfigError: `tensors`: must be 'torch' or 'numpy', got 'jax'
hint: use `tensors="numpy"` for JAX and other libraries
>>> MegatronPretrainingSampler(0, 0, 4, 0, 1)
ConfigError: `total_samples`: must be 1 or more, got 0
hint: dataset is empty
>>> preprocess_corpus(5, "out", "byte")
ConfigError: `inputs`: must be a list of paths, got 5
hint: such as "corpus.jsonl" or ["crawl/", "books.jsonl"]
>>> preprocess_corpus("lines.jsonl", "out", "byte", {"append_eod": True})
ConfigError: `settings`: must be `CorpusSettings`, got {'append_eod': True}
hint: pass an object such as `CorpusSettings(append_eod=True)`
>>> preprocess_chat("lines.jsonl", "out", "byte")
TokenizerError: `byte` must be a Hugging Face tokenizer, got kind 'byte'
hint: only `tokenizers` returns token offsets, which locate the answers
>>> Run.open("nowhere.toml")
DatasetNotFoundError: no file `nowhere.toml`
hint: create it with `tokenloom run init`
>>> merge_datasets(5, "out")
ConfigError: `prefixes`: must be a list of paths, got 5
hint: such as ["books", "web"]
>>> merge_datasets("corpus", "out")
ConfigError: `prefixes`: must be a list of paths, got 'corpus'
hint: write ['corpus']
>>> merge_datasets([], "out")
ConfigError: `prefixes`: must name at least one dataset
"""
"""Each call, with its error."""


@pytest.fixture
def names(tmp_path, monkeypatch):
    """The names that the calls use, in a folder with a pair and a file that is not tokenized."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", "cache")
    write_corpus("corpus", [np.ones(30, dtype=np.uint16)] * 20)
    (tmp_path / "lines.jsonl").write_text('{"text": "a b"}\n')
    tokenizer = StandInTokenizer()
    config = tokenloom.GPTDatasetConfig(1, 8, blend="corpus", split="1", tokenizer=tokenizer)
    return {**{name: getattr(tokenloom, name) for name in NAMES}, "TOKENIZER": tokenizer, "CONFIG": config}


NAMES = (*tokenloom.__all__, "MegatronPretrainingSampler", "Split", "parse_blend")


@pytest.mark.parametrize("entry", WRONG_CALLS.rstrip().split("\n>>> ")[1:], ids=lambda entry: entry.splitlines()[0])
def test_the_error_names_the_fault_and_the_fix(names, entry):
    call, said = entry.split("\n", 1)
    with pytest.raises(errors.TokenloomError) as caught:
        eval(call, names)
    assert f"{type(caught.value).__name__}: {caught.value}" == said
    assert "\n" not in caught.value.message
    assert not caught.value.message.endswith(".")


def test_a_pair_whose_documents_do_not_end_is_a_warning(names, tmp_path):
    tokenloom.preprocess_corpus("lines.jsonl", "out", "byte")
    with pytest.warns(errors.MissingEodWarning, match="need end-of-document tokens, but the data were made without"):
        tokenloom.load("out_text_document", sequence_length=2, eod_mask_loss=True)
