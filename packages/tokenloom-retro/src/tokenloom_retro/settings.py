"""Settings of a build, and their record in the project's `config.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.indexed.manifests import SpecialToken, TokenizerIdentity, identity_of, optional_number
from tokenloom.numbers import checked_integer
from tokenloom.setting_types import Count, Number
from tokenloom.storage.atomic import publish_bytes
from tokenloom.storage.json_files import UnusableJsonError, from_members
from tokenloom.storage.publishing import make_folder_of
from tokenloom.tokenizers.load import as_tokenizer, recorded_tokenizer
from tokenloom_retro.chunk_table import num_sampled_chunks, train_fraction
from tokenloom_retro.project import OURS, RetroProject

SPLITS = ("train", "valid", "test")

Task = Literal["db-build", "index-build", "query-neighbors"]
"""The tasks of a build in order; each task needs the tasks before it."""

TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetroIndexSettings:
    """Settings of chunks, index and neighbors of a project.

    Attributes:
        sequence_length: tokens per sample; a multiple of `chunk_length`.
        index: argument of `faiss.index_factory`, such as "Flat" or "IVF4096,Flat".
        num_index_chunks: number of chunks to train the index on.
        split: percentages of documents for train, valid and test, such as "98,2,0"; neighbors come from train.
        seed: seed for shuffling the samples.
        chunk_length: tokens per chunk.
        num_neighbors: number of neighbors stored per chunk.
        num_searched: number of neighbors to search for, before those in the sample's own documents are dropped.
        nprobe: number of IVF lists to search (default: the number stored in the index).
        ef_search: number of HNSW candidates (default: the number stored in the index).
        block_size: chunks per block.
        document_block_size: documents per block.
    """

    sequence_length: Count
    index: str
    num_index_chunks: Count
    split: str = "98,2,0"
    seed: Number = 1234
    chunk_length: Count = 64
    num_neighbors: Count = 20
    num_searched: Count = 200
    nprobe: Count | None = None
    ef_search: Count | None = None
    block_size: Count = 100_000
    document_block_size: Count = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetroBuildSettings(RetroIndexSettings):
    """All settings of a build.

    Attributes:
        data: (weight, prefix) of each dataset, prefix relative to `PROJECT/data`. The weight can be None if there is
            only one dataset: samples then come from the dataset itself, not from a blend of one dataset.
        sizes: number of train, valid and test samples that get neighbors; None or 0 for none.
        cache: folder of the index cache of the samples; None for `PROJECT/cache`.
        of_samples: other arguments of `MultiSplitGPTDatasetConfig`; they are not recorded.
    """

    data: Sequence[tuple[float | None, str]]
    sizes: tuple[int | None, ...]
    cache: str | None = None
    of_samples: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validates the settings without reading the data."""
        if len(self.data) != 1 and any(weight is None for weight, _ in self.data):
            raise ConfigError(f"`data`: each of {len(self.data)} datasets needs a weight, got None")
        if len(self.sizes) != len(SPLITS):
            raise ConfigError(f"`sizes` must be three numbers, for train, valid and test, got {list(self.sizes)}")
        checked_integer("num_index_chunks", self.num_index_chunks, at_least=0)
        train_fraction(self.split)
        num_sampled_chunks(self.num_index_chunks, self.ratios)
        prefixes = [os.path.normpath(prefix) for _, prefix in self.data]
        for prefix in prefixes:
            if os.path.isabs(prefix) or prefix.split(os.sep)[0] == os.pardir or prefixes.count(prefix) > 1:
                message = f"`data`: prefixes must differ and be below the project's folder `data`, got {prefix!r}"
                raise ConfigError(message, hint="move or link the pair there, or add up the weights of a repeated pair")

    @property
    def blend_weights(self) -> list[float] | None:
        """Returns the weights; None for a single dataset without a weight."""
        weights = [float(weight) for weight, _ in self.data if weight is not None]
        return weights or None

    @property
    def ratios(self) -> list[float]:
        """Returns the weights; [1.0] for a single dataset without a weight."""
        return [1.0 if weight is None else float(weight) for weight, _ in self.data]


_SETTINGS = {
    "retro_gpt_seed": "seed",
    "retro_gpt_split": "split",
    "retro_gpt_seq_length": "sequence_length",
    "retro_gpt_chunk_length": "chunk_length",
    "retro_gpt_data_cache_path": "cache",
    "retro_block_size": "block_size",
    "retro_doc_block_size": "document_block_size",
    "retro_index_str": "index",
    "retro_index_ntrain": "num_index_chunks",
    "retro_query_num_neighbors_query": "num_searched",
    "retro_query_num_neighbors_save": "num_neighbors",
    "retro_query_nprobe": "nprobe",
    "retro_query_ef_search": "ef_search",
}
"""Our names of settings, by Megatron's names."""

_DIRS = "retro_neighbor_dirs"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSettings:
    """The recorded settings of a project."""

    build: RetroBuildSettings
    neighbor_dirs: Mapping[str, str]  # names of neighbor folders, by split
    tokenizer: TokenizerIdentity | None
    embedder: str | None  # name for `as_embedder`


