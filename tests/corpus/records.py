import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import manifest_of
from tokenloom.indexed.origins import Origins, read_origins
from tokenloom.tokenizers.plain import ByteTokenizer

BYTES = ByteTokenizer()
DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".zst": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}


def record_in(path: str, record: int, *, key: str = "text") -> str:
    """Returns the text of a record of a file, from 1, that another reader than ours finds there."""
    file = Path(path)
    data = DECOMPRESS.get(file.suffix, bytes)(file.read_bytes())
    name = file.name.removesuffix(file.suffix) if file.suffix in DECOMPRESS else file.name
    if name.endswith(".parquet"):
        return str(pq.read_table(file).column(key)[record - 1])
    if ".arrow" in name:
        with (pa.ipc.open_stream if name.endswith("s") else pa.ipc.open_file)(pa.BufferReader(data)) as reader:
            return str(reader.read_all().column(key)[record - 1])
    lines = data.split(b"\n")
    return str(json.loads(lines[record - 1])[key]) if ".json" in name else lines[record - 1].decode()


def located(prefix: str | Path) -> list[tuple[str, int]]:
    origins = origins_of(prefix)
    files, records = origins.locate(np.arange(origins.num_documents))
    return [(origins.files[file].path, record) for file, record in zip(files.tolist(), records.tolist(), strict=True)]


def origins_of(prefix: str | Path) -> Origins:
    origins = read_origins(str(prefix))
    assert origins is not None
    return origins


def texts_of(prefix: str | Path) -> list[str]:
    dataset = IndexedDataset(str(prefix))
    tokens = [dataset[start:stop] for start, stop in pairwise(dataset.document_indices.tolist())]
    return ["".join(BYTES.detokenize(row.tolist()) for row in rows) for rows in tokens]


def check(prefix: str | Path, *, key: str = "text") -> list[tuple[str, int]]:
    """Reads the record of each document again, and returns where they are."""
    places = located(prefix)
    assert [record_in(path, record, key=key) for path, record in places] == texts_of(prefix)
    manifest = manifest_of(IndexedDataset(str(prefix)))
    assert manifest is not None
    return places
