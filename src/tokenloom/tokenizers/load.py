"""The one door to tokenizers of every kind: by file, by name, of another library's object, or of a manifest."""

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
_CACHED_FILES = (_TOKENIZER_FILE, "tokenizer.model", "vocab.json", "vocab.txt")  # of a snapshot, the best first
# `tiktoken` names its copy of a rank file by the hash of this address (`tiktoken.load.read_file_cached`, 0.14).
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
    """Returns a tokenizer of a file, a folder with one, a name or an object. Nothing is ever downloaded.

    - Hugging Face: a `tokenizer.json`; a `tokenizer_config.json` beside it names the special tokens. Of GPT-2, its
      `vocab.json` with the `merges.txt` beside; of BERT, its `vocab.txt`.
    - SentencePiece: a `.model`.
    - tiktoken: a rank file. FILE.json beside it holds a `TiktokenDescription`; the rank files that OpenAI publishes are
      recognised by their content.
    - `byte`: bytes are ids. `null:N`: a text is a list of ids below N. A file of that name is `./byte`.
    - A name such as `gpt2` or `cl100k_base` that no file has: a file in the caches of Hugging Face's libraries or of
      `tiktoken` on this machine.
    - An object: `tokenizers.Tokenizer`, a fast tokenizer of `transformers`, `tiktoken.Encoding`,
      `sentencepiece.SentencePieceProcessor`. Its fingerprint is that of its file if that is found, else that of the
      JSON that `tokenizers` writes.

    Args:
        path_or_spec: path of the file, or of its folder; or `byte`, or `null:N`; or a name; or an object.
        kind: one of `KINDS`; `auto` detects it by the content of the file, or by its name.
        eod_token: the token that ends a document; if None, that of the files, else the only well-known one.
        bos_token: the token that begins a document, likewise.
        pattern: the regular expression by which tiktoken cuts texts into words, or `r50k`, `p50k`, `cl100k` or `o200k`;
            replaces the described one.
        special_tokens: ids of tiktoken by spelling; replace the described ones.

    Raises:
        TokenizerError: the file is missing, unreadable or not of its kind, or lacks one of the tokens.
        ConfigError: an option is of another kind of tokenizer, or an object is no tokenizer.
        MissingExtraError: the library is not installed.

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
        raise ConfigError(f"{name!r} is no tokenizer of the kind {kind!r}, which is {KINDS[found].called}")
    if not KINDS[found].takes_pattern and options.is_for_ranks:
        message = f"`pattern` and `special_tokens`: not for `{name}`, which is of the kind {found!r}"
        raise ConfigError(message, hint="both belong to rank files of tiktoken")
    return KINDS[found].load(file, data, options)


def as_tokenizer(given: Any) -> Any:
    """Returns the tokenizer of a setting: None, what `load_tokenizer` takes, or any object that datasets can use."""
    if given is None:
        return None
    if isinstance(given, (str, os.PathLike)):
        return load_tokenizer(given)
    if isinstance(given, _NO_TOKENIZERS):
        raise _not_a_tokenizer(given)
    return _wrapped(given, {}) or given


def _not_a_tokenizer(given: Any) -> ConfigError:
    hint = 'the path of a tokenizer, a name such as "gpt2", or an object of `tokenizers`, `transformers` or `tiktoken`'
    return ConfigError(f"`tokenizer`: {given!r} is no tokenizer", hint=hint)


def _of_object(given: Any, kind: str, options: TokenizerOptions) -> TextTokenizer:
    if kind != "auto" or options.is_for_ranks:
        raise ConfigError(f"`kind`, `pattern` and `special_tokens`: not for a {type(given).__name__}, only for files")
    if (found := _wrapped(given, options.roles)) is not None:
        return found
    if not hasattr(given, "encode_texts") or not hasattr(given, "sha256"):
        raise _not_a_tokenizer(given)
    for name, token in options.roles.items():
        if token is not None:
            hint = "name it where the tokenizer is loaded"
            raise ConfigError(f"`{name}`: the tokenizer is loaded already, got {token!r}", hint=hint)
    return given  # type: ignore[no-any-return]


def _file_of(name: str) -> str:
    """Returns the tokenizer's file in a folder, or in a cache by its name, else the name."""
    if not os.path.isdir(name):
        return name if os.path.exists(name) else local_file(name) or name
    suffixes = {suffix for kind in KINDS.values() for suffix in kind.suffixes}
    found = sorted(each for each in os.listdir(name) if os.path.splitext(each)[1] in suffixes)
    usual = [os.path.join(name, kind.file_name) for kind in KINDS.values() if kind.file_name]
    there = [path for path in usual if os.path.exists(path)]
    if there or not found:
        return [*there, *usual][0]
    if len(found) > 1:
        raise TokenizerError(f"`{name}` holds several tokenizers: {', '.join(found)}", hint="name the file")
    return os.path.join(name, found[0])


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        message = f"cannot read tokenizer `{file}`: {error.strerror or error}"
        *most, last = [kind.called for kind in KINDS.values() if kind.needs_file]
        others = "".join(f", or {kind.called}" for kind in KINDS.values() if not kind.needs_file)
        near = did_you_mean(file) or ""
        hint = f"name {', '.join(most)} or {last}, or a folder with one{others}; nothing is "
        hint += "downloaded, and no tokenizer of that name lies in a cache of `huggingface_hub` or `tiktoken`"
        raise TokenizerError(message, hint=near if near.endswith("?") else hint) from error


