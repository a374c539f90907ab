from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.preprocess.corpus import EOD, TIKTOKEN_SPECIALS, byte_level_json, sentencepiece_model, tiktoken_file

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.tokenizers.huggingface import require_hugging_face
from tokenloom.tokenizers.load import load_tokenizer

FILES = {
    "tokenizer.json": byte_level_json().encode(),
    "tokenizer.model": sentencepiece_model(),
    "ranks.tiktoken": tiktoken_file(),
}
DESCRIPTION = b'{"pattern": "cl100k", "special_tokens": {"<|endoftext|>": 1000}}'


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_bytes(DESCRIPTION if name.endswith(".tiktoken.json") else FILES[name])
    return folder


@pytest.mark.parametrize(
    ("spec", "kind", "vocab_size"), [("byte", "byte", 259), ("null:7", "null", 8), ("null:50000", "null", 50001)]
)
def test_specifications_need_no_file(spec: str, kind: Any, vocab_size: int):
    tokenizer = load_tokenizer(spec)
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.path) == (kind, vocab_size, spec)
    assert load_tokenizer(spec, kind=kind).unique_identifiers == tokenizer.unique_identifiers


def test_kind_is_told_from_the_content(tmp_path: Path):
    for number, (kind, data) in enumerate(
        zip(("huggingface", "sentencepiece", "tiktoken"), FILES.values(), strict=True)
    ):
        path = tmp_path / f"{number}.model"  # under which name some publish rank files
        path.write_bytes(data)
        Path(f"{path}.json").write_bytes(DESCRIPTION)
        assert load_tokenizer(path).kind == kind


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


def test_pattern_belongs_to_rank_files_only(tmp_path: Path):
    path = write(tmp_path, "tokenizer.model") / "tokenizer.model"
    with pytest.raises(ConfigError, match="which is of the kind 'sentencepiece'\nhint: both belong to rank files"):
        load_tokenizer(path, pattern="r50k")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("huggingface", "is not a tokenizer: "),
        ("sentencepiece", "is not a SentencePiece model: "),
        ("tiktoken", "line 1 of .*: expected a token in base64"),
    ],
)
def test_file_of_another_kind_is_named(tmp_path: Path, kind: Any, message: str):
    other = "ranks.tiktoken" if kind != "tiktoken" else "tokenizer.json"
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(write(tmp_path, other) / other, kind=kind, **({"pattern": "r50k"} if kind == "tiktoken" else {}))


def test_file_called_as_a_specification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "byte").write_bytes(FILES["tokenizer.json"])
    monkeypatch.chdir(tmp_path)
    assert (load_tokenizer("byte").kind, load_tokenizer("./byte").kind) == ("byte", "huggingface")
    assert load_tokenizer("byte", kind="huggingface").kind == "huggingface"


def test_only_hugging_face_where_it_matters(tmp_path: Path):
    tokenizer = load_tokenizer(write(tmp_path, "tokenizer.json"))
    assert require_hugging_face(tokenizer, reason="") is tokenizer
    with pytest.raises(
        TokenizerError, match="expected a Hugging Face tokenizer, found `byte` of the kind 'byte'\nhint: why"
    ):
        require_hugging_face(load_tokenizer("byte"), reason="why")
