"""Loads tiktoken rank files (each line is a token in base64 and its rank) and their `TiktokenDescription`s.

Published rank files are recognized by their hash. Their regular expressions, special tokens and hashes are copied from
`tiktoken_ext/openai_public.py` of the package `tiktoken` (0.14).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import RefusedTextError, TokenizerError
from tokenloom.inputs.utf8_texts import encodable
from tokenloom.optional import require
from tokenloom.storage.json_files import MAY_BE_MISSING, UnusableJsonError, from_members, read_json
from tokenloom.tokenizers.kinds import TokenizerKind, TokenizerOptions
from tokenloom.tokenizers.text_tokenizer import (
    Encoded,
    TokenRoles,
    failures,
    joined,
    require_known_ids,
    shortened,
    well_known_roles,
)

_R50K = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"""
    r"""\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_CASES = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"""
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"""
)
_O200K = _CASES + r"""\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""

REFERENCE_PATTERNS: Mapping[str, str] = {
    "v1": r"""[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+""",
    "v2": _O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", ""),
}
"""Regular expressions by value of the reference's `--tiktoken-pattern`."""

PATTERNS: Mapping[str, str] = {"r50k": _R50K, "p50k": _R50K, "cl100k": _CL100K, "o200k": _O200K}
"""Regular expressions by name; `_base` may be appended to each name."""

GIGATOKEN_SCHEMES: Mapping[str, str] = {_R50K: "gpt2", _CL100K: "gpt4", _O200K: "o200k"}
"""The regular expressions that `gigatoken` supports, each with the name that `gigatoken` uses for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiktokenDescription:
    """The parts of a tokenizer that the rank file `NAME.tiktoken` lacks; stored as JSON in `NAME.tiktoken.json`.

    Attributes:
        pattern: regular expression that splits a text into words, or its name in `PATTERNS` ("cl100k").
        special_tokens: ids of the special tokens by spelling.
        eod_token, bos_token, pad_token: special tokens of these roles; needed only for spellings not in `WELL_KNOWN`.
    """

    pattern: str
    special_tokens: Mapping[str, int] = field(default_factory=dict, metadata=MAY_BE_MISSING)
    eod_token: str | None = field(default=None, metadata=MAY_BE_MISSING)
    bos_token: str | None = field(default=None, metadata=MAY_BE_MISSING)
    pad_token: str | None = field(default=None, metadata=MAY_BE_MISSING)


_GPT2_SPECIALS = {"<|endoftext|>": 50256}
_FIM_SPECIALS = {f"<|fim_{part}|>": 100258 + number for number, part in enumerate(("prefix", "middle", "suffix"))}
_CL100K_SPECIALS = {"<|endoftext|>": 100257, **_FIM_SPECIALS, "<|endofprompt|>": 100276}
_O200K_SPECIALS = {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
PUBLISHED: Mapping[str, tuple[str, TiktokenDescription]] = {
    digest: (f"{name}_base", TiktokenDescription(pattern=name, special_tokens=special_tokens))
    for digest, name, special_tokens in (
        ("306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", "r50k", _GPT2_SPECIALS),
        ("94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069", "p50k", _GPT2_SPECIALS),
        ("223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7", "cl100k", _CL100K_SPECIALS),
        ("446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d", "o200k", _O200K_SPECIALS),
    )
}
"""Name and description of each published encoding, by the SHA-256 of its rank file."""

_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")


class TiktokenTokenizer(TokenRoles):
    """A tokenizer of the library `tiktoken`; create it with `load_tokenizer`. Picklable and thread-safe.

    A special token that a text spells out is encoded as its id. `data` is the content of the rank file at `path`.
    """

    kind = "tiktoken"
    engine_name = "tiktoken"

    def __init__(self, path: str, data: bytes, description: TiktokenDescription) -> None:
        self.data = data
        self.pattern: str = PATTERNS.get(description.pattern.removesuffix("_base"), description.pattern)
        special_tokens = sorted(description.special_tokens.items(), key=lambda row: row[1])
        self.special_tokens: Mapping[str, int] = dict(special_tokens)
        self._description = description
        self._ranks = _parse_ranks(path, data)
        self.backend: Any = self._load(path)
        self.vocab_size: int = max([*self._ranks.values(), *self.special_tokens.values()]) + 1
        self._allowed = frozenset(self.special_tokens)
        named = {"eod": description.eod_token, "bos": description.bos_token, "pad": description.pad_token}
        # Hash of pattern, special tokens and ranks, independent of the order of tokens in the files.
        fingerprint = hashlib.sha256(json.dumps([self.pattern, dict(self.special_tokens)]).encode())
        for token, rank in sorted(self._ranks.items(), key=lambda row: row[1]):
            fingerprint.update(b"%d %d " % (rank, len(token)) + token)
        super().__init__(path, fingerprint.hexdigest(), well_known_roles(path, self.special_tokens, **named))

    def __reduce__(self) -> tuple[type[TiktokenTokenizer], tuple[str, bytes, TiktokenDescription]]:
        return TiktokenTokenizer, (self.path, self.data, self._description)

    def detokenize(self, ids: Sequence[int]) -> str:
        numbers = require_known_ids(self.path, ids, self.vocab_size)
        try:
            text: str = self.backend.decode(numbers)
        except KeyError as error:
            raise TokenizerError(f"tokenizer `{self.path}` has no token with id {error}") from error
        return text

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        return [self.special_tokens.get(token, self._ranks.get(encodable(token).encode())) for token in tokens]

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text as uint32; releases the GIL."""
        return joined(list(map(self._encode, texts)), np.uint32)

    @property
    def cutting_rules(self) -> tuple[str, ...]:
        """The regular expression that splits texts; see `Certificate`."""
        return (self.pattern,)

    def load_gigatoken(self, module: Any) -> Any:
        scheme = GIGATOKEN_SCHEMES.get(self.pattern)
        if scheme is None:
            raise ValueError(f"unsupported pattern {self.pattern!r}")
        with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:  # the file at `self.path` may have changed
            file.write(self.data)
            file.flush()
            return module.Tokenizer.from_tiktoken(file.name, scheme, dict(self.special_tokens))

    def _encode(self, text: str) -> NDArray[np.uint32]:
        try:
            options = {"allowed_special": self._allowed, "disallowed_special": ()}
            ids: NDArray[np.uint32] = self.backend.encode_to_numpy(text, **options)
        except BaseException:  # the regular expression may fail or panic, for example on a million spaces
            message = f"`tiktoken` cannot encode the text {shortened(text, 80)!r} of {len(text)} characters"
            hint = "split the text, or use a pattern with less backtracking"
            with failures(message, RefusedTextError, hint=hint):
                raise
        return ids

    def _load(self, path: str) -> Any:
        library = require("tiktoken", extra="tokenizers")
        message = f"`tiktoken` cannot load `{path}` with the pattern {self.pattern!r}"
        hint = f"use one of {', '.join(PATTERNS)} or a regular expression that does not match the empty text; "
        hint += "ranks and ids must be unique integers"
        with failures(message, hint=hint):
            options = {"mergeable_ranks": self._ranks, "special_tokens": dict(self.special_tokens)}
            backend = library.Encoding(path, pat_str=self.pattern, **options)
            backend.encode_ordinary("")  # panics now, not later within a text, if the pattern matches the empty text
        return backend


