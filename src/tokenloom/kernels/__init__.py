"""The compiled kernels, with their arguments checked and their errors worded. The only layer that imports `_native`.

The modules below are for reading, one subject each; everybody imports from here.

All that compute release the GIL meanwhile. Arrays are C-contiguous; a wrong dtype or shape is our own bug and shows
as a `TypeError` or `ValueError` of the extension.
"""

from tokenloom._native import (
    BertFiller,
    GptFiller,
    KnownTypes,
    MappedSamples,
    Masker,
    PackReader,
    RecordBuilder,
    RoleParts,
    SpanReader,
    T5Filler,
    WindowReader,
    json_texts,
    line_texts,
    recycled_bytes,
    reserve,
    start_writing_back,
    type_tag,
)
from tokenloom.kernels.blending import blending_counts, build_blending_indices
from tokenloom.kernels.checks import check_rows, crc32, first_fall
from tokenloom.kernels.order import LegacyRandom, build_blocks_mapping, build_mapping, build_sample_index
from tokenloom.kernels.packs import add_pieces, count_packs, next_fit, pack_documents, pack_to_levels
from tokenloom.kernels.samples import gather_spans, make_masker
from tokenloom.kernels.storage import NUM_FACTS, Facts, Watch, map_extents, map_file

__all__ = [
    "NUM_FACTS",
    "BertFiller",
    "Facts",
    "GptFiller",
    "KnownTypes",
    "LegacyRandom",
    "MappedSamples",
    "Masker",
    "PackReader",
    "RecordBuilder",
    "RoleParts",
    "SpanReader",
    "T5Filler",
    "Watch",
    "WindowReader",
    "add_pieces",
    "blending_counts",
    "build_blending_indices",
    "build_blocks_mapping",
    "build_mapping",
    "build_sample_index",
    "check_rows",
    "count_packs",
    "crc32",
    "first_fall",
    "gather_spans",
    "json_texts",
    "line_texts",
    "make_masker",
    "map_extents",
    "map_file",
    "next_fit",
    "pack_documents",
    "pack_to_levels",
    "recycled_bytes",
    "reserve",
    "start_writing_back",
    "type_tag",
]
