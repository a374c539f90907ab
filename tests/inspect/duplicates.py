"""Neighbors and near duplicates that were found, to be shown."""

from __future__ import annotations

from tokenloom.retro.document_neighbors import (
    ChunkNeighbor,
    DocumentNeighbors,
    NeighborDocument,
    ShownChunk,
)
from tokenloom.retro.pair_duplicates import DuplicateChunks, NearDuplicates

ONE = ShownChunk(prefix="web", document=3, start=0, end=64, origin="a.jsonl:4", text="two\nlines \x1b[31m")
OTHER = ShownChunk(prefix="books", document=1234, start=64, end=70, origin=None, text="漢字 " * 100)
NEAR = ChunkNeighbor(similarity=0.98765, chunk=OTHER)
FOUND = DocumentNeighbors(
    prefix="web", document=3, origin="a.jsonl:4", embedder="letters", num_chunks=2, num_searched=5000
)
BY_DOCUMENT = NeighborDocument(
    prefix="books", document=1234, origin=None, similarity=0.5, num_chunks=1, own=ONE, nearest=NEAR
)
DUPLICATES = NearDuplicates(
    corpus="web",
    benchmark="books",
    embedder="letters",
    chunk_length=64,
    index="exact",
    threshold=0.9,
    num_chunks=10,
    num_found=1,
    num_pairs=2,
    num_inside_documents=0,
    least_tokens=16,
    num_short=0,
    num_document_pairs=1,
    num_full=0,
    chunks=(DuplicateChunks(similarity=0.98765, first=OTHER, second=ONE),),
    documents=(),
)
