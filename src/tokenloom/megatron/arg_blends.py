"""Which data the reference's arguments name: `--data-path`, one for each split, or files that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.datasets.blends import Blend
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.utils import get_blend_from_list
from tokenloom.megatron.sample_counts import argument_values
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.resolve import map_whole

Blends = tuple[Blend | None, list[Blend | None] | None]

_SPLITS = tuple(split.name for split in Split)
_OF_SPLITS = tuple(f"{split}_data_path" for split in _SPLITS)


def get_blend_and_blend_per_split(args: Any) -> Blends:
    """Returns what `blend` and `blend_per_split` of a configuration are, one of them None, or both for made-up data.

    The reference's function of this name. Files may lie in object storage.

    Args:
        args: the trainer's arguments.

    Raises:
        ConfigError: the arguments name data in several ways, or a file does not hold what it should.
        StorageError: a file cannot be read.
    """
    values = argument_values(args)
    ways = {
        "--data-path": values.get("data_path") is not None,
        "--data-args-path": values.get("data_args_path") is not None,
        "--train-data-path, --valid-data-path, --test-data-path": any(
            values.get(each) is not None for each in _OF_SPLITS
        ),
        "--per-split-data-args-path": values.get("per_split_data_args_path") is not None,
        "--mock-data": bool(values.get("mock_data")),
    }
    named = [way for way, is_named in ways.items() if is_named]
    if len(named) > 1:
        message = f"expected data to be named in one way, found {' and '.join(named)}"
        raise ConfigError(message)
    if values.get("data_args_path") is not None:
        return get_blend_from_list(_read(values["data_args_path"]).split()), None
    if values.get("data_path") is not None:
        return get_blend_from_list(values["data_path"]), None
    if values.get("per_split_data_args_path") is not None:
        return None, _blends_of_file(values["per_split_data_args_path"])
    if any(values.get(each) is not None for each in _OF_SPLITS):
        return None, [get_blend_from_list(values.get(each)) for each in _OF_SPLITS]
    return None, None


def sequences_from_args(args: Any) -> dict[str, list[int]] | None:
    """Returns the counts that `--per-dataset-sequences-path` names; None where it names no file.

    Raises:
        ConfigError: the file does not hold them.
        StorageError: it cannot be read.
    """
    path = argument_values(args).get("per_dataset_sequences_path")
    if path is None:
        return None
    counts = _read_json(path)
    for prefix, pair in counts.items():
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(number) is int for number in pair):
            message = f"`{path}`: expected two counts for `{prefix}`, found {pair!r}"
            raise ConfigError(message, hint="`tokenloom sequences-per-dataset` writes such a file")
    return counts


def _blends_of_file(path: str) -> list[Blend | None]:
    entries = _read_json(path)
    if missing := [split for split in _SPLITS if split not in entries]:
        message = f"`{path}`: expected the keys {', '.join(_SPLITS)}, found no {' and no '.join(missing)}"
        raise ConfigError(message, hint="null says that a split has no data")
    given = [entries[split] for split in _SPLITS]
    return [get_blend_from_list(each.split() if isinstance(each, str) else each) for each in given]


def _read_json(path: str) -> dict[str, Any]:
    try:
        value = parse_json(_read(path))
    except UnusableJsonError as error:
        message = f"`{path}` is not JSON: {error}"
        raise ConfigError(message) from error
    if not isinstance(value, Mapping):
        message = f"`{path}`: expected an object, found {type(value).__name__}"
        raise ConfigError(message)
    return dict(value)


def _read(path: str) -> str:
    try:
        return map_whole(path).tobytes().decode()
    except UnicodeDecodeError as error:
        message = f"`{path}` is no text in UTF-8: {error}"
        raise ConfigError(message) from error
