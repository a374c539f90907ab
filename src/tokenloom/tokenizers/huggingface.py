"""Hugging Face tokenizers, by `tokenizers`: of a `tokenizer.json`, or of lists as GPT-2 and BERT have them."""

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
"""The end of a document of GPT-2; it has an id even where the list lacks it."""

_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The beginning of a JSON object of ids by token, which is no `tokenizer.json`.
_VOCABULARY = re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*[0-9]+\s*[,}]')


class HuggingFaceTokenizer(TokenRoles):
    """Text to token ids and back, by `tokenizers`; made by `load_tokenizer`. Picklable; safe from several threads.

    A missing role (`eod`, `eos`, `pad`, `bos`, `cls`, `sep`, `mask`) raises `MissingTokenError`; one that
    `tokenizer_config.json` does not name is the special token of its usual spelling ("[CLS]"). Truncation, padding and
    dropout of the file are switched off, and no special token is added to a text; one that is spelled out becomes its
    id.

    Args:
        path: path of the `tokenizer.json`, for messages and identity.
        data: its bytes.
        eod_token, bos_token: see `load_tokenizer`.
        config: content of `tokenizer_config.json`; None to read the one beside the tokenizer.
        knows_its_file: whether the bytes are those of a file. Of an object they are those that the library writes: two
            tokenizers of one fingerprint are equal, but those of two fingerprints may be equal too.
        fingerprint: fingerprint of the files that the data were made of; None for that of the data.

    Raises:
        TokenizerError: the data is no tokenizer, or lacks one of the tokens.
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
        # Of the configuration: special tokens by role, and the additional ones, else T5's sentinels.
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
        """The largest token id plus one, added tokens included."""
        return max(self.vocab.values(), default=-1) + 1

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """The ids of the added tokens, special or not, which become one id wherever a text spells them out."""
        return {token.content: number for number, token in self._added()}

    @property
    def cutting_rules(self) -> tuple[str, ...]:
        """The normalisers and pre-tokenizers; see `Certificate`."""
        parts = [*_steps_of(self.backend.normalizer), *_steps_of(self.backend.pre_tokenizer)]
        # Measured: the side of `gigatoken` for these differs on a third of a set of difficult documents.
        return (*parts, *(["byte_fallback"] if getattr(self.backend.model, "byte_fallback", False) else []))

    def load_gigatoken(self, module: Any) -> Any:
        """Returns the tokenizer of `gigatoken`; see `Certificate`."""
        return module.Tokenizer.from_json(self.data)

    @property
    def vocab(self) -> dict[str, int]:
        """The id of each spelling, added tokens included; made anew each time."""
        vocab: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        return vocab

    @property
    def inv_vocab(self) -> dict[int, str]:
        """The spelling of each id, rising; made anew each time."""
        return {number: token for token, number in sorted(self.vocab.items(), key=lambda item: item[1])}

    @property
    def unique_identifiers(self) -> OrderedDict[str, Any]:
        """Its identity for index caches, with the path as in the reference."""
        named = {"class": type(self).__name__, "tokenizer_path": [self.path]}
        return OrderedDict({**named, "sha256": self.sha256, "eod": self._roles.get("eod")})

    def with_whole_offsets(self) -> Any:
        """Returns a copy of the backend with offsets that include the white space of a token."""
        backend = _parse(self.path, self.data)
        backend.post_processor = require("tokenizers.processors", extra="preprocess").ByteLevel(trim_offsets=False)
        return backend

    def tokenize(self, text: str) -> list[int]:
        """Returns the ids of a text. Lone surrogates, which no UTF-8 text can hold, count as `?`."""
        with refusals("`tokenizers`"):
            ids: list[int] = self.backend.encode(encodable(text), add_special_tokens=False).ids
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, special tokens spelled out."""
        text: str = self.backend.decode([int(number) for number in ids], skip_special_tokens=False)
        return text

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        """Returns the id of each token of the vocabulary, None for any other text."""
        return [self.backend.token_to_id(token) for token in tokens]

    def template(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the ids that the template of the file puts before and after a text; a `TokenizerError` for others."""
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
        message = f"tokenizer `{self.path}`: its template puts special tokens elsewhere than around a text"
        raise TokenizerError(message, hint="see its `post_processor`")

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text, uint32; releases the GIL."""
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return joined([np.array(encoding.ids, dtype=np.uint32) for encoding in encodings], np.uint32)

    def _added(self) -> list[tuple[int, Any]]:
        return sorted(self.backend.get_added_tokens_decoder().items())

    def _ids_of(self, tokens: Mapping[T, Any]) -> dict[T, int]:
        """Returns the known ids of tokens of a configuration; older files hold a serialised `AddedToken`."""
        spelled = {name: each.get("content") if isinstance(each, dict) else each for name, each in tokens.items()}
        ids = {name: self.backend.token_to_id(token) for name, token in spelled.items() if isinstance(token, str)}
        return {name: number for name, number in ids.items() if number is not None}

    def _find_roles(
        self, path: str, special: Mapping[str, int], eod_token: str | None, bos_token: str | None
    ) -> dict[str, int]:
        """Returns the roles of the user, else of the configuration, else by their spelling ("[CLS]")."""
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
    """Returns the tokenizer, which must be one of Hugging Face; the `reason` is the hint of the error."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer
    message = f"`{tokenizer.path}` is no Hugging Face tokenizer, but of the kind {tokenizer.kind!r}"
    raise TokenizerError(message, hint=reason)


def _steps_of(part: Any) -> list[str]:
    """Returns the steps of a normaliser or pre-tokenizer as JSON, without options that move no boundary."""
    steps, pending = [], [] if part is None else [json.loads(part.__getstate__())]
    while pending:
        step = pending.pop(0)
        if step["type"] == "Sequence":
            pending = [*step.get("normalizers", []), *step.get("pretokenizers", []), *pending]
            continue
        ignored = {"add_prefix_space", "trim_offsets"}
        if (step.get("behavior"), step.get("invert")) in (("Isolated", False), ("Removed", True)):
            ignored |= {"behavior", "invert"}  # the same for expressions that match every letter
        kept = {key: value for key, value in step.items() if key not in ignored}
        steps.append(json.dumps(kept, ensure_ascii=False))
    return steps


def _parse(path: str, data: bytes) -> Any:
    tokenizers = require("tokenizers", extra="preprocess")
    hint = f"expected a `{TOKENIZER_FILE}` as Hugging Face `tokenizers` writes it"
    with failures(f"`{path}` is not a tokenizer", hint=hint):
        backend = tokenizers.Tokenizer.from_buffer(data)
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None  # ids must not be drawn at random
    return backend


def _read_config(path: str) -> Mapping[str, Any]:
    """Returns the `tokenizer_config.json` beside the tokenizer, empty if there is none."""
    config_path = os.path.join(os.path.dirname(path), _CONFIG_FILE)
    try:
        config = read_json(config_path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"cannot read `{config_path}`: {error}") from error
    if not isinstance(config, dict):
        raise TokenizerError(f"`{config_path}` is no JSON object, but a {type(config).__name__}")
    return config


def load_gpt2(
    vocabulary_path: str, merges_path: str, *, added: Sequence[str] = (), **roles: str | None
) -> HuggingFaceTokenizer:
    """Returns the byte-level tokenizer of ids by token, in JSON, and of merges, a pair of tokens on each line.

    Added tokens without an id get the next ones; `roles` are `eod_token` and `bos_token` of `load_tokenizer`.
    """
    roles["eod_token"] = roles.get("eod_token") or END_OF_TEXT
    added = (END_OF_TEXT, *added)
    return _loaded((vocabulary_path, merges_path), "ByteLevelBPETokenizer", added=added, roles=roles)


def load_wordpiece(
    path: str, *, lowercase: bool, added: Sequence[str] = (), **roles: str | None
) -> HuggingFaceTokenizer:
    """Returns the word-piece tokenizer of a list, a piece on each line, its number being the id; see `load_gpt2`.

    Its template puts `[CLS]` and `[SEP]` around a text. By default `[SEP]` ends a document. `lowercase` drops accents
    too.
    """
    roles["eod_token"] = roles.get("eod_token") or "[SEP]"
    return _loaded((path,), "BertWordPieceTokenizer", added=added, roles=roles, lowercase=lowercase)


def _loaded(
    paths: Sequence[str], name: str, *, added: Sequence[str], roles: Mapping[str, Any], **settings: bool
) -> HuggingFaceTokenizer:
    """Returns the tokenizer of a class of `tokenizers.implementations`; its fingerprint is of files and settings."""
    library = require("tokenizers.implementations", extra="preprocess")
    hashes = [hashlib.sha256(read_file(path)).hexdigest() for path in paths]
    fingerprint = hashlib.sha256(repr((hashes, tuple(added), settings.get("lowercase"))).encode()).hexdigest()
    message = f"{' and '.join(f'`{path}`' for path in paths)} cannot be read as a vocabulary"
    with failures(message):
        made = getattr(library, name).from_file(*paths, **settings)
        missing = [token for token in _BERT_TOKENS if settings and made.token_to_id(token) is None]
        made.add_special_tokens(list(added))
    if missing:
        message += f": it lacks {', '.join(missing)}"
        raise TokenizerError(message)
    return HuggingFaceTokenizer(paths[0], made.to_str().encode(), fingerprint=fingerprint, **roles)


def read_file(path: str) -> bytes:
    """Returns the bytes of a tokenizer's file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror or error}"
        raise TokenizerError(message, hint="nothing is downloaded: name a file that is there") from error


def _load_gpt2_beside(path: str, _data: bytes, options: TokenizerOptions) -> HuggingFaceTokenizer:
    """Returns the tokenizer of a file and of `merges.txt` beside it, or `gpt2-merges.txt` beside `gpt2-vocab.json`."""
    folder, name = os.path.split(path)
    stem = os.path.splitext(name)[0]
    merges = os.path.join(folder, f"{stem.removesuffix('vocab')}merges.txt" if stem.endswith("vocab") else "merges.txt")
    if not os.path.exists(merges):
        message = f"`{path}` is not a tokenizer by itself: it lists ids, and its merges `{merges}` are missing"
        raise TokenizerError(message, hint="a `tokenizer.json` has both")
    return load_gpt2(path, merges, **options.roles)


def _load_wordpiece(path: str, data: bytes, options: TokenizerOptions) -> HuggingFaceTokenizer:
    """Returns the tokenizer of a list; it puts texts in lower case if all pieces are."""
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
