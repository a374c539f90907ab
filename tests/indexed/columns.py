import numpy as np

from tokenloom.indexed.columns import (
    ColumnFacts,
    ColumnWriter,
    open_column,
    publish_columns,
    read_columns,
    written_column,
)
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import write_origins
from tokenloom.indexed.roles import role_bytes


def put_beside(prefix, name, written):
    pair = IndexedDataset(prefix)
    publish_columns(pair, {**read_columns(pair), name: written[1]}, [written[0]])


def put_origins(prefix, files, runs):
    put_beside(prefix, "origins", write_origins(prefix, files, runs))


def put_hashes(prefix, hashes):
    writer = ColumnWriter(prefix, "hashes", ColumnFacts(kind="document", dtype="uint64"))
    put_beside(prefix, "hashes", written_column(writer, [hashes]))


def read_hashes(prefix):
    column = open_column(IndexedDataset(prefix), "hashes")
    return None if column is None else column.data


def roles_of(parts, num_tokens):
    stops = np.array([stop for _, stop, _ in parts], dtype=np.int32)
    kinds = np.array([kind for _, _, kind in parts], dtype=np.uint8)
    return role_bytes(np.array([len(parts)]), stops, kinds, num_tokens=num_tokens)
