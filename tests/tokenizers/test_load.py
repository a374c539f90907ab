from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.preprocess.corpus import EOD, TIKTOKEN_SPECIALS, byte_level_json, sentencepiece_model, tiktoken_file

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.indexed.manifests import SpecialToken, TokenizerIdentity, identity_of
from tokenloom.tokenizers.load import load_tokenizer, local_file, recorded_tokenizer

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
    with pytest.raises(TokenizerError, match=r"several tokenizers: ranks\.tiktoken, tokenizer\.model\nhint: pass"):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path / "tokenizer.model").kind == "sentencepiece"
    assert load_tokenizer(write(tmp_path, "tokenizer.json")).kind == "huggingface"


def test_rank_file_needs_a_pattern(tmp_path: Path):
    path = write(tmp_path, "ranks.tiktoken") / "ranks.tiktoken"
    with pytest.raises(TokenizerError, match=r"ranks\.tiktoken` needs a `pattern`\nhint: .*ranks\.tiktoken\.json`"):
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
        ("byte", {"kind": "bytes"}, "`kind`: must be one of auto, huggingface, .*, wordpiece, got 'bytes'"),
        ("x", {"kind": "byte"}, "a tokenizer of kind 'byte' must be `byte`, got 'x'"),
        ("null", {"kind": "null"}, "a tokenizer of kind 'null' must be `null:N` .*, got 'null'"),
        (
            "null:5",
            {"eod_token": "4"},
            r"`eod_token` and `bos_token`: not .* 'null:5'.*\nhint: .* the eod of 'null:5' is 5",
        ),
        ("byte", {"pattern": "r50k"}, "`pattern` and `special_tokens`: not supported by `byte`, .*'byte'"),
        ("null:5", {"special_tokens": {}}, "`pattern` and `special_tokens`: not supported by `null:5`"),
    ],
)
def test_options_that_do_not_belong_are_refused(spec: str, options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(spec, **options)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def keep(hub, name):
    """Writes a model into the cache like `huggingface_hub`."""
    path = hub / f"models--{name.replace('/', '--')}" / "snapshots" / "abc" / "tokenizer.json"
    path.parent.mkdir(parents=True)
    path.write_text(byte_level_json())
    (path.parents[2] / "refs").mkdir()
    (path.parents[2] / "refs" / "main").write_text("abc")
    return str(path)


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.1-8B"])
def test_a_model_is_found_by_its_name(hub, name):
    path = keep(hub, name)
    assert local_file(name) == load_tokenizer(name).path == path
    for other in ("other/gpt2", "../gpt2", "gpt2/", "/gpt2", "a/b/c", "", "gpt 2", "tokenizer.json"):
        assert local_file(other) is None


def test_rank_files_of_tiktoken_are_found(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert local_file("cl100k_base") is None
    path = tmp_path / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # as the library calls it
    path.write_bytes(b"IQ== 0\n")
    assert local_file("cl100k_base") == str(path)
    assert local_file("cl100k") is None


def test_a_name_that_is_not_there_is_said(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer("gpt2")
    assert caught.value.message == "cannot read tokenizer `gpt2`: No such file or directory"
    words = "the local caches of `huggingface_hub` and `tiktoken` contain no tokenizer of that name"
    assert caught.value.hint.endswith(words)


@pytest.fixture
def made_by(tmp_path) -> TokenizerIdentity:
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level_json())
    tokenizer = load_tokenizer(path)
    return identity_of(tokenizer, eod=SpecialToken(id=tokenizer.eod, text="<|endoftext|>"))


@pytest.mark.parametrize("prefix", ["text/corpus", "corpus", "{folder}/data/text/corpus"])
@pytest.mark.parametrize("path", ["tokenizer.json", "/gone/tokenizer.json", "/gone/project/models/tokenizer.json"])
def test_the_tokenizer_of_a_manifest_is_found_from_any_folder_above_the_data(
    made_by, tmp_path, monkeypatch, path, prefix
):
    (tmp_path / "data" / "text").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    if "models" in path:
        (tmp_path / "tokenizer.json").rename(tmp_path / "models" / "tokenizer.json")
    monkeypatch.chdir(tmp_path / "data")
    moved, prefix = replace(made_by, path=path), prefix.format(folder=tmp_path)
    assert recorded_tokenizer(moved, prefix=prefix).sha256 == made_by.sha256
    (tmp_path / "data" / "tokenizer.json").write_text(byte_level_json() + "\n")  # another one does not hide it
    assert recorded_tokenizer(moved, prefix=prefix).sha256 == made_by.sha256


def test_a_changed_or_missing_tokenizer_of_a_manifest_is_an_error(made_by, tmp_path):
    (tmp_path / "tokenizer.json").write_text(byte_level_json() + "\n")
    with pytest.raises(TokenizerError, match=r"has changed: it is not the tokenizer that made `corpus`"):
        recorded_tokenizer(made_by, prefix="corpus")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"cannot read tokenizer `.*tokenizer\.json`: No such file"):
        recorded_tokenizer(made_by, prefix="corpus")
    nameless = TokenizerIdentity(kind="Mine", sha256=None, path=None, vocab_size=9)
    with pytest.raises(TokenizerError, match="the manifest of `corpus` does not record the path"):
        recorded_tokenizer(nameless, prefix="corpus")
