import functools
import itertools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.corpus.jobs import preprocess
from tests.preprocess import corpus
from tests.preprocess.corpus import EOD, TIKTOKEN_SPECIALS, byte_level_json, make_tiktoken, make_tokenizer, sources
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from tools.sweep_tokenizers import sweep, swept_tokenizers

from tokenloom.errors import ConfigError, RefusedTextError, TokenizerError
from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.preprocess.blocks import BlockTokenizer, DocumentTokens
from tokenloom.preprocess.corpus import TextRecipe
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.tokenizers import engines
from tokenloom.tokenizers.engines import EngineChoice, GigatokenEngine, certificate_of, choose_engine, require_equal
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
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
        (lambda: make_tokenizer(corpus.word_level_json()), 'does not support .*: Unsupported model type "WordLevel"'),
        (lambda: make_tokenizer(corpus.mistaken_json()), r"`gigatoken \S+` has no certificate for .*: .*ByteLevel"),
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
    with engines.one_thread_per_call():
        assert os.environ[variable] == "false"
    assert variable not in os.environ
    monkeypatch.setenv(variable, "true")
    with engines.one_thread_per_call():
        assert os.environ[variable] == "true"
    assert os.environ[variable] == "true"


@pytest.mark.parametrize(("kind", "name"), [("sentencepiece", "sentencepiece"), ("byte", "numpy"), ("null", "numpy")])
def test_kinds_of_one_engine(kind: str, name: str):
    tokenizer = corpus.tokenizer_of(kind)
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
    with pytest.raises(TokenizerError, match=r"'forget it': expected \[\d+\] from token index \d+, found \[\]"):
        require_equal(engine, truth, [*TEXTS, "forget it", "more"])
    encoded = engine.encode_texts(texts)
    engines.recheck(engine, truth, texts, encoded, choice=4)
    for choice in (5, 6, 7):
        with pytest.raises(TokenizerError, match=f"different ids for '{texts[choice - 4][:6]}"):
            engines.recheck(engine, truth, texts, encoded, choice=choice)


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
        ([2], [1, 2], "inconsistent results: 1 lengths and 2 ids for 2 texts"),
        ([3, -1], [1, 2], "inconsistent results: 2 lengths and 2 ids for 2 texts"),
        ([1, 1], [1, 9], "token id 9 out of range: the vocabulary has 9 ids"),
        ([1, 1], [1, -4], "token id -4 out of range: the vocabulary has 9 ids"),
    ],
)
def test_what_an_engine_gives_must_be_sound(lengths, tokens, text):
    encoded = Encoded(tokens=np.array(tokens), lengths=np.array(lengths))
    with pytest.raises(RefusedTextError, match=text):
        require_sound(encoded, num_texts=2, vocab_size=9)


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
LLAMA3 += r"\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
NEW_LETTER, NEW_MARK = chr(0x323B0), chr(0x1ADD)  # of Unicode 17; a mark that NFC sorts


def tokenizer_of_merges(pattern: str, *, nfc: bool = False) -> HuggingFaceTokenizer:
    """Returns a tokenizer of all bytes, that merges `a`, `1` and `!` with the first byte of a character."""
    letters = {number: chr(number) for number in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]}
    others = itertools.count(0x100)
    letters = {number: letters[number] if number in letters else chr(next(others)) for number in range(256)}
    merges = [(letters[ord(first)], letters[second]) for first in "a1!" for second in range(0xC2, 0xF5)]
    vocabulary = {token: number for number, token in enumerate([*letters.values(), *map("".join, merges)])}
    backend = Tokenizer(models.BPE(vocabulary, merges))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    if nfc:
        backend.normalizer = normalizers.NFC()
    return make_tokenizer(backend.to_str())


def rows_of(tokenizer: HuggingFaceTokenizer, texts: list[str]) -> list[list[int]]:
    choice = choose_engine("auto", tokenizer, [])
    assert choice.name == "gigatoken"
    return [row.tolist() for row in choice.create().encode_texts(texts).rows()]


def test_a_letter_that_only_the_fast_engine_knows_has_the_ids_of_the_library():
    tokenizer = tokenizer_of_merges(LLAMA3)
    text = "a" + NEW_LETTER
    assert tokenizer.tokenize(text) == [97, 240, 178, 142, 176]
    assert rows_of(tokenizer, [text]) == [[97, 240, 178, 142, 176]]
    # without which the case above would say nothing
    assert GigatokenEngine(tokenizer).encode_texts([text]).tokens.tolist() != tokenizer.tokenize(text)


