from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from tests.corpus.jobs import preprocess
from tests.preprocess.corpus import byte_level_json, make_tokenizer, write_lines
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from tools.sweep_tokenizers import sweep, swept_tokenizers

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers import engines
from tokenloom.tokenizers.engines import GigatokenEngine, certificate_of, choose_engine, installed_libraries, read_table
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer

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
    path = write_lines(tmp_path / "c.jsonl", [{"text": "a" + NEW_LETTER}, {"text": "b"}])
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
    installed = {installed_libraries(truth) for truth in ("tokenizers", "tiktoken")}
    found = {each.name: each for each in read_table() if each.libraries in installed}
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
    table = {each.name: each for each in read_table()}
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
