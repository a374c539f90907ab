from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tests.preprocess.corpus import EOD, byte_level_json, tiktoken_file
from tests.support import StandInTokenizer
from tokenizers import Tokenizer

from tokenloom import load, load_tokenizer, preprocess_corpus
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.tokenizers.load import as_tokenizer

TEXT = "def main():\n    return '漢字'"


class PreTrainedTokenizerFast:
    __module__ = "transformers.tokenization_utils_tokenizers"

    def __init__(self, backend: Any, *, name_or_path: str = "") -> None:
        self.backend_tokenizer = backend
        self.name_or_path = name_or_path
        self.special_tokens_map = {"eos_token": EOD, "pad_token": "<|pad|>"}
        self.chat_template = "{{ messages }}"


class PreTrainedTokenizer:
    __module__ = "transformers.tokenization_python"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    Tokenizer.from_str(byte_level_json()).save(str(path))
    return path


def test_a_tokenizer_of_the_library_is_that_of_the_file_it_writes(file):
    expected = load_tokenizer(file)
    backend = Tokenizer.from_file(str(file))
    backend.enable_truncation(2)
    found = load_tokenizer(backend, eod_token="<|pad|>")
    assert found.tokenize(TEXT) == expected.tokenize(TEXT)
    assert (found.path, found.eod) == ("<Tokenizer>", expected.tokenize("<|pad|>")[0])
    assert load_tokenizer(Tokenizer.from_file(str(file))).sha256 == expected.sha256
    assert pickle.loads(pickle.dumps(found)).tokenize(TEXT) == expected.tokenize(TEXT)


def test_a_fast_tokenizer_brings_its_special_tokens_and_is_its_file(file, tmp_path):
    found = load_tokenizer(PreTrainedTokenizerFast(Tokenizer.from_file(str(file))))
    assert found.special_tokens_dict == {"eos_token": 0, "pad_token": 1}
    assert (found.eod, found.pad, found.path) == (0, 1, "<PreTrainedTokenizerFast>")
    assert found.config["chat_template"] == "{{ messages }}"
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level_json())  # on one line, unlike the library
    expected = load_tokenizer(tmp_path)
    found = load_tokenizer(PreTrainedTokenizerFast(Tokenizer.from_file(str(path)), name_or_path=str(tmp_path)))
    assert (found.path, found.sha256, found.knows_its_file) == (str(path), expected.sha256, True)
    changed = Tokenizer.from_file(str(path))
    changed.add_tokens(["brandnew"])
    other = load_tokenizer(PreTrainedTokenizerFast(changed, name_or_path=str(tmp_path)))
    assert (other.path, other.sha256 == expected.sha256, other.knows_its_file) == (str(tmp_path), False, False)


def test_a_slow_tokenizer_is_refused():
    message = "PreTrainedTokenizer is a slow tokenizer of .*, without a `tokenizer.json`\nhint: load the fast tokenizer"
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(PreTrainedTokenizer())


def test_an_encoding_of_tiktoken_is_that_of_its_file(tmp_path):
    path = tmp_path / "ours.tiktoken"
    path.write_bytes(tiktoken_file())
    expected = load_tokenizer(path, pattern="cl100k", special_tokens={EOD: 5000})
    encoding = tiktoken.Encoding(
        "ours", pat_str=expected.pattern, mergeable_ranks=expected.backend._mergeable_ranks, special_tokens={EOD: 5000}
    )
    found = load_tokenizer(encoding)
    assert (found.path, found.sha256, found.eod) == ("ours", expected.sha256, 5000)
    assert found.tokenize(TEXT) == expected.tokenize(TEXT)


def test_one_of_ours_is_returned_as_it_is(file):
    tokenizer = load_tokenizer(file)
    assert load_tokenizer(tokenizer) is tokenizer
    assert load_tokenizer(plain := load_tokenizer("byte")) is plain
    with pytest.raises(ConfigError, match="`eod_token`: has no effect on a loaded tokenizer, got 'x'"):
        load_tokenizer(tokenizer, eod_token="x")


def test_an_object_reads_what_its_file_has_made(file, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "def main"}\n' * 20)
    file.write_text(byte_level_json())  # which is not what the library writes, so fingerprints differ
    preprocess_corpus(tmp_path / "corpus.jsonl", tmp_path / "corpus", load_tokenizer(file), num_processes=1)
    prefix = str(tmp_path / "corpus_text_document")
    backend = Tokenizer.from_file(str(file))
    assert len(load(prefix, sequence_length=8, tokenizer=backend)) > 0
    few = Tokenizer.from_str(byte_level_json())
    few.add_special_tokens(["x"])
    assert len(load(prefix, sequence_length=8, tokenizer=few)) > 0
    narrow = load_tokenizer("null:40")
    with pytest.raises(TokenizerError, match="expected the tokenizer that made the data"):
        load(prefix, sequence_length=8, tokenizer=narrow)


def test_settings_take_all_of_them(file):
    stand_in = StandInTokenizer()
    assert as_tokenizer(None) is None
    assert as_tokenizer(stand_in) is stand_in
    assert as_tokenizer(str(file)).sha256 == as_tokenizer(file).sha256 == as_tokenizer(file.parent).sha256
    assert as_tokenizer(Tokenizer.from_file(str(file))).sha256 == as_tokenizer(file).sha256


@pytest.mark.parametrize("given", [5, 1.5, True, b"x", ["tokenizer.json"], {}, StandInTokenizer])
def test_what_is_no_tokenizer_is_refused(given):
    with pytest.raises(ConfigError) as caught:
        as_tokenizer(given)
    assert caught.value.message == f"`tokenizer`: must be a tokenizer, got {given!r}"
    with pytest.raises(ConfigError, match='hint: give a path, a name such as "gpt2", or an object of `tokenizers`'):
        load_tokenizer(given)
