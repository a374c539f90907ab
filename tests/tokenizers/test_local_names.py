"""Names of tokenizers, found in caches of this machine."""

from __future__ import annotations

import pytest
from tests.preprocess.corpus import byte_level_json

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.load import load_tokenizer, local_file


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def keep(hub, name, *, file="tokenizer.json", revision="abc"):
    """Puts a model into the cache as `huggingface_hub` does."""
    folder = hub / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(revision)
    (folder / "snapshots" / "abc").mkdir(parents=True)
    path = folder / "snapshots" / "abc" / file
    path.write_text(byte_level_json())
    return str(path)


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.1-8B"])
def test_a_model_is_found_by_its_name(hub, name):
    path = keep(hub, name)
    assert local_file(name) == path
    assert load_tokenizer(name).path == path


@pytest.mark.parametrize("name", ["other/gpt2", "../gpt2", "gpt2/", "/gpt2", "a/b/c", "", "gpt 2", "tokenizer.json"])
def test_other_names_are_none(hub, name):
    keep(hub, "gpt2")
    assert local_file(name) is None


def test_rank_files_of_tiktoken_are_found(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert local_file("cl100k_base") is None
    path = tmp_path / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # as the library calls it
    path.write_bytes(b"IQ== 0\n")
    assert local_file("cl100k_base") == str(path)
    assert local_file("cl100k") is None


def test_what_is_not_there_is_said(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer("gpt2")
    assert caught.value.message == "cannot read tokenizer `gpt2`: No such file or directory"
    words = "nothing is downloaded, and no tokenizer of that name lies in a cache of `huggingface_hub` or `tiktoken`"
    assert caught.value.hint.endswith(words)
