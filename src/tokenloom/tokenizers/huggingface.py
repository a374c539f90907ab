"""Hugging Face tokenizers: `tokenizers` loads them from a `tokenizer.json` or from the files of GPT-2 or BERT."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tokenloom.errors import TokenizerError
from tokenloom.forks import cached_property
from tokenloom.inputs.utf8_texts import encodable
from tokenloom.optional import require
from tokenloom.storage.json_files import read_json
from tokenloom.tokenizers.kinds import TokenizerKind, TokenizerOptions
from tokenloom.tokenizers.text_tokenizer import (
    Encoded,
    TextTokenizer,
    TokenRoles,
    failures,
    joined,
    refusals,
    sentinel_ids,
    well_known_roles,
)

T = TypeVar("T")

TOKENIZER_FILE = "tokenizer.json"
_CONFIG_FILE = "tokenizer_config.json"
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

END_OF_TEXT = "<|endoftext|>"
"""GPT-2's end-of-document token; `load_gpt2` adds this token if the vocabulary lacks it."""

_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Matches the start of a `vocab.json` (a JSON object: ids by token), but no `tokenizer.json`.
_VOCABULARY = re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*[0-9]+\s*[,}]')


class HuggingFaceTokenizer(TokenRoles):
    """A tokenizer of the library `tokenizers`; create it with `load_tokenizer`. Picklable and thread-safe.

    The roles `eod`, `eos`, `pad`, `bos`, `cls`, `sep` and `mask` come from `tokenizer_config.json`, else from the usual
    spelling of the role ("[CLS]"); reading a missing role raises `MissingTokenError`. Truncation, padding and dropout
    are always disabled; encoding adds no special tokens. A special token that a text spells out is encoded as its id.

    Args:
        path: path of the `tokenizer.json`, for messages and `unique_identifiers`.
        data: content of the `tokenizer.json`.
        eod_token, bos_token: see `load_tokenizer`.
        config: content of `tokenizer_config.json`; None reads the file of this name beside `path`.
        knows_its_file: whether `data` is the content of a file. False if the library serialized an object as `data`:
            then equal tokenizers may have different fingerprints.
        fingerprint: fingerprint of the files from which `data` was made; None for the SHA-256 of `data`.

    Raises:
        TokenizerError: `data` is not a tokenizer, or lacks `eod_token` or `bos_token`.
        MissingExtraError: `tokenizers` is not installed.
    """

    kind = "huggingface"
    engine_name = "tokenizers"

    def __init__(
        self,
        path: str,
        data: bytes,
        *,
        eod_token: str | None = None,
        bos_token: str | None = None,
        config: Mapping[str, Any] | None = None,
        knows_its_file: bool = True,
        fingerprint: str | None = None,
    ) -> None:
        self.data = data
        self.knows_its_file: bool = knows_its_file
        self.backend: Any = _parse(path, data)
        self.config: Mapping[str, Any] = _read_config(path) if config is None else config
        # Ids of configured special tokens by role (`bos_token`); ids of the additional tokens, else of T5's sentinels.
        names = [f"{role}_token" for role in _ROLES]
        self.special_tokens_dict: dict[str, int] = self._ids_of({name: self.config.get(name) for name in names})
        others = self.config.get("additional_special_tokens") or self.config.get("extra_special_tokens") or []
        special = {token.content: number for number, token in self._added() if token.special}
        additional = [*self._ids_of(dict(enumerate(others))).values()]
        self.additional_special_tokens_ids: list[int] = additional or sentinel_ids(special)
        roles = self._find_roles(path, special, eod_token, bos_token)
        super().__init__(path, fingerprint or hashlib.sha256(data).hexdigest(), roles)

    @cached_property
    def vocab_size(self) -> int:
        """The largest token id plus one, including added tokens."""
        return max(self.vocab.values(), default=-1) + 1

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """Ids of all added tokens by spelling; an added token that a text spells out is encoded as its id."""
        return {token.content: number for number, token in self._added()}

    @property
    def cutting_rules(self) -> tuple[str, ...]:
        """The normalizers and pre-tokenizers as JSON; see `Certificate`."""
        parts = [*_steps_of(self.backend.normalizer), *_steps_of(self.backend.pre_tokenizer)]
        # No certificate has this rule: with byte fallback, `gigatoken` differs on a third of a set of difficult texts.
        return (*parts, *(["byte_fallback"] if getattr(self.backend.model, "byte_fallback", False) else []))

    def load_gigatoken(self, module: Any) -> Any:
        """Loads this tokenizer in `gigatoken`; see `FastEncodable`."""
        return module.Tokenizer.from_json(self.data)

    @property
    def vocab(self) -> dict[str, int]:
        """Ids by spelling, including added tokens; built on each access."""
        vocab: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        return vocab

    @property
    def inv_vocab(self) -> dict[int, str]:
        """Spellings by id, in ascending order of ids; built on each access."""
        return {number: token for token, number in sorted(self.vocab.items(), key=lambda item: item[1])}

    @property
    def unique_identifiers(self) -> OrderedDict[str, Any]:
        """Values that identify the tokenizer in index caches, among them the path, as in the reference."""
        named = {"class": type(self).__name__, "tokenizer_path": [self.path]}
        return OrderedDict({**named, "sha256": self.sha256, "eod": self._roles.get("eod")})

    def with_whole_offsets(self) -> Any:
        """Returns a copy of the backend in which the offsets of a token include the token's white space."""
        backend = _parse(self.path, self.data)
        backend.post_processor = require("tokenizers.processors", extra="preprocess").ByteLevel(trim_offsets=False)
        return backend

    def tokenize(self, text: str) -> list[int]:
        """Returns the ids of a text; lone surrogates are encoded as `?`."""
        with refusals("`tokenizers`"):
            ids: list[int] = self.backend.encode(encodable(text), add_special_tokens=False).ids
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, with special tokens as their spellings."""
        text: str = self.backend.decode([int(number) for number in ids], skip_special_tokens=False)
        return text

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        """Returns the id of each token; None for a token that the vocabulary lacks."""
        return [self.backend.token_to_id(token) for token in tokens]

    def template(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the ids that the tokenizer's post-processor adds: (ids before a text, ids after a text).

        Raises:
            TokenizerError: the post-processor does not add the same tokens around every text.
        """
        probes = ("a", "0", ".", "a 0.", "")
        plain = [self.backend.encode(text, add_special_tokens=False).ids for text in probes]
        whole = [self.backend.encode(text, add_special_tokens=True) for text in probes]
        for ids, encoding in zip(plain, whole, strict=True):
            if not ids:
                continue
            first = encoding.special_tokens_mask.index(0)
            before, after = encoding.ids[:first], encoding.ids[first + len(ids) :]
            if [each.ids for each in whole] != [[*before, *each, *after] for each in plain]:
                break
            return tuple(before), tuple(after)
        message = f"tokenizer `{self.path}`: its post-processor does not add the same special tokens around every text"
        raise TokenizerError(message, hint="check the file's `post_processor`, or omit `template_tokens`")

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text as uint32; releases the GIL."""
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return joined([np.array(encoding.ids, dtype=np.uint32) for encoding in encodings], np.uint32)

    def _added(self) -> list[tuple[int, Any]]:
        return sorted(self.backend.get_added_tokens_decoder().items())

    def _ids_of(self, tokens: Mapping[T, Any]) -> dict[T, int]:
        """Returns the ids of those tokens that the vocabulary has; a token is a string or a serialized `AddedToken`."""
        spelled = {name: each.get("content") if isinstance(each, dict) else each for name, each in tokens.items()}
        ids = {name: self.backend.token_to_id(token) for name, token in spelled.items() if isinstance(token, str)}
        return {name: number for name, number in ids.items() if number is not None}

    def _find_roles(
        self, path: str, special: Mapping[str, int], eod_token: str | None, bos_token: str | None
    ) -> dict[str, int]:
        """Returns each role's id: of the user's token, else the configured token, else the usual token ("[CLS]")."""
        roles = {role: special[token] for role in _ROLES if (token := f"[{role.upper()}]") in special}
        roles |= {name.removesuffix("_token"): number for name, number in self.special_tokens_dict.items()}
        ids = {**self.special_tokens, **self._ids_of({token: token for token in (eod_token, bos_token) if token})}
        found = well_known_roles(path, ids, eod=eod_token, bos=bos_token)
        if bos_token is not None:
            roles["bos"] = found["bos"]
        if eod_token is None and "eos_token" in self.special_tokens_dict:
            return roles | {"eod": roles["eos"]}
        return roles | {"eod": found["eod"]} if "eod" in found else roles


def require_hugging_face(tokenizer: TextTokenizer, *, reason: str) -> HuggingFaceTokenizer:
    """Returns `tokenizer` if it is a Hugging Face tokenizer, else raises `TokenizerError` with the hint `reason`."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer
    message = f"`{tokenizer.path}` must be a Hugging Face tokenizer, got kind {tokenizer.kind!r}"
    raise TokenizerError(message, hint=reason)


