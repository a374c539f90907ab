"""Loads tokenizers by the reference's `--tokenizer-type` options; the ids are the same as in the reference."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.tokenizers.huggingface import load_gpt2, load_wordpiece, read_file
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.plain import NullTokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer
from tokenloom.tokenizers.tiktoken_ranks import REFERENCE_PATTERNS, TiktokenDescription, TiktokenTokenizer

_SENTENCEPIECE = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
TYPES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("GPT2BPETokenizer", "GPT2BPE"), ("vocab_file", "merge_file")),
    **dict.fromkeys(("HuggingFaceTokenizer", *_SENTENCEPIECE, "TikTokenizer"), ("tokenizer_model",)),
    **dict.fromkeys(("BertWordPieceLowerCase", "BertWordPieceCase"), ("vocab_file",)),
    "NullTokenizer": (),
}
"""Supported values of `--tokenizer-type`, with the file options that each type reads."""

_NOT_FOR_TEXT = ("MultimodalTokenizer", "NullMultimodalTokenizer", "SFTTokenizer")

_TIKTOKEN_ROLES = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
_TIKTOKEN_SIZE = 1 << 17
_NUM_SENTINELS = 100
_MOST_BYTES = 256 << 20
_LIST_HINT = 'give a JSON list such as [{"rank": 0, "token_bytes": "AA==", "token_str": ""}, …]'


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceTokenizerOptions:
    """The reference's tokenizer options that affect ids, under their names in the reference."""

    tokenizer_type: str  # one of `TYPES`
    tokenizer_model: str | None = None  # file or folder of a Hugging Face, SentencePiece or tiktoken tokenizer
    vocab_file: str | None = None  # of GPT-2 or BERT
    merge_file: str | None = None  # of GPT-2
    vocab_size: int | None = None  # number of ids of `NullTokenizer` and `TikTokenizer`
    special_tokens: tuple[str, ...] | None = None  # for GPT-2 and BERT, tokens to add; for tiktoken, all special tokens
    tiktoken_pattern: str | None = None  # "v1" or "v2"
    tiktoken_num_special_tokens: int = 1000  # number of ids that tiktoken reserves for special tokens
    null_tokenizer_eod_id: int | None = None
    sentencepiece_ignores_white_space: bool = True  # SentencePiece may drop white space

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ReferenceTokenizerOptions:
        """Selects the tokenizer options from `values`, the arguments of a program of the reference: {name: value}."""
        names = {each.name for each in fields(cls)}
        found = {name: value for name, value in values.items() if name in names and value is not None}
        special = found.get("special_tokens") or values.get("tokenizer_special_tokens")
        found["special_tokens"] = None if special is None else tuple(special)
        ignores = values.get("tokenizer_sentencepiece_ignore_extra_whitespaces")
        return cls(**found, sentencepiece_ignores_white_space=ignores is not False)


def load_reference_tokenizer(
    options: ReferenceTokenizerOptions, *, null_has_own_eod: bool = False, eod_token: str | None = None
) -> TextTokenizer:
    """Loads the tokenizer that the reference's options describe. Never downloads.

    The end-of-document id of `NullTokenizer` is `vocab_size` if `null_has_own_eod` (as in the reference up to 0.16.1),
    else `vocab_size - 1`. `eod_token` overrides the end-of-document token of all other types.
    """
    name, added = options.tokenizer_type, options.special_tokens or ()
    if name in _NOT_FOR_TEXT:
        hint = "this type wraps another: use that one, such as HuggingFaceTokenizer"
        raise ConfigError(f"--tokenizer-type {name} cannot preprocess text", hint=hint)
    if name not in TYPES:
        raise ConfigError(f"--tokenizer-type: must be one of {', '.join(TYPES)}, got {name!r}")
    _check_files(options, TYPES[name])
    model, vocabulary = options.tokenizer_model or "", options.vocab_file or ""
    if name == "NullTokenizer":
        return _null(options, has_own_eod=null_has_own_eod)
    if name == "TikTokenizer":
        return _tiktoken(options, model, eod_token)
    if name in ("GPT2BPETokenizer", "GPT2BPE"):
        return load_gpt2(vocabulary, options.merge_file or "", added=added, eod_token=eod_token)
    if name.startswith("Bert"):
        is_lower = name == "BertWordPieceLowerCase"
        added = added if is_lower else tuple(f"<extra_id_{number}>" for number in range(_NUM_SENTINELS))
        return load_wordpiece(vocabulary, lowercase=is_lower, added=added, eod_token=eod_token)
    if added:
        hint = "add them to the tokenizer's own files"
        raise ConfigError(f"special tokens: cannot be added to a tokenizer of the type {name}, got {added}", hint=hint)
    if name in _SENTENCEPIECE and not options.sentencepiece_ignores_white_space:
        hint = "train the model without `remove_extra_whitespaces`"
        raise ConfigError("cannot keep white space that the SentencePiece model removes", hint=hint)
    return load_tokenizer(model, kind="sentencepiece" if name in _SENTENCEPIECE else "auto", eod_token=eod_token)


