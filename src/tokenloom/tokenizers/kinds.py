"""The registry of tokenizer kinds. To add a kind, write a module here with a `TokenizerKind` and add it to `KINDS`.

Imports little, because `--help` imports this module.
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
    """Options that complete a tokenizer file; see `load_tokenizer`."""

    eod_token: str | None = None
    bos_token: str | None = None
    pattern: str | None = None
    special_tokens: Mapping[str, int] | None = None

    @property
    def roles(self) -> dict[str, Any]:
        """The role options as keyword arguments: `eod_token` and `bos_token`."""
        return {"eod_token": self.eod_token, "bos_token": self.bos_token}

    @property
    def is_for_ranks(self) -> bool:
        """Whether an option for tiktoken rank files is set."""
        return self.pattern is not None or self.special_tokens is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerKind:
    """A kind of tokenizer: how to recognize and load its files or its specifications (such as `byte`).

    Attributes:
        called: name in messages ("a SentencePiece `.model`").
        load: `load(path_or_specification, data, options)` returns a tokenizer; raises `TokenizerError` for bad data.
            If `takes_pattern` is False, `options.pattern` and `options.special_tokens` are None.
        file_name: usual name of the kind's file, for finding the file in a folder; empty if there is no usual name.
        suffixes: suffixes of the kind's files, such as `.model`.
        takes_pattern: whether the kind supports the options `pattern` and `special_tokens`.
        matches: `matches(content)` returns whether the content of a file is of this kind.
        specification: for a kind without files, a regular expression that its specifications match; else empty.
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
        """Whether the tokenizer is loaded from a file, not from a specification."""
        return not self.specification

    def takes(self, text: str) -> bool:
        """Returns whether `text` is a specification of this kind."""
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
"""Kinds by name. If the content or the name of a file matches several kinds, the first of these kinds wins."""

EngineName = Literal["auto", "gigatoken", "tokenizers", "tiktoken", "sentencepiece", "numpy"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
"""Engine names: `auto`, the fast `gigatoken`, and the libraries of tokenizer kinds (`numpy` for `byte` and `null`)."""