def read_description(path: str, data: bytes) -> TiktokenDescription | None:
    """Returns the description in `{path}.json`, else the published description for the content `data`, else None."""
    beside = f"{path}.json"
    names = [each.name for each in fields(TiktokenDescription)]
    hint = f"write a JSON object with `pattern` and optionally {', '.join(names[1:])}"
    try:
        value = read_json(beside)
        description = from_members(TiktokenDescription, value)
    except FileNotFoundError:
        return PUBLISHED.get(hashlib.sha256(data).hexdigest(), ("", None))[1]
    except (OSError, UnusableJsonError) as error:
        message = f"`{beside}` describes no tiktoken rank file: {str(error).lstrip(': ')}"
        raise TokenizerError(message, hint=hint) from error
    if unknown := sorted(value.keys() - set(names)):
        raise TokenizerError(f"`{beside}` describes no tiktoken rank file: unknown key {unknown[0]!r}", hint=hint)
    return description


def _parse_ranks(path: str, data: bytes) -> dict[bytes, int]:
    rows = [line.split() for line in data.splitlines() if line]
    try:
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in rows}
    except ValueError as error:  # includes binascii.Error
        message = f"`{path}` is not a tiktoken rank file: {error}"
        raise TokenizerError(message, hint="each line must have a token in base64 and its rank") from error
    if len(ranks) < len(rows) or len(set(ranks.values())) < len(rows):
        raise TokenizerError(f"`{path}`: the same token or rank is in more than one of its {len(rows)} lines")
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        message = f"`{path}` has no rank for {len(missing)} of the 256 bytes, such as 0x{missing[0]:02x}"
        raise TokenizerError(message, hint="the file may be truncated")
    return ranks


def _described(file: str, data: bytes, options: TokenizerOptions) -> TiktokenDescription:
    known = read_description(file, data)
    if options.pattern is None and known is None:
        hint = f"set `pattern` to one of {', '.join(PATTERNS)} or a regular expression, or write `{file}.json`"
        raise TokenizerError(f"the tiktoken file `{file}` needs a `pattern`", hint=hint)
    given = {name: value for name, value in asdict(options).items() if value is not None}
    return replace(known or TiktokenDescription(pattern=""), **given)


TIKTOKEN = TokenizerKind(
    called="a `.tiktoken`",
    suffixes=(".tiktoken",),
    takes_pattern=True,
    matches=lambda data: _RANK_LINE.match(data) is not None,  # some rank files have the suffix `.model`
    load=lambda path, data, options: TiktokenTokenizer(path, data, _described(path, data, options)),
)