def _steps_of(part: Any) -> list[str]:
    """Returns each step of a normalizer or pre-tokenizer as JSON, only with options that can move a cut."""
    steps, pending = [], [] if part is None else [json.loads(part.__getstate__())]
    while pending:
        step = pending.pop(0)
        if step["type"] == "Sequence":
            pending = [*step.get("normalizers", []), *step.get("pretokenizers", []), *pending]
            continue
        ignored = {"add_prefix_space", "trim_offsets"}
        if (step.get("behavior"), step.get("invert")) in (("Isolated", False), ("Removed", True)):
            ignored |= {"behavior", "invert"}  # both cut at the same places if the expression matches every character
        kept = {key: value for key, value in step.items() if key not in ignored}
        steps.append(json.dumps(kept, ensure_ascii=False))
    return steps


def _parse(path: str, data: bytes) -> Any:
    tokenizers = require("tokenizers", extra="preprocess")
    hint = f"give a `{TOKENIZER_FILE}` written by Hugging Face `tokenizers`"
    with failures(f"`{path}` is not a tokenizer", hint=hint):
        backend = tokenizers.Tokenizer.from_buffer(data)
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None  # encoding must be deterministic
    return backend


def _read_config(path: str) -> Mapping[str, Any]:
    config_path = os.path.join(os.path.dirname(path), _CONFIG_FILE)
    try:
        config = read_json(config_path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"cannot read `{config_path}`: {error}") from error
    if not isinstance(config, dict):
        raise TokenizerError(f"`{config_path}` must contain a JSON object, got {type(config).__name__}")
    return config


