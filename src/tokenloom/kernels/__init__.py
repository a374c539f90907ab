"""The compiled kernels, with their arguments checked and their errors worded. The only layer that imports `_native`.

The modules below are for reading, one subject each; everybody imports from here.

All that compute release the GIL meanwhile. Arrays are C-contiguous; a wrong dtype or shape is our own bug and shows
as a `TypeError` or `ValueError` of the extension.
"""

from tokenloom._native import (
    BertFiller,
    DigestSums,
    GptFiller,
    MappedSamples,
    Masker,
    PackReader,
    PackWalkReader,
    RecordBuilder,
    RoleParts,
    SourceDocuments,
    SpanReader,
    T5Filler,
    TokenSections,
    WalkReader,
    WindowReader,
    build_blocks_mapping,
    build_mapping,
    json_texts,
    line_texts,
    recycled_bytes,
    reserve,
    start_writing_back,
    texts_with,
)
from tokenloom.kernels.arrays import check_rows, crc32, digest_tokens, first_fall, insert_items
from tokenloom.kernels.blending import blending_counts, build_blending_indices
from tokenloom.kernels.mixture import MixedStage, Mixture, smallest_weights
from tokenloom.kernels.ngrams import Folding, NgramIndex, TokenBytes
from tokenloom.kernels.order import LegacyRandom, build_sample_index
from tokenloom.kernels.packs import add_pieces, count_packs, next_fit, pack_documents, pack_to_levels
from tokenloom.kernels.permutation import Key, Permutation, Purpose, derive
from tokenloom.kernels.samples import BLOCK_LISTS, block_lists, fill_attention, gather_spans, make_masker
from tokenloom.kernels.storage import NUM_FACTS, Facts, Watch, map_extents, map_file
from tokenloom.kernels.walks import (
    NOT_KNOWN,
    WHOLE_PASS,
    WINDOW_BITS,
    PassPart,
    SectionNeeded,
    count_packs_of,
    make_source_documents,
    make_token_sections,
    make_walk_reader,
    sample_numbers,
)

__all__ = [
    "BLOCK_LISTS",
    "NOT_KNOWN",
    "NUM_FACTS",
    "WHOLE_PASS",
    "WINDOW_BITS",
    "BertFiller",
    "DigestSums",
    "Facts",
    "Folding",
    "GptFiller",
    "Key",
    "LegacyRandom",
    "MappedSamples",
    "Masker",
    "MixedStage",
    "Mixture",
    "NgramIndex",
    "PackReader",
    "PackWalkReader",
    "PassPart",
    "Permutation",
    "Purpose",
    "RecordBuilder",
    "RoleParts",
    "SectionNeeded",
    "SourceDocuments",
    "SpanReader",
    "T5Filler",
    "TokenBytes",
    "TokenSections",
    "WalkReader",
    "Watch",
    "WindowReader",
    "add_pieces",
    "blending_counts",
    "block_lists",
    "build_blending_indices",
    "build_blocks_mapping",
    "build_mapping",
    "build_sample_index",
    "check_rows",
    "count_packs",
    "count_packs_of",
    "crc32",
    "derive",
    "digest_tokens",
    "fill_attention",
    "first_fall",
    "gather_spans",
    "insert_items",
    "json_texts",
    "line_texts",
    "make_masker",
    "make_source_documents",
    "make_token_sections",
    "make_walk_reader",
    "map_extents",
    "map_file",
    "next_fit",
    "pack_documents",
    "pack_to_levels",
    "recycled_bytes",
    "reserve",
    "sample_numbers",
    "smallest_weights",
    "start_writing_back",
    "texts_with",
]
