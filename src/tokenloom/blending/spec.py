"""Parses blends that users write as lists, files, globs and directories."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from tokenloom.datasets.blends import (
    Blend,
    BlendLike,
    checked_blend,
    flat_entries,
    parse_alternating,
    warn_of_duplicates,
    weight_of,
)
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.indexed.catalogue import catalogue_path
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path, prefix_of
from tokenloom.indexed.prefixes import check_mixture, prefixes_matching
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.resolve import names_in
from tokenloom.storage.secrets import admit

StrPath = str | os.PathLike[str]

_PAIR = "a pair is two files, PREFIX.bin and PREFIX.idx"


class BlendSettings(TypedDict):
    """The result of `parse_blend`: exactly one of the config settings `blend` and `blend_per_split`."""

    blend: NotRequired[Blend]
    blend_per_split: NotRequired[list[Blend | None]]


def parse_blend(
    entries: BlendLike | None = None,
    *,
    per_split: StrPath | Mapping[str, Sequence[Any] | None] | None = None,
    args_file: StrPath | None = None,
) -> BlendSettings:
    """Parses a blend and checks that all its pairs exist; pass exactly one argument.

    An entry is a prefix, with or without `.bin` or `.idx`; a glob such as `data/*_document` (`**` for any depth); or a
    directory, which stands for the pairs directly in it. A glob or directory expands to pairs in sorted order, which
    share the weight of the entry in proportion to their tokens. A pair takes precedence over a directory of the same
    name. In object storage, a directory must end with a slash (`s3://bucket/data/`), and only the last part of an
    address may be a glob.

    Example:
        >>> import os, tempfile
        >>> from tokenloom import IndexedDatasetBuilder
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("books", "web_0", "web_1"):
        ...     builder = IndexedDatasetBuilder(os.path.join(folder, f"{name}.bin"))
        ...     builder.add_document([1] * 30, [30])
        ...     builder.finalize(os.path.join(folder, f"{name}.idx"))
        >>> prefixes, weights = parse_blend(["40", f"{folder}/books", "60", f"{folder}/web_*"])["blend"]
        >>> [os.path.basename(prefix) for prefix in prefixes], weights
        (['books', 'web_0', 'web_1'], [40.0, 30.0, 30.0])

        Pass the result to a config: `GPTDatasetConfig(..., **parse_blend([...]))`.

    Args:
        entries: one entry, a list of entries, a list of alternating weights and entries, [[weight, entry], …],
            {entry: weight}, or (entries, weights or None); see `get_blend_from_list`.
        per_split: {"train": entries, "valid": entries, "test": entries}, or the path of a JSON file with such an
            object; a split without data is None or absent.
        args_file: path of a text file with entries separated by whitespace.

    Raises:
        ConfigError: entries are inconsistent or a weight is invalid; the message quotes the entry.
        DatasetNotFoundError: no pair exists for an entry.
    """
    if sum(each is None for each in (entries, per_split, args_file)) != 2:
        raise ConfigError("pass exactly one of `entries`, `per_split` and `args_file`")
    if per_split is not None:
        return {"blend_per_split": _parse_per_split(per_split)}
    where = "the blend"
    if args_file is not None:
        where = f"`{os.fspath(args_file)}`"
        entries = _read_text(args_file).split()
    assert entries is not None
    blend = _parse_entries(entries, where)
    warn_of_duplicates([(where, blend)], same=_real_path, again=True)
    return {"blend": blend}


def get_blend_from_list(blend: Sequence[Any] | None) -> Blend | None:
    """Parses a flat list into (prefixes, weights or None), by the reference's rules; returns None for None.

    A list of odd length contains prefixes only. In a list of even length, weights and prefixes alternate if all of the
    first, third, fifth, … entries are numbers; if none of these is a number, the list contains prefixes only. The form
    `[[weight, prefix], …]` is accepted too. A weight is a number or plain text such as "0.3", "70" or "1e-3"; other
    Python spellings ("1_000", "nan", digits of other scripts) raise, as they are ambiguous.

    Example:
        >>> get_blend_from_list(["30", "books", "70", "web"])
        (['books', 'web'], [30.0, 70.0])
        >>> get_blend_from_list(["books", "web"])
        (['books', 'web'], None)
        >>> get_blend_from_list([[0.3, "books"], [0.7, "web"]])
        (['books', 'web'], [0.3, 0.7])

    Raises:
        ConfigError: only some of the first, third, … entries are numbers, or a weight is not finite and above 0.
    """
    return None if blend is None else parse_alternating(flat_entries(blend, "the blend"), "the blend")


def _parse_per_split(source: StrPath | Mapping[str, Sequence[Any] | None]) -> list[Blend | None]:
    where = "the entries per split"
    if isinstance(source, (str, os.PathLike)):
        where = f"`{os.fspath(source)}`"
        try:
            source = parse_json(_read_text(source))
        except UnusableJsonError as error:
            raise ConfigError(f"{where}: invalid JSON: {error}") from error
    names = [split.name for split in Split]
    if not isinstance(source, Mapping) or not set(source) <= set(names):
        found = sorted(set(source) - set(names)) if isinstance(source, Mapping) else type(source).__name__
        raise ConfigError(f"{where}: must be a mapping with keys among {', '.join(names)}, got {found!r}")
    blends: list[Blend | None] = []
    for name in names:
        if (entries := source.get(name)) is None:
            blends.append(None)
            continue
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            raise ConfigError(f"{name} of {where}: must be a list, got {entries!r}")
        blends.append(_parse_entries(entries, f"{name} of {where}"))
    if not any(blends):
        raise ConfigError(f"{where}: must have entries for at least one split")
    named = [(name, blend) for name, blend in zip(names, blends, strict=True) if blend is not None]
    warn_of_duplicates(named, same=_real_path, again=True)
    return blends


def _read_text(path: StrPath) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read `{os.fspath(path)}`: {error}") from error


def _parse_entries(given: Any, where: str) -> Blend:
    written, shared = checked_blend(given, where)
    prefixes: list[str] = []
    weights: list[float] = []
    for number, entry in enumerate(written):
        found = _expand(entry, written, where, is_weighted=shared is not None)
        prefixes += found
        if shared is not None:
            weights += _divide(shared[number], found, entry)
    _check_halves(written)
    return prefixes, None if shared is None else weights


def _expand(entry: str, entries: Sequence[str], where: str, *, is_weighted: bool) -> list[str]:
    entry = admit(entry)
    prefix = prefix_of(entry)
    if is_remote(entry) and entry.endswith("/"):
        return _pairs_in(entry)
    if not (is_remote(entry) and glob.has_magic(entry)) and IndexedDataset.exists(prefix):
        return [prefix]
    if os.path.isdir(entry):
        return _pairs_in(entry)
    if glob.has_magic(entry):
        found = _matches(entry)
        if not found:
            raise DatasetNotFoundError(f"{entry!r} in {where} matches no pair", hint=_PAIR)
        for pair in found:
            _check_pair(pair, f"{entry!r} matches `{pair}`")
        return found
    hint = None
    if not is_weighted and any(weight_of(text, row, where) is not None for row, text in enumerate(entries)):
        hint = f"{where} has {len(entries)} entries: alternate weights and prefixes, and begin with a weight"
    elif not is_remote(entry) and os.path.isfile(entry) and prefix == entry:
        hint = "tokenize the file with `tokenloom preprocess` or `preprocess_corpus`, and pass the prefix of the output"
    _check_pair(prefix, f"{entry!r} in {where}", hint=hint)
    return [prefix]


def _matches(entry: str) -> list[str]:
    found = prefixes_matching(entry)
    if found or is_remote(entry):
        return found
    folders = sorted(path for path in glob.glob(entry, recursive=True) if os.path.isdir(path))
    return [pair for folder in folders for pair in _pairs_in(folder)]


def _pairs_in(folder: str) -> list[str]:
    files = names_in(folder)
    names = sorted({prefix_of(name) for name in files if name.endswith((".bin", ".idx"))})
    if not names:
        raise DatasetNotFoundError(f"the directory `{folder}` contains no pair", hint=_PAIR)
    catalogues = [name for name in names if catalogue_path(name) in files and bin_path(name) not in files]
    check_mixture(f"the directory `{folder}`", names, catalogues)
    pairs = [os.path.join(folder, name) for name in names]
    for pair in pairs:
        _check_pair(pair, f"the directory `{folder}`")
    return pairs


def _check_pair(prefix: str, where: str, *, hint: str | None = None) -> None:
    if IndexedDataset.exists(prefix):
        return
    try:
        IndexedDataset(prefix, mmap=False)
    except DatasetNotFoundError as error:
        raise DatasetNotFoundError(f"{where}: {error.message}", hint=hint or error.hint) from None


def _divide(weight: float, prefixes: Sequence[str], entry: str) -> list[float]:
    """Divides the weight of an entry among its prefixes, in proportion to tokens."""
    if len(prefixes) == 1:
        return [weight]
    tokens = [IndexedDataset(prefix, mmap=False).num_tokens for prefix in prefixes]
    for prefix, count in zip(prefixes, tokens, strict=True):
        if count == 0:
            message = f"`{prefix}` of {entry!r} has no tokens, so it gets no part of the weight {weight!r}"
            raise ConfigError(message, hint="remove the pair, or list the other pairs instead of a glob or directory")
    total = sum(tokens)
    return [weight * count / total for count in tokens]


def _real_path(prefix: str) -> str:
    """Returns the path with links resolved, so that all names of the same data have one path."""
    return prefix if is_remote(prefix) else os.path.realpath(bin_path(prefix))


def _check_halves(written: Sequence[str]) -> None:
    """Raises if both files of a pair are listed, for example because the shell expanded a glob."""
    for entry in written:
        if entry.endswith(".bin") and idx_path(prefix_of(entry)) in written:
            message = f"the blend lists both files of one pair: `{entry}` and `{idx_path(prefix_of(entry))}`"
            raise ConfigError(message, hint="quote the glob, so that the shell does not expand it")