@pytest.mark.parametrize("text", ["ab " * 2000 + "a" + NEW_LETTER + " c" * 3000, "e\u0315" + NEW_MARK + "\u0301 a"])
@pytest.mark.parametrize("nfc", [False, True])
def test_letters_inside_texts_of_a_batch(text: str, nfc: bool):
    tokenizer = tokenizer_of_merges(QWEN2, nfc=nfc)
    texts = ["", "plain", text, "字 a字 1é!", NEW_LETTER, "", text]
    assert rows_of(tokenizer, texts) == [tokenizer.tokenize(each) for each in texts]


def test_the_manifest_names_the_certificate(tmp_path: Any):
    tokenizer = tokenizer_of_merges(LLAMA3)
    path = corpus.write_lines(tmp_path / "c.jsonl", [{"text": "a" + NEW_LETTER}, {"text": "b"}])
    preprocess(path, tmp_path / "out", tokenizer)
    found = certificate_of(tokenizer)
    assert found is not None
    manifest = json.loads((tmp_path / "out_text_document.manifest.json").read_text())
    assert manifest["engine"] == f"gigatoken (certificate {found.identity})"
    tokens = np.fromfile(tmp_path / "out_text_document.bin", dtype=np.uint16)
    assert tokens.tolist() == [97, 240, 178, 142, 176, 98]


def test_versions_that_were_not_compared_are_not_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "version", lambda _: "99.0")
    tokenizer = make_tokenizer(byte_level_json())
    choice = choose_engine("auto", tokenizer, ["some text"])
    assert (choice.name, choice.recorded) == ("tokenizers", "tokenizers")
    assert choice.reason == "no certificate compares `gigatoken 99.0` with `tokenizers 99.0`"
    with pytest.raises(TokenizerError, match=r"install gigatoken 0\.\S+ with tokenizers 0\.\S+, or use the engine"):
        choose_engine("gigatoken", tokenizer, [])


def test_the_shipped_table_is_for_the_installed_versions():
    installed = {engines.installed_libraries(truth) for truth in ("tokenizers", "tiktoken")}
    found = {each.name: each for each in engines.read_table() if each.libraries in installed}
    assert found.keys() == swept_tokenizers().keys()
    assert found["llama3"].unicode == ("17.0", "16.0")
    assert (sum(stop - start for start, stop in found["llama3"].ranges), len(found["llama3"].ranges)) == (4657, 26)
    assert (0x323B0, 0x3347A) in found["llama3"].ranges


@pytest.mark.parametrize(
    ("names", "code_points"),
    [
        (("llama3", "o200k, tiktoken"), range(0x880, 0x900)),
        *(
            pytest.param((name,), [*range(0xD800), *range(0xE000, 0x34000)], marks=pytest.mark.slow, id=name)
            for name in swept_tokenizers()
        ),
    ],
)
def test_the_sweep_finds_what_the_table_says(names: tuple[str, ...], code_points: list[int]):
    table = {each.name: each for each in engines.read_table()}
    tokenizers = swept_tokenizers()
    for name in names:
        found = sweep(tokenizers[name](), name=name, code_points=code_points)
        within = set(code_points)
        expected = [each for start, stop in table[name].ranges for each in range(start, stop) if each in within]
        assert [each for start, stop in found.ranges for each in range(start, stop)] == expected, name
        assert (found.rules, found.libraries) == (table[name].rules, table[name].libraries)


@pytest.mark.parametrize("name", ["llama3", "qwen2, NFC", "o200k, tiktoken"])
def test_texts_with_any_differing_letter(name: str):
    tokenizer = swept_tokenizers()[name]()
    certificate = certificate_of(tokenizer)
    assert certificate is not None
    rng = np.random.default_rng(7)
    others = "a1! \n'éАक한字👍\u0301\u0316\u0345\u1dc0"
    texts = [
        "".join([*rng.choice(list(others), 6), chr(start), *rng.choice(list(others), 6), chr(stop - 1), "."])
        for start, stop in certificate.ranges
    ]
    choice = choose_engine("auto", tokenizer, [])
    assert choice.certificate == certificate.identity
    assert rows_of(tokenizer, texts) == [tokenizer.tokenize(text) for text in texts]
