"""The one door to tokenizers of every kind."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.tokenizers.huggingface import TOKENIZER_FILE, HuggingFaceTokenizer
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer
from tokenloom.tokenizers.sentencepiece_model import SentencePieceTokenizer
from tokenloom.tokenizers.text_tokenizer import TOKENIZER_KINDS, TextTokenizer, TokenizerKind
from tokenloom.tokenizers.tiktoken_patterns import PATTERNS
from tokenloom.tokenizers.tiktoken_ranks import TiktokenDescription, TiktokenTokenizer, read_description

_NULL = re.compile(r"null:([0-9]+)")
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")
_SUFFIXES: Mapping[str, TokenizerKind] = {".model": "sentencepiece", ".tiktoken": "tiktoken"}


def load_tokenizer(
    path_or_spec: str | os.PathLike[str],
    *,
    kind: TokenizerKind | Literal["auto"] = "auto",
    eod_token: str | None = None,
    bos_token: str | None = None,
    pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> TextTokenizer:
    """Returns a tokenizer of a file, or of a folder with one; or one that needs no file. Nothing is ever downloaded.

    - Hugging Face: a `tokenizer.json`; a `tokenizer_config.json` beside it names the special tokens.
    - SentencePiece: a `.model`.
    - tiktoken: a rank file. `NAME.json` or `NAME.toml` beside it, NAME being the whole name of the file, holds what
      `TiktokenDescription` lists; the rank files that OpenAI publishes are known by their content.
    - `byte`: bytes are ids. `null:N`: a text is a list of ids below N. A file of that name is `./byte`.

    Args:
        path_or_spec: of the file, or of its folder; or `byte`, or `null:N`.
        kind: of the file; `auto` tells it from its content.
        eod_token: the token that ends a document; if None, what the files say, else the only well-known one.
        bos_token: the token that begins a document, likewise.
        pattern: for tiktoken: the expression that cuts texts into words, or `r50k`, `p50k`, `cl100k` or `o200k`; in
            the place of the described one.
        special_tokens: for tiktoken: ids by spelling, in the place of those described.

    Raises:
        TokenizerError: the file is missing, unreadable or not of its kind, or does not know one of the tokens.
        ConfigError: an option is not one of this kind of tokenizer.
        MissingExtraError: the library is not installed.

    >>> load_tokenizer("null:100").tokenize("5 99")
    [5, 99]
    """
    name = os.fspath(path_or_spec)
    if kind not in ("auto", *TOKENIZER_KINDS):
        message = f"expected a kind of tokenizer out of auto, {', '.join(TOKENIZER_KINDS)}, got {kind!r}"
        raise ConfigError(message)
    plain = _plain(name, kind, eod_token, bos_token)
    if plain is not None:
        file, data, found = name, b"", plain.kind
    else:
        file = _file_of(name)
        data = _read(file)
        found = _kind_of(file, data) if kind == "auto" else kind
    if found != "tiktoken" and (pattern is not None or special_tokens is not None):
        message = f"expected no `pattern` and no `special_tokens` for `{name}`, which is of the kind {found!r}"
        raise ConfigError(message, hint="both belong to rank files of tiktoken")
    if plain is not None:
        return plain
    if found == "tiktoken":
        return TiktokenTokenizer(file, data, _described(file, data, pattern, special_tokens, eod_token, bos_token))
    make = SentencePieceTokenizer if found == "sentencepiece" else HuggingFaceTokenizer
    return make(file, data, eod_token=eod_token, bos_token=bos_token)


def _plain(name: str, kind: str, eod_token: str | None, bos_token: str | None) -> ByteTokenizer | NullTokenizer | None:
    """Returns the tokenizer of a specification that names no file, or None."""
    match = _NULL.fullmatch(name)
    if kind in ("byte", "null") and (name != "byte" if kind == "byte" else match is None):
        expected = "`byte`" if kind == "byte" else "`null:N`, N being the number of ids"
        message = f"expected {expected} for a tokenizer of the kind {kind!r}, found {name!r}"
        raise ConfigError(message)
    if name == "byte" and kind in ("auto", "byte"):
        return ByteTokenizer(eod_token=eod_token, bos_token=bos_token)
    if match is None or kind not in ("auto", "null"):
        return None
    if eod_token is not None or bos_token is not None:
        message = f"expected no `eod_token` and no `bos_token` for {name!r}, whose tokens have no spelling"
        raise ConfigError(message, hint=f"its eod is {match[1]}, and it has no bos")
    return NullTokenizer(int(match[1]))


def _file_of(name: str) -> str:
    """Returns the file of a folder that holds one, else the name."""
    if not os.path.isdir(name):
        return name
    found = sorted(each for each in os.listdir(name) if os.path.splitext(each)[1] in _SUFFIXES)
    if os.path.exists(os.path.join(name, TOKENIZER_FILE)) or not found:
        return os.path.join(name, TOKENIZER_FILE)
    if len(found) > 1:
        message = f"`{name}` holds several tokenizers: {', '.join(found)}"
        raise TokenizerError(message, hint="name the file")
    return os.path.join(name, found[0])


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as stream:
            return stream.read()
    except OSError as error:
        message = f"cannot read tokenizer `{file}`: {error.strerror or error}"
        hint = (
            f"expected the path of a `{TOKENIZER_FILE}`, a SentencePiece `.model` or a `.tiktoken`, or of a folder "
            "with one, or `byte`, or `null:N`; nothing is downloaded"
        )
        raise TokenizerError(message, hint=hint) from error


def _kind_of(file: str, data: bytes) -> TokenizerKind:
    """Returns the kind of a file, from its content where that tells, else from its name."""
    if data.lstrip().startswith(b"{"):
        return "huggingface"
    if _RANK_LINE.match(data):  # some rank files are called `.model`
        return "tiktoken"
    return _SUFFIXES.get(os.path.splitext(file)[1], "huggingface")


def _described(
    file: str,
    data: bytes,
    pattern: str | None,
    special_tokens: Mapping[str, int] | None,
    eod_token: str | None,
    bos_token: str | None,
) -> TiktokenDescription:
    """Returns what is known of a rank file: the options first, then what is described."""
    known = read_description(file, data)
    if pattern is None and known is None:
        message = f"nothing says how `{file}` cuts texts into words: a rank file has no pattern"
        hint = f"name it with `pattern` ({', '.join(PATTERNS)}, or an expression), or describe it in `{file}.json`"
        raise TokenizerError(message, hint=hint)
    known = known or TiktokenDescription(pattern="", special_tokens={})
    return TiktokenDescription(
        pattern=known.pattern if pattern is None else pattern,
        special_tokens=known.special_tokens if special_tokens is None else special_tokens,
        eod_token=eod_token or known.eod_token,
        bos_token=bos_token or known.bos_token,
        pad_token=known.pad_token,
    )
