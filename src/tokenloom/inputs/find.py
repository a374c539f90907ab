"""Finds input files by name (paths, globs, folders, object store prefixes, lists, stdin) and cuts them into shards."""

from __future__ import annotations

import fnmatch
import glob
import itertools
import logging
import os
import posixpath
import re
import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

from tokenloom.errors import ConfigError, InputError, MissingObjectError, StorageError
from tokenloom.inputs import STDIN, InputFile, InputSlice
from tokenloom.inputs.codecs import MAGIC_BYTES, compression_by_suffix, compression_of
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.streams import version_of
from tokenloom.storage.addresses import ObjectVersion, is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import did_you_mean, objects_below, read_start, size_of
from tokenloom.storage.secrets import admit, redacted

_LOGGER = logging.getLogger(__name__)

Shard = tuple[InputSlice, ...]

_NUM_THREADS = 16
"""Number of threads that open files: opening a remote file takes several round trips."""

_MOST_FOLDERS_DEEP = 32


def split_suffix(path: str) -> tuple[str, str]:
    """Returns a path without its compression suffix, and the name of the compression.

    Example:
        >>> split_suffix("a/part-0.jsonl.gz")
        ('a/part-0.jsonl', 'gzip')
    """
    stem, suffix = os.path.splitext(path)
    compression = compression_by_suffix(suffix)
    return (path if compression == "none" else stem), compression


def formats_by_name(path: str) -> tuple[str, ...]:
    """Returns the formats of files with the suffix of `path`; empty if the suffix is unknown."""
    suffix = os.path.splitext(split_suffix(path)[0])[1].lower()
    return tuple(name for name, found in FORMATS.items() if suffix in found.suffixes)


def inspect_input(
    path: str,
    *,
    input_format: str | None = None,
    default_format: str | None = None,
    version: ObjectVersion | None = None,
) -> InputFile:
    """Returns the `InputFile` for a path, an address in object storage, or `-`.

    Detects format and compression by the name, else by the first bytes. A suffix shared by several formats (`.txt`)
    needs `input_format`. Standard input and pipes are JSON lines by default. Raises `ConfigError` if the format cannot
    be detected and `default_format` is None, or if the file is compressed in addition to the format's own compression.
    """
    if not is_remote(path) and (stream := _stream(path, input_format)) is not None:
        return stream
    compression = split_suffix(path)[1]
    names = formats_by_name(path)
    chosen = input_format or (names[0] if len(names) == 1 else None)
    is_known = compression != "none" or (chosen is not None and FORMATS[chosen].compresses_inside)
    num_bytes, change, head = _size_version_head(path, version, with_head=not is_known)
    if chosen is None:
        by_head = (name for name, found in FORMATS.items() if head.startswith(found.magics))
        chosen = next(by_head, default_format)
    if chosen is None and names:
        hint = f"set `input_format` to {' or '.join(names)}"
        raise ConfigError(f"`{path}` is text: a document may be a line or the whole file", hint=hint)
    if chosen is None:
        hint = f"set `input_format` to one of {', '.join(FORMATS)}"
        raise ConfigError(f"cannot detect the format of `{path}` by its name or first bytes", hint=hint)
    if FORMATS[chosen].compresses_inside and compression != "none":
        message = f"`{path}` is compressed with {compression}: {FORMATS[chosen].title} has its own compression"
        raise ConfigError(message, hint="decompress the file")
    if not FORMATS[chosen].compresses_inside and compression == "none":
        compression = compression_of(head)
    return InputFile(path=path, format=chosen, compression=compression, num_bytes=num_bytes, version=change)


def _stream(path: str, input_format: str | None) -> InputFile | None:
    if path != STDIN:
        try:
            with storage_errors("open", path):
                mode = os.stat(path).st_mode
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise StorageError(error.message, hint=did_you_mean(path)) from error.__cause__
            raise
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            return None
    found = input_format or "jsonl"
    if FORMATS[found].begins_at_the_end:
        message = f"`{path}` is a pipe, and {FORMATS[found].title} cannot be read from a pipe"
        raise ConfigError(message, hint="save the data as a file first")
    return InputFile(path=path, format=found, compression="none", num_bytes=0, version="", is_stream=True)


