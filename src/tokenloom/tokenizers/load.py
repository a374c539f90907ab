"""Loads tokenizers of every kind: from a file, a name in a cache, an object of another library, or a manifest."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.optional import is_installed, require
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.resolve import did_you_mean
from tokenloom.tokenizers.kinds import KINDS, TokenizerOptions
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from tokenloom.indexed.manifests import TokenizerIdentity
    from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer

_TOKENIZER_FILE = "tokenizer.json"
_CACHED_FILES = (_TOKENIZER_FILE, "tokenizer.model", "vocab.json", "vocab.txt")  # cached files of a name, best first
# `tiktoken` names its cached rank files by the hash of this address (`tiktoken.load.read_file_cached`, 0.14).
_RANKS = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"

_NO_TOKENIZERS = (bool, int, float, complex, bytes, list, tuple, dict, set, type)


def load_tokenizer(
    path_or_spec: str | os.PathLike[str] | Any,
    *,
    kind: str = "auto",
    eod_token: str | None = None,
    bos_token: str | None = None,
    pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> TextTokenizer:
    """Loads a tokenizer from a file, a folder, a name or an object. Never downloads.

    - Hugging Face: a `tokenizer.json`, with special tokens from the `tokenizer_config.json` beside it; GPT-2's
      `vocab.json` with the `merges.txt` beside it; or BERT's `vocab.txt`.
    - SentencePiece: a `.model`.
    - tiktoken: a rank file, with a `TiktokenDescription` in FILE.json beside it. Rank files published by OpenAI are
      recognized by their content and need no description.
    - `byte`: ids are UTF-8 bytes. `null:N`: a text is a list of ids up to N. For a file named `byte`, write `./byte`.
    - A name such as `gpt2` or `cl100k_base`, if no such file exists: the tokenizer of this name in the local caches
      of `huggingface_hub` or `tiktoken`.
    - An object: `tokenizers.Tokenizer`, a fast tokenizer of `transformers`, `tiktoken.Encoding` or
      `sentencepiece.SentencePieceProcessor`. The fingerprint of a `tokenizers` object hashes the tokenizer's file if
      this file is found, else the JSON of the object.

    Args:
        path_or_spec: path of a file or folder; `byte` or `null:N`; a name; or an object.
        kind: one of `KINDS`; `auto` detects the kind by the content and name of the file.
        eod_token: token that ends a document; None selects the token that the files specify, else the well-known token
            if there is exactly one such token.
        bos_token: token that starts a document; None selects a token as for `eod_token`.
        pattern: regular expression with which tiktoken splits texts, or `r50k`, `p50k`, `cl100k` or `o200k`; overrides
            the pattern of the description.
        special_tokens: ids of tiktoken's special tokens by spelling; they replace those of the description.

    Raises:
        TokenizerError: the file is missing, unreadable or of another kind, or lacks `eod_token` or `bos_token`.
        ConfigError: an option does not apply to this kind, or the object is not a tokenizer.
        MissingExtraError: the library of the kind is not installed.

    >>> load_tokenizer("null:100").tokenize("5 99")
    [5, 99]
    """
    options = TokenizerOptions(eod_token=eod_token, bos_token=bos_token, pattern=pattern, special_tokens=special_tokens)
    if not isinstance(path_or_spec, (str, os.PathLike)):
        return _of_object(path_or_spec, kind, options)
    name = os.fspath(path_or_spec)
    if kind not in ("auto", *KINDS):
        raise ConfigError(f"`kind`: must be one of auto, {', '.join(KINDS)}, got {kind!r}")
    file, data = name, b""
    found = next((each for each in KINDS if KINDS[each].takes(name)), "") if kind == "auto" else kind
    if not found or KINDS[found].needs_file:
        file = _file_of(name)
        data = _read(file)
        by_content = [each for each, kind in KINDS.items() if kind.matches(data)]
        by_name = [each for each, kind in KINDS.items() if os.path.splitext(file)[1] in kind.suffixes]
        found = found or [*by_content, *by_name, "huggingface"][0]
    elif not KINDS[found].takes(name):
        raise ConfigError(f"a tokenizer of kind {kind!r} must be {KINDS[found].called}, got {name!r}")
    if not KINDS[found].takes_pattern and options.is_for_ranks:
        message = f"`pattern` and `special_tokens`: not supported by `{name}`, a tokenizer of kind {found!r}"
        raise ConfigError(message, hint="omit them; they apply only to tiktoken rank files")
    return KINDS[found].load(file, data, options)


def as_tokenizer(given: Any) -> Any:
    """Returns a tokenizer for a path, a name or a library's object; rejects built-in types, returns others as is."""
    if given is None:
        return None
    if isinstance(given, (str, os.PathLike)):
        return load_tokenizer(given)
    if isinstance(given, _NO_TOKENIZERS):
        raise _not_a_tokenizer(given)
    return _wrapped(given, {}) or given


