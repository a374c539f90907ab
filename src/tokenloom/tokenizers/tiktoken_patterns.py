"""What a tiktoken rank file does not say of the encodings that are published, and nothing of any other.

From `tiktoken_ext/openai_public.py` of the package `tiktoken` (0.14): the expressions that cut texts into words, and
the special tokens. Files are told by their hash, which is published there too, never by their name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_R50K = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"""
    r"""\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_O200K = "|".join(
    (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)

REFERENCE_PATTERNS: Mapping[str, str] = {
    "v1": r"""[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+""",
    "v2": "|".join(
        (
            r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+""",
            r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*""",
            r"""\p{N}""",
            r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
            r"""\s*[\r\n]+""",
            r"""\s+(?!\S)""",
            r"""\s+""",
        )
    ),
}
"""The expressions of the reference's `--tiktoken-pattern`, for lists of tokens in JSON."""

PATTERNS: Mapping[str, str] = {
    "r50k": _R50K,
    "p50k": _R50K,
    "cl100k": _CL100K,
    "o200k": _O200K,
}
"""Expressions by name; `_base` behind the name is allowed too."""

GIGATOKEN_SCHEMES: Mapping[str, str] = {_R50K: "gpt2", _CL100K: "gpt4", _O200K: "o200k"}
"""What `gigatoken` calls the expressions that it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEncoding:
    """Name, name of the pattern, and special tokens of a published rank file."""

    name: str
    pattern: str
    special_tokens: Mapping[str, int]


_ENDOFTEXT = "<|endoftext|>"
PUBLISHED: Mapping[str, PublishedEncoding] = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": PublishedEncoding(
        name="r50k_base", pattern="r50k", special_tokens={_ENDOFTEXT: 50256}
    ),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": PublishedEncoding(
        name="p50k_base", pattern="p50k", special_tokens={_ENDOFTEXT: 50256}
    ),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": PublishedEncoding(
        name="cl100k_base",
        pattern="cl100k",
        special_tokens={
            _ENDOFTEXT: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": PublishedEncoding(
        name="o200k_base", pattern="o200k", special_tokens={_ENDOFTEXT: 199999, "<|endofprompt|>": 200018}
    ),
}
"""Published encodings by the SHA-256 of the rank file."""


def pattern_of(text: str) -> str:
    """Returns the expression of a well-known name; anything else is an expression already."""
    return PATTERNS.get(text.removesuffix("_base"), text)