def _size_version_head(path: str, version: ObjectVersion | None, *, with_head: bool) -> tuple[int, str, bytes]:
    if is_remote(path):
        remote = RemoteFile(path, version=version)
        head = remote.read(0, min(MAGIC_BYTES, remote.num_bytes)).tobytes() if with_head else b""
        return *version_of(remote.version), head
    with storage_errors("open", path), open(path, "rb", buffering=0) as file:  # an unreadable file fails here
        status = os.fstat(file.fileno())
        return status.st_size, str(status.st_mtime_ns), file.read(MAGIC_BYTES)


def cut_inputs(files: Sequence[InputFile], *, shard_bytes: int) -> tuple[Shard, ...]:
    """Cuts input files into shards, which together contain all records in order.

    The result depends only on `shard_bytes` and on the files: their order, formats, sizes and units (such as the row
    groups of Parquet). An uncompressed file of lines is cut into the fewest equal byte ranges of at most `shard_bytes`.
    Other files are cut between units, into slices of at most `shard_bytes` of decoded data; a larger unit is one slice.
    A shard has as many consecutive slices as fit into `shard_bytes` together. A stream is a shard of its own.
    """
    shards: list[Shard] = []
    current: list[InputSlice] = []
    num_bytes = 0
    for slice_, size in _slices(files, shard_bytes):
        if current and (num_bytes + size > shard_bytes or slice_.file.is_stream or current[-1].file.is_stream):
            shards.append(tuple(current))
            current, num_bytes = [], 0
        current.append(slice_)
        num_bytes += size
    if current:
        shards.append(tuple(current))
    return tuple(shards)


def whole_file(file: InputFile) -> InputSlice:
    """Returns the slice that covers a whole file."""
    return InputSlice(file=file, start=0, stop=file.num_bytes if file.is_cut_by_bytes else len(_unit_bytes(file)))