def local_file(name: str) -> str | None:
    """Returns the cached file of a tokenizer's name such as `gpt2` or `cl100k_base`, None if there is none."""
    if not name or name.startswith((".", "/", "<")) or name.count("/") > 1 or is_remote(name):
        return None
    from tokenloom.tokenizers.tiktoken_ranks import PUBLISHED  # which takes longer to import than most names need

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
    except ValueError:  # no name that the hub allows
        return None
    return next((path for path in found if isinstance(path, str)), None)


def _wrapped(given: Any, roles: Mapping[str, str | None]) -> TextTokenizer | None:
    """Returns a tokenizer of another library as one of ours; None for any other object."""
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
        hint = "most models have one: load it with `AutoTokenizer.from_pretrained`, or name the folder of its files"
        raise TokenizerError(message, hint=hint)
    further = ("additional_special_tokens", "extra_special_tokens", "chat_template")
    named = {name: value for name in further if (value := getattr(given, name, None)) is not None}
    config = {**given.special_tokens_map, **named}
    return _of_backend(backend, given.name_or_path or f"<{type(given).__name__}>", config, roles)


def _of_backend(backend: Any, name: str, config: Mapping[str, Any], roles: Mapping[str, Any]) -> HuggingFaceTokenizer:
    """Returns a tokenizer of `tokenizers`; if the file that it was loaded from holds the same, that of the file."""
    from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer

    data = backend.to_str(pretty=True).encode()
    made = HuggingFaceTokenizer(name, data, config=config, knows_its_file=False, **roles)
    file = os.path.join(name, _TOKENIZER_FILE)
    found = file if os.path.isfile(file) else local_file(name)
    if found is None or os.path.basename(found) != _TOKENIZER_FILE:
        return made
    of_file = HuggingFaceTokenizer(found, Path(found).read_bytes(), config=config, **roles)
    return of_file if of_file.backend.to_str() == made.backend.to_str() else made


def recorded_tokenizer(made_by: TokenizerIdentity, *, prefix: str) -> TextTokenizer:
    """Returns the tokenizer of a manifest, by its fingerprint: at the path of the manifest, beside the data or above.

    Raises:
        TokenizerError: the manifest names no file, or the file is missing or another tokenizer.
    """
    if made_by.path is None:
        raise TokenizerError(f"the manifest of `{prefix}` names no file of its tokenizer")
    failures: list[TokenizerError] = []
    for path in _places(made_by.path, prefix):
        try:
            found = load_tokenizer(path, eod_token=None if made_by.eod is None else made_by.eod.text)
        except TokenizerError as error:
            failures.append(error)
            continue
        if found.sha256 == made_by.sha256:
            return found
        failures.insert(0, TokenizerError(f"`{path}` is not the tokenizer of the manifest of `{prefix}` any more"))
    raise failures[0]


def _places(path: str, prefix: str) -> list[str]:
    """Returns the places of a tokenizer's file: its path; its last parts from the data's folder, or one above, on."""
    if is_remote(prefix) or is_remote(path):
        return [path]
    parts = Path(path).parts
    tails = [os.path.join(*parts[first:]) for first in range(len(parts))]
    found = (each / tail for each in Path(os.path.abspath(prefix)).parents for tail in tails)
    return list(dict.fromkeys([path, *(str(each) for each in found if each.exists())]))
