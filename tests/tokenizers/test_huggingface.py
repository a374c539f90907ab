from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from tests.preprocess.corpus import EOD, byte_level_json, make_tokenizer, word_level_json
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


def test_file_and_folder_load_the_same(folder: Path):
    by_folder, by_file = load_tokenizer(folder), load_tokenizer(str(folder / "tokenizer.json"))
    assert by_folder.unique_identifiers == by_file.unique_identifiers
    assert by_folder.unique_identifiers["tokenizer_path"] == [str(folder / "tokenizer.json")]
    assert len(by_folder.unique_identifiers["sha256"]) == 64
    assert json.loads(json.dumps(by_folder.unique_identifiers))["eod"] == 0


def test_text_survives_the_round_trip(folder: Path):
    tokenizer = load_tokenizer(folder)
    text = "def f(é):  # 中文 👍\n\treturn 'x'\n"
    ids = tokenizer.tokenize(text)
    assert all(type(number) is int and 0 <= number < tokenizer.vocab_size for number in ids)
    assert tokenizer.detokenize(ids) == text


def test_special_token_in_the_text_becomes_its_id(folder: Path):
    tokenizer = load_tokenizer(folder)
    assert tokenizer.tokenize(EOD) == [0]
    assert tokenizer.detokenize(tokenizer.tokenize(f"a{EOD}b")) == f"a{EOD}b"


def test_lone_surrogate_counts_as_question_mark(folder: Path):
    tokenizer = load_tokenizer(folder)
    assert tokenizer.tokenize("a\ud800b") == tokenizer.tokenize("a?b")


def test_vocab_size_is_the_largest_id_plus_one():
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    assert make_tokenizer(backend.to_str()).vocab_size == 8
    backend.add_special_tokens(["</s>"])
    largest = backend.token_to_id("</s>")
    assert make_tokenizer(backend.to_str()).vocab_size == max(7, largest) + 1


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
    with pytest.raises(MissingTokenError, match="has no bos_token"):
        _ = tokenizer.bos
    assert load_tokenizer(folder, eod_token=EOD).eod == 0


def test_missing_role_is_what_the_reference_code_expects(folder: Path):
    tokenizer = load_tokenizer(folder)
    for role in ("eos", "pad", "bos"):
        with pytest.raises(NotImplementedError, match=f"has no {role}_token"):
            getattr(tokenizer, role)


@pytest.mark.parametrize("token", [EOD, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>"])
def test_single_well_known_token_ends_documents(token: str):
    assert make_tokenizer(with_added("<x>", token)).eod == 2


def test_ambiguous_or_absent_eod_is_an_error_with_the_remedy():
    with pytest.raises(MissingTokenError, match=r"found several: .*</s>.*<eos>.*\n.*name it with `eod_token`"):
        _ = make_tokenizer(with_added("</s>", "<eos>")).eod
    with pytest.raises(MissingTokenError, match=r"found none by name or convention\n.*its special tokens are <x>"):
        _ = make_tokenizer(with_added("<x>")).eod
    assert make_tokenizer(with_added("</s>", "<eos>"), eod_token="<eos>").eod == 2


def test_eod_token_must_exist():
    with pytest.raises(TokenizerError, match=r"has no token 'nowhere'\n.*its special tokens are </s>"):
        make_tokenizer(word_level_json(), eod_token="nowhere")


def test_pickled_tokenizer_answers_the_same():
    tokenizer = make_tokenizer(byte_level_json())
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.tokenize("pickled text") == tokenizer.tokenize("pickled text")
    assert copy.unique_identifiers == tokenizer.unique_identifiers


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


@pytest.mark.parametrize("content", ["[1]", "{", "\x00"])
def test_damaged_config_is_refused(folder: Path, content: str):
    (folder / "tokenizer_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        load_tokenizer(folder)


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
    with pytest.raises(MissingTokenError, match="has no bos_token"):
        _ = tokenizer.bos


def test_word_pieces_have_the_roles_of_t5():
    tokenizer = make_tokenizer(word_piece_json("[BOS]", "[EOS]", "<extra_id_10>", "<extra_id_2>", "<extra_id_0>"))
    assert (tokenizer.bos, tokenizer.eos) == (0, 1)
    assert tokenizer.additional_special_tokens_ids == [4, 3, 2]


def test_a_spelling_counts_only_among_the_special_tokens():
    backend = Tokenizer(models.WordLevel({"a": 0, "[CLS]": 1}, unk_token="a"))
    with pytest.raises(MissingTokenError, match="has no cls_token"):
        _ = make_tokenizer(backend.to_str()).cls


def test_config_names_roles_and_sentinels_before_any_spelling(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(word_piece_json(*BERT_TOKENS, "<extra_id_0>"), encoding="utf-8")
    config = {"mask_token": "[SEP]", "additional_special_tokens": ["word", {"content": "mask"}, "absent", 3]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.cls, tokenizer.mask) == (1, 2)
    assert tokenizer.additional_special_tokens_ids == [tokenizer.vocab["word"], tokenizer.vocab["mask"]]


def test_bert_samples_with_a_real_tokenizer(tmp_path: Path):
    from tests.support import MASKING, write_sentences

    from tokenloom import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig, BlendedMegatronDatasetBuilder

    tokenizer = make_tokenizer(word_piece_json(*BERT_TOKENS))
    sentences = [tokenizer.tokenize(text) for text in ("masked word", "word masking word")]
    prefix = write_sentences(tmp_path / "corpus", [sentences])
    config = BERTMaskedWordPieceDatasetConfig(
        **MASKING | {"masking_probability": 0.01},
        sequence_length=12,
        blend=([prefix], None),
        split="1,0,0",
        tokenizer=tokenizer,
        classification_head=False,
    )
    train, _, _ = BlendedMegatronDatasetBuilder(BERTMaskedWordPieceDataset, [1, 0, 0], lambda: True, config).build()
    text = train[0]["text"].tolist()
    assert tokenizer.detokenize(text[:10]).split()[0] == "[CLS]"
    assert text == [1, 5, 6, 8, 8, 5, 7, 8, 2, 0, 0, 0]
