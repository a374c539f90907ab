from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import (
    EOD,
    TIKTOKEN_SPECIALS,
    byte_level_json,
    make_tiktoken,
    make_tokenizer,
    mistaken_json,
    sources,
    tokenizer_of,
    word_level_json,
)
from tokenizers import Tokenizer, models

from tokenloom.errors import ConfigError, RefusedTextError, TokenizerError
from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.preprocess.blocks import BlockTokenizer, DocumentTokens
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import TextRecipe
from tokenloom.tokenizers.engines import (
    EngineChoice,
    GigatokenEngine,
    choose_engine,
    one_thread_per_call,
    recheck,
    require_equal,
)
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer, joined, require_sound

TEXTS = ["", "def f(x): return x", " ", "naïve 中文 👍", f"a{EOD}b", "\x00\x1f", "a" * 500]


@functools.cache
def engines_of(pattern: str) -> tuple[GigatokenEngine, TextTokenizer]:
    tokenizer = make_tiktoken(pattern=pattern) if pattern else make_tokenizer(byte_level_json())
    return GigatokenEngine(tokenizer), tokenizer


PIECES = st.one_of(st.text(max_size=30), st.sampled_from(sorted(TIKTOKEN_SPECIALS)))


@pytest.mark.parametrize("pattern", ["", "r50k", "cl100k", "o200k"])
@given(parts=st.lists(PIECES, max_size=6))
def test_engines_agree(pattern: str, parts: list[str]):
    require_equal(*engines_of(pattern), ["".join(parts), *parts, *TEXTS[:4]])


def byte_fallback_json() -> str:
    vocabulary = {"a": 0, "<unk>": 1, **{f"<0x{byte:02X}>": 2 + byte for byte in range(256)}}
    return Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)).to_str()


@pytest.mark.parametrize("pattern", ["", "r50k", "cl100k", "o200k"])
def test_auto_takes_the_fast_engine_and_says_what_was_checked(pattern: str):
    tokenizer = engines_of(pattern)[1]
    choice = choose_engine("auto", tokenizer, [*TEXTS, *sources()])
    assert (choice.name, choice.create().engine_name, choice.create().engine_name) == ("gigatoken",) * 3
    assert choice.reason.startswith(f"the same ids as `{tokenizer.engine_name}` for ")
    assert choice.certificate


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: make_tokenizer(word_level_json()), 'does not support .*: Unsupported model type "WordLevel"'),
        (lambda: make_tokenizer(mistaken_json()), r"`gigatoken \S+` has no certificate for .*: .*ByteLevel"),
        (lambda: make_tokenizer(byte_fallback_json()), "no certificate for the cutting rules of .*: .*byte_fallback"),
        (lambda: make_tiktoken(pattern=r"\p{N}|\P{N}+"), r"unsupported pattern '\\\\p{N}|\\\\P{N}\+'"),
    ],
)
def test_auto_takes_the_truth_and_says_why(make: Callable[[], TextTokenizer], reason: str):
    tokenizer = make()
    choice = choose_engine("auto", tokenizer, ["alpha beta"])
    assert (choice.name, choice.certificate) == (tokenizer.engine_name, None)
    with pytest.raises(TokenizerError, match=reason) as caught:
        choose_engine("gigatoken", tokenizer, ["alpha beta"])
    assert caught.value.message == choice.reason
    assert caught.value.hint == f"use the engine `{tokenizer.engine_name}`"


def test_parallelism_of_tokenizers_is_the_users_to_decide(monkeypatch: pytest.MonkeyPatch):
    variable = "TOKENIZERS_PARALLELISM"
    monkeypatch.delenv(variable, raising=False)
    with one_thread_per_call():
        assert os.environ[variable] == "false"
    assert variable not in os.environ
    monkeypatch.setenv(variable, "true")
    with one_thread_per_call():
        assert os.environ[variable] == "true"
    assert os.environ[variable] == "true"


@pytest.mark.parametrize(("kind", "name"), [("sentencepiece", "sentencepiece"), ("byte", "numpy"), ("null", "numpy")])
def test_kinds_of_one_engine(kind: str, name: str):
    tokenizer = tokenizer_of(kind)
    choice = choose_engine("auto", tokenizer, TEXTS)
    assert (choice.name, choice.create().engine_name, choice.certificate) == (name, name, None)
    assert choice.reason == f"the only engine for tokenizers of kind {tokenizer.kind!r}"
    assert choose_engine(name, tokenizer, []).reason == "requested"
    with pytest.raises(TokenizerError, match=f"not exact for .* the kind '{tokenizer.kind}'\nhint: .*`{name}`"):
        choose_engine("gigatoken", tokenizer, TEXTS)
    with pytest.raises(ConfigError, match=f"'tokenizers' does not support .*\nhint: choose auto, gigatoken or {name}"):
        choose_engine("tokenizers", tokenizer, [])


class ForgetfulEngine:
    engine_name = "forgetful"

    def __init__(self, truth: TextTokenizer) -> None:
        self._truth = truth

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        rows = [self._truth.encode_texts([text]).tokens for text in texts]
        rows = [row[:-1] if "forget" in text else row for row, text in zip(rows, texts, strict=True)]
        rows = [row ^ 1 if "confuse" in text else row for row, text in zip(rows, texts, strict=True)]
        return joined(rows, np.uint32)


def test_mismatch_names_text_and_tokens():
    truth = make_tokenizer(byte_level_json())
    engine, texts = ForgetfulEngine(truth), ["good", "forget", "confuse", "confuse " + "x" * 2000]
    require_equal(engine, truth, TEXTS)
    with pytest.raises(TokenizerError, match=r"'forget it': expected \[\d+\] at token \d+, found \[\]"):
        require_equal(engine, truth, [*TEXTS, "forget it", "more"])
    encoded = engine.encode_texts(texts)
    recheck(engine, truth, texts, encoded, choice=4)
    for choice in (5, 6, 7):
        with pytest.raises(TokenizerError, match=f"different ids for '{texts[choice - 4][:6]}"):
            recheck(engine, truth, texts, encoded, choice=choice)


def test_block_with_a_mismatch_is_an_error():
    tokenizer = make_tokenizer(byte_level_json())
    engine = ForgetfulEngine(tokenizer)
    choice = EngineChoice(name="x", reason="", create=lambda: engine, certificate="x")
    recipe = TextRecipe(settings=CorpusSettings(), tokenizer=tokenizer, document_tokens=DocumentTokens())
    tokenize = BlockTokenizer(recipe, choice, num_workers=1)
    assert tokenize([JsonLineBlock(path="lines", data=b'{"text": "fine"}\n', first_record=1)]).num_documents == 1
    with pytest.raises(TokenizerError, match="different ids for 'forget'"):
        tokenize([JsonLineBlock(path="lines", data=b'{"text": "forget"}\n', first_record=2)])


@pytest.mark.parametrize(
    ("lengths", "tokens", "text"),
    [
        ([2], [1, 2], "inconsistent lengths: 1 texts with 2 ids, expected 2 texts"),
        ([3, -1], [1, 2], "inconsistent lengths: 2 texts with 2 ids, expected 2 texts"),
        ([1, 1], [1, 9], "token id 9 out of range: the vocabulary has 9 ids"),
        ([1, 1], [1, -4], "token id -4 out of range: the vocabulary has 9 ids"),
    ],
)
def test_what_an_engine_gives_must_be_sound(lengths, tokens, text):
    encoded = Encoded(tokens=np.array(tokens), lengths=np.array(lengths))
    with pytest.raises(RefusedTextError, match=text):
        require_sound(encoded, num_texts=2, vocab_size=9)