def record_settings(
    project: RetroProject,
    settings: RetroBuildSettings,
    *,
    tokenizer: Any,
    embedder: Any,
    neighbor_dirs: Mapping[str, str],
) -> None:
    """Writes settings to the project's `config.json`; `embedder` is recorded only if it is a name.

    For a split that is not in `neighbor_dirs`, keeps the recorded neighbor folder if all other settings are unchanged.
    """
    made_by = identity_of(tokenizer, eod=_eod_of(tokenizer))
    config: dict[str, Any] = {
        **{name: getattr(settings, own) for name, own in _SETTINGS.items()},
        **{f"retro_gpt_{split}_samples": size for split, size in zip(SPLITS, settings.sizes, strict=True)},
        "retro_gpt_data_path": _entries_of(settings),
        OURS: {
            "folder": project.recorded_folder,
            "tokenizer": asdict(made_by),
            "embedder": embedder if isinstance(embedder, str) else None,
        },
    }
    before = dict(RetroProject(project.folder).config)
    dirs = before.pop(_DIRS, {})
    kept = dirs if before == config else {}
    config[_DIRS] = {split: neighbor_dirs.get(split, kept.get(split)) for split in SPLITS}
    make_folder_of(project.config_path)
    publish_bytes(project.config_path, json.dumps(config, indent=4).encode() + b"\n", durable=True)


def recorded_settings(project: RetroProject) -> RecordedSettings:
    """Reads the settings of a project made by us or by Megatron.

    Raises:
        ConfigError: `config.json` or a setting in it is missing.
        StorageError, DatasetFormatError: the file cannot be read.
    """
    config, path = project.config, project.config_path
    if not config:
        raise ConfigError(f"no file `{path}`", hint="check the project folder; a build writes this file")
    try:
        ours = config.get(OURS, {})
        made_by = ours.get("tokenizer")
        return RecordedSettings(
            build=RetroBuildSettings(
                data=_data_of(config["retro_gpt_data_path"]),
                sizes=_sizes_of(config),
                **{own: config[name] for name, own in _SETTINGS.items() if name in config},
            ),
            neighbor_dirs={split: name for split, name in (config.get(_DIRS) or {}).items() if name},
            tokenizer=None if made_by is None else from_members(TokenizerIdentity, made_by),
            embedder=ours.get("embedder"),
        )
    except KeyError as error:
        raise ConfigError(f"`{path}`: missing setting {error}", hint="copy it from the built project again") from error
    except (AttributeError, IndexError, TypeError, ValueError, UnusableJsonError) as error:
        message = f"`{path}`: invalid settings: {error}"
        raise ConfigError(message, hint="copy it from the built project again") from error


def tokenizer_of_project(project: RetroProject, recorded: RecordedSettings, named: Any = None) -> Any:
    """Returns the tokenizer `named` (an object, a path or a name); if `named` is None, the recorded tokenizer.

    Raises:
        TokenizerError: no tokenizer is recorded, or the recorded tokenizer is missing or changed.
    """
    if named is not None:
        return as_tokenizer(named)
    if recorded.tokenizer is None:
        message = f"`{project.config_path}` has no tokenizer"
        raise TokenizerError(message, hint="pass the tokenizer of the data as `tokenizer=…`")
    try:
        return recorded_tokenizer(recorded.tokenizer, prefix=os.path.join(project.data_folder, "any"))
    except TokenizerError as error:
        message = f"cannot load the tokenizer of `{project.config_path}`: {error.message}"
        raise TokenizerError(message, hint="pass the tokenizer of the data as `tokenizer=…`") from error


def embedder_of_project(project: RetroProject, recorded: RecordedSettings, named: Any = None) -> Any:
    """Returns an argument for `as_embedder`: `named`, or if `named` is None, the recorded name."""
    if named is None and recorded.embedder is None:
        message = f"`{project.config_path}` has no embedder"
        raise ConfigError(message, hint="pass the embedder of the build as `embedder=…`")
    return recorded.embedder if named is None else named


def _eod_of(tokenizer: Any) -> SpecialToken | None:
    eod = optional_number(tokenizer, "eod")
    return None if eod is None else SpecialToken(id=eod, text=tokenizer.detokenize([eod]))


def _entries_of(settings: RetroBuildSettings) -> list[str]:
    """Returns alternating weights and prefixes, or one prefix."""
    if settings.blend_weights is None:
        return [prefix for _, prefix in settings.data]
    return [each for weight, prefix in settings.data for each in (str(float(weight or 0)), prefix)]


def _data_of(entries: Sequence[Any]) -> tuple[tuple[float | None, str], ...]:
    """Parses the result of `_entries_of`."""
    if len(entries) == 1:
        return ((None, str(entries[0])),)
    return tuple((float(weight), str(prefix)) for weight, prefix in zip(entries[::2], entries[1::2], strict=True))


def _sizes_of(config: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Returns the number of samples per split; for Megatron's projects, computed from the evaluation settings."""
    train = config["retro_gpt_train_samples"]
    names = ("retro_gpt_global_batch_size", "retro_gpt_eval_interval", "retro_gpt_eval_iters")
    if "retro_gpt_valid_samples" in config or any(config.get(name) is None for name in names):
        return train, config.get("retro_gpt_valid_samples"), config.get("retro_gpt_test_samples")
    batch, interval, iterations = (int(config[name]) for name in names)
    test = batch * iterations
    return train, (train // batch // interval + 1) * test, test
