import numpy as np
from tests.indexed.columns import put_hashes, put_origins, read_hashes

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import RUNS, OriginFile, Origins, read_origins

Records = list[tuple[int, int]]
"""File and record of each document; (-1, 0) where they are not known."""

WIDE = (10, 300, 70_000, 1 << 40)
"""Bounds of record numbers whose differences need one to eight bytes."""


def files_of(*paths):
    return [OriginFile(path=path, num_bytes=len(path), unit="line") for path in paths]


def runs_of(rows):
    return np.array(rows, dtype=RUNS)


def records_of(runs):
    records: Records = []
    for file, first, count in runs.tolist():
        records += [(-1, 0)] * count if file < 0 else [(file, first + number) for number in range(count)]
    return records


def all_records(origins):
    return [record for runs in origins.pieces() for record in records_of(runs)]


def runs_of_records(records):
    return runs_of([(file, record, 1) for file, record in records])


def random_runs(rng, num_runs, num_files):
    """Draws runs of all kinds: short and empty ones, in blocks of all widths, some of them unknown or overlapping."""
    most = int(rng.choice(WIDE))
    return runs_of(
        [
            (int(rng.integers(-1, num_files)), int(rng.integers(1, most)), int(rng.integers(0, 4)))
            for _ in range(num_runs)
        ]
    )


def add_origins(prefix, origins=None):
    """Writes origins beside a pair: without any given, the lines of one file of its name, from the second on."""
    if origins is None:
        records = [(0, 2 + number) for number in range(IndexedDataset(prefix).num_documents)]
        origins = Origins.from_runs(files_of(f"{prefix}.jsonl"), [runs_of_records(records)])
    put_origins(prefix, origins.files, [*origins.pieces()])


def add_hashes(prefix):
    hashes = np.random.default_rng(len(prefix)).integers(0, 2**63, (IndexedDataset(prefix).num_documents, 2), np.uint64)
    put_hashes(prefix, hashes)
    return hashes.tolist()


def origins_beside(prefix):
    if (origins := read_origins(prefix)) is None:
        return None
    return [(origins.files[file].path, record) if file >= 0 else None for file, record in all_records(origins)]


def hashes_beside(prefix):
    hashes = read_hashes(prefix)
    return None if hashes is None else hashes.tolist()
