"""Tokenizers by the names that hubs give them, where a copy lies in a cache of this machine. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""What a snapshot of a model holds its tokenizer in, in the order of preference."""

_OWNERS = {
    "gpt2": "openai-community",
    "bert": "google-bert",
    "t5": "google-t5",
    "roberta": "FacebookAI",
    "distilgpt2": "distilbert",
    "distilbert": "distilbert",
}
"""Who owns on the hub what once had a name without an owner, by the first word of that name."""

_RANKS = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
"""The address whose hash `tiktoken` calls its copy of a rank file by (`tiktoken.load.read_file_cached`, 0.14)."""


def local_file(name: str) -> str | None:
    """Returns the file of a tokenizer that a name such as `gpt2` or `cl100k_base` stands for, if there is a copy.

    Args:
        name: a model of Hugging Face's hub, with or without its owner, or an encoding of `tiktoken`.
    """
    if not _NAME.fullmatch(name):
        return None
    return _cached_ranks(name) or _cached_snapshot(name)


def where_sought(name: str) -> str | None:
    """Returns a phrase on where `local_file` found nothing; None for what is no such name."""
    if not _NAME.fullmatch(name) or os.path.splitext(name)[1] in (".json", ".model", ".tiktoken", ".txt"):
        return None
    return f"no tokenizer of that name lies in `{_hub_cache()}` either"


def _cached_ranks(name: str) -> str | None:
    """Returns the copy of a rank file that `tiktoken` has made."""
    from tokenloom.tokenizers.tiktoken_ranks import PUBLISHED  # which takes longer to import than most names need

    if not any(encoding.name == name for encoding in PUBLISHED.values()):
        return None
    named = (os.environ.get(variable) for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"))
    folder = next(filter(None, named), os.path.join(tempfile.gettempdir(), "data-gym-cache"))
    address = _RANKS.format(name)
    path = os.path.join(folder, hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest())
    return path if os.path.isfile(path) else None


def _cached_snapshot(name: str) -> str | None:
    """Returns the tokenizer of a model in the cache of `huggingface_hub`: of `main`, as it was downloaded last."""
    owner = _OWNERS.get(name.split("-")[0])
    names = [name] if "/" in name or owner is None else [name, f"{owner}/{name}"]
    for each in names:
        folder = os.path.join(_hub_cache(), "models--" + each.replace("/", "--"))
        try:
            with open(os.path.join(folder, "refs", "main"), encoding="utf-8") as stream:
                revision = stream.read().strip()
        except (OSError, UnicodeDecodeError):
            continue
        snapshot = os.path.join(folder, "snapshots", revision)
        for file in _FILES:
            if os.path.isfile(path := os.path.join(snapshot, file)):
                return path
    return None


def _hub_cache() -> str:
    """Returns the folder in which `huggingface_hub` keeps what it downloads."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if folder := os.environ.get(variable):
            return os.path.expanduser(folder)
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return os.path.join(os.path.expanduser(home), "hub")
