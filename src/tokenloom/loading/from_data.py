"""A dataset in one call: whatever names data, with defaults for the rest."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.plan import sizes_read_once
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
    "random_seed": "write `seed`",
    "blend": "the first argument names the data",
    "blend_per_split": "call `load` for each split, or use `BlendedMegatronDatasetBuilder`",
    "weights": "write {prefix: weight} as the first argument",
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
    """Returns the samples of tokenized data as a dataset, in one call.

    What they are, the data say: a `GPTDataset`, a `BlendedDataset` where several are named, an `SFTDataset` (or a
    blend of those) of conversations, which `preprocess_chat` makes, and a `RunDataset` of a `run.toml`. Under
    `torch.distributed`, all ranks have to call this.

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
        data: what to read, here or in a bucket. A prefix (the path of a pair without `.bin` or `.idx`), a glob, a
            folder or a catalogue; a list of those; weights as {prefix: weight}, or as a list of (weight, prefix), or
            as (prefixes, weights). Or the path of a `run.toml`, which says all else itself.
        sequence_length: tokens of a sample.
        tokenizer: the tokenizer that made the data, as `load_tokenizer` takes it, or any object with what datasets ask
            of one. None for the one that the manifest of the data names, if it is still there.
        split: weights of train, valid and test, such as "99,1,0" or (99, 1, 0): then three datasets are returned, None
            for those without data. None for one dataset of all documents.
        seed: seed of the shuffles.
        num_samples: samples wanted at least, in as many epochs as that takes; None for one epoch, of a blend by
            weights until a dataset would be read twice. With `split` of train, or (train, valid, test).
        path_to_cache: folder of the index cache, or the address of one in a bucket; None for beside the data.
        settings: what else `GPTDatasetConfig` takes, or `SFTDatasetConfig` of conversations. A blend takes further
            epochs of what it reads most, unless `extend_short_datasets=False`.

    Raises:
        DatasetNotFoundError: there are no such data.
        TokenizerError: no tokenizer is named and the manifest's is not there; or another one made the data.
        DatasetFormatError, BuildError, IndexCacheError: as `BlendedMegatronDatasetBuilder.build` raises them.
    """
    if isinstance(data, (str, os.PathLike)) and os.fspath(data).endswith(".toml"):
        given = {"sequence_length": sequence_length, "split": split, "num_samples": num_samples}
        given["seed"] = None if seed == _SEED else seed
        return _of_run(os.fspath(data), tokenizer, path_to_cache, {**given, **settings})
    if sequence_length is None:
        near = difflib.get_close_matches("sequence_length", settings, n=1)
        message = f"expected `sequence_length`, found {f'`{near[0]}`' if near else 'none'}"
        raise ConfigError(message, hint="the tokens of a sample, such as `sequence_length=4096`")
    if data is None:
        message = "expected data, found None"
        raise ConfigError(message, hint='such as "corpus_text_document", a list of prefixes, or {prefix: weight}')
    blend = parse_blend(data)["blend"]
    object_storage = settings.get("object_storage")
    dataset_class, config_class = _classes_of(blend[0], object_storage)
    _check_names(settings, config_class)
    if isinstance(num_samples, (list, tuple)) and split is None:
        message = f"expected an integer as `num_samples` without `split`, found {num_samples!r}"
        raise ConfigError(message, hint='name the shares of train, valid and test, such as `split="98,1,1"`')
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
    if None in sizes and blend[1] is not None and dataset_class is GPTDataset:  # no size of a blend may be left open
        sizes = [once if size is None else size for size, once in zip(sizes, sizes_read_once(config), strict=True)]
    datasets = BlendedMegatronDatasetBuilder(dataset_class, sizes, lambda: True, config).build()
    return datasets[Split.train.value] if split is None else datasets


def _of_run(path: str, tokenizer: Any, path_to_cache: Any, given: Mapping[str, Any]) -> Any:
    """Returns the dataset of a run, which says itself what else is given."""
    from tokenloom.run.run import Run

    reading = ("mmap", "object_storage", "allow_tokenizer_mismatch", "allow_data_mismatch")
    for name, value in given.items():
        if value is not None and name not in reading:
            message = f"expected no `{name}` beside a run, which says it itself, found {value!r}"
            raise ConfigError(message, hint=f"change it in `{path}`")
    settings = {name: value for name, value in given.items() if value is not None}
    if tokenizer is not None:
        settings["tokenizer"] = as_tokenizer(tokenizer)
    return Run.open(path, path_to_cache=path_to_cache, **settings).dataset()


def _classes_of(
    prefixes: Sequence[str], object_storage: ObjectStorageSettings | None
) -> tuple[type[MegatronDataset], type[GPTDatasetConfig]]:
    """Returns the class of dataset and settings for data: conversations are told by the roles beside them."""
    has_roles = [exists(column_path(prefix_of(prefix), "roles"), settings=object_storage) for prefix in prefixes]
    if not any(has_roles):
        return GPTDataset, GPTDatasetConfig
    if not all(has_roles):
        chat, other = prefixes[has_roles.index(True)], prefixes[has_roles.index(False)]
        message = f"expected conversations, or none, in a blend, found conversations in `{chat}` and none in `{other}`"
        raise ConfigError(message, hint="load them apart; a run may read both")
    from tokenloom.datasets.chat_config import SFTDatasetConfig
    from tokenloom.datasets.conversations import SFTDataset  # which know how conversations are tokenized

    return SFTDataset, SFTDatasetConfig


def _check_names(settings: Mapping[str, Any], config_class: type[GPTDatasetConfig]) -> None:
    known = {each.name for each in fields(config_class) if each.init}
    for name in settings:
        if name in known and name not in _OTHER_NAMES:
            continue
        message = f"expected settings of `load` or `{config_class.__name__}`, found `{name}`"
        near = difflib.get_close_matches(name, known - set(_OTHER_NAMES), n=1)
        raise ConfigError(message, hint=_OTHER_NAMES.get(name) or (f"did you mean `{near[0]}`?" if near else None))


def tokenizer_of_data(
    tokenizer: Any, prefixes: Sequence[str], object_storage: ObjectStorageSettings | None = None
) -> Any:
    """Returns the tokenizer that is named, else that of the first manifest."""
    if tokenizer is not None:
        return as_tokenizer(tokenizer)
    hint = 'name the tokenizer that made the data, such as `tokenizer="tokenizer.json"`'
    for prefix in prefixes:
        pair = IndexedDataset(prefix_of(prefix), object_storage=object_storage, mmap=not is_remote(prefix))
        if (head := manifest_head_of(pair)) is None:
            continue
        try:
            return recorded_tokenizer(head.tokenizer, prefix=pair.path_prefix)
        except TokenizerError as error:
            message = f"expected `tokenizer`, found none, and {error.message}"
            raise TokenizerError(message, hint=hint) from error
    message = f"expected `tokenizer`, found none, and no manifest beside `{prefixes[0]}` that names one"
    raise TokenizerError(message, hint=hint)
