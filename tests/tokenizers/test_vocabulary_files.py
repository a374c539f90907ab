from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from tests.preprocess.corpus import byte_level_json
from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.huggingface import END_OF_TEXT, load_gpt2, load_wordpiece

TEXTS = ["Hello  world's\n\nÄpfel 12 naïve 中文", "", " a", f"x{END_OF_TEXT} y", "UPPER lower"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able", "cafe", "中", "文", "!", "up", "##per"]


@pytest.fixture
def gpt2(tmp_path: Path) -> tuple[str, str]:
    """The two files of a byte-level tokenizer."""
    model = json.loads(byte_level_json())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    rows = ["#version: 0.2", *(" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]), ""]
    (tmp_path / "merges.txt").write_text("\n".join(rows), encoding="utf-8")
    return str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")


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
    with pytest.raises(TokenizerError, match=r"`.*vocab.json` and `.*bad.txt` cannot be read as a vocabulary: "):
        load_gpt2(gpt2[0], str(bad))
    with pytest.raises(TokenizerError, match=r"`.*bad.txt` cannot be read as a vocabulary: it lacks \[PAD\], "):
        load_wordpiece(str(bad), lowercase=True)
    with pytest.raises(TokenizerError, match=r"cannot read `.*none.txt`"):
        load_gpt2(gpt2[0], str(tmp_path / "none.txt"))
