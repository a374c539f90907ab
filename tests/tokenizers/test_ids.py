import base64
import functools
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import (
    EOD,
    TIKTOKEN_SPECIALS,
    byte_level_json,
    make_sentencepiece,
    make_tiktoken,
    make_tokenizer,
    sentencepiece_model,
    sources,
    tiktoken_file,
    tokenizer_of,
    write_gpt2,
)
from tiktoken_ext import openai_public
from tokenizers import Tokenizer, models, processors
from tokenizers.implementations import BertWordPieceTokenizer

from tokenloom.errors import MissingTokenError, TokenizerError
from tokenloom.tokenizers.engines import hard_texts
from tokenloom.tokenizers.huggingface import END_OF_TEXT, load_gpt2, load_wordpiece
from tokenloom.tokenizers.kinds import KINDS
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer
from tokenloom.tokenizers.sentencepiece_model import SentencePieceTokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer
from tokenloom.tokenizers.tiktoken_ranks import (
    GIGATOKEN_SCHEMES,
    PATTERNS,
    PUBLISHED,
    TiktokenDescription,
    TiktokenTokenizer,
    read_description,
)

OF_TEXT = ("huggingface", "sentencepiece", "unigram", "tiktoken", "byte")

every = pytest.mark.parametrize("tokenizer", [*OF_TEXT, "null"], indirect=True)


@pytest.fixture
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    return tokenizer_of(request.param)


def texts_for(tokenizer: TextTokenizer) -> list[str]:
    if tokenizer.kind == "null":
        return ["", "0", " 12\n\t4999  7 ", "5000", " ".join(map(str, range(5001)))]
    return [*hard_texts(tokenizer), *sources()]


@every
def test_batches_give_the_ids_of_single_texts(tokenizer: TextTokenizer):
    texts = texts_for(tokenizer)
    expected = [tokenizer.tokenize(text) for text in texts]
    encoded = tokenizer.encode_texts(texts)
    assert encoded.lengths.dtype == np.int64
    assert encoded.lengths.tolist() == [len(row) for row in expected]
    assert encoded.tokens.tolist() == [token for row in expected for token in row]
    assert all(type(token) is int and 0 <= token < tokenizer.vocab_size for row in expected for token in row)

    assert (tokenizer.tokenize(""), tokenizer.detokenize([])) == ([], "")
    for empty in ([], [""], ["", ""]):
        encoded = tokenizer.encode_texts(empty)
        assert (len(encoded.tokens), encoded.lengths.tolist()) == (0, [0] * len(empty))


@every
def test_identity_is_json_and_a_copy_by_pickle_is_the_same(tokenizer: TextTokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.unique_identifiers == tokenizer.unique_identifiers
    assert (copy.sha256, copy.kind, copy.path) == (tokenizer.sha256, tokenizer.kind, tokenizer.path)
    for text in texts_for(tokenizer)[:8]:
        assert copy.tokenize(text) == tokenizer.tokenize(text)
    assert json.loads(json.dumps(tokenizer.unique_identifiers))["sha256"] == tokenizer.sha256
    assert tokenizer.kind in KINDS
    assert 0 <= tokenizer.eod < tokenizer.vocab_size
    assert len(tokenizer.sha256) == 64


@pytest.mark.parametrize("tokenizer", OF_TEXT, indirect=True)
def test_lone_surrogates_count_as_question_marks(tokenizer: TextTokenizer):
    assert tokenizer.tokenize("a\ud800b\udfff") == tokenizer.tokenize("a?b?")


@pytest.mark.parametrize("name", ["huggingface", "tiktoken", "byte"])
@given(text=st.text(max_size=80))
def test_every_text_survives_the_round_trip(name: str, text: str):
    tokenizer = tokenizer_of(name)
    assert tokenizer.detokenize(tokenizer.tokenize(text)) == text


@pytest.mark.parametrize("name", ["sentencepiece", "unigram", "tiktoken", "byte", "null"])
@pytest.mark.parametrize("number", [-1, 10**6])
def test_ids_of_another_tokenizer_are_told(name: str, number: int):
    tokenizer = tokenizer_of(name)
    message = rf"id {number} at index 1 out of range: .* has {tokenizer.vocab_size} ids"
    with pytest.raises(TokenizerError, match=message):
        tokenizer.detokenize([0, number])


def test_bytes_and_integers_are_ids():
    tokenizer = ByteTokenizer()
    assert tokenizer.tokenize("a\x00é€") == [97, 0, 195, 169, 226, 130, 172]
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.eos) == (259, 256, 256)
    assert (tokenizer.bos, tokenizer.pad) == (257, 258)
    assert tokenizer.detokenize([257, 97, 226, 130, 256, 258]) == "<bos>a\ufffd<eod><pad>"
    assert tokenizer.tokens_to_ids(["<eod>", "a", "é", "ab", ""]) == [256, 97, None, None, None]
    tokenizer = NullTokenizer(50)
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.path) == (51, 50, "null:50")
    assert tokenizer.tokenize(" 7\t0\r\n50 007 ") == [7, 0, 50, 7]
    assert tokenizer.detokenize([7, 0, 50]) == "7 0 50"
    assert tokenizer.tokens_to_ids(["3", "50", "51", "x", "-1", "", "٣", "9" * 5000]) == [3, 50] + [None] * 6