def _not_a_tokenizer(given: Any) -> ConfigError:
    hint = 'give a path, a name such as "gpt2", or an object of `tokenizers`, `transformers` or `tiktoken`'
    return ConfigError(f"`tokenizer`: must be a tokenizer, got {given!r}", hint=hint)


def _of_object(given: Any, kind: str, options: TokenizerOptions) -> TextTokenizer:
    if kind != "auto" or options.is_for_ranks:
        message = f"`kind`, `pattern` and `special_tokens`: apply only to files, got a {type(given).__name__}"
        raise ConfigError(message, hint="omit them")
    if (found := _wrapped(given, options.roles)) is not None:
        return found
    if not hasattr(given, "encode_texts") or not hasattr(given, "sha256"):
        raise _not_a_tokenizer(given)
    for name, token in options.roles.items():
        if token is not None:
            hint = "set it where the tokenizer is loaded, or pass the tokenizer's path instead"
            raise ConfigError(f"`{name}`: has no effect on a loaded tokenizer, got {token!r}", hint=hint)
    return given  # type: ignore[no-any-return]


def _file_of(name: str) -> str:
    """Returns the tokenizer file in the folder `name`; for other names, the existing or cached file, else `name`."""
    if not os.path.isdir(name):
        return name if os.path.exists(name) else local_file(name) or name
    suffixes = {suffix for kind in KINDS.values() for suffix in kind.suffixes}
    found = sorted(each for each in os.listdir(name) if os.path.splitext(each)[1] in suffixes)
    usual = [os.path.join(name, kind.file_name) for kind in KINDS.values() if kind.file_name]
    existing = [path for path in usual if os.path.exists(path)]
    if existing or not found:
        return [*existing, *usual][0]
    if len(found) > 1:
        raise TokenizerError(f"`{name}` contains several tokenizers: {', '.join(found)}", hint="pass one of the files")
    return os.path.join(name, found[0])


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        message = f"cannot read tokenizer `{file}`: {error.strerror or error}"
        *most, last = [kind.called for kind in KINDS.values() if kind.needs_file]
        others = "".join(f", or {kind.called}" for kind in KINDS.values() if not kind.needs_file)
        near = did_you_mean(file) or ""
        hint = f"give the path of {', '.join(most)} or {last}, or of a folder with one{others}; nothing is downloaded, "
        hint += "and the local caches of `huggingface_hub` and `tiktoken` contain no tokenizer of that name"
        raise TokenizerError(message, hint=near if near.endswith("?") else hint) from error


