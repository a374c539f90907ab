"""`load`: opens tokenized data as a dataset in one call, with defaults."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from tokenloom.blending.build_plan import sizes_read_once
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.quota import three_sizes
from tokenloom.blending.spec import parse_blend
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.blends import BlendLike
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split, split_text
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import column_path, prefix_of
from tokenloom.indexed.manifests import manifest_head_of
from tokenloom.setting_types import checked_path
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.resolve import exists
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.load import as_tokenizer, recorded_tokenizer

_SEED = 1234
_OTHER_NAMES = {
    "random_seed": "use `seed`",
    "blend": "pass the data as the first argument",
    "blend_per_split": "call `load` for each split, or use `BlendedMegatronDatasetBuilder`",
    "weights": "pass {prefix: weight} as the first argument",
}


def load(
    data: BlendLike,
    *,
    sequence_length: int | None = None,
    tokenizer: Any = None,
    split: str | Sequence[float] | None = None,
    seed: int = _SEED,
    num_samples: int | Sequence[int | None] | None = None,
    path_to_cache: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Any:
    """Opens tokenized data as a dataset; all ranks of `torch.distributed` must call `load`.

    Returns a `GPTDataset`; for several prefixes a `BlendedDataset`; for the output of `preprocess_chat` an `SFTDataset`
    or a blend of such datasets; for a `run.toml` a `RunDataset`. With `split`, returns one dataset per split.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tokenloom import IndexedDatasetBuilder, ThreadLoader, load
        >>> prefix = f"{tempfile.mkdtemp()}/numbers"
        >>> with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        ...     for first in range(0, 1000, 20):
        ...         builder.add_document(list(range(first, first + 20)), [20])
        ...     builder.finalize(f"{prefix}.idx")
        >>> train, valid, test = load(prefix, sequence_length=16, tokenizer="null:1000", split="90,10")
        >>> batch = next(iter(ThreadLoader(train, batch_size=4, tensors="numpy")))
        >>> len(train), len(valid), test, batch["tokens"].shape
        (56, 6, None, (4, 16))

    Args:
        data: a prefix (path without `.bin` or `.idx`), a glob, a folder or a catalogue, local or in a bucket;
            a list of these; prefixes with weights, as {prefix: weight}, [(weight, prefix), …] or (prefixes, weights);
            or the path of a `run.toml`, which has all other settings.
        sequence_length: tokens per sample.
        tokenizer: the tokenizer of the data, as a path or name for `load_tokenizer`, or an object; None for the
            tokenizer that the manifest names.
        split: weights of train, valid and test, such as "99,1,0" or (99, 1, 0); returns three datasets, with None for a
            split without data. With `split=None`, returns one dataset of all documents.
        seed: seed for shuffling.
        num_samples: minimum number of samples, over as many epochs as needed; None for one epoch, or, in a weighted
            blend, for all samples before a dataset repeats. With `split`: a number, for train, or (train, valid, test).
        path_to_cache: folder of the index cache, local or in a bucket; None for the folder of the data.
        settings: other fields of `GPTDatasetConfig`, or of `SFTDatasetConfig` for conversations. A blend reads short
            datasets for several epochs unless `extend_short_datasets=False`.

    Raises:
        DatasetNotFoundError: the data do not exist.
        TokenizerError: `tokenizer` is None and no manifest names a tokenizer, or another tokenizer tokenized the data.
        DatasetFormatError, BuildError, IndexCacheError: see `BlendedMegatronDatasetBuilder.build`.
    """
    if isinstance(data, (str, os.PathLike)) and os.fspath(data).endswith(".toml"):
        given = {"sequence_length": sequence_length, "split": split, "num_samples": num_samples}
        given["seed"] = None if seed == _SEED else seed
        return _of_run(os.fspath(data), tokenizer, path_to_cache, {**given, **settings})
    if sequence_length is None:
        near = difflib.get_close_matches("sequence_length", settings, n=1)
        message = f"`sequence_length` is missing{f', got `{near[0]}`' if near else ''}"
        raise ConfigError(message, hint="pass the number of tokens per sample, such as `sequence_length=4096`")
    if data is None:
        raise ConfigError("`data` is None", hint="pass a prefix, a list of prefixes, or {prefix: weight}")
    blend = parse_blend(data)["blend"]
    object_storage = settings.get("object_storage")
    dataset_class, config_class = _classes_of(blend[0], object_storage)
    _check_names(settings, config_class)
    if isinstance(num_samples, (list, tuple)) and split is None:
        message = f"`num_samples`: must be one integer if `split` is None, got {num_samples!r}"
        raise ConfigError(message, hint='pass `split`, such as `split="98,1,1"`, for three numbers')
    config = config_class(
        random_seed=seed,
        sequence_length=sequence_length,
        blend=blend,
        split="1,0,0" if split is None else split_text(split),
        tokenizer=tokenizer_of_data(tokenizer, blend[0], object_storage),
        path_to_cache=None if path_to_cache is None else checked_path("path_to_cache", path_to_cache),
        **{"extend_short_datasets": True, **settings},
    )
    sizes: Sequence[int | None] = three_sizes(num_samples, name="num_samples")
    if None in sizes and blend[1] is not None and dataset_class is GPTDataset:  # a blend needs the size of each split
        sizes = [once if size is None else size for size, once in zip(sizes, sizes_read_once(config), strict=True)]
    datasets = BlendedMegatronDatasetBuilder(dataset_class, sizes, lambda: True, config).build()
    return datasets[Split.train.value] if split is None else datasets


def _of_run(path: str, tokenizer: Any, path_to_cache: Any, given: Mapping[str, Any]) -> Any:
    from tokenloom.run.run import Run

    reading = ("mmap", "object_storage", "allow_tokenizer_mismatch", "allow_data_mismatch")
    for name, value in given.items():
        if value is not None and name not in reading:
            raise ConfigError(f"`{name}` is not a setting of `load` for a run", hint=f"set it in `{path}`")
    settings = {name: value for name, value in given.items() if value is not None}
    if tokenizer is not None:
        settings["tokenizer"] = as_tokenizer(tokenizer)
    return Run.open(path, path_to_cache=path_to_cache, **settings).dataset()


def _classes_of(
    prefixes: Sequence[str], object_storage: ObjectStorageSettings | None
) -> tuple[type[MegatronDataset], type[GPTDatasetConfig]]:
    """Returns (dataset class, config class) for the data; data with a column `roles` are conversations."""
    has_roles = [exists(column_path(prefix_of(prefix), "roles"), settings=object_storage) for prefix in prefixes]
    if not any(has_roles):
        return GPTDataset, GPTDatasetConfig
    if not all(has_roles):
        chat, other = prefixes[has_roles.index(True)], prefixes[has_roles.index(False)]
        message = f"a blend cannot mix conversations (`{chat}`) with other data (`{other}`)"
        raise ConfigError(message, hint="load them separately, or make them sources of a run")
    from tokenloom.datasets.chat_config import SFTDatasetConfig
    from tokenloom.datasets.conversations import SFTDataset

    return SFTDataset, SFTDatasetConfig


def _check_names(settings: Mapping[str, Any], config_class: type[GPTDatasetConfig]) -> None:
    known = {each.name for each in fields(config_class) if each.init}
    for name in settings:
        if name in known and name not in _OTHER_NAMES:
            continue
        message = f"`{name}` is not a setting of `load` or `{config_class.__name__}`"
        near = difflib.get_close_matches(name, known - set(_OTHER_NAMES), n=1)
        raise ConfigError(message, hint=_OTHER_NAMES.get(name) or (f"did you mean `{near[0]}`?" if near else None))


def tokenizer_of_data(
    tokenizer: Any, prefixes: Sequence[str], object_storage: ObjectStorageSettings | None = None
) -> Any:
    """Returns `tokenizer` as an object; if None, the tokenizer that the first manifest beside the data names."""
    if tokenizer is not None:
        return as_tokenizer(tokenizer)
    hint = 'pass the tokenizer of the data, such as `tokenizer="tokenizer.json"`'
    for prefix in prefixes:
        pair = IndexedDataset(prefix_of(prefix), object_storage=object_storage, mmap=not is_remote(prefix))
        if (head := manifest_head_of(pair)) is None:
            continue
        try:
            return recorded_tokenizer(head.tokenizer, prefix=pair.path_prefix)
        except TokenizerError as error:
            raise TokenizerError(f"no `tokenizer` given, and {error.message}", hint=hint) from error
    raise TokenizerError(f"no `tokenizer` given, and no manifest beside `{prefixes[0]}` names a tokenizer", hint=hint)
