"""The kinds of tokenizers. To add one: a module here with a `TokenizerKind`, and its line in the table `KINDS`.

Imports nothing that asking for help could not wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from tokenloom.registry import Registry

if TYPE_CHECKING:
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerOptions:
    """What a user says of a tokenizer beside its file; see `load_tokenizer`."""

    eod_token: str | None = None
    bos_token: str | None = None
    pattern: str | None = None
    special_tokens: Mapping[str, int] | None = None


class TokenizerKind(Protocol):
    """A kind: what tells its files, or its specifications that need none, and how one is loaded. Derive from it.

    Attributes:
        called: how messages call what a user names ("a SentencePiece `.model`"), and `remark` what they add to it.
        needs_file: whether there is a file; else a specification says all.
        file_name: name of its file in a folder; empty if it has any name.
        suffixes: suffixes of its files.
        takes_pattern: whether `pattern` and `special_tokens` mean something.
    """

    called: str
    remark: str = ""
    needs_file: bool = True
    file_name: str = ""
    suffixes: tuple[str, ...] = ()
    takes_pattern: bool = False

    def is_told_by(self, data: bytes) -> bool:
        """Whether the content of a file tells that it is one of these."""
        return False

    def is_specified_by(self, text: str) -> bool:
        """Whether a text specifies one that needs no file."""
        return False

    def load(self, path: str, data: bytes, options: TokenizerOptions) -> TextTokenizer:
        """Returns a tokenizer.

        Args:
            path: path of the file, or the specification.
            data: content of the file.
            options: those that do not belong to the kind are not set.

        Raises:
            TokenizerError: the data is no tokenizer, or does not know one of the tokens.
            ConfigError: an option cannot be applied.
            MissingExtraError: the library is not installed.
        """


KINDS: Registry[TokenizerKind] = Registry(
    "kind of tokenizer",
    {
        "huggingface": "tokenloom.tokenizers.huggingface:HUGGING_FACE",
        "sentencepiece": "tokenloom.tokenizers.sentencepiece_model:SENTENCEPIECE",
        "tiktoken": "tokenloom.tokenizers.tiktoken_ranks:TIKTOKEN",
        "byte": "tokenloom.tokenizers.plain:BYTE",
        "null": "tokenloom.tokenizers.plain:NULL",
        "gpt2": "tokenloom.tokenizers.vocabulary_files:GPT2",
        "wordpiece": "tokenloom.tokenizers.vocabulary_files:WORDPIECE",
    },
)
"""Kinds by the name that a user chooses. Where content or name of a file tells several, the first one here counts."""

EngineName = Literal["auto", "gigatoken", "tokenizers", "tiktoken", "sentencepiece", "numpy"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
"""`auto`, the fast engine, and each library, which takes its own tokenizers only; `numpy` takes bytes and integers."""
