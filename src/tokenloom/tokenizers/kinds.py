"""The kinds of tokenizers. To add one: a module here with a `TokenizerKind`, and its line in the table `KINDS`.

Imports nothing that asking for help could not wait for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

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

    @property
    def roles(self) -> dict[str, Any]:
        """The tokens that have a role, by name."""
        return {"eod_token": self.eod_token, "bos_token": self.bos_token}

    @property
    def is_for_ranks(self) -> bool:
        """Whether it says anything that only rank files lack."""
        return self.pattern is not None or self.special_tokens is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerKind:
    """A kind: what tells its files, or its specifications that need none, and how one is loaded.

    Attributes:
        called: how messages call what a user names ("a SentencePiece `.model`").
        load: returns a tokenizer of a path (or a specification), the content of the file and the options, of which
            those that do not belong to the kind are not set. A `TokenizerError` says that the data is no tokenizer, or
            does not know one of the tokens.
        file_name: name of its file in a folder; empty if it has any name.
        suffixes: suffixes of its files.
        takes_pattern: whether `pattern` and `special_tokens` mean something.
        is_told_by: whether the content of a file tells that it is one of these.
        specification: expression of the texts that specify one without a file; empty for a kind with files.
    """

    called: str
    load: Callable[[str, bytes, TokenizerOptions], TextTokenizer]
    file_name: str = ""
    suffixes: tuple[str, ...] = ()
    takes_pattern: bool = False
    is_told_by: Callable[[bytes], bool] = lambda _: False
    specification: str = ""

    @property
    def needs_file(self) -> bool:
        """Whether there is a file; else a specification says all."""
        return not self.specification

    def takes(self, text: str) -> bool:
        """Whether a text specifies one that needs no file."""
        return not self.needs_file and re.fullmatch(self.specification, text) is not None


KINDS: Registry[TokenizerKind] = Registry(
    "kind of tokenizer",
    {
        "huggingface": "tokenloom.tokenizers.huggingface:HUGGING_FACE",
        "sentencepiece": "tokenloom.tokenizers.sentencepiece_model:SENTENCEPIECE",
        "tiktoken": "tokenloom.tokenizers.tiktoken_ranks:TIKTOKEN",
        "byte": "tokenloom.tokenizers.plain:BYTE",
        "null": "tokenloom.tokenizers.plain:NULL",
        "gpt2": "tokenloom.tokenizers.huggingface:GPT2",
        "wordpiece": "tokenloom.tokenizers.huggingface:WORDPIECE",
    },
)
"""Kinds by the name that a user chooses. Where content or name of a file tells several, the first one here counts."""

EngineName = Literal["auto", "gigatoken", "tokenizers", "tiktoken", "sentencepiece", "numpy"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
"""`auto`, the fast engine, and each library, which takes its own tokenizers only; `numpy` takes bytes and integers."""
