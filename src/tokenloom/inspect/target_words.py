"""What the words mean by which a person points at something to look at."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tokenloom.blending.spec import parse_blend
from tokenloom.datasets.blends import Blend
from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.jobs.folder_contents import JOB
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.resolve import did_you_mean

_WHAT_IS_NAMED = (
    "name a prefix (the path of a pair without `.bin` or `.idx`), a catalogue, a run.toml, the folder of a job, or a "
    "file with a blend"
)


def job_folder(word: str) -> str | None:
    """Returns the folder of the job that a word names, itself or by its output's prefix; None if there is none."""
    for folder in (word.rstrip("/"), f"{word}.job"):
        if not is_remote(word) and os.path.isfile(os.path.join(folder, JOB)):
            is_output_there = folder != word.rstrip("/") and os.path.exists(idx_path(word))
            return None if is_output_there else folder
    return None


def blend_of(words: Sequence[str]) -> Blend:
    """Returns prefixes and weights.

    Raises:
        ConfigError: a word is something else, or they contradict each other.
        DatasetNotFoundError: there is no such pair.
    """
    word = words[0]
    if len(words) > 1 or not os.path.isfile(word) or word.endswith((".bin", ".idx")):
        try:
            return parse_blend(list(words))["blend"]
        except DatasetNotFoundError as error:
            if len(words) > 1 or is_remote(word) or any(map(os.path.exists, (idx_path(word), bin_path(word)))):
                raise
            message = f"expected something to look at as `{word}`, found nothing there"
            raise DatasetNotFoundError(message, hint=did_you_mean(word, suffix=".idx") or _WHAT_IS_NAMED) from error
    if word.endswith(".lock"):
        message = f"expected the run.toml of a run, found its lock, `{word}`"
        raise ConfigError(message, hint="name the run.toml beside it")
    try:
        return parse_blend(args_file=word)["blend"]
    except ConfigError as error:
        message = f"expected a blend in `{word}`: prefixes, or weights and prefixes by turns"
        hint = f"{_WHAT_IS_NAMED}; input that is not tokenized yet goes through `tokenloom preprocess` first"
        raise ConfigError(message, hint=hint) from error
