"""Origins as plain lists, to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tests.indexed.manifest.manifests import write_manifest

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import FileChecksum, index_start_crc32, read_manifest
from tokenloom.indexed.origins import RUNS, OriginFile, Origins, Runs, read_origins, write_runs
from tokenloom.indexed.sidecars import read_document_hashes, write_document_hashes

Records = list[tuple[int, int]]
"""File and record of each document; (-1, 0) where they are not known."""

WIDE = (10, 300, 70_000, 1 << 40)
"""Bounds of record numbers whose differences need one to eight bytes."""


def files_of(*paths: str) -> list[OriginFile]:
    return [OriginFile(path=path, num_bytes=len(path), unit="line") for path in paths]


def runs_of(rows: Sequence[tuple[int, int, int]]) -> Runs:
    """Returns runs from a file number, a first record and a number of documents each."""
    return np.array(rows, dtype=RUNS)


def records_of(runs: Runs) -> Records:
    """Returns what runs say, document by document."""
    records: Records = []
    for file, first, count in runs.tolist():
        records += [(-1, 0)] * count if file < 0 else [(file, first + number) for number in range(count)]
    return records


def all_records(origins: Origins) -> Records:
    return [record for runs in origins.pieces() for record in records_of(runs)]


def runs_of_records(records: Sequence[tuple[int, int]]) -> Runs:
    return runs_of([(file, record, 1) for file, record in records])


def random_runs(rng: np.random.Generator, num_runs: int, num_files: int) -> Runs:
    """Draws runs of all kinds: short and empty ones, in blocks of all widths, some of them unknown or overlapping."""
    most = int(rng.choice(WIDE))
    return runs_of(
        [
            (int(rng.integers(-1, num_files)), int(rng.integers(1, most)), int(rng.integers(0, 4)))
            for _ in range(num_runs)
        ]
    )


def start_of(prefix: str) -> int:
    """Returns what tells an index from others."""
    pair = IndexedDataset(prefix)
    return index_start_crc32(pair.index.header, pair.index.sequence_lengths)


def add_origins(prefix: str, origins: Origins | None = None) -> None:
    """Writes origins beside a pair: without any given, the lines of one file of its name, from the second on."""
    if origins is None:
        records = [(0, 2 + number) for number in range(IndexedDataset(prefix).num_documents)]
        origins = Origins.from_runs(files_of(f"{prefix}.jsonl"), [runs_of_records(records)])
    file, checksum = write_runs(prefix, origins.files, origins.pieces(), index_start_crc32=start_of(prefix))
    file.publish()
    _record(prefix, "origins", checksum)


def add_hashes(prefix: str) -> list[list[int]]:
    """Writes hashes beside a pair, of nothing, and returns them."""
    hashes = np.random.default_rng(len(prefix)).integers(0, 2**63, (IndexedDataset(prefix).num_documents, 2), np.uint64)
    file, checksum = write_document_hashes(prefix, [hashes], index_start_crc32=start_of(prefix))
    file.publish()
    _record(prefix, "hashes", checksum)
    return hashes.tolist()


def origins_beside(prefix: str) -> list[tuple[str, int] | None] | None:
    """Returns path and record of each document of a pair, None for those that are not known; None without origins."""
    if (origins := read_origins(prefix)) is None:
        return None
    return [(origins.files[file].path, record) if file >= 0 else None for file, record in all_records(origins)]


def hashes_beside(prefix: str) -> list[list[int]] | None:
    """Returns the hashes of the documents of a pair; None if there are none."""
    hashes = read_document_hashes(prefix)
    return None if hashes is None else hashes.tolist()


def _record(prefix: str, name: str, checksum: FileChecksum) -> None:
    """Notes a file in the manifest of a pair, if it has one."""
    if (manifest := read_manifest(prefix)) is not None:
        write_manifest(prefix, replace(manifest, pair=replace(manifest.pair, **{name: checksum})))
