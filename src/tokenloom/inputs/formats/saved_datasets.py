"""Datasets that Hugging Face `datasets` saved on disk: which Arrow files they are made of, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tokenloom.errors import ConfigError, InputError
from tokenloom.storage.json_files import parse_json

_STATE = "state.json"
_SPLITS = "dataset_dict.json"


def saved_files(folder: str, names: Iterable[str], read: Callable[[str], bytes]) -> list[str] | None:
    """Returns the files of a saved dataset, in its order; None if a folder holds none.

    Args:
        folder: its path or address, without a slash at the end.
        names: names of the files right in it.
        read: returns the bytes of a file.

    Raises:
        ConfigError: it holds several splits.
        InputError: it is incomplete, or its rows are chosen by indices.
    """
    found = set(names)
    if _SPLITS in found:
        splits = _json(f"{folder}/{_SPLITS}", read).get("splits") or []
        message = (
            f"expected one split, found the saved dataset `{folder}` with the splits {', '.join(splits) or 'none'}"
        )
        raise ConfigError(
            message, hint="name the folder of each: " + ", ".join(f"`{folder}/{each}`" for each in splits)
        )
    if _STATE not in found:
        return None
    state = _json(f"{folder}/{_STATE}", read)
    if "_data_files" not in state:
        return None  # somebody else's
    if state.get("_indices_data_files"):
        message = f"the rows of the saved dataset `{folder}` are chosen by indices, which are not applied"
        raise InputError(message, hint="save it anew: `dataset.flatten_indices().save_to_disk(...)`")
    files = [each["filename"] for each in state["_data_files"]]
    if missing := [name for name in files if name not in found]:
        message = (
            f"the saved dataset `{folder}` lacks {len(missing)} of its {len(files)} files, the first is {missing[0]!r}"
        )
        raise InputError(message)
    return files


def _json(path: str, read: Callable[[str], bytes]) -> dict[str, Any]:
    try:
        value = parse_json(read(path))
    except ValueError as error:
        message = f"`{path}` is not JSON: {error}"
        raise InputError(message) from error
    if not isinstance(value, dict):
        message = f"`{path}`: expected an object, found {type(value).__name__}"
        raise InputError(message)
    return value