def _check_files(options: ReferenceTokenizerOptions, needed: tuple[str, ...]) -> None:
    """Raises `ConfigError` for missing file options, and for file options that the tokenizer type does not read."""
    flags = {name: f"--{name.replace('_', '-')}" for name in ("tokenizer_model", "vocab_file", "merge_file")}
    if missing := [flags[name] for name in needed if getattr(options, name) is None]:
        message = f"--tokenizer-type {options.tokenizer_type} needs {' and '.join(missing)}"
        raise ConfigError(message, hint="give the paths of existing files; nothing is downloaded")
    if useless := [flags[name] for name in flags if getattr(options, name) is not None and name not in needed]:
        message = f"--tokenizer-type {options.tokenizer_type} does not read {' and '.join(useless)}"
        raise ConfigError(message, hint="omit these options")


def _null(options: ReferenceTokenizerOptions, *, has_own_eod: bool) -> TextTokenizer:
    if options.vocab_size is None:
        raise ConfigError("--tokenizer-type NullTokenizer needs --vocab-size")
    tokenizer = NullTokenizer(options.vocab_size if has_own_eod else options.vocab_size - 1)
    if options.null_tokenizer_eod_id not in (None, tokenizer.eod):
        eod = options.null_tokenizer_eod_id
        raise ConfigError(f"the end-of-document id of NullTokenizer must be the last id, {tokenizer.eod}, got {eod}")
    return tokenizer


def _tiktoken(options: ReferenceTokenizerOptions, path: str, eod_token: str | None) -> TextTokenizer:
    """Loads a tiktoken tokenizer from a JSON list of tokens; the special tokens get the first ids."""
    if (pattern := REFERENCE_PATTERNS.get(options.tiktoken_pattern or "v2")) is None:
        raise ConfigError(f"--tiktoken-pattern: must be v1 or v2, got {options.tiktoken_pattern!r}")
    special = options.special_tokens or _TIKTOKEN_ROLES
    num_special, size = options.tiktoken_num_special_tokens, options.vocab_size or _TIKTOKEN_SIZE
    missing = [token for token in _TIKTOKEN_ROLES if token not in special]
    if missing:
        raise ConfigError(f"special tokens: must include {', '.join(_TIKTOKEN_ROLES)}; missing: {', '.join(missing)}")
    if len(set(special)) < len(special) or not len(special) <= num_special < size:
        limits = f"at most --tiktoken-num-special-tokens={num_special}, which must be below --vocab-size={size}"
        raise ConfigError(f"special tokens: must be distinct; their number must be {limits}, got {len(special)} tokens")
    ids = {token: number for number, token in enumerate(special)}
    ids |= {f"<SPECIAL_{number}>": number for number in range(len(special), num_special)}
    roles = {"eod_token": eod_token or "</s>", "bos_token": "<s>", "pad_token": "<pad>"}
    description = TiktokenDescription(pattern=pattern, special_tokens=ids, **roles)
    return TiktokenTokenizer(path, _rank_lines(path, size - num_special, num_special), description)


def _rank_lines(path: str, count: int, first: int) -> bytes:
    """Converts the first `count` tokens of a JSON list to the lines of a rank file; ranks start at `first`."""
    try:
        rows = parse_json(read_file(path), most_bytes=_MOST_BYTES)[:count]
        tokens = [base64.b64decode(row["token_bytes"], validate=True) for row in rows]
        are_ranked = [row["rank"] for row in rows] == list(range(len(rows)))
    except (UnusableJsonError, KeyError, TypeError, ValueError) as error:
        raise TokenizerError(f"`{path}` is not a list of tokens for tiktoken: {error}", hint=_LIST_HINT) from error
    if not are_ranked:
        message = f"`{path}` is not a list of tokens for tiktoken: its ranks are not 0, 1, 2, ..."
        raise TokenizerError(message, hint=_LIST_HINT)
    if len(tokens) < count:
        hint = f"use --vocab-size {len(tokens) + first}"
        raise TokenizerError(f"`{path}` has {len(tokens)} tokens, expected at least {count}", hint=hint)
    return b"".join(base64.b64encode(token) + b" %d\n" % (first + rank) for rank, token in enumerate(tokens))