def local_file(name: str) -> str | None:
    """Returns the path of the cached file for a tokenizer name (`gpt2`, `cl100k_base`); None if no file is cached."""
    if not name or name.startswith((".", "/", "<")) or name.count("/") > 1 or is_remote(name):
        return None
    from tokenloom.tokenizers.tiktoken_ranks import PUBLISHED  # slow to import

    if any(name == published for published, _ in PUBLISHED.values()):
        named = (os.environ.get(variable) for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"))
        folder = next(filter(None, named), os.path.join(tempfile.gettempdir(), "data-gym-cache"))
        path = os.path.join(folder, hashlib.sha1(_RANKS.format(name).encode(), usedforsecurity=False).hexdigest())
        return path if os.path.isfile(path) else None
    if not is_installed("huggingface_hub"):
        return None
    hub = require("huggingface_hub", extra="tokenizers")
    try:
        found = [hub.try_to_load_from_cache(name, file) for file in _CACHED_FILES]
    except ValueError:  # an invalid name for the hub
        return None
    return next((path for path in found if isinstance(path, str)), None)


def _wrapped(given: Any, roles: Mapping[str, str | None]) -> TextTokenizer | None:
    """Converts a tokenizer object of a supported library to a tokenloom tokenizer; returns None for other objects."""
    libraries = {each.__module__.partition(".")[0] for each in type(given).__mro__}
    name = f"<{type(given).__name__}>"
    if "transformers" in libraries:
        return _of_transformers(given, roles)
    if "tokenizers" in libraries and hasattr(given, "to_str"):
        return _of_backend(given, name, {}, roles)
    if "tiktoken" in libraries and hasattr(given, "_mergeable_ranks"):
        from tokenloom.tokenizers.tiktoken_ranks import TiktokenDescription, TiktokenTokenizer

        ranks = sorted(given._mergeable_ranks.items(), key=lambda row: row[1])
        data = b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in ranks)
        description = TiktokenDescription(pattern=given._pat_str, special_tokens=dict(given._special_tokens), **roles)
        return TiktokenTokenizer(given.name, data, description)
    if "sentencepiece" in libraries and hasattr(given, "serialized_model_proto"):
        from tokenloom.tokenizers.sentencepiece_model import SentencePieceTokenizer

        return SentencePieceTokenizer(name, given.serialized_model_proto(), **roles)
    return None


def _of_transformers(given: Any, roles: Mapping[str, Any]) -> HuggingFaceTokenizer:
    if (backend := getattr(given, "backend_tokenizer", None)) is None:
        message = f"{type(given).__name__} is a slow tokenizer of `transformers`, without a `{_TOKENIZER_FILE}`"
        hint = "load the fast tokenizer with `AutoTokenizer.from_pretrained`, or pass the folder of its files"
        raise TokenizerError(message, hint=hint)
    further = ("additional_special_tokens", "extra_special_tokens", "chat_template")
    named = {name: value for name in further if (value := getattr(given, name, None)) is not None}
    config = {**given.special_tokens_map, **named}
    return _of_backend(backend, given.name_or_path or f"<{type(given).__name__}>", config, roles)


def _of_backend(backend: Any, name: str, config: Mapping[str, Any], roles: Mapping[str, Any]) -> HuggingFaceTokenizer:
    """Converts a `tokenizers.Tokenizer`; loads the tokenizer's file instead if a file of an equal tokenizer exists."""
    from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer

    data = backend.to_str(pretty=True).encode()
    of_object = HuggingFaceTokenizer(name, data, config=config, knows_its_file=False, **roles)
    file = os.path.join(name, _TOKENIZER_FILE)
    found = file if os.path.isfile(file) else local_file(name)
    if found is None or os.path.basename(found) != _TOKENIZER_FILE:
        return of_object
    of_file = HuggingFaceTokenizer(found, Path(found).read_bytes(), config=config, **roles)
    return of_file if of_file.backend.to_str() == of_object.backend.to_str() else of_object


def recorded_tokenizer(made_by: TokenizerIdentity, *, prefix: str) -> TextTokenizer:
    """Loads the tokenizer that a manifest records, from the first path in `_places` with the recorded fingerprint.

    Raises:
        TokenizerError: the manifest has no path, or no file at these paths has the recorded fingerprint.
    """
    if made_by.path is None:
        raise TokenizerError(f"the manifest of `{prefix}` does not record the path of the tokenizer")
    failures: list[TokenizerError] = []
    for path in _places(made_by.path, prefix):
        try:
            found = load_tokenizer(path, eod_token=None if made_by.eod is None else made_by.eod.text)
        except TokenizerError as error:
            failures.append(error)
            continue
        if found.sha256 == made_by.sha256:
            return found
        failures.insert(0, TokenizerError(f"`{path}` has changed: it is not the tokenizer that made `{prefix}`"))
    raise failures[0]


def _places(path: str, prefix: str) -> list[str]:
    """Returns paths to try: `path`, then each existing path that joins a folder above `prefix` and an end of `path`."""
    if is_remote(prefix) or is_remote(path):
        return [path]
    parts = Path(path).parts
    tails = [os.path.join(*parts[first:]) for first in range(len(parts))]
    found = (each / tail for each in Path(os.path.abspath(prefix)).parents for tail in tails)
    return list(dict.fromkeys([path, *(str(each) for each in found if each.exists())]))
