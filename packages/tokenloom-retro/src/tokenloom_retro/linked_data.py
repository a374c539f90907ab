"""The data sets of a project, as a user names them: those that lie elsewhere are linked into its folder `data`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from tokenloom.blending.spec import parse_blend
from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.indexed.manifest.file import manifest_path
from tokenloom.storage.atomic import storage_errors, sync_folder
from tokenloom.storage.publishing import make_folder_of
from tokenloom_retro.project import RetroProject


def linked_data(project: RetroProject, entries: Sequence[str]) -> tuple[tuple[float | None, str], ...]:
    """Returns weight and prefix of each data set, as `RetroBuildSettings` takes them; makes the links that are missing.

    A pair outside `PROJECT/data` gets links there under its own name, its manifest too.

    Args:
        project: the project folder, which is made if it is not there.
        entries: weights and entries by turns, or one entry; see `parse_blend`.

    Raises:
        ConfigError: weights are missing, or two pairs have the same name, or one is no pair of local files.
        DatasetNotFoundError: an entry names no pair.
        OutputExistsError: the project has another pair of that name.
        StorageError: there can be no links.
    """
    prefixes, weights = parse_blend(list(entries))["blend"]
    if weights is None and len(prefixes) > 1:
        message = f"expected a weight before each of {len(prefixes)} data sets, found none"
        raise ConfigError(message, hint="such as `30 books 70 web`; that of a folder or glob is divided by tokens")
    names: dict[str, str] = {}
    for prefix in prefixes:
        name = _name_in(project, prefix)
        if name in names and os.path.realpath(bin_path(names[name])) != os.path.realpath(bin_path(prefix)):
            message = f"expected data sets of different names, found `{names[name]}` and `{prefix}`"
            raise ConfigError(message, hint=f"both would be `{name}` in the project; rename one")
        names[name] = prefix
    for name, prefix in names.items():
        _link(project, prefix, name)
    given: Sequence[float | None] = weights or [None]
    return tuple(zip(given, (_name_in(project, prefix) for prefix in prefixes), strict=True))


def _name_in(project: RetroProject, prefix: str) -> str:
    """Returns the prefix of a pair as the project has it: its path below `data`, or its own name."""
    folder, name = os.path.split(prefix)
    below = os.path.relpath(os.path.realpath(folder), os.path.realpath(project.data_folder))
    if below == os.pardir or below.startswith(os.path.join(os.pardir, "")):
        return name
    return os.path.normpath(os.path.join(below, name))


def _link(project: RetroProject, prefix: str, name: str) -> None:
    files = [bin_path(prefix), idx_path(prefix)]
    if missing := [path for path in files if not os.path.isfile(path)]:
        message = f"expected a pair of local files as data of RETRO, found no file `{missing[0]}`"
        raise ConfigError(message, hint="copy what lies in object storage; join the pairs of a catalogue")
    if os.path.realpath(project.data_prefix(name)) == os.path.realpath(prefix):
        return
    if os.path.isfile(manifest_path(prefix)):
        files.append(manifest_path(prefix))
    links = {path: project.data_prefix(name) + path.removeprefix(prefix) for path in files}
    for path, link in links.items():
        if os.path.lexists(link) and os.path.realpath(link) != os.path.realpath(path):
            message = f"expected nothing at `{link}`, or a link to `{path}`, found something else"
            raise OutputExistsError(message, hint="rename one of the two data sets, or take another project")
    for path, link in links.items():
        make_folder_of(link)
        with storage_errors("link", link), suppress(FileExistsError):  # by another process, at the same time
            os.symlink(os.path.abspath(path), link)
            sync_folder(os.path.dirname(link))
