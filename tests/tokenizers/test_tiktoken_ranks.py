from __future__ import annotations

import base64
import functools
import json
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import EOD, TIKTOKEN_SPECIALS, make_tiktoken, sources, tiktoken_file
from tiktoken_ext import openai_public

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.engines import hard_texts
from tokenloom.tokenizers.tiktoken_ranks import (
    GIGATOKEN_SCHEMES,
    PATTERNS,
    PUBLISHED,
    TiktokenDescription,
    TiktokenTokenizer,
    read_description,
)


@functools.cache
def library(pattern: str) -> tiktoken.Encoding:
    rows = map(bytes.split, tiktoken_file().splitlines())
    options = {"mergeable_ranks": {base64.b64decode(token): int(rank) for token, rank in rows}}
    return tiktoken.Encoding("x", pat_str=PATTERNS[pattern], special_tokens=dict(TIKTOKEN_SPECIALS), **options)


ours = functools.cache(make_tiktoken)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_ids_are_those_of_the_library(pattern: str):
    tokenizer, encoding = ours(pattern=pattern), library(pattern)
    for text in [*hard_texts(tokenizer), *sources()]:
        ids = encoding.encode(text, allowed_special="all")
        assert tokenizer.tokenize(text) == ids
        assert tokenizer.detokenize(ids) == text


@pytest.mark.parametrize("pattern", ["cl100k", "o200k"])
@given(parts=st.lists(st.one_of(st.text(max_size=30), st.sampled_from(sorted(TIKTOKEN_SPECIALS))), max_size=6))
def test_ids_of_any_text_are_those_of_the_library(pattern: str, parts: list[str]):
    text = "".join(parts)
    assert ours(pattern=pattern).tokenize(text) == library(pattern).encode(text, allowed_special="all")


def test_roles_are_described():
    tokenizer = make_tiktoken(eod_token="<|end|>", bos_token="<|endof|>", pad_token=EOD)
    assert (tokenizer.eod, tokenizer.bos, tokenizer.pad) == (1003, 1001, 1000)
    with pytest.raises(TokenizerError, match=r"no token '</s>' for `bos`\nhint: .* its special tokens: <\|endoftext"):
        make_tiktoken(bos_token="</s>")


def test_fingerprint_is_that_of_what_ids_depend_on():
    first = make_tiktoken()
    assert make_tiktoken(pattern=PATTERNS["cl100k"], eod_token="<|end|>").sha256 == first.sha256
    assert make_tiktoken(pattern="r50k").sha256 == make_tiktoken(pattern="p50k_base").sha256 != first.sha256
    assert make_tiktoken(special_tokens={EOD: 1000}).sha256 != first.sha256
    backwards = b"\n".join(reversed(tiktoken_file().splitlines()))
    description = TiktokenDescription(pattern="cl100k", special_tokens=TIKTOKEN_SPECIALS)
    assert TiktokenTokenizer("other", backwards, description).sha256 == first.sha256
    fewer = tiktoken_file().splitlines()[:900]
    assert TiktokenTokenizer("other", b"\n".join(fewer), description).sha256 != first.sha256


def test_text_that_the_expression_gives_up_on_is_named():
    with pytest.raises(TokenizerError, match=r"cannot encode the text '    .*' of 1000000 characters: .*stack size"):
        make_tiktoken(pattern="o200k").tokenize(" " * 1_000_000)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda lines: [*lines[:300], b"not base64 at all"], "`x` is not a tiktoken rank file: "),
        (lambda lines: [*lines, b"YQ== 12.5"], "is not a tiktoken rank file: .*12.5"),
        (lambda lines: [*lines, b"YQ== 5000"], "the same token or rank is in more than one of"),
        (lambda lines: [*lines, b"YWFhYWFhYWFhYWFh 4"], "the same token or rank is in more than one of"),
        (lambda lines: [*lines, b"YWFhYWFhYWFhYWFh -1"], "`tiktoken` cannot load `x` with the pattern"),
        (lambda lines: lines[:200], "`x` has no rank for 56 of the 256 bytes, such as 0x00\nhint: the file may be"),
        (lambda _: [], "`x` has no rank for 256 of the 256 bytes"),
    ],
)
def test_damaged_ranks_are_named(edit, message: str):
    data = b"\n".join(edit(tiktoken_file().splitlines()))
    with pytest.raises(TokenizerError, match=message):
        TiktokenTokenizer("x", data, TiktokenDescription(pattern="cl100k", special_tokens={}))


def test_description_beside_the_file(tmp_path: Path):
    path = str(tmp_path / "ranks.tiktoken")
    assert read_description(path, tiktoken_file()) is None
    text = json.dumps({"pattern": "o200k", "eod_token": "<x>", "special_tokens": {"<x>": 2000}})
    Path(path + ".json").write_text(text, encoding="utf-8")
    expected = TiktokenDescription(pattern="o200k", special_tokens={"<x>": 2000}, eod_token="<x>")
    assert read_description(path, tiktoken_file()) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "`.*ranks.json` is not a description of a rank file: Expecting"),
        ("[]", "is not a description of a rank file: .*\\nhint: write a JSON object with `pattern` and"),
        ("{}", "expected `pattern`, found none"),
        ('{"pattern": "x", "specials": {}}', "unknown key 'specials'"),
        ('{"pattern": 3}', "`pattern`.* found 3"),
    ],
)
def test_description_that_is_none_is_named(tmp_path: Path, text: str, message: str):
    (tmp_path / "ranks.json").write_text(text, encoding="utf-8")
    with pytest.raises(TokenizerError, match=message):
        read_description(str(tmp_path / "ranks"), b"")
    with pytest.raises(TokenizerError, match=r"with the pattern '\('.*\nhint: .*r50k, p50k, cl100k, o200k"):
        make_tiktoken(pattern="(")


@pytest.mark.parametrize(("name", "encoding"), PUBLISHED.values(), ids=str)
def test_published_encodings_are_those_of_the_library(name: str, encoding, monkeypatch: pytest.MonkeyPatch):
    hashes = []
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda _, expected_hash: hashes.append(expected_hash))
    expected = openai_public.ENCODING_CONSTRUCTORS[name]()
    assert PUBLISHED[hashes[0]] == (name, encoding)
    assert (PATTERNS[encoding.pattern], encoding.special_tokens) == (expected["pat_str"], expected["special_tokens"])
    assert GIGATOKEN_SCHEMES[PATTERNS[encoding.pattern]] in ("gpt2", "gpt4", "o200k")
