from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from tests.preprocess.corpus import byte_level_json, sentencepiece_model, write_gpt2

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.megatron.installation import reference_version
from tokenloom.tokenizers.reference_types import TYPES, ReferenceTokenizerOptions, load_reference_tokenizer
from tokenloom.tokenizers.tiktoken_ranks import REFERENCE_PATTERNS, TiktokenTokenizer

ROLES = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"]
TEXTS = ["Hello  world's\n\nÄpfel 12", "", " a", "naïve 中文 x</s>y"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    tokens = [bytes([number]) for number in range(256)] + [b"He", b"llo", b"lo", b"Hello", "中".encode()[:2]]
    rows = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode(errors="replace")}
        for rank, token in enumerate(tokens)
    ]
    contents = {
        "tokenizer.json": byte_level_json().encode(),
        "words.model": sentencepiece_model(),
        "tokens.json": json.dumps(rows).encode(),
        "vocab.txt": "\n".join([*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "a", "##b", "É"]).encode(),
        "bad.json": b'[{"rank": 1}]',
        "unranked.json": json.dumps(rows[1:]).encode(),
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    vocabulary, merges = write_gpt2(tmp_path)
    return {"vocab.json": vocabulary, "merges.txt": merges} | {name: str(tmp_path / name) for name in contents}


def options(name, **more):
    return ReferenceTokenizerOptions(tokenizer_type=name, **more)


def test_types_are_loaded_from_their_files(files):
    gpt2 = {"vocab_file": files["vocab.json"], "merge_file": files["merges.txt"]}
    pieces = {"vocab_file": files["vocab.txt"]}
    tokens = {"tokenizer_model": files["tokens.json"], "vocab_size": 270, "tiktoken_num_special_tokens": 9}
    cases = [
        ("GPT2BPETokenizer", gpt2, 1000, 0),
        ("GPT2BPE", gpt2 | {"special_tokens": ("<x>",)}, 1001, 0),
        ("HuggingFaceTokenizer", {"tokenizer_model": files["tokenizer.json"]}, 1000, 0),
        ("SentencePieceTokenizer", {"tokenizer_model": files["words.model"]}, None, 2),
        ("GPTSentencePieceTokenizer", {"tokenizer_model": files["words.model"]}, None, 2),
        ("Llama2Tokenizer", {"tokenizer_model": files["words.model"]}, None, 2),
        ("TikTokenizer", tokens, 270, 2),
        ("BertWordPieceLowerCase", pieces, 8, 3),
        ("BertWordPieceCase", pieces, 108, 3),
        ("NullTokenizer", {"vocab_size": 50}, 50, 49),
    ]
    assert {name for name, *_ in cases} == {*TYPES}
    for name, more, vocab_size, eod in cases:
        tokenizer = load_reference_tokenizer(options(name, **more))
        assert tokenizer.vocab_size == vocab_size or vocab_size is None, name
        assert tokenizer.eod == eod, name
    assert load_reference_tokenizer(options("BertWordPieceCase", **pieces)).tokenize("É<extra_id_1>") == [7, 9]
    assert load_reference_tokenizer(options("BertWordPieceLowerCase", **pieces)).tokenize("Ab") == [5, 6]


def test_null_has_the_end_of_either_version():
    given = options("NullTokenizer", vocab_size=50)
    newer, older = (load_reference_tokenizer(given, null_has_own_eod=own) for own in (False, True))
    assert (newer.vocab_size, newer.eod, older.vocab_size, older.eod) == (50, 49, 51, 50)
    with pytest.raises(ConfigError, match="must be the last id, 49, got 3"):
        load_reference_tokenizer(options("NullTokenizer", vocab_size=50, null_tokenizer_eod_id=3))


def test_arguments_of_every_version_are_read():
    newer = {"tokenizer_type": "X", "special_tokens": ["a"], "tiktoken_pattern": None, "other": 1}
    older = {"tokenizer_type": "X", "tokenizer_special_tokens": ["a"], "tiktoken_num_special_tokens": 1000}
    expected = options("X", special_tokens=("a",))
    assert ReferenceTokenizerOptions.of(newer) == ReferenceTokenizerOptions.of(older) == expected
    kept = {"tokenizer_type": "X", "tokenizer_sentencepiece_ignore_extra_whitespaces": False}
    assert not ReferenceTokenizerOptions.of(kept).sentencepiece_ignores_white_space


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("T5Tokenizer", {}, "must be one of GPT2BPETokenizer, GPT2BPE"),
        ("SFTTokenizer", {}, "cannot preprocess text"),
        ("GPT2BPETokenizer", {"vocab_file": "a"}, "--tokenizer-type GPT2BPETokenizer needs --merge-file"),
        ("GPT2BPE", {}, "needs --vocab-file and --merge-file"),
        ("HuggingFaceTokenizer", {"tokenizer_model": "a", "vocab_file": "b"}, "does not read --vocab-file"),
        ("Llama2Tokenizer", {"tokenizer_model": "a", "special_tokens": ("b",)}, "cannot be added"),
        ("SentencePieceTokenizer", {"tokenizer_model": "a", "sentencepiece_ignores_white_space": False}, "white space"),
        ("NullTokenizer", {}, "needs --vocab-size"),
        ("NullTokenizer", {"vocab_size": 5, "tokenizer_model": "a"}, "does not read --tokenizer-model"),
        ("TikTokenizer", {"tokenizer_model": "a", "tiktoken_pattern": "v3"}, "v1 or v2"),
        ("TikTokenizer", {"tokenizer_model": "a", "special_tokens": ("<unk>",)}, "lack <s>, </s>"),
        ("TikTokenizer", {"tokenizer_model": "a", "tiktoken_num_special_tokens": 3}, "got 7, 3 and 131072"),
    ],
)
def test_what_cannot_be_meant_is_said(name, more, words):
    with pytest.raises(ConfigError, match=words):
        load_reference_tokenizer(options(name, **more))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("bad.json", "is not a list of tokens"),
        ("unranked.json", "ranks are not 0"),
        ("tokens.json", "has 261 tokens, expected at least 130072"),
        ("vocab.txt", "is not a list"),
    ],
)
def test_lists_for_tiktoken_that_are_none_are_refused(files, file, words):
    with pytest.raises(TokenizerError, match=words):
        load_reference_tokenizer(options("TikTokenizer", tokenizer_model=files[file]))


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pattern", ["v1", "v2"])
def test_tiktoken_gives_the_references_ids(files, pattern):
    from megatron.core.tokenizers.text.libraries.tiktoken_tokenizer import TikTokenTokenizer

    theirs = TikTokenTokenizer(files["tokens.json"], num_special_tokens=9, pattern=pattern, vocab_size=265)
    more = {"tiktoken_pattern": pattern, "tiktoken_num_special_tokens": 9, "vocab_size": 265}
    ours = load_reference_tokenizer(options("TikTokenizer", tokenizer_model=files["tokens.json"], **more))
    assert isinstance(ours, TiktokenTokenizer)
    assert ours.pattern == REFERENCE_PATTERNS[pattern]
    assert [ours.tokenize(text) for text in TEXTS] == [list(theirs.text_to_ids(text)) for text in TEXTS]
    assert (ours.vocab_size, ours.eod, ours.bos, ours.pad) == (265, theirs.eod, theirs.bos_id, theirs.pad_id)


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_other_types_give_the_references_ids(files):
    from megatron.core.tokenizers.text.libraries.null_tokenizer import NullTokenizer
    from megatron.core.tokenizers.text.libraries.sentencepiece_tokenizer import SentencePieceTokenizer

    theirs = SentencePieceTokenizer(files["words.model"])
    ours = load_reference_tokenizer(options("SentencePieceTokenizer", tokenizer_model=files["words.model"]))
    assert [ours.tokenize(text) for text in TEXTS] == [theirs.text_to_ids(text) for text in TEXTS]
    assert (ours.vocab_size, ours.eod) == (theirs.vocab_size, theirs.eos_id)
    is_old = reference_version() < (0, 17)
    null = load_reference_tokenizer(options("NullTokenizer", vocab_size=50), null_has_own_eod=is_old)
    their_null = NullTokenizer(50)
    assert null.tokenize("1 49") == their_null.text_to_ids("1 49")
    assert (null.vocab_size, null.eod) == (their_null.vocab_size, their_null.eod)
