"""The kinds of tokenizers. To add one: a module here with a `TokenizerKind`, and its line in the table `KINDS`.

Imports little, since `--help` waits for it.
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
    """Options of a tokenizer that its file may lack; see `load_tokenizer`."""

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
        """Whether an option of rank files is set."""
        return self.pattern is not None or self.special_tokens is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerKind:
    """A kind: how its files, or its specifications without a file, are recognised and loaded.

    Attributes:
        called: its name in messages ("a SentencePiece `.model`").
        load: returns a tokenizer of a path (or a specification), the content of the file and the options, of which
            those of other kinds are not set; raises a `TokenizerError` where the data or the options are wrong.
        file_name: name of its file in a folder; empty if it has any name.
        suffixes: suffixes of its files.
        takes_pattern: whether it takes `pattern` and `special_tokens`.
        matches: whether the content of a file is of this kind.
        specification: regular expression of its specifications; empty for a kind with files.
    """

    called: str
    load: Callable[[str, bytes, TokenizerOptions], TextTokenizer]
    file_name: str = ""
    suffixes: tuple[str, ...] = ()
    takes_pattern: bool = False
    matches: Callable[[bytes], bool] = lambda _: False
    specification: str = ""

    @property
    def needs_file(self) -> bool:
        """Whether it has a file; else a specification is enough."""
        return not self.specification

    def takes(self, text: str) -> bool:
        """Whether a text is a specification of this kind."""
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
"""Kinds by name. Where the content or the name of a file matches several, the first one here counts."""

EngineName = Literal["auto", "gigatoken", "tokenizers", "tiktoken", "sentencepiece", "numpy"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
"""`auto`, the fast engine, and each library, which takes its own tokenizers only; `numpy` takes bytes and integers."""
