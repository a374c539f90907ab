from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from tests.preprocess.corpus import EOD, byte_level_json, make_tokenizer, write_gpt2
from tokenizers import Tokenizer, models, processors
from tokenizers.implementations import BertWordPieceTokenizer

from tokenloom.errors import MissingTokenError, TokenizerError
from tokenloom.tokenizers.huggingface import END_OF_TEXT, load_gpt2, load_wordpiece
from tokenloom.tokenizers.load import load_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    return tmp_path


def with_added(*tokens: str) -> str:
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.add_special_tokens(list(tokens))
    return backend.to_str()


def test_truncation_padding_template_and_dropout_of_the_file_are_not_applied():
    backend = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))
    assert make_tokenizer(backend.to_str()).tokenize("ab" * 50) == [2] * 50
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
    with pytest.raises(MissingTokenError, match="has no configured or well-known token for `bos`"):
        _ = tokenizer.bos
    assert load_tokenizer(folder, eod_token=EOD).eod == 0


def test_a_single_well_known_token_ends_documents():
    for token in (EOD, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>"):
        assert make_tokenizer(with_added("<x>", token)).eod == 2
    with pytest.raises(MissingTokenError, match=r"token for `eod`\n.*`eod_token`; its special tokens are </s>, <eos>"):
        _ = make_tokenizer(with_added("</s>", "<eos>")).eod
    with pytest.raises(MissingTokenError, match=r"well-known token for `eod`\n.*its special tokens are <x>"):
        _ = make_tokenizer(with_added("<x>")).eod
    assert make_tokenizer(with_added("</s>", "<eos>"), eod_token="<eos>").eod == 2


@pytest.mark.parametrize("content", [b"", b"not json", b"{}", b'{"model": 3}', b"\xff\xfe\x00"])
def test_foreign_file_is_refused_at_once(tmp_path: Path, content: bytes):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"is not a (complete )?tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_config_names_roles_and_sentinels_before_any_spelling(tmp_path: Path):
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "mask": 1, "word": 2}, unk_token="[UNK]"))
    backend.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "<extra_id_0>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"mask_token": "[SEP]", "additional_special_tokens": ["word", {"content": "mask"}, "absent", 3]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.cls, tokenizer.mask) == (tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"])
    assert tokenizer.additional_special_tokens_ids == [tokenizer.vocab["word"], tokenizer.vocab["mask"]]


TEXTS = ["Hello  world's\n\nÄpfel 12 naïve 中文", "", " a", f"x{END_OF_TEXT} y", "UPPER lower"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "cafe", "中", "文", "!", "up", "##per"]


@pytest.fixture
def gpt2(tmp_path: Path) -> tuple[str, str]:
    return write_gpt2(tmp_path)


@pytest.fixture
def pieces(tmp_path: Path) -> str:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return str(tmp_path / "vocab.txt")


def test_gpt2_gives_the_ids_of_the_whole_file(gpt2):
    tokenizer, backend = load_gpt2(*gpt2), Tokenizer.from_str(byte_level_json())
    assert [tokenizer.tokenize(text) for text in TEXTS] == [backend.encode(text).ids for text in TEXTS]
    assert tokenizer.eod == backend.token_to_id(END_OF_TEXT)
    assert all(tokenizer.detokenize(tokenizer.tokenize(text)) == text for text in TEXTS)
    assert pickle.loads(pickle.dumps(tokenizer)).tokenize(TEXTS[0]) == tokenizer.tokenize(TEXTS[0])


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_are_those_of_the_library(pieces, lowercase):
    tokenizer = load_wordpiece(pieces, lowercase=lowercase)
    theirs = BertWordPieceTokenizer(pieces, lowercase=lowercase)
    for text in ["Unaffable café!", "un中文", "UPPER upper [SEP] x", ""]:
        assert tokenizer.tokenize(text) == theirs.encode(text, add_special_tokens=False).ids
        assert tokenizer.backend.encode(text).ids == theirs.encode(text).ids  # its template stands around
    roles = (tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask, tokenizer.eod)
    assert roles == (0, 2, 3, 4, 3)


def test_the_fingerprint_is_of_files_and_settings(gpt2, pieces):
    plain, more = load_gpt2(*gpt2), load_gpt2(*gpt2, added=["<a>"])
    assert plain.sha256 == load_gpt2(*gpt2).sha256
    assert more.vocab_size == plain.vocab_size + 1
    prints = [each.sha256 for each in (plain, more, *(load_wordpiece(pieces, lowercase=low) for low in (True, False)))]
    assert len(set(prints)) == 4


def test_files_that_are_no_vocabulary_are_named(gpt2, pieces, tmp_path: Path):
    bad = tmp_path / "bad.txt"
    bad.write_text("one two three\n[CLS]\n[SEP]\n")
    with pytest.raises(TokenizerError, match=r"`.*vocab.json` and `.*bad.txt`: invalid vocabulary: "):
        load_gpt2(gpt2[0], str(bad))
    with pytest.raises(TokenizerError, match=r"`.*bad.txt`: invalid vocabulary: missing \[PAD\], "):
        load_wordpiece(str(bad), lowercase=True)
    with pytest.raises(TokenizerError, match=r"cannot read `.*none.txt`"):
        load_gpt2(gpt2[0], str(tmp_path / "none.txt"))
