"""
Compiled kernels of tokenloom. Import tokenloom.kernels instead: it checks what it passes.
"""

from collections.abc import Sequence
from typing import Annotated, Any, overload

import numpy
from numpy.typing import NDArray


def version() -> str:
    """The version of the Python files that this was built with."""

class Mt19937:
    """The generator behind numpy.random.RandomState, for legacy shuffles."""

    def __init__(self, seed: int) -> None: ...

    @overload
    def shuffle(self, values: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Shuffle in place as RandomState does."""

    @overload
    def shuffle(self, values: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    @overload
    def shuffle(self, values: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

@overload
def build_sample_index(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], document_index: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], window_length: int, extra: int, out: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def build_sample_index(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], document_index: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], window_length: int, extra: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def build_sample_index(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], document_index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], window_length: int, extra: int, out: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def build_sample_index(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], document_index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], window_length: int, extra: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def shuffle_windows(generator: Mt19937, stream: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], parts: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], window_length: int, extra: int, out: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def shuffle_windows(generator: Mt19937, stream: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], parts: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], window_length: int, extra: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def shuffle_windows(generator: Mt19937, stream: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], parts: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], window_length: int, extra: int, out: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def shuffle_windows(generator: Mt19937, stream: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], parts: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], window_length: int, extra: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

def add_pieces(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], sequence_length: int, extra: int, histogram: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> tuple[Any, ...]: ...

def count_packs(histogram: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], most_pieces: int) -> int: ...

@overload
def pack_documents(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], documents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], sequence_length: int, extra: int, most_pieces: int, first_piece: int, packs: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], pieces: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def pack_documents(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], documents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], sequence_length: int, extra: int, most_pieces: int, first_piece: int, packs: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], pieces: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def pack_documents(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], documents: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sequence_length: int, extra: int, most_pieces: int, first_piece: int, packs: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], pieces: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def pack_documents(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], documents: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sequence_length: int, extra: int, most_pieces: int, first_piece: int, packs: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], pieces: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

class SpanReader:
    """Positions to spans."""

    def spans(self, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, keep_empty: bool) -> tuple[Any, ...]: ...

class WindowReader(SpanReader):
    """Over a document, sample and shuffle index."""

    def __init__(self, lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], document_index: Annotated[NDArray[Any], dict(order='C', device='cpu', writable=False)], sample_index: Annotated[NDArray[Any], dict(order='C', device='cpu', writable=False)], shuffle_index: Annotated[NDArray[Any], dict(order='C', device='cpu', writable=False)], *, window_length: int, extra: int, num_tokens: int) -> None: ...

class PackReader(SpanReader):
    """Over a pack, piece and shuffle index."""

    def __init__(self, lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], pack_index: Annotated[NDArray[Any], dict(order='C', device='cpu', writable=False)], piece_index: Annotated[NDArray[Any], dict(order='C', device='cpu', writable=False)], shuffle_index: Annotated[NDArray[Any], dict(order='C', device='cpu', writable=False)], *, sequence_length: int, extra: int) -> None: ...

def map_file(path: bytes) -> tuple[Any, ...]: ...

def map_extents(paths: Sequence[bytes], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], total: int, found: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')]) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

def num_damaged_files() -> int: ...

class Watch:
    """Looks whether the mapped files behind arrays are still whole."""

    def __init__(self, arrays: Sequence[Annotated[NDArray[Any], dict(order='C', device='cpu', writable=False)]], tokens: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None: ...

    def check(self) -> None: ...

    def check_tokens(self, offset: int, num_bytes: int) -> None: ...

def reserve(handle: int, offset: int, length: int) -> None: ...

def start_writing_back(handle: int, offset: int, length: int) -> None: ...

def recycled_bytes(num_bytes: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...

@overload
def build_blending_indices(weights: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, dataset_index: Annotated[NDArray[numpy.int16], dict(shape=(None,), order='C', device='cpu')], sample_index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], num_threads: int, warm_up: int) -> None: ...

@overload
def build_blending_indices(weights: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, dataset_index: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], sample_index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], num_threads: int, warm_up: int) -> None: ...

def blending_counts(weights: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], size: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], num_threads: int, warm_up: int) -> None: ...

class SectionNeeded(Exception):
    """A section must be opened first: its number is the argument."""

class SourceDocuments:
    """The documents of a source, pair by pair."""

    def __init__(self, facts: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], key: tuple[int, int], *, reads_held: bool) -> None: ...

    def open(self, number: int, lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def is_open(self, number: int) -> bool: ...

class TokenSections:
    """The tokens of several mapped files."""

    @overload
    def __init__(self, firsts: Sequence[int], dtype_code: int) -> None: ...

    @overload
    def __init__(self, firsts: Sequence[int], *, width: int, unit: int) -> None: ...

    def open(self, number: int, bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], pointers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def open_rows(self, number: int, bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], of_sequences: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None: ...

class WalkReader(SpanReader):
    """Windows of a source, whose order is computed."""

    def __init__(self, documents: SourceDocuments, families: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, is_shuffled: bool, window_length: int, extra: int, denied: Sequence[int]) -> None: ...

    def add_walks(self, first_walk: int, first_section: int, last_section: int, num_windows: int, part: Sequence[int] = [-1, 0, 0, 0, 0]) -> None: ...

    def occurrences(self, walks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], documents: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Any, ...]: ...

class PackWalkReader(SpanReader):
    """Packs of a source, whose order is computed."""

    def __init__(self, documents: SourceDocuments, families: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], *, is_shuffled: bool, sequence_length: int, extra: int, most_pieces: int, num_packs: Sequence[int], denied: Sequence[int]) -> None: ...

    def add_walks(self, first_walk: int, first_section: int, last_section: int, num_windows: int, part: Sequence[int] = [-1, 0, 0, 0, 0]) -> None: ...

    def occurrences(self, walks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], documents: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Any, ...]: ...

def count_section_packs(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], holdout: tuple[int, int], held_blocks: int, held_documents: int, reads_held: bool, sequence_length: int, extra: int, most_pieces: int) -> int: ...

class MappedSamples:
    """Positions to tokens of a mapped file."""

    @overload
    def __init__(self, reader: SpanReader, bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], pointers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype_code: int) -> None: ...

    @overload
    def __init__(self, reader: SpanReader, sections: TokenSections) -> None: ...

class SampleColumn:
    """A column of samples."""

    def __init__(self, sections: TokenSections, padding: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], is_label: bool) -> None: ...

    def fill(self, sequences: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], row_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, length: int, out: Annotated[NDArray[Any], dict(order='C', device='cpu')]) -> None: ...

class GptFiller:
    """Fills batches of GPT samples."""

    def __init__(self, *, sequence_length: int, extra: int, pad_id: int, eod_id: int, reset_position_ids: bool, reset_attention_mask: bool, eod_mask_loss: bool, inter_document_masking: bool, folds_last_token: bool = False, attention_block: int = 128, attention_window: int = 0) -> None: ...

    def fill_one(self, source: MappedSamples, position: int, tokens: Annotated[NDArray[Any], dict(order='C', device='cpu')], labels: Annotated[NDArray[Any], dict(order='C', device='cpu')], loss_mask: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], position_ids: Annotated[NDArray[Any], dict(order='C', device='cpu')], attention_mask: Annotated[NDArray[numpy.bool_], dict(order='C', device='cpu')] | None, cu_seqlens: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None, max_seqlen: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None, document_ids: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None = None, blocks: tuple[Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')]] | None = None) -> None: ...

    def fill(self, source: MappedSamples, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, tokens: Annotated[NDArray[Any], dict(order='C', device='cpu')], labels: Annotated[NDArray[Any], dict(order='C', device='cpu')], loss_mask: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], position_ids: Annotated[NDArray[Any], dict(order='C', device='cpu')], attention_mask: Annotated[NDArray[numpy.bool_], dict(order='C', device='cpu')] | None, cu_seqlens: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None, max_seqlen: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None, document_ids: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None = None, blocks: tuple[Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')]] | None = None, digests: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')] | None = None, columns: Sequence[tuple[SampleColumn, Annotated[NDArray[Any], dict(order='C', device='cpu')]]] | None = None) -> None: ...

    def fill_from_text(self, text: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], span_lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], row_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, tokens: Annotated[NDArray[Any], dict(order='C', device='cpu')], labels: Annotated[NDArray[Any], dict(order='C', device='cpu')], loss_mask: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], position_ids: Annotated[NDArray[Any], dict(order='C', device='cpu')], attention_mask: Annotated[NDArray[numpy.bool_], dict(order='C', device='cpu')] | None, cu_seqlens: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None, max_seqlen: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None, document_ids: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None = None, blocks: tuple[Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')]] | None = None, digests: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')] | None = None) -> None: ...

def fill_attention(cu_seqlens: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)], num_bounds: int, length: int, block: int, window: int, document_ids: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None, loss_mask: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')] | None, seen_stop: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')] | None, blocks: tuple[Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(order='C', device='cpu')]] | None) -> None: ...

def gather_spans(bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], pointers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype_code: int, sequences: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[Any], dict(shape=(None,), order='C')], watch: Watch | None = None) -> None: ...

def build_mapping(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], boundaries: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], num_epochs: int, max_num_samples: int, max_length: int, short_probability: float, seed: int, min_sentences: int, wide: bool) -> object: ...

def build_blocks_mapping(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], boundaries: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], title_lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], num_epochs: int, max_num_samples: int, max_length: int, seed: int, min_sentences: int, wide: bool) -> object: ...

class Masker:
    """Chooses the n-grams of words that are masked."""

def make_masker(*, pieces: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], cls_id: int, sep_id: int, masking_probability: float, ngram_cdf: Sequence[float], geometric_probability: float, whole_words: bool, permute: bool) -> Masker: ...

class BertFiller:
    """Fills batches of BERT samples."""

    def __init__(self, masker: Masker, *, sequence_length: int, pad_id: int, cls_id: int, sep_id: int, mask_id: int, classification_head: bool, replacements: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def fill(self, tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sentence_lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], row_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], targets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seeds: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], *, text: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], types: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], labels: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], is_random: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], padding_mask: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], loss_mask: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], truncated: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

class T5Filler:
    """Fills batches of T5 samples."""

    def __init__(self, masker: Masker, *, encoder_length: int, decoder_length: int, pad_id: int, bos_id: int, eos_id: int, sentinels: Sequence[int]) -> None: ...

    def fill(self, tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sentence_lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], row_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], targets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seeds: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], *, text_enc: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], text_dec: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], labels: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], loss_mask: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], truncated: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], enc_mask: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], dec_mask: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

class RecordBuilder:
    """Collects what becomes a .bin/.idx pair."""

    def __init__(self, dtype_code: int, itemsize: int, multimodal: bool) -> None: ...

    def add(self, tokens: object | None, lengths: object | None, modes: object | None, end_document: bool) -> int: ...

    def add_rows(self, lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], modes: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None: ...

    def end_document(self) -> None: ...

    def take_pending(self) -> bytes: ...

    @property
    def num_sequences(self) -> int: ...

    @property
    def num_document_boundaries(self) -> int: ...

    def copy_lengths(self, begin: int, out: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def copy_document_ends(self, begin: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def copy_modes(self, begin: int, out: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

class RoleParts:
    """The roles of conversations, and rows made of these."""

    def __init__(self, roles: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], pointers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], unit_bits: int) -> None: ...

    def count_trained(self, sequences: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], available: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], train_on: int, counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def fill(self, text: Annotated[NDArray[Any], dict(order='C', device='cpu', writable=False)], dtype_code: int, segments: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], row_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], train_on: int, pad_id: int, tokens: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], labels: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], loss_mask: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], position_ids: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], cu_seqlens: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')] | None, max_seqlen: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')] | None) -> None: ...

def next_fit(slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], capacity: int, most_items: int, row: tuple[int, int]) -> tuple[Any, ...]: ...

def crc32(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], before: int) -> int: ...

def check_rows(lengths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], pointers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], start: int, itemsize: int) -> tuple[Any, ...]: ...

def first_fall(boundaries: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

@overload
def digest_rows(tokens: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

@overload
def digest_rows(tokens: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu')]) -> None: ...

class DigestSums:
    """Digests of batches, and their sum."""

    def __init__(self) -> None: ...

    def add(self, positions: object, digests: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

    @property
    def num_batches(self) -> int: ...

    @property
    def num_samples(self) -> int: ...

    @property
    def low(self) -> int: ...

    @property
    def high(self) -> int: ...

    def sums(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]: ...

def derive(low: int, high: int, purpose: int, number: int) -> tuple[int, int]: ...

class Permutation:
    """A permutation of n things, computed from a key of 128 bits."""

    def __init__(self, n: int, low: int, high: int) -> None: ...

    @property
    def size(self) -> int: ...

    def forward(self, places: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def inverse(self, things: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

class Mixture:
    """Which source each position comes from, and which of its samples it is."""

    def __init__(self, weights: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    @property
    def num_leaves(self) -> int: ...

    def locate(self, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], leaves: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], takes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def positions(self, leaves: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], takes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def counts(self, size: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

class MixedStage:
    """A mixture of so many positions, permuted within blocks."""

    def __init__(self, weights: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], start: int, size: int, block: int, low: int, high: int) -> None: ...

    @property
    def num_leaves(self) -> int: ...

    @property
    def size(self) -> int: ...

    def locate(self, offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], leaves: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], takes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def offsets(self, leaves: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], takes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def counts(self, size: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def pack_to_levels(lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], costs: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], capacity: int, most_items: int, widths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], levels: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], bases: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], num_ranks: int, by_length: bool, short_first: int, pack_of: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> bool: ...

@overload
def order_by_prefix(sequences: Sequence[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]], order: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], shared: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

@overload
def order_by_prefix(sequences: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]], order: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], shared: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

def cut_forest(lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], shared: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], costs: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], prefix_costs: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], capacity: int, limit: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def cut_evenly(lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], shared: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], costs: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], prefix_costs: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], capacity: int, most_runs: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def json_texts(lines: bytes, keys: Sequence[bytes], most_unusual: int) -> tuple[list[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]], Annotated[NDArray[numpy.int64], dict(shape=(None,))]] | None:
    """
    Returns (UTF-8 back to back, offsets) of the strings under each key of lines of JSON, and (texts before, start, stop) of each unusual line, which has none; None if there are more of these than allowed.
    """

def line_texts(lines: bytes) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]] | None:
    """
    Returns (UTF-8 back to back, offsets) of lines of text; None if one is blank or not UTF-8.
    """

def texts_with(content: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ranges: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
    """
    Returns which texts, of UTF-8 back to back, hold a code point of the ranges [start, stop).
    """

def insert_items(items: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], itemsize: int, places: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Copies items, with a value before that of each place."""

class NgramIndex:
    def __init__(self, kinds: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], points: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], content: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], length: int, least: int) -> None: ...

    def build(self, content: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stretches: Sequence[bytes], words: Sequence[bytes]) -> list[bytes]:
        """
        Takes texts, once; returns the stretches whose words have to be given first, and then takes nothing.
        """

    def search(self, tokens: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], begins_inside: bool, ends_inside: bool, wanted: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], content: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stretches: Sequence[bytes], words: Sequence[bytes]) -> tuple[Any, ...]:
        """
        Returns (document, word, start, stop, n-gram) of each hit, back to back; the documents still to be searched; and the stretches whose words have to be given for that.
        """

    def numbering(self) -> tuple[Any, ...]:
        """
        Returns how many different n-grams there are; the first word of each text, and where each word is in it, as start and stop; the first n-gram of each text, and the number of each n-gram.
        """
