"""A project folder: its files and datasets, in Megatron's layout.

PROJECT/
├── config.json                        settings of the build, by Megatron's names
├── data/PREFIX.{bin,idx}              the documents
├── db/indexed_dataset_infos.json      the datasets of the chunk database, in order
├── db/individual/PREFIX/START-STOP.hdf5   chunks of documents [START, STOP) of one dataset
├── db/merged/{sampled,train,valid}.hdf5   chunks of all datasets
├── index/TYPE/STRING/                 the vector index
└── query/SPLIT_HASH/START-STOP.hdf5   neighbors of chunks [START, STOP) of the samples of a split
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

from tokenloom.blending.spec import parse_blend
from tokenloom.errors import ConfigError, DatasetFormatError, OutputExistsError, StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.indexed.manifests import manifest_path
from tokenloom.storage.atomic import storage_errors, sync_folder
from tokenloom.storage.json_files import MAY_BE_MISSING, UnusableJsonError, from_members, read_json
from tokenloom.storage.publishing import make_folder_of, recover
from tokenloom_retro.chunk_database import DBDataset
from tokenloom_retro.hdf5 import open_array
from tokenloom_retro.output import MANIFEST

T = TypeVar("T")

DatabaseKind = Literal["sampled", "train", "valid"]
"""A merged table of chunks: "sampled" to train the index on, "train" of train documents, "valid" of later documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """A dataset of the chunk database, as in `indexed_dataset_infos.json`.

    Attributes:
        ratio: weight in the blend.
        prefix: prefix of the pair, relative to `PROJECT/data`.
        n_docs, n_docs_train: number of all documents; number of train documents, which come first.
        n_chunks, n_chunks_train: number of valid chunks of all documents; number of valid chunks of train documents.
        n_chunks_invalid: number of chunks skipped because their text is empty for the embedder.
        n_chunks_sampled: number of chunks to train the index on, the first chunks of the dataset.
    """

    ratio: Any
    prefix: str
    n_docs: int
    n_docs_train: int
    n_chunks: int
    n_chunks_train: int
    n_chunks_invalid: int = field(default=0, metadata=MAY_BE_MISSING)
    n_chunks_sampled: int = field(default=0, metadata=MAY_BE_MISSING)


def merged_rows(info: DatasetInfo, kind: DatabaseKind) -> range:
    """Returns the indices of a dataset's valid chunks that are in the merged table `kind`."""
    if kind == "valid":
        return range(info.n_chunks_train, info.n_chunks)
    return range(info.n_chunks_sampled if kind == "sampled" else info.n_chunks_train)


OURS = "tokenloom"  # key of our own settings in `config.json`


class RetroProject:
    """A project folder with the path `folder`. Files are read on first use."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder: str = os.fspath(folder)

    def __repr__(self) -> str:
        return f"RetroProject({self.folder!r})"

    @property
    def config_path(self) -> str:
        return os.path.join(self.folder, "config.json")

    @property
    def data_folder(self) -> str:
        return os.path.join(self.folder, "data")

    @property
    def database_folder(self) -> str:
        """Returns the folder of the chunk database."""
        return os.path.join(self.folder, "db")

    @property
    def infos_path(self) -> str:
        return os.path.join(self.database_folder, "indexed_dataset_infos.json")

    @property
    def query_folder(self) -> str:
        return os.path.join(self.folder, "query")

    def data_prefix(self, prefix: str) -> str:
        """Returns the path of a dataset without `.bin` or `.idx`."""
        return os.path.join(self.data_folder, prefix)

    def individual_folder(self, prefix: str) -> str:
        """Returns the folder with the chunks of one dataset."""
        return os.path.join(self.database_folder, "individual", prefix)

    def merged_path(self, kind: DatabaseKind) -> str:
        """Returns the path of a merged table of chunks."""
        return os.path.join(self.database_folder, "merged", f"{kind}.hdf5")

    def index_folder(self, index_type: str, index_string: str) -> str:
        """Returns the folder of a vector index, such as `index/faiss-par-add/IVF4096,Flat`."""
        return os.path.join(self.folder, "index", index_type, index_string)

    def neighbor_folder(self, key: str, dataset: Any) -> str:
        """Returns the folder with the neighbors of a split, named by `dataset.unique_description_hash`."""
        return os.path.join(self.query_folder, f"{key}_{dataset.unique_description_hash}")

    @cached_property
    def infos(self) -> tuple[DatasetInfo, ...]:
        """Returns the datasets of the chunk database."""
        path = self.infos_path
        recover(os.path.join(self.database_folder, MANIFEST))
        try:
            found = _read(path, list)
            return tuple(from_members(DatasetInfo, info, f"[{number}]") for number, info in enumerate(found))
        except UnusableJsonError as error:
            message = f"`{path}`{'' if str(error).startswith((':', ' in')) else ': '}{error}"
            hint = "the database is incomplete or was written by another program"
            raise DatasetFormatError(message, hint=hint) from error

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Returns the recorded settings by Megatron's names; empty if `config.json` does not exist."""
        path = self.config_path
        if not os.path.exists(path):
            return {}
        try:
            return _read(path, dict)
        except UnusableJsonError as error:
            message = f"`{path}`{'' if str(error).startswith(':') else ': '}{error}"
            raise DatasetFormatError(message, hint="copy it from the built project again") from error

    @property
    def recorded_folder(self) -> str:
        """Returns the project's path at the time of the build; the names of neighbor folders depend on this path."""
        ours = self.config.get(OURS)
        found = ours.get("folder") if isinstance(ours, dict) else None
        return found if isinstance(found, str) else self.folder

    @cached_property
    def datasets(self) -> tuple[IndexedDataset, ...]:
        """Opens the pairs of the datasets and checks the number of documents of each."""
        pairs = tuple(IndexedDataset(self.data_prefix(info.prefix)) for info in self.infos)
        for info, pair in zip(self.infos, pairs, strict=True):
            if info.n_docs not in (len(pair), pair.num_documents):  # Megatron also counts empty documents
                message = f"`{pair.path_prefix}`: expected {info.n_docs} documents, found {len(pair)}"
                hint = f"the data changed since `{self.infos_path}` was written; rebuild the database"
                raise DatasetFormatError(message, hint=hint)
        return pairs

    def database(self, kind: DatabaseKind, *, chunk_length: int, eod_token_id: int) -> DBDataset:
        """Opens a merged table of chunks; checks its number of rows.

        Args:
            kind: the table: "sampled", "train" or "valid".
            chunk_length: tokens per chunk; shorter chunks are padded.
            eod_token_id: end-of-document id, used for padding.

        Raises:
            StorageError: the file is unreadable or incomplete.
            DatasetFormatError: the table does not match the list of datasets.
        """
        path = self.merged_path(kind)
        chunks = DBDataset.open(path, self.datasets, chunk_length=chunk_length, eod_token_id=eod_token_id)
        num_written = int(open_array(path, "n_written", shape=(1,))[0])
        expected = sum(len(merged_rows(info, kind)) for info in self.infos)
        if num_written != len(chunks):
            message = f"`{path}`: only {num_written} of {len(chunks)} chunks were written"
            raise StorageError(message, hint="the build was interrupted; rebuild the database")
        if expected != len(chunks):
            message = f"`{path}`: expected the {expected} chunks of `{self.infos_path}`, found {len(chunks)}"
            raise DatasetFormatError(message, hint="the files are from different builds; rebuild the database")
        return chunks


