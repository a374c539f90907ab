"""Tokenizers that are kept as lists, as `tokenizers` reads them.

GPT-2's `vocab.json` and `merges.txt`, and BERT's `vocab.txt`: each becomes a tokenizer of Hugging Face like any other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from tokenloom.errors import TokenizerError
from tokenloom.optional import require
from tokenloom.tokenizers.failures import is_failure
from tokenloom.tokenizers.huggingface import VOCABULARY, HuggingFaceTokenizer
from tokenloom.tokenizers.kinds import TokenizerKind, TokenizerOptions

END_OF_TEXT = "<|endoftext|>"
"""What ends a document of GPT-2; it has an id of its own even where the list lacks it."""

_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def load_gpt2(
    vocabulary_path: str,
    merges_path: str,
    *,
    added: Sequence[str] = (),
    eod_token: str | None = None,
    bos_token: str | None = None,
) -> HuggingFaceTokenizer:
    """Returns the byte-level tokenizer of two lists: ids by token, and pairs of tokens that merge, first come first.

    Args:
        vocabulary_path: path of the ids, an object in JSON.
        merges_path: path of the pairs, a pair on each line.
        added: special tokens beside `END_OF_TEXT`; those that have no id get the next ones.
        eod_token, bos_token: see `load_tokenizer`.

    Raises:
        TokenizerError: a file cannot be read, or does not hold such a list.
    """
    return _loaded(
        (vocabulary_path, merges_path),
        lambda library: library.ByteLevelBPETokenizer.from_file(vocabulary_path, merges_path),
        added=(END_OF_TEXT, *added),
        eod_token=eod_token or END_OF_TEXT,
        bos_token=bos_token,
    )


def load_wordpiece(
    path: str,
    *,
    lowercase: bool,
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
        added: further special tokens; those that have no id get the next ones.
        eod_token, bos_token: see `load_tokenizer`.

    Raises:
        TokenizerError: the file cannot be read, or lacks one of BERT's special tokens.
    """

    def load(library: Any) -> Any:
        made = library.BertWordPieceTokenizer.from_file(path, lowercase=lowercase)
        if missing := [token for token in _BERT_TOKENS if made.token_to_id(token) is None]:
            message = f"it lacks {', '.join(missing)}"
            raise ValueError(message)
        return made

    return _loaded((path,), load, added=added, eod_token=eod_token or "[SEP]", bos_token=bos_token, settings=lowercase)


def _loaded(
    paths: Sequence[str],
    load: Callable[[Any], Any],
    *,
    added: Sequence[str],
    eod_token: str,
    bos_token: str | None,
    settings: object = None,
) -> HuggingFaceTokenizer:
    """Returns the tokenizer that a class of `tokenizers.implementations` reads from files.

    Its fingerprint is of the files and settings: the JSON that the library writes changes with its version.
    """
    library = require("tokenizers.implementations", extra="preprocess")
    hashes = [hashlib.sha256(read_file(path)).hexdigest() for path in paths]
    fingerprint = hashlib.sha256(repr((hashes, tuple(added), settings)).encode()).hexdigest()
    try:
        made = load(library)
        made.add_special_tokens(list(added))
    except BaseException as error:  # `tokenizers` raises plain Exception, or panics
        if not is_failure(error):
            raise
        message = f"{' and '.join(f'`{path}`' for path in paths)} cannot be read as a vocabulary: {error}"
        raise TokenizerError(message) from error
    data = made.to_str().encode()
    return HuggingFaceTokenizer(paths[0], data, fingerprint=fingerprint, eod_token=eod_token, bos_token=bos_token)


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
        return load_gpt2(path, merges, eod_token=options.eod_token, bos_token=options.bos_token)


class WordPiece(TokenizerKind):
    """A `vocab.txt`; texts are put in lower case where no piece has another."""

    called = "a `vocab.txt`"
    file_name = "vocab.txt"

    def is_told_by(self, data: bytes) -> bool:
        """Whether it begins with pieces on lines, among them one that BERT's lists have."""
        return b"\n[CLS]" in data[: 64 << 10] or data.startswith(b"[CLS]")

    def load(self, path: str, data: bytes, options: TokenizerOptions) -> HuggingFaceTokenizer:
        """Returns the tokenizer of a file; see `TokenizerKind`."""
        pieces = [line for line in data.decode(errors="replace").splitlines() if not line.startswith("[")]
        lowercase = not any(piece != piece.lower() for piece in pieces)
        return load_wordpiece(path, lowercase=lowercase, eod_token=options.eod_token, bos_token=options.bos_token)


GPT2 = Gpt2()
WORDPIECE = WordPiece()
