"""Tokenizers that are kept as lists: GPT-2's `vocab.json` and `merges.txt`, and BERT's `vocab.txt`.

Each becomes what `tokenizer.json` says in one file, and then a tokenizer of Hugging Face like any other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tokenloom.errors import TokenizerError
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.tokenizers.huggingface import VOCABULARY, HuggingFaceTokenizer
from tokenloom.tokenizers.kinds import TokenizerKind, TokenizerOptions

END_OF_TEXT = "<|endoftext|>"
"""What ends a document of GPT-2; it has an id of its own even where the list lacks it."""

_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MOST_BYTES = 256 << 20


def load_gpt2(
    vocabulary_path: str,
    merges_path: str,
    *,
    data: bytes | None = None,
    added: Sequence[str] = (),
    eod_token: str | None = None,
    bos_token: str | None = None,
) -> HuggingFaceTokenizer:
    """Returns the byte-level tokenizer of two lists: ids by token, and pairs of tokens that merge, first come first.

    Args:
        vocabulary_path: path of the ids, an object in JSON.
        merges_path: path of the pairs, a pair on each line.
        data: bytes of the ids, where they have been read.
        added: special tokens beside `END_OF_TEXT`; those that have no id get the next ones.
        eod_token, bos_token: see `load_tokenizer`.

    Raises:
        TokenizerError: a file cannot be read, or does not hold such a list.
    """
    ids = _ids_of(vocabulary_path, read_file(vocabulary_path) if data is None else data)
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": ids,
        "merges": _merges_of(merges_path, ids),
    }
    cut = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    parts = {
        "pre_tokenizer": cut,
        "post_processor": cut | {"trim_offsets": False},
        "decoder": cut,
        "added_tokens": added_tokens(ids, [END_OF_TEXT, *added]),
        "model": model,
    }
    return _made_of(vocabulary_path, parts, eod_token=eod_token or END_OF_TEXT, bos_token=bos_token)


def load_wordpiece(
    path: str,
    *,
    lowercase: bool,
    data: bytes | None = None,
    added: Sequence[str] = (),
    eod_token: str | None = None,
    bos_token: str | None = None,
) -> HuggingFaceTokenizer:
    """Returns the word-piece tokenizer of a list: a piece on each line, its number being the id.

    `[CLS]` and `[SEP]` are what its template puts around a text. `[SEP]` ends a document where nothing else is named:
    BERT has no other such token.

    Args:
        path: path of the list.
        lowercase: whether texts are put in lower case, and accents dropped.
        data: its bytes, where they have been read.
        added: further special tokens; those that have no id get the next ones.
        eod_token, bos_token: see `load_tokenizer`.

    Raises:
        TokenizerError: the file cannot be read, or lacks one of BERT's special tokens.
    """
    lines = _decoded(path, read_file(path) if data is None else data).splitlines()
    ids = {line.rstrip(): number for number, line in enumerate(lines)}
    if missing := [token for token in _BERT_TOKENS if token not in ids]:
        message = f"`{path}` is no vocabulary of word pieces: it lacks {', '.join(missing)}"
        raise TokenizerError(message, hint="expected a piece on each line")
    around = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    begin, text, end = {"id": "[CLS]"}, {"id": "A"}, {"id": "[SEP]"}
    single = [
        {"SpecialToken": begin | {"type_id": 0}},
        {"Sequence": text | {"type_id": 0}},
        {"SpecialToken": end | {"type_id": 0}},
    ]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": end | {"type_id": 1}}]
    parts = {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, *second],
            "special_tokens": around,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "added_tokens": added_tokens(ids, [*_BERT_TOKENS, *added]),
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }
    return _made_of(path, parts, eod_token=eod_token or "[SEP]", bos_token=bos_token)


def added_tokens(ids: Mapping[str, int], tokens: Sequence[str]) -> list[dict[str, Any]]:
    """Returns special tokens as `tokenizer.json` lists them, by rising id; those without one get the next ones."""
    free = max(ids.values(), default=-1) + 1
    numbers: dict[str, int] = {}
    for token in tokens:
        if token not in numbers:
            numbers[token] = ids.get(token, free)
            free += token not in ids
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    rows = sorted(numbers.items(), key=lambda row: row[1])
    return [{"id": number, "content": token, **flags} for token, number in rows]


def merges_beside(vocabulary_path: str) -> str:
    """Returns where the pairs of GPT-2 lie by custom: `merges.txt`, or `gpt2-merges.txt` beside `gpt2-vocab.json`."""
    folder, name = os.path.split(vocabulary_path)
    stem = os.path.splitext(name)[0]
    return os.path.join(folder, f"{stem.removesuffix('vocab')}merges.txt" if stem.endswith("vocab") else "merges.txt")


def read_file(path: str) -> bytes:
    """Returns the bytes of a tokenizer's file.

    Raises:
        TokenizerError: it cannot be read.
    """
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror or error}"
        raise TokenizerError(message, hint="nothing is downloaded: name a file that is there") from error


def _made_of(
    path: str, parts: Mapping[str, Any], *, eod_token: str | None, bos_token: str | None
) -> HuggingFaceTokenizer:
    whole = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, **parts}
    return HuggingFaceTokenizer(path, json.dumps(whole).encode(), eod_token=eod_token, bos_token=bos_token)


def _ids_of(path: str, data: bytes) -> dict[str, int]:
    try:
        ids = parse_json(data, most_bytes=_MOST_BYTES)
    except UnusableJsonError as error:
        message = f"`{path}` is not JSON: {error}"
        raise TokenizerError(message) from error
    if not isinstance(ids, dict) or not ids or not all(type(number) is int and number >= 0 for number in ids.values()):
        message = f"`{path}` is no vocabulary of GPT-2's kind"
        raise TokenizerError(message, hint='expected an object of ids by token, such as {"!": 0}')
    return ids


def _merges_of(path: str, ids: Mapping[str, int]) -> list[str]:
    merges = []
    for number, line in enumerate(_decoded(path, read_file(path)).split("\n"), 1):
        pair = line.rstrip("\r").split(" ")
        if pair == [""] or (number == 1 and pair[0].startswith("#version")):
            continue
        if len(pair) != 2 or not all(token in ids for token in (*pair, "".join(pair))):
            message = f"line {number} of `{path}`: expected two tokens that merge, found {line[:60]!r}"
            raise TokenizerError(message, hint="does it belong to this vocabulary?")
        merges.append(" ".join(pair))
    return merges


def _decoded(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"`{path}` is no text in UTF-8: {error}"
        raise TokenizerError(message) from error


class Gpt2(TokenizerKind):
    """A `vocab.json`, with its `merges.txt` beside."""

    called = "a `vocab.json` with its `merges.txt`"
    file_name = "vocab.json"

    def is_told_by(self, data: bytes) -> bool:
        """Whether it is an object of numbers."""
        return VOCABULARY.match(data) is not None

    def load(self, path: str, data: bytes, options: TokenizerOptions) -> HuggingFaceTokenizer:
        """Returns the tokenizer of a file and the one beside it; see `TokenizerKind`."""
        merges = merges_beside(path)
        if not os.path.exists(merges):
            message = f"`{path}` is not a tokenizer by itself: it lists ids, and no `{merges}` says how tokens merge"
            raise TokenizerError(message, hint="a `tokenizer.json` says both")
        return load_gpt2(path, merges, data=data, eod_token=options.eod_token, bos_token=options.bos_token)


class WordPiece(TokenizerKind):
    """A `vocab.txt`; texts are put in lower case where no piece has another."""

    called = "a `vocab.txt`"
    file_name = "vocab.txt"

    def is_told_by(self, data: bytes) -> bool:
        """Whether it begins with pieces on lines, among them one that BERT's lists have."""
        return b"\n[CLS]" in data[: 64 << 10] or data.startswith(b"[CLS]")

    def load(self, path: str, data: bytes, options: TokenizerOptions) -> HuggingFaceTokenizer:
        """Returns the tokenizer of a file; see `TokenizerKind`."""
        pieces = [line for line in _decoded(path, data).splitlines() if not line.startswith("[")]
        lowercase = not any(piece != piece.lower() for piece in pieces)
        return load_wordpiece(
            path, lowercase=lowercase, data=data, eod_token=options.eod_token, bos_token=options.bos_token
        )


GPT2 = Gpt2()
WORDPIECE = WordPiece()
