from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from tests.preprocess.corpus import byte_level_json
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.implementations import BertWordPieceTokenizer

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.vocabulary_files import END_OF_TEXT, added_tokens, load_gpt2, load_wordpiece, merges_beside

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


def test_gpt2_is_found_in_its_folder_and_by_its_content(gpt2):
    folder = Path(gpt2[0]).parent
    same = [load_gpt2(*gpt2), load_tokenizer(folder), load_tokenizer(gpt2[0]), load_tokenizer(gpt2[0], kind="gpt2")]
    assert len({tokenizer.sha256 for tokenizer in same}) == 1
    (folder / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    assert load_tokenizer(folder).path.endswith("tokenizer.json")  # which says all in one file
    assert merges_beside("a/gpt2-vocab.json") == "a/gpt2-merges.txt"
    assert merges_beside("a/ids.json") == "a/merges.txt"


def test_special_tokens_without_an_id_get_the_next_ones():
    rows = added_tokens({"a": 0, "b": 4, "<x>": 2}, ["<y>", "<x>", "<z>", "<y>"])
    assert [(row["content"], row["id"]) for row in rows] == [("<x>", 2), ("<y>", 5), ("<z>", 6)]


def test_gpt2_without_an_end_gets_one(tmp_path: Path):
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    (tmp_path / "merges.txt").write_text("a b\r\n")
    tokenizer = load_gpt2(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), added=["<x>"])
    assert (tokenizer.eod, tokenizer.vocab_size) == (3, 5)
    assert tokenizer.tokenize("aba<x>") == [2, 0, 4]


@pytest.mark.parametrize(
    ("vocabulary", "merges", "words"),
    [
        ("{", "", "is not JSON"),
        ('{"a": "b"}', "", "no vocabulary of GPT-2's kind"),
        ("{}", "", "no vocabulary of GPT-2's kind"),
        ('{"a": 0}', "a a\n", "line 1 of .*merges.txt`: expected two tokens that merge, found 'a a'"),
        ('{"a": 0}', "#version: 0.2\na\n", "line 2"),
        ('{"a": 0}', None, "cannot read"),
    ],
)
def test_gpt2_files_that_are_none_are_refused(tmp_path: Path, vocabulary, merges, words):
    (tmp_path / "vocab.json").write_text(vocabulary)
    if merges is not None:
        (tmp_path / "merges.txt").write_text(merges)
    with pytest.raises(TokenizerError, match=words):
        load_gpt2(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))


def test_vocabulary_without_merges_is_no_tokenizer(tmp_path: Path):
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(TokenizerError, match=r"is not a tokenizer by itself: .* no `.*merges.txt`"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_are_those_of_the_library(pieces, lowercase):
    tokenizer = load_wordpiece(pieces, lowercase=lowercase)
    theirs = BertWordPieceTokenizer(pieces, lowercase=lowercase)
    for text in ["Unaffable café!", "un中文", "UPPER upper [SEP] x", ""]:
        assert tokenizer.tokenize(text) == theirs.encode(text, add_special_tokens=False).ids
        assert tokenizer.backend.encode(text).ids == theirs.encode(text).ids  # its template stands around
    roles = (tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask, tokenizer.eod)
    assert roles == (0, 2, 3, 4, 3)


def test_word_pieces_are_told_by_content(pieces):
    loaded = load_tokenizer(pieces)
    assert loaded.tokenize("UNAFFABLE") == [5, 6, 7]  # no piece in upper case: texts are put in lower case
    assert isinstance(loaded.backend.normalizer, normalizers.BertNormalizer)
    assert isinstance(loaded.backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    Path(pieces).write_text("\n".join([*PIECES, "Up"]), encoding="utf-8")
    assert load_tokenizer(Path(pieces).parent).tokenize("Up up") == [len(PIECES), 12]


def test_word_pieces_without_special_tokens_are_refused(pieces):
    Path(pieces).write_text("a\nb\n")
    with pytest.raises(TokenizerError, match=r"lacks \[PAD\], \[UNK\]"):
        load_wordpiece(pieces, lowercase=True)