def _slices(files: Sequence[InputFile], shard_bytes: int) -> Iterator[tuple[InputSlice, int]]:
    with ThreadPoolExecutor(_NUM_THREADS) as executor:
        all_sizes = executor.map(_unit_bytes, [file for file in files if not file.is_cut_by_bytes])
    for file in files:
        if file.is_cut_by_bytes:
            parts = max(1, -(-file.num_bytes // shard_bytes))
            bounds = [file.num_bytes * number // parts for number in range(parts + 1)]
            for start, stop in itertools.pairwise(bounds):
                yield InputSlice(file=file, start=start, stop=stop), stop - start
            continue
        first = num_bytes = 0
        for number, size in enumerate(sizes := next(all_sizes)):
            if number > first and num_bytes + size > shard_bytes:
                yield InputSlice(file=file, start=first, stop=number), num_bytes
                first, num_bytes = number, 0
            num_bytes += size
        yield InputSlice(file=file, start=first, stop=len(sizes)), num_bytes


def _unit_bytes(file: InputFile) -> Sequence[int]:
    return FORMATS[file.format].unit_bytes(file)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInputs:
    """The input files of a corpus.

    Attributes:
        files: input files in the order of the given names. Files of a folder or glob are sorted by path; files of a
            dataset saved by the library `datasets` are in the order of the dataset.
        ignored: sorted paths of the other files in the searched folders.
    """

    files: tuple[InputFile, ...]
    ignored: tuple[str, ...]


def find_inputs(names: Sequence[str], *, input_format: str | None = None) -> FoundInputs:
    """Finds the input files for a list of names.

    A name is one of: a file; a folder, searched recursively; a glob, in which `**` matches any folders; a file, folder
    or glob in object storage (`s3://bucket/key`, `s3://bucket/folder/`, `s3://bucket/folder/*.jsonl`) or on the Hugging
    Face hub (`hf://datasets/org/name`); `@PATH`, a file with such names, one per line; or `-`, standard input. Paths in
    PATH are relative to the working directory. The search skips hidden files and folders. The name of an existing file
    is never a glob. If a search finds several paths of one file (links), only one path is used, with a warning.

    Args:
        names: one or more names.
        input_format: format of all files; None detects the format of each file, but plain text needs `input_format`.

    Raises:
        ConfigError: a format is unknown or cannot be detected, a folder mixes formats, or a file is named twice.
        InputError: no files were found, or a saved dataset is incomplete.
        StorageError: a file or folder cannot be opened or listed.
    """
    if input_format is not None and input_format not in FORMATS:
        raise ConfigError(f"`input_format`: must be one of {', '.join(FORMATS)}, got {input_format!r}")
    finder = _Finder(input_format=input_format)
    for name in names:
        finder.add(name)
    finder.drop_aliases()
    if not finder.paths:
        listed = ", ".join(f"`{redacted(name)}`" for name in names) or "an empty list"
        what = "input files" if input_format is None else f"files of the format {input_format}"
        ignored = [f"`{path}`" for path in sorted(finder.ignored)]
        shown = ", ".join(ignored[:3]) + (", ..." if len(ignored) > 3 else "")
        others = f"ignored {len(ignored)} other files: {shown}" if ignored else "no other files found"
        hint = "set `input_format`, for example to text-lines for `.txt` files"
        raise InputError(f"no {what} in {listed}; {others}", hint=hint)

    def inspect(path: str) -> InputFile:
        return inspect_input(path, input_format=input_format, version=finder.versions.get(path))

    with ThreadPoolExecutor(_NUM_THREADS) as executor:
        files = tuple(executor.map(inspect, finder.paths))
    return FoundInputs(files=files, ignored=tuple(sorted(finder.ignored)))


@dataclass(slots=True, kw_only=True)
class _Finder:
    """Collects input paths, and versions of objects in object storage; `found` has the paths that a search found."""

    input_format: str | None
    paths: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    found: set[str] = field(default_factory=set)
    versions: dict[str, ObjectVersion] = field(default_factory=dict)

    def drop_aliases(self) -> None:
        """Keeps one path per file: the path that the user named, else the first that is no link, else the first path.

        Drops the other paths; raises `ConfigError` if the user named several paths of a file, or a path occurs twice.
        """
        aliases: dict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            aliases[path if is_remote(path) or path == STDIN else os.path.realpath(path)].append(path)
        skipped = set()
        for paths in aliases.values():
            kept, *others = sorted(paths, key=lambda path: (path in self.found, os.path.islink(path)))
            for path in others:
                if path == kept or path not in self.found:
                    message = f"`{path}` is named twice" + ("" if path == kept else f", also as `{kept}`")
                    raise ConfigError(message, hint="pass each file once; to repeat data, set weights in the blend")
                skipped.add(path)
        if skipped:
            self.paths = [path for path in self.paths if path not in skipped]
            self.ignored += skipped
            _LOGGER.warning("skipped %d links to other input files, such as `%s`", len(skipped), min(skipped))

    def add(self, name: str, *, is_listed: bool = False) -> None:
        """Adds the files for a name; see `find_inputs`."""
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
                self.found.add(path)
            elif "**" not in pattern:  # `**` already matches the files in the folder
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
        """Adds the input files of a folder, sorted by path; `paths` lists all files of the folder."""
        chosen: list[tuple[str, int, str]] = []  # sort key, index within a saved dataset, path
        parents: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            parents[posixpath.dirname(path)].append(path)
        for parent, members in parents.items():
            saved = self._saved_files(parent, [posixpath.basename(path) for path in members])
            for path in members:
                if saved is not None and posixpath.basename(path) in saved:
                    chosen.append((f"{parent}/", saved.index(posixpath.basename(path)), path))
                elif saved is None and "/." not in path[len(folder) :] and self._is_input(path):
                    chosen.append((path, 0, path))
                else:
                    self.ignored.append(path)
        formats = {formats_by_name(path)[0] for *_, path in chosen if formats_by_name(path)}
        if self.input_format is None and len(formats) > 1:
            message = f"`{folder}` has files of several formats: {', '.join(sorted(formats))}"
            raise ConfigError(message, hint="set `input_format`, or pass the files instead of the folder")
        self.paths += [path for *_, path in sorted(chosen)]
        self.found.update(path for *_, path in chosen)

    def _saved_files(self, folder: str, names: Sequence[str]) -> Sequence[str] | None:
        formats = FORMATS if self.input_format is None else (self.input_format,)
        found = (FORMATS[name].saved_files(folder, names, _read) for name in formats)
        return next((files for files in found if files is not None), None)

    def _is_input(self, path: str) -> bool:
        formats = formats_by_name(path)
        if self.input_format is None:
            return len(formats) == 1 and not split_suffix(path)[0].endswith(".json")  # `.json` is usually metadata
        return self.input_format in formats or (not formats and FORMATS[self.input_format].takes_any_name)


def _no_match(pattern: str) -> InputError:
    return InputError(f"no file matches `{pattern}`", hint=did_you_mean(pattern))


def _read(path: str) -> bytes:
    return read_start(path, size_of(path))


def _names_in_list(path: str) -> list[str]:
    try:
        text = _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the list `{path}` is not UTF-8: {error}") from error
    return [line.removesuffix("\r") for line in text.split("\n") if line.strip()]


def _walk(folder: str) -> list[str]:
    """Lists the files in a folder recursively, following links; lists a hidden folder as one entry."""

    def fail(error: OSError) -> None:
        raise error

    found: list[str] = []
    with storage_errors("list", folder):
        for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
            hidden = [name for name in folders if name.startswith(".")]
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [os.path.join(parent, name) for name in [*names, *hidden]]
            if parent.count("/") > folder.count("/") + _MOST_FOLDERS_DEEP:
                message = f"`{folder}` has more than {_MOST_FOLDERS_DEEP} levels of folders"
                raise InputError(message, hint="look for links that form a cycle")
    return found


_SPECIAL = re.compile(r"[*?\[]")


def is_pattern(name: str) -> bool:
    """Returns whether a name is a glob; a web address is no glob, since its `?` starts a query string."""
    return _SPECIAL.search(name) is not None and not name.startswith(("http://", "https://"))


def literal_folder(pattern: str) -> str:
    """Returns the deepest folder that contains all matches of a glob, with a trailing slash.

    Example:
        >>> literal_folder("s3://bucket/crawl/part-*/[0-9].jsonl")
        's3://bucket/crawl/'
    """
    special = _SPECIAL.search(pattern)
    assert special is not None
    return pattern[: pattern.rindex("/", 0, special.start()) + 1]


def matches(address: str, pattern: str) -> bool:
    """Returns whether an address matches a glob; `**` (any folders) and `*` (part of a name) match no hidden names.

    Example:
        >>> matches("s3://bucket/a/b/c.jsonl", "s3://bucket/**/*.jsonl"), matches("s3://bucket/a/b", "s3://bucket/*")
        (True, False)
    """
    names, segments = address.split("/"), pattern.split("/")

    @cache  # avoids exponential time for many `**`
    def is_match(at: int, place: int) -> bool:
        if place == len(segments):
            return at == len(names)
        segment = segments[place]
        if segment == "**" and is_match(at, place + 1):
            return True
        if at == len(names) or (names[at].startswith(".") and not segment.startswith(".")):
            return False
        if segment == "**":
            return is_match(at + 1, place)
        return fnmatch.fnmatchcase(names[at], segment) and is_match(at + 1, place + 1)

    return is_match(0, 0)
