"""The one door to tokenizers of every kind."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.tokenizers.kinds import KINDS, TokenizerOptions
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_WHAT_NOTHING_TELLS = "huggingface"


def load_tokenizer(
    path_or_spec: str | os.PathLike[str],
    *,
    kind: str = "auto",
    eod_token: str | None = None,
    bos_token: str | None = None,
    pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> TextTokenizer:
    """Returns a tokenizer of a file, or of a folder with one; or one that needs no file. Nothing is ever downloaded.

    - Hugging Face: a `tokenizer.json`; a `tokenizer_config.json` beside it names the special tokens. Of GPT-2, its
      `vocab.json` with the `merges.txt` beside; of BERT, its `vocab.txt`.
    - SentencePiece: a `.model`.
    - tiktoken: a rank file. `NAME.json` or `NAME.toml` beside it, NAME being the whole name of the file, holds what
      `TiktokenDescription` lists; the rank files that OpenAI publishes are known by their content.
    - `byte`: bytes are ids. `null:N`: a text is a list of ids below N. A file of that name is `./byte`.

    Args:
        path_or_spec: path of the file, or of its folder; or `byte`, or `null:N`.
        kind: one of `KINDS`; `auto` tells it from the content of the file, or from its name.
        eod_token: the token that ends a document; if None, what the files say, else the only well-known one.
        bos_token: the token that begins a document, likewise.
        pattern: the expression by which tiktoken cuts texts into words, or `r50k`, `p50k`, `cl100k` or `o200k`; in
            the place of the described one.
        special_tokens: ids of tiktoken by spelling, in the place of those described.

    Raises:
        TokenizerError: the file is missing, unreadable or not of its kind, or does not know one of the tokens.
        ConfigError: an option is not one of this kind of tokenizer.
        MissingExtraError: the library is not installed.

    >>> load_tokenizer("null:100").tokenize("5 99")
    [5, 99]
    """
    name = os.fspath(path_or_spec)
    if kind not in ("auto", *KINDS):
        message = f"expected a kind of tokenizer out of auto, {', '.join(KINDS)}, got {kind!r}"
        raise ConfigError(message)
    file, data, found = name, b"", _kind_without_file(name, kind)
    if found is None:
        file = _file_of(name)
        data = _read(file)
        found = _kind_of(file, data) if kind == "auto" else kind
    if not KINDS[found].takes_pattern and (pattern is not None or special_tokens is not None):
        message = f"expected no `pattern` and no `special_tokens` for `{name}`, which is of the kind {found!r}"
        raise ConfigError(message, hint="both belong to rank files of tiktoken")
    options = TokenizerOptions(eod_token=eod_token, bos_token=bos_token, pattern=pattern, special_tokens=special_tokens)
    return KINDS[found].load(file, data, options)


def _kind_without_file(name: str, kind: str) -> str | None:
    """Returns the kind that a specification is of; None for the name of a file."""
    if kind == "auto":
        return next((each for each in KINDS if KINDS[each].is_specified_by(name)), None)
    if KINDS[kind].needs_file:
        return None
    if not KINDS[kind].is_specified_by(name):
        expected = f"{KINDS[kind].called}{KINDS[kind].remark}"
        message = f"expected {expected} for a tokenizer of the kind {kind!r}, found {name!r}"
        raise ConfigError(message)
    return kind


def _file_of(name: str) -> str:
    """Returns the file of a folder that holds one, else the name."""
    if not os.path.isdir(name):
        return name
    suffixes = {suffix for kind in KINDS.values() for suffix in kind.suffixes}
    found = sorted(each for each in os.listdir(name) if os.path.splitext(each)[1] in suffixes)
    usual = [os.path.join(name, kind.file_name) for kind in KINDS.values() if kind.file_name]
    there = [path for path in usual if os.path.exists(path)]
    if there or not found:
        return [*there, *usual][0]
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
        *most, last = [kind.called for kind in KINDS.values() if kind.needs_file]
        others = "".join(f", or {kind.called}" for kind in KINDS.values() if not kind.needs_file)
        hint = (
            f"expected the path of {', '.join(most)} or {last}, or of a folder with one{others}; nothing is downloaded"
        )
        raise TokenizerError(message, hint=hint) from error


def _kind_of(file: str, data: bytes) -> str:
    """Returns the kind of a file, from its content where that tells, else from its name."""
    suffix = os.path.splitext(file)[1]
    by_content = [name for name, kind in KINDS.items() if kind.is_told_by(data)]
    by_name = [name for name, kind in KINDS.items() if suffix in kind.suffixes]
    return [*by_content, *by_name, _WHAT_NOTHING_TELLS][0]