WRONG = {"51": "51", "1 -2": "-", "1,2": ",", "1.5": ".", "٣": "٣", "1\u20032": "\\u2003", "word": "word"}
WRONG |= {"9" * 30: "9" * 30, "9" * 5000: "9" * 37 + "..."}


@pytest.mark.parametrize(("text", "found"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_no_id_is_named(text: str, found: str):
    with pytest.raises(TokenizerError, match=re.escape(f"'{found}' is not an integer in [0, 51)\nhint")):
        NullTokenizer(50).tokenize(text)


@given(ids=st.lists(st.integers(0, 2**31 - 2)))
def test_all_ids_survive_the_round_trip(ids: list[int]):
    tokenizer = NullTokenizer(2**31 - 2)
    assert tokenizer.tokenize(tokenizer.detokenize(ids)) == ids
    assert tokenizer.encode_texts([tokenizer.detokenize(ids)]).tokens.dtype == np.int64


@pytest.fixture(params=["bpe", "unigram"])
def sentencepiece_sides(
    request: pytest.FixtureRequest,
) -> tuple[SentencePieceTokenizer, sentencepiece.SentencePieceProcessor]:
    library = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(request.param))
    return make_sentencepiece(request.param), library


def test_sentencepiece_ids_are_those_of_the_library(sentencepiece_sides):
    tokenizer, library = sentencepiece_sides
    texts = [*hard_texts(tokenizer), *sources()]
    assert [tokenizer.tokenize(text) for text in texts] == [library.encode(text) for text in texts]
    assert all(tokenizer.detokenize(library.encode(text)) == library.decode(library.encode(text)) for text in texts)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(text=st.text(max_size=60))
def test_sentencepiece_ids_of_any_text(kind: str, text: str):
    tokenizer = make_sentencepiece(kind)
    assert tokenizer.encode_texts([text, text]).tokens.tolist() == 2 * tokenizer.backend.encode(text)


def test_roles_are_those_that_the_model_names(sentencepiece_sides):
    tokenizer, library = sentencepiece_sides
    assert (tokenizer.bos, tokenizer.eod, tokenizer.eos, tokenizer.pad, tokenizer.cls) == (1, 2, 2, 3, 4)
    assert tokenizer.vocab_size == library.get_piece_size() == 600
    assert (tokenizer.vocab["<s>"], tokenizer.inv_vocab[2]) == (1, "</s>")
    assert tokenizer.additional_special_tokens_ids == [library.piece_to_id(f"<extra_id_{index}>") for index in (0, 1)]
    # Spelled-out control symbols are text, user symbols are ids.
    assert not {1, 2, 3, 4} & set(tokenizer.tokenize("<s>a</s> <pad><cls>"))
    assert library.piece_to_id("<|user|>") in tokenizer.tokenize("a<|user|>b")


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x0a\xff\xff\xff\xff\x0f"])
def test_what_is_no_model_is_named(data: bytes):
    with pytest.raises(TokenizerError, match=r"`x\.model` is not a SentencePiece model"):
        SentencePieceTokenizer("x.model", data)


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


def test_config_names_the_roles(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    config = {"eos_token": "<|pad|>", "pad_token": {"content": EOD}, "bos_token": None, "unk_token": "absent"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.special_tokens_dict == {"eos_token": 1, "pad_token": 0}
    assert (tokenizer.eod, tokenizer.eos, tokenizer.pad) == (1, 1, 0)
    with pytest.raises(MissingTokenError, match="has no configured or well-known token for `bos`"):
        _ = tokenizer.bos
    assert load_tokenizer(tmp_path, eod_token=EOD).eod == 0


def test_a_single_well_known_token_ends_documents():
    for token in (EOD, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>"):
        assert make_tokenizer(with_added("<x>", token)).eod == 2
    with pytest.raises(MissingTokenError, match=r"token for `eod`\n.*`eod_token`; .* special tokens are </s>, <eos>"):
        _ = make_tokenizer(with_added("</s>", "<eos>")).eod
    with pytest.raises(MissingTokenError, match=r"well-known token for `eod`\n.* special tokens are <x>"):
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


HARD_TEXTS = ["Hello  world's\n\nÄpfel 12 naïve 中文", "", " a", f"x{END_OF_TEXT} y", "UPPER lower"]
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
    assert [tokenizer.tokenize(text) for text in HARD_TEXTS] == [backend.encode(text).ids for text in HARD_TEXTS]
    assert tokenizer.eod == backend.token_to_id(END_OF_TEXT)
    assert all(tokenizer.detokenize(tokenizer.tokenize(text)) == text for text in HARD_TEXTS)
    assert pickle.loads(pickle.dumps(tokenizer)).tokenize(HARD_TEXTS[0]) == tokenizer.tokenize(HARD_TEXTS[0])


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_are_those_of_the_library(pieces, lowercase):
    tokenizer = load_wordpiece(pieces, lowercase=lowercase)
    theirs = BertWordPieceTokenizer(pieces, lowercase=lowercase)
    for text in ["Unaffable café!", "un中文", "UPPER upper [SEP] x", ""]:
        assert tokenizer.tokenize(text) == theirs.encode(text, add_special_tokens=False).ids
        assert tokenizer.backend.encode(text).ids == theirs.encode(text).ids  # its template stands around
    assert [getattr(tokenizer, role) for role in ("pad", "cls", "sep", "mask", "eod")] == [0, 2, 3, 4, 3]


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


@functools.cache
def library(pattern: str) -> tiktoken.Encoding:
    rows = map(bytes.split, tiktoken_file().splitlines())
    options = {"mergeable_ranks": {base64.b64decode(token): int(rank) for token, rank in rows}}
    return tiktoken.Encoding("x", pat_str=PATTERNS[pattern], special_tokens=dict(TIKTOKEN_SPECIALS), **options)


ours = functools.cache(make_tiktoken)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_tiktoken_ids_are_those_of_the_library(pattern: str):
    tokenizer, encoding = ours(pattern=pattern), library(pattern)
    for text in [*hard_texts(tokenizer), *sources()]:
        ids = encoding.encode(text, allowed_special="all")
        assert tokenizer.tokenize(text) == ids
        assert tokenizer.detokenize(ids) == text


@pytest.mark.parametrize("pattern", ["cl100k", "o200k"])
@given(parts=st.lists(st.one_of(st.text(max_size=30), st.sampled_from(sorted(TIKTOKEN_SPECIALS))), max_size=6))
def test_tiktoken_ids_of_any_text(pattern: str, parts: list[str]):
    text = "".join(parts)
    assert ours(pattern=pattern).tokenize(text) == library(pattern).encode(text, allowed_special="all")


def test_roles_are_described_and_text_that_the_expression_gives_up_on_is_named():
    tokenizer = make_tiktoken(eod_token="<|end|>", bos_token="<|endof|>", pad_token=EOD)
    assert (tokenizer.eod, tokenizer.bos, tokenizer.pad) == (1003, 1001, 1000)
    with pytest.raises(TokenizerError, match=r"no token '</s>' for `bos`\nhint: .* these special tokens: <\|endoftext"):
        make_tiktoken(bos_token="</s>")
    with pytest.raises(TokenizerError, match=r"cannot encode the text '    .*' of 1000000 characters: .*stack size"):
        make_tiktoken(pattern="o200k").tokenize(" " * 1_000_000)


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
        ("{", "`.*ranks.json` describes no tiktoken rank file: Expecting"),
        ("[]", "describes no tiktoken rank file: .*\\nhint: write a JSON object with `pattern` and"),
        ("{}", "expected `pattern`, found no such member"),
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
