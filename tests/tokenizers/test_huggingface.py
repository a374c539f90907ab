from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.preprocess.corpus import EOD, byte_level_json, make_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from tokenloom.errors import MissingTokenError, TokenizerError
from tokenloom.tokenizers.load import load_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    return tmp_path


def with_added(*tokens: str) -> str:
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.add_special_tokens(list(tokens))
    return backend.to_str()


def test_truncation_padding_and_template_of_the_file_are_not_applied():
    from tokenizers import processors

    backend = Tokenizer.from_str(byte_level_json())
    plain = make_tokenizer(byte_level_json()).tokenize("some words and more words")
    backend.enable_truncation(2)
    backend.enable_padding(length=20)
    backend.post_processor = processors.TemplateProcessing(single=f"{EOD} $A", special_tokens=[(EOD, 0)])
    assert make_tokenizer(backend.to_str()).tokenize("some words and more words") == plain


def test_config_names_the_roles(folder: Path):
    config = {"eos_token": "<|pad|>", "pad_token": {"content": EOD}, "bos_token": None, "unk_token": "absent"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.special_tokens_dict == {"eos_token": 1, "pad_token": 0}
    assert (tokenizer.eod, tokenizer.eos, tokenizer.pad) == (1, 1, 0)
    with pytest.raises(MissingTokenError, match="has no token for `bos`"):
        _ = tokenizer.bos
    assert load_tokenizer(folder, eod_token=EOD).eod == 0


@pytest.mark.parametrize("token", [EOD, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>"])
def test_single_well_known_token_ends_documents(token: str):
    assert make_tokenizer(with_added("<x>", token)).eod == 2


def test_ambiguous_or_absent_eod_is_an_error_with_the_remedy():
    with pytest.raises(
        MissingTokenError, match=r"has no token for `eod` .*\n.*`eod_token`; its special tokens are </s>, <eos>"
    ):
        _ = make_tokenizer(with_added("</s>", "<eos>")).eod
    with pytest.raises(MissingTokenError, match=r"by name or convention\n.*its special tokens are <x>"):
        _ = make_tokenizer(with_added("<x>")).eod
    assert make_tokenizer(with_added("</s>", "<eos>"), eod_token="<eos>").eod == 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not a tokenizer"),
        (b"not json", "is not a tokenizer"),
        (b"{}", "is not a tokenizer"),
        (b'{"model": 3}', "is not a tokenizer"),
        (b"\xff\xfe\x00", "is not a tokenizer"),
    ],
)
def test_foreign_file_is_refused_at_once(tmp_path: Path, content: bytes, text: str):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=text):
        load_tokenizer(path)


def test_missing_file_is_refused_at_once(tmp_path: Path):
    with pytest.raises(TokenizerError, match=r"cannot read tokenizer .*\n.*nothing is downloaded"):
        load_tokenizer("organisation/model-that-is-no-path")
    with pytest.raises(TokenizerError, match=r"cannot read tokenizer `.*tokenizer\.json`: No such file"):
        load_tokenizer(tmp_path)


def word_piece_json(*special: str) -> str:
    """Returns the `tokenizer.json` of a word-piece tokenizer; special tokens come first."""
    vocabulary = {token: number for number, token in enumerate([*special, "[UNK]", "mask", "##ed", "##ing", "word"])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(list(special))
    return backend.to_str()


BERT_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")


def test_word_pieces_have_the_roles_of_bert():
    tokenizer = make_tokenizer(word_piece_json(*BERT_TOKENS))
    assert (tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (0, 1, 2, 3)
    assert tokenizer.tokenize("masked word") == [5, 6, 8]
    assert tokenizer.vocab["##ed"] == 6
    assert list(tokenizer.inv_vocab.items())[5:8] == [(5, "mask"), (6, "##ed"), (7, "##ing")]
    assert tokenizer.additional_special_tokens_ids == []
    with pytest.raises(MissingTokenError, match="has no token for `bos`"):
        _ = tokenizer.bos


def test_config_names_roles_and_sentinels_before_any_spelling(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(word_piece_json(*BERT_TOKENS, "<extra_id_0>"), encoding="utf-8")
    config = {"mask_token": "[SEP]", "additional_special_tokens": ["word", {"content": "mask"}, "absent", 3]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.cls, tokenizer.mask) == (1, 2)
    assert tokenizer.additional_special_tokens_ids == [tokenizer.vocab["word"], tokenizer.vocab["mask"]]
