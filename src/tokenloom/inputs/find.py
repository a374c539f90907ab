"""From what users name (files, globs, folders, prefixes of object stores, lists, standard input) to input files."""

from __future__ import annotations

import glob
import logging
import os
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tokenloom.errors import ConfigError, InputError, MissingObjectError
from tokenloom.inputs import STDIN, InputFile
from tokenloom.inputs.detect import check_format, formats_by_name, inspect_input, split_suffix
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.patterns import is_pattern, literal_folder, matches
from tokenloom.storage.addresses import ObjectVersion, is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import did_you_mean, objects_below, read_start, size_of
from tokenloom.storage.secrets import admit, redacted

_LOGGER = logging.getLogger(__name__)
_NUM_THREADS = 16
"""Threads that open files at the same time: each costs a few round trips where files are far away."""

_METADATA_SUFFIX = ".json"
"""Suffix of files that say something about the data, in folders of other formats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInputs:
    """The files of a corpus.

    Attributes:
        files: the files in the order of what the user named; within a folder, a glob or a prefix by their paths as
            strings, within a dataset that `datasets` saved by its own list.
        ignored: paths of files in folders that are no input, sorted.
    """

    files: tuple[InputFile, ...]
    ignored: tuple[str, ...]


def find_inputs(
    names: Sequence[str], *, input_format: str | None = None, suffixes: Sequence[str] | None = None
) -> FoundInputs:
    """Returns the files that names stand for, with what each is.

    A name is a file; a folder, taken with all folders in it; a glob (`**` for any folders); the same of object storage
    (`s3://bucket/key`, `s3://bucket/folder/`, `s3://bucket/folder/*.jsonl`) or of the Hugging Face hub
    (`hf://datasets/org/name`); `@PATH`, a file with such names, one a line, those of files relative to the current
    folder; or `-`, standard input. Folders, and files in folders, whose names begin with a dot are left out. What
    exists under its very name is not taken for a glob. A link in a folder to a file that is read anyhow is skipped; a
    warning says how many.

    Args:
        names: names, at least one.
        input_format: format of all files; None to tell that of each. Text is never told: a document may be a line or a
            file.
        suffixes: suffixes of the files in a folder that are input, whatever their compression; None for those of the
            format. An empty one is any.

    Raises:
        ConfigError: a format is unknown or cannot be told, or a folder mixes several; a file is named twice.
        InputError: there are no files, or a saved dataset is incomplete.
        StorageError: something cannot be opened or listed.
    """
    check_format(input_format)
    finder = _Finder(input_format=input_format, suffixes=None if suffixes is None else tuple(suffixes))
    for name in names:
        finder.add(name)
    finder.skip_links()
    _refuse_duplicates(finder.paths)
    if not finder.paths:
        listed = ", ".join(f"`{redacted(name)}`" for name in names) or "nothing"
        what = "input files" if input_format is None else f"files of {input_format}"
        message = f"expected {what}, found none in {listed}; {_described(finder.ignored)}"
        raise InputError(message, hint="name the format, or the suffixes of the files")
    with ThreadPoolExecutor(min(_NUM_THREADS, len(finder.paths))) as executor:
        files = tuple(executor.map(finder.inspect, finder.paths))
    return FoundInputs(files=files, ignored=tuple(sorted(finder.ignored)))


def _described(ignored: Sequence[str]) -> str:
    if not ignored:
        return "no other files either"
    more = ", ..." if len(ignored) > 3 else ""
    return f"{len(ignored)} other files: {', '.join(f'`{path}`' for path in sorted(ignored)[:3])}{more}"


def _place_of(path: str) -> str:
    return path if is_remote(path) or path == STDIN else os.path.realpath(path)


def _refuse_duplicates(paths: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for path in paths:
        place = _place_of(path)
        if place in seen:
            also = "" if seen[place] == path else f", as `{seen[place]}` too"
            message = f"`{path}` is named twice{also}"
            raise ConfigError(message, hint="a corpus is read once; give datasets weights in the blend instead")
        seen[place] = path


@dataclass(slots=True, kw_only=True)
class _Finder:
    """Collects paths; `versions` of objects that a listing told, `met` are those that nobody named one by one."""

    input_format: str | None
    suffixes: tuple[str, ...] | None
    paths: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    met: set[str] = field(default_factory=set)
    versions: dict[str, ObjectVersion] = field(default_factory=dict)

    def inspect(self, path: str) -> InputFile:
        """Returns what a file is."""
        return inspect_input(path, input_format=self.input_format, version=self.versions.get(path))

    def skip_links(self) -> None:
        """Leaves out further ways to a file, of which one that is no link is kept, else the first."""
        by_place: dict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            by_place[_place_of(path)].append(path)
        skipped = set()
        for ways in by_place.values():
            kept = min(dict.fromkeys(ways), key=lambda path: (path in self.met, os.path.islink(path)))
            skipped |= {path for path in ways if path != kept and path in self.met}
        if skipped:
            self.paths = [path for path in self.paths if path not in skipped]
            self.ignored += skipped
            _LOGGER.warning("skipped %d links to files that are read anyhow, such as `%s`", len(skipped), min(skipped))

    def add(self, name: str, *, is_listed: bool = False) -> None:
        """Adds the files that a name stands for."""
        if name == STDIN:
            self.paths.append(name)
        elif name.startswith("@") and not is_listed:
            for each in _names_in_list(admit(name[1:])):
                self.add(each, is_listed=True)
        elif is_remote(name):
            self._add_remote(admit(name))
        elif os.path.isdir(name):
            self._add_folder(name.rstrip("/") or "/", _walk(name.rstrip("/") or "/"))
        elif is_pattern(name) and not os.path.lexists(name):
            self._add_matches(name)
        else:
            self.paths.append(name)

    def _add_matches(self, pattern: str) -> None:
        found = sorted(glob.glob(pattern, recursive=True))
        if not found:
            raise _no_match(pattern)
        for path in found:
            if not os.path.isdir(path):
                self.paths.append(path)
                self.met.add(path)
            elif "**" not in pattern:  # else its files match by themselves
                self.add(path)

    def _add_remote(self, name: str) -> None:
        if name.endswith("/"):
            self._add_prefix(name)
        elif is_pattern(name):
            versions = objects_below(literal_folder(name))
            found = [path for path in versions if matches(path, name)]
            if not found:
                raise _no_match(name)
            self.versions.update(versions)
            self.paths += found
        else:
            try:
                self.versions[name] = RemoteFile(name).version
            except MissingObjectError:
                if name.startswith("http") or not self._add_prefix(name + "/"):
                    raise
            else:
                self.paths.append(name)

    def _add_prefix(self, name: str) -> bool:
        versions = objects_below(name)
        self.versions.update(versions)
        self._add_folder(name.rstrip("/"), list(versions))
        return bool(versions)

    def _add_folder(self, folder: str, paths: Sequence[str]) -> None:
        """Adds the input files out of all files in a folder."""
        chosen: list[tuple[str, int, str]] = []  # the path that tells the place, the number there, the path
        for parent, members in _by_parent(paths).items():
            saved = self._saved_files(parent, [posixpath.basename(path) for path in members])
            for path in members:
                if saved is not None and posixpath.basename(path) in saved:
                    chosen.append((f"{parent}/", saved.index(posixpath.basename(path)), path))
                elif saved is None and not _is_hidden(path[len(folder) :]) and self._is_input(path):
                    chosen.append((path, 0, path))
                else:
                    self.ignored.append(path)
        formats = {formats_by_name(path)[0] for *_, path in chosen if formats_by_name(path)}
        if self.input_format is None and len(formats) > 1:
            message = f"expected files of one format in `{folder}`, found {' and '.join(sorted(formats))}"
            raise ConfigError(message, hint="name the format, or the files")
        self.paths += [path for *_, path in sorted(chosen)]
        self.met.update(path for *_, path in chosen)

    def _saved_files(self, folder: str, names: Sequence[str]) -> Sequence[str] | None:
        """Returns the input files of a folder that says itself which these are; else None."""
        if self.suffixes is not None:
            return None
        formats = FORMATS if self.input_format is None else (self.input_format,)
        found = (FORMATS[name].saved_files(folder, names, _read) for name in formats)
        return next((files for files in found if files is not None), None)

    def _is_input(self, path: str) -> bool:
        stem = split_suffix(path)[0]
        if self.suffixes is not None:
            return stem.endswith(self.suffixes) or path.endswith(self.suffixes)
        formats = formats_by_name(path)
        if self.input_format is None:
            return len(formats) == 1 and not stem.endswith(_METADATA_SUFFIX)
        return self.input_format in formats or (not formats and FORMATS[self.input_format].takes_any_name)


def _no_match(pattern: str) -> InputError:
    return InputError(f"no file matches `{pattern}`", hint=did_you_mean(pattern))


def _by_parent(paths: Iterable[str]) -> dict[str, list[str]]:
    parents: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        parents[posixpath.dirname(path)].append(path)
    return parents


def _is_hidden(below: str) -> bool:
    return "/." in below


def _read(path: str) -> bytes:
    return read_start(path, size_of(path))


def _names_in_list(path: str) -> list[str]:
    try:
        text = _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the list `{path}` is not UTF-8: {error}"
        raise InputError(message) from error
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]


def _walk(folder: str) -> list[str]:
    """Returns the files in a folder and the folders in it, links followed; folders that are hidden are one entry."""
    found: list[str] = []
    _walk_into(folder, (), found)
    return found


def _walk_into(folder: str, above: tuple[tuple[int, int], ...], found: list[str]) -> None:
    with storage_errors("list", folder):
        status = os.stat(folder)
        place = (status.st_dev, status.st_ino)
        if place in above:
            message = f"the links in `{folder}` lead in a circle"
            raise InputError(message)
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    for entry in entries:
        path = f"{folder.rstrip('/')}/{entry.name}"
        if entry.is_dir() and not entry.name.startswith("."):
            _walk_into(path, (*above, place), found)
        else:
            found.append(path)
