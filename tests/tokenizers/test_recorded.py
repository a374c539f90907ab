"""The tokenizer that a manifest names."""

from __future__ import annotations

import pytest
from tests.preprocess.corpus import byte_level_json

from tokenloom.errors import TokenizerError
from tokenloom.indexed.manifests import SpecialToken, TokenizerIdentity, identity_of
from tokenloom.tokenizers.load import load_tokenizer, recorded_tokenizer


@pytest.fixture
def made_by(tmp_path) -> TokenizerIdentity:
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level_json())
    tokenizer = load_tokenizer(path)
    return identity_of(tokenizer, eod=SpecialToken(id=tokenizer.eod, text="<|endoftext|>"))


def test_it_is_found_beside_the_data(made_by, tmp_path, monkeypatch):
    relative = TokenizerIdentity(kind="huggingface", sha256=made_by.sha256, path="tokenizer.json", vocab_size=1000)
    monkeypatch.chdir("/")
    assert recorded_tokenizer(relative, prefix=str(tmp_path / "corpus")).sha256 == made_by.sha256
    elsewhere = TokenizerIdentity(kind="huggingface", sha256=made_by.sha256, path="/gone/tokenizer.json", vocab_size=9)
    assert recorded_tokenizer(elsewhere, prefix=str(tmp_path / "corpus")).sha256 == made_by.sha256


def test_it_is_found_from_any_folder_above_the_data(made_by, tmp_path, monkeypatch):
    relative = TokenizerIdentity(kind="huggingface", sha256=made_by.sha256, path="tokenizer.json", vocab_size=1000)
    (tmp_path / "data" / "text").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "data")
    for prefix in ("text/corpus", "corpus", str(tmp_path / "data" / "text" / "corpus")):
        assert recorded_tokenizer(relative, prefix=prefix).sha256 == made_by.sha256
    (tmp_path / "data" / "tokenizer.json").write_text(byte_level_json() + "\n")  # another one does not hide it
    assert recorded_tokenizer(relative, prefix="text/corpus").path == str(tmp_path / "tokenizer.json")


def test_it_is_found_where_a_project_was_moved_to(made_by, tmp_path):
    project = tmp_path / "new"
    (project / "tokens").mkdir(parents=True)
    (project / "models" / "small").mkdir(parents=True)
    (tmp_path / "tokenizer.json").rename(project / "models" / "small" / "tokenizer.json")
    old = "/gone/project/models/small/tokenizer.json"
    moved = TokenizerIdentity(kind="huggingface", sha256=made_by.sha256, path=old, vocab_size=1000)
    assert recorded_tokenizer(moved, prefix=str(project / "tokens" / "corpus")).sha256 == made_by.sha256


def test_another_one_is_refused(made_by, tmp_path):
    (tmp_path / "tokenizer.json").write_text(byte_level_json() + "\n")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json` is not the tokenizer of the manifest of `corpus` any"):
        recorded_tokenizer(made_by, prefix="corpus")


def test_what_is_missing_is_said(made_by, tmp_path):
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"cannot read tokenizer `.*tokenizer\.json`: No such file"):
        recorded_tokenizer(made_by, prefix="corpus")
    nameless = TokenizerIdentity(kind="Mine", sha256=None, path=None, vocab_size=9)
    with pytest.raises(TokenizerError, match="the manifest of `corpus` names no file of its tokenizer"):
        recorded_tokenizer(nameless, prefix="corpus")
