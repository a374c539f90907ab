"""The `[samples]` of a run: settings of its dataset class, by the names they have there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from decimal import Decimal
from typing import Any

from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.fim import GPTFIMDatasetConfig
from tokenloom.errors import ConfigError
from tokenloom.run.toml_file import Table, refuse

KINDS: Mapping[str, type[GPTDatasetConfig]] = {
    "gpt": GPTDatasetConfig,
    "fim": GPTFIMDatasetConfig,
    "sft": SFTDatasetConfig,
    "varlen": VarlenDatasetConfig,
}
"""What holds the settings of a kind of dataset, by its name in a run."""

CONVERSATIONS = ("sft", "varlen")
"""Kinds whose samples hold whole conversations."""

DEFAULTS: Mapping[str, Any] = {
    "reset_position_ids": False,
    "reset_attention_mask": False,
    "eod_mask_loss": False,
    "create_attention_mask": False,
}
"""What a run has where nothing is said; of other settings, what the class has."""

WITHOUT_EFFECT = ("allow_tokenizer_mismatch", "allow_data_mismatch")
"""Settings that change no sample: whether some data may be read at all."""

NOT_HERE: Mapping[str, str] = {
    "random_seed": "write `seed` at the top of the file",
    "sequence_length": "it belongs to a stage",
    **{key: f"write `{key}` at the top of the file" for key in ("tokenizer", "mixing_block")},
    "window_policy": "write `windows` at the top of the file",
    "block_shuffle": "write `documents` at the top of the file",
    **dict.fromkeys(("blend", "blend_per_split"), "name data in [sources], and weights in a stage"),
    "split": "give sources a `holdout`",
    **dict.fromkeys(
        ("multiple_validation_sets", "full_validation", "drop_last_partial_validation_sequence"),
        "leave it out: held-out documents are a dataset of their own, and every pass has whole windows only",
    ),
    **dict.fromkeys(
        (
            *("path_to_cache", "fast_cache_load", "defer_npy_index_mmap", "num_dataset_builder_threads"),
            "mid_level_dataset_surplus",
        ),
        "leave it out: a run builds and caches no index",
    ),
    "extend_short_datasets": "say with `max_passes` of a source how often it is read",
    "sequences_per_dataset": "leave it out: the lock of a run has these numbers",
    **dict.fromkeys(
        ("object_storage", "object_storage_cache_path", "mmap_bin_files", "verify"),
        "it changes no sample, so it is said where the run is opened",
    ),
    **dict.fromkeys(
        ("chat_template", "schema", "skip_bad_lines"), "leave it out: a run reads what is tokenized already"
    ),
    "mock_dataset_config": "leave it out: a run has no made-up data",
}
"""Settings of those classes that are none of samples, and what to do instead."""

_PARALLEL = ("data_parallel_size", "sequence_parallel_size", "hybrid_context_parallel", "context_parallel_size")
"""What the slots of conversations are a multiple of follows from these."""


class _AnyTokenizer:
    """Stands for the tokenizer of the run where its settings are checked."""

    vocab_size = None

    def tokenize(self, text: str) -> list[int]:
        raise NotImplementedError

    def detokenize(self, ids: list[int]) -> str:
        raise NotImplementedError


def sample_settings(table: Table, dataset: str, windows: str) -> dict[str, Any]:
    """Returns the settings that the dataset class is given, sorted by name; what equals its defaults is left out.

    The four of `DEFAULTS` are always there.
    """
    elsewhere = dict(NOT_HERE)
    if dataset not in CONVERSATIONS:
        elsewhere |= dict.fromkeys(_PARALLEL, "leave it out: it has no effect on such samples")
    usual = {
        each.name: None if each.default is MISSING else each.default
        for each in fields(KINDS[dataset])
        if each.init and each.name not in elsewhere
    }
    given = table.read_all(dict.fromkeys(usual, _plain), elsewhere=elsewhere)
    try:
        config_of(dataset, {**DEFAULTS, **given, "window_policy": windows}, 1)
    except ConfigError as error:
        named = [key for key in given if key in error.message]
        raise table.error(max(named, key=len) if named else None, error.message, hint=error.hint) from error
    said = {key: value for key, value in given.items() if key in DEFAULTS or value != usual[key]}
    return dict(sorted({**DEFAULTS, **said}.items()))


def most_in_pack(dataset: str, samples: Mapping[str, Any]) -> int | None:
    """Returns the most documents or conversations of a pack; None for any number."""
    return samples.get("most_conversations" if dataset in CONVERSATIONS else "most_documents")


def config_of(dataset: str, samples: Mapping[str, Any], sequence_length: int) -> GPTDatasetConfig:
    """Returns the settings of samples for what asks for no tokenizer: how many there are, and of what."""
    return KINDS[dataset](random_seed=0, sequence_length=sequence_length, tokenizer=_AnyTokenizer(), **samples)


def _plain(value: Any, what: str) -> Any:
    """Returns a value as JSON may hold it."""
    if isinstance(value, dict):
        return {key: _plain(each, what) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, what) for each in value]
    if isinstance(value, Decimal) and value.is_finite():
        return float(value)
    if not isinstance(value, (bool, str)) and not (isinstance(value, int) and abs(value) < 1 << 63):
        refuse(what, "a text, number, true or false", value)
    return value