def load_gpt2(
    vocabulary_path: str, merges_path: str, *, added: Sequence[str] = (), **roles: str | None
) -> HuggingFaceTokenizer:
    """Loads the byte-level tokenizer of GPT-2 from `vocab.json` (ids by token) and `merges.txt` (token pairs).

    The tokens in `added` that the vocabulary lacks get the next ids. `roles` may set `eod_token` and `bos_token`.
    """
    roles["eod_token"] = roles.get("eod_token") or END_OF_TEXT
    added = (END_OF_TEXT, *added)
    return _loaded((vocabulary_path, merges_path), "ByteLevelBPETokenizer", added=added, roles=roles)


def load_wordpiece(
    path: str, *, lowercase: bool, added: Sequence[str] = (), **roles: str | None
) -> HuggingFaceTokenizer:
    """Loads BERT's word-piece tokenizer from a `vocab.txt`: one piece per line, in the order of ids.

    The post-processor adds `[CLS]` before and `[SEP]` after a text. The default `eod_token` is `[SEP]`. `lowercase`
    converts texts to lower case and removes accents. For `added` and `roles`, see `load_gpt2`.
    """
    roles["eod_token"] = roles.get("eod_token") or "[SEP]"
    return _loaded((path,), "BertWordPieceTokenizer", added=added, roles=roles, lowercase=lowercase)


def _loaded(
    paths: Sequence[str], name: str, *, added: Sequence[str], roles: Mapping[str, Any], **settings: bool
) -> HuggingFaceTokenizer:
    """Loads files with the class `name` of `tokenizers.implementations`; the fingerprint hashes files and settings."""
    library = require("tokenizers.implementations", extra="preprocess")
    hashes = [hashlib.sha256(read_file(path)).hexdigest() for path in paths]
    fingerprint = hashlib.sha256(repr((hashes, tuple(added), settings.get("lowercase"))).encode()).hexdigest()
    message = f"{' and '.join(f'`{path}`' for path in paths)}: invalid vocabulary"
    with failures(message):
        backend = getattr(library, name).from_file(*paths, **settings)
        missing = [token for token in _BERT_TOKENS if settings and backend.token_to_id(token) is None]
        backend.add_special_tokens(list(added))
    if missing:
        message += f": missing {', '.join(missing)}"
        raise TokenizerError(message)
    return HuggingFaceTokenizer(paths[0], backend.to_str().encode(), fingerprint=fingerprint, **roles)


def read_file(path: str) -> bytes:
    """Returns the content of a tokenizer file; raises `TokenizerError` if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror or error}"
        raise TokenizerError(message, hint="give the path of an existing file; nothing is downloaded") from error


def _load_gpt2_beside(path: str, _data: bytes, options: TokenizerOptions) -> HuggingFaceTokenizer:
    """Loads a `vocab.json` and the `merges.txt` beside it, or `gpt2-vocab.json` and `gpt2-merges.txt`."""
    folder, name = os.path.split(path)
    stem = os.path.splitext(name)[0]
    merges = os.path.join(folder, f"{stem.removesuffix('vocab')}merges.txt" if stem.endswith("vocab") else "merges.txt")
    if not os.path.exists(merges):
        message = f"`{path}` is not a complete tokenizer: its merges file `{merges}` is missing"
        raise TokenizerError(message, hint="add the merges file, or load a `tokenizer.json`, which needs none")
    return load_gpt2(path, merges, **options.roles)


def _load_wordpiece(path: str, data: bytes, options: TokenizerOptions) -> HuggingFaceTokenizer:
    """Loads a `vocab.txt`; the tokenizer lowercases texts if all pieces are in lower case."""
    pieces = [line for line in data.decode(errors="replace").splitlines() if not line.startswith("[")]
    return load_wordpiece(path, lowercase=all(piece == piece.lower() for piece in pieces), **options.roles)


HUGGING_FACE = TokenizerKind(
    called=f"a `{TOKENIZER_FILE}`",
    file_name=TOKENIZER_FILE,
    matches=lambda data: data.lstrip().startswith(b"{") and not _VOCABULARY.match(data),
    load=lambda path, data, options: HuggingFaceTokenizer(path, data, **options.roles),
)
GPT2 = TokenizerKind(
    called="a `vocab.json` with its `merges.txt`",
    file_name="vocab.json",
    matches=lambda data: _VOCABULARY.match(data) is not None,
    load=_load_gpt2_beside,
)
WORDPIECE = TokenizerKind(
    called="a `vocab.txt`",
    file_name="vocab.txt",
    matches=lambda data: b"\n[CLS]" in data[: 64 << 10] or data.startswith(b"[CLS]"),
    load=_load_wordpiece,
)
