"""The files that may lie beside a pair besides its manifest: what they are called, and whether they are sound.

Where something is done with one of them (published, replaced, joined, checked), it is done with all. Each is a member
of the manifest's `PairFacts` under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.document_hashes import hash_problems, hashes_path
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.manifest.contents import FileChecksum, PairFacts
from tokenloom.indexed.origins import origin_problems, origins_path
from tokenloom.indexed.roles import role_problems, roles_path
from tokenloom.indexed.soundness import checksum_problem, damaged_hint
from tokenloom.indexed.tally import checksum_of
from tokenloom.storage.resolve import exists


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """A file beside a pair.

    Attributes:
        name: what `PairFacts` calls it.
        path: makes its path of the prefix.
        problems: yields one sentence for each way in which it is not sound; reads all of it.
    """

    name: str
    path: Callable[[str], str]
    problems: Callable[[IndexedDataset], Iterator[str]]


SIDECARS = (
    Sidecar(name="roles", path=roles_path, problems=role_problems),
    Sidecar(
        name="origins",
        path=origins_path,
        problems=lambda pair: origin_problems(pair.path_prefix, object_storage=pair.object_storage),
    ),
    Sidecar(
        name="hashes",
        path=hashes_path,
        problems=lambda pair: hash_problems(pair.path_prefix, object_storage=pair.object_storage),
    ),
)

NAMES = tuple(sidecar.name for sidecar in SIDECARS)
NEEDED = ("roles",)
"""Those without which data cannot be trained as they were meant to be."""


def sidecar_paths(prefix: str) -> list[str]:
    """Returns the paths of all files that may lie beside a pair, the manifest aside."""
    return [sidecar.path(prefix) for sidecar in SIDECARS]


def sidecar_checksums(pair: IndexedDataset, names: Collection[str]) -> dict[str, FileChecksum]:
    """Returns size and CRC-32 of some of the files, by name; they are read for that.

    Raises:
        StorageError: one is missing.
    """
    paths = {sidecar.name: sidecar.path(pair.path_prefix) for sidecar in SIDECARS if sidecar.name in names}
    return {name: checksum_of(path, settings=pair.object_storage) for name, path in paths.items()}


def sidecar_problems(
    pair: IndexedDataset, facts: PairFacts | None, *, names: Collection[str] = NAMES, needed: Collection[str] = NAMES
) -> Iterator[str]:
    """Yields one sentence for each way in which a file beside a pair is not sound; they are read as a whole.

    Args:
        pair: the pair.
        facts: what its manifest says; None without.
        names: the files to look at.
        needed: those that may not be missing where the manifest tells of them.
    """
    for sidecar in SIDECARS:
        if sidecar.name not in names:
            continue
        path, expected = sidecar.path(pair.path_prefix), None if facts is None else facts.beside[sidecar.name]
        if exists(path, settings=pair.object_storage):
            yield from sidecar.problems(pair)
            if expected is not None:
                found = sidecar_checksums(pair, (sidecar.name,))[sidecar.name]
                if problem := checksum_problem(path, expected, found):
                    yield problem
        elif expected is not None and sidecar.name in needed:
            found_none = "as the manifest says, found no such file"
            yield f"`{path}`: expected {expected.num_bytes} bytes of {sidecar.name}, {found_none}"


def check_sidecars(pair: IndexedDataset, *, names: Collection[str] = NAMES, needed: Collection[str] = NEEDED) -> None:
    """Checks the files beside a pair, and their checksums where a manifest says them; nothing if there are none.

    Args:
        pair: the pair.
        names, needed: see `sidecar_problems`.

    Raises:
        DatasetFormatError: one is damaged, or missing where the manifest names it.
    """
    manifest = manifest_of(pair)
    facts = None if manifest is None else manifest.pair
    if problem := next(sidecar_problems(pair, facts, names=names, needed=needed), None):
        raise DatasetFormatError(problem, hint=damaged_hint(pair))


def check_roles(pair: IndexedDataset) -> None:
    """Checks all roles beside a pair, as `check_sidecars` does: what a start of training needs to be sound."""
    check_sidecars(pair, names=NEEDED)