def _read(path: str, kind: type[T]) -> T:
    """Reads a JSON file, which must contain a non-empty list or object, as `kind` says."""
    with storage_errors("read", path):
        found = read_json(path)
    if type(found) is not kind or not found:
        name = "list of datasets" if kind is list else "object"
        raise UnusableJsonError(f": must be a non-empty {name}, got {str(found)[:60]}")
    return found


def linked_data(project: RetroProject, entries: Sequence[str]) -> tuple[tuple[float | None, str], ...]:
    """Links datasets into `PROJECT/data`; returns the (weight, prefix) of each, for `RetroBuildSettings.data`.

    Args:
        project: the project folder, which is created if necessary.
        entries: a weight before each prefix (or glob, or folder); or only one prefix. See `parse_blend`.

    Raises:
        ConfigError: weights are missing, two pairs have the same name, or a pair is not local.
        DatasetNotFoundError: no pair exists for an entry.
        OutputExistsError: the project already has another pair with that name.
        StorageError: a link cannot be created.
    """
    prefixes, weights = parse_blend(list(entries))["blend"]
    if weights is None and len(prefixes) > 1:
        message = f"each of {len(prefixes)} datasets needs a weight"
        raise ConfigError(message, hint="write each weight before its prefix, such as `30 books 70 web`")
    names: dict[str, str] = {}
    for prefix in prefixes:
        name = _name_in(project, prefix)
        if name in names and os.path.realpath(bin_path(names[name])) != os.path.realpath(bin_path(prefix)):
            message = f"`{names[name]}` and `{prefix}` have the same name in the project, `{name}`"
            raise ConfigError(message, hint="rename one of the pairs")
        names[name] = prefix
    for name, prefix in names.items():
        _link(project, prefix, name)
    given: Sequence[float | None] = weights or [None]
    return tuple(zip(given, (_name_in(project, prefix) for prefix in prefixes), strict=True))


def _name_in(project: RetroProject, prefix: str) -> str:
    """Returns the prefix of a pair in the project: the path below `data`; outside of `data`, the pair's file name."""
    folder, name = os.path.split(prefix)
    below = os.path.relpath(os.path.realpath(folder), os.path.realpath(project.data_folder))
    if below == os.pardir or below.startswith(os.path.join(os.pardir, "")):
        return name
    return os.path.normpath(os.path.join(below, name))


def _link(project: RetroProject, prefix: str, name: str) -> None:
    files = [bin_path(prefix), idx_path(prefix)]
    if missing := [path for path in files if not os.path.isfile(path)]:
        message = f"no file `{missing[0]}`: datasets of RETRO must be pairs of local files"
        raise ConfigError(message, hint="copy pairs from object storage; merge the pairs of a catalogue")
    if os.path.realpath(project.data_prefix(name)) == os.path.realpath(prefix):
        return
    if os.path.isfile(manifest_path(prefix)):
        files.append(manifest_path(prefix))
    links = {path: project.data_prefix(name) + path.removeprefix(prefix) for path in files}
    for path, link in links.items():
        if os.path.lexists(link) and os.path.realpath(link) != os.path.realpath(path):
            message = f"`{link}` exists and is not a link to `{path}`"
            raise OutputExistsError(message, hint="rename one of the datasets, or use another project folder")
    for path, link in links.items():
        make_folder_of(link)
        with storage_errors("link", link), suppress(FileExistsError):  # another process may create it at the same time
            os.symlink(os.path.abspath(path), link)
            sync_folder(os.path.dirname(link))
