from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.preprocess.corpus import EOD, TIKTOKEN_SPECIALS, byte_level_json, sentencepiece_model, tiktoken_file

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.tokenizers.load import load_tokenizer

FILES = {
    "tokenizer.json": lambda: byte_level_json().encode(),
    "tokenizer.model": sentencepiece_model,
    "ranks.tiktoken": tiktoken_file,
}
DESCRIPTION = b'{"pattern": "cl100k", "special_tokens": {"<|endoftext|>": 1000}}'


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_bytes(DESCRIPTION if name.endswith(".tiktoken.json") else FILES[name]())
    return folder


def test_folder_with_one_tokenizer_is_enough(tmp_path: Path):
    with pytest.raises(TokenizerError, match=r"cannot read tokenizer `.*tokenizer\.json`: No such file"):
        load_tokenizer(tmp_path)
    assert load_tokenizer(write(tmp_path, "ranks.tiktoken", "ranks.tiktoken.json")).kind == "tiktoken"
    write(tmp_path, "tokenizer.model")
    with pytest.raises(
        TokenizerError, match=r"holds several tokenizers: ranks\.tiktoken, tokenizer\.model\nhint: name"
    ):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path / "tokenizer.model").kind == "sentencepiece"
    assert load_tokenizer(write(tmp_path, "tokenizer.json")).kind == "huggingface"


def test_rank_file_needs_a_pattern(tmp_path: Path):
    path = write(tmp_path, "ranks.tiktoken") / "ranks.tiktoken"
    with pytest.raises(
        TokenizerError, match=r"nothing says how .* cuts texts into words.*\nhint: .*ranks\.tiktoken\.json`"
    ):
        load_tokenizer(path)
    assert load_tokenizer(path, pattern="r50k").special_tokens == {}


def test_options_come_before_the_description(tmp_path: Path):
    path = write(tmp_path, "ranks.tiktoken", "ranks.tiktoken.json") / "ranks.tiktoken"
    described = load_tokenizer(path)
    assert (described.eod, described.special_tokens) == (1000, {EOD: 1000})
    tokenizer = load_tokenizer(path, pattern="r50k", special_tokens=TIKTOKEN_SPECIALS, eod_token="<|end|>")
    assert (tokenizer.eod, tokenizer.vocab_size) == (1003, 1004)
    assert tokenizer.sha256 not in (described.sha256, load_tokenizer(path, pattern="r50k").sha256)


@pytest.mark.parametrize("name", FILES)
def test_tokens_are_named(tmp_path: Path, name: str):
    write(tmp_path, name, "ranks.tiktoken.json")
    token = "</s>" if name == "tokenizer.model" else EOD
    tokenizer = load_tokenizer(tmp_path / name, eod_token=token, bos_token=token)
    assert tokenizer.eod == tokenizer.bos == tokenizer.tokens_to_ids([token])[0]
    for role in ("eod_token", "bos_token"):
        with pytest.raises(TokenizerError, match="has no token '<absent>'"):
            load_tokenizer(tmp_path / name, **{role: "<absent>"})


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (
            "byte",
            {"kind": "bytes"},
            "expected a kind of tokenizer out of auto, huggingface, .*, wordpiece, got 'bytes'",
        ),
        ("x", {"kind": "byte"}, "expected `byte` for a tokenizer of the kind 'byte', found 'x'"),
        ("null", {"kind": "null"}, "expected `null:N`, N being the number of ids for a tokenizer .* found 'null'"),
        (
            "null:5",
            {"eod_token": "4"},
            r"expected no `eod_token` and no `bos_token` for 'null:5'.*\nhint: its eod is 5",
        ),
        ("byte", {"pattern": "r50k"}, "expected no `pattern` and no `special_tokens` for `byte`.*'byte'"),
        ("null:5", {"special_tokens": {}}, "expected no `pattern` and no `special_tokens` for `null:5`"),
    ],
)
def test_options_that_do_not_belong_are_refused(spec: str, options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(spec, **options)
