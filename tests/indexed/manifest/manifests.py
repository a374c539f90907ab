import os
from typing import Any

import numpy as np

from tokenloom.indexed.manifests import (
    DocumentLedger,
    FileChecksum,
    InputRecord,
    Manifest,
    PairFacts,
    SpecialToken,
    TokenizerIdentity,
    manifest_bytes,
    manifest_path,
)
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.storage.atomic import publish_bytes

SHA256 = "ab" * 32


def make_tokenizer_identity(**changes):
    settings: dict[str, Any] = {
        "kind": "word-level",
        "sha256": SHA256,
        "path": "words/tokenizer.json",
        "vocab_size": 100,
        "eod": SpecialToken(id=9, text="</s>"),
    }
    return TokenizerIdentity(**(settings | changes))


def make_facts(**changes):
    settings: dict[str, Any] = {
        "dtype": "uint16",
        "num_documents": 2,
        "num_sequences": 3,
        "num_tokens": 5,
        "largest_token": 14,
        "tokens": FileChecksum(num_bytes=10, crc32=0x0A0B0C0D),
        "index": FileChecksum(num_bytes=94, crc32=0xFFFFFFFF),
        "index_start_crc32": 1,
    }
    return PairFacts(**(settings | changes))


def make_manifest(**changes):
    settings: dict[str, Any] = {
        "pair": make_facts(),
        "tokenizer": make_tokenizer_identity(),
        "options": {"key": "text", "append_eod": True},
        "ledger": DocumentLedger(num_read=4, num_kept=2, num_rejected=1, num_blank=1),
        "inputs": (InputRecord(path="a.jsonl", num_bytes=70, version="17"), InputRecord(path="-", num_bytes=0)),
        "engine": "gigatoken",
        "tokenloom_version": "0.1.0",
    }
    return Manifest(**(settings | changes))


def write_recorded(prefix, documents, *, dtype=np.uint16, **changes):
    with IndexedDatasetBuilder(f"{os.fspath(prefix)}.bin", dtype=dtype, checksums=True) as builder:
        for sequences in documents:
            for sequence in sequences:
                builder.add_item(np.asarray(sequence, dtype=dtype))
            builder.end_document()
        number = builder.num_documents
        ledger = DocumentLedger(num_read=number, num_kept=number)
        builder.finalize(
            f"{os.fspath(prefix)}.idx",
            manifest=lambda pair: make_manifest(**{"pair": pair, "ledger": ledger} | changes),
        )
    return os.fspath(prefix)


def write_manifest(prefix, manifest):
    publish_bytes(manifest_path(os.fspath(prefix)), manifest_bytes(manifest))
