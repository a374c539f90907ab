"""Kernels that are given arrays of any numbers, as a damaged index gives them: an error or a result, never more.

What a run of this target can see is memory that is not theirs, undefined behaviour and loops without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.inputs import Bytes
from tokenloom._native import (
    GptFiller,
    MappedSamples,
    PackReader,
    RoleParts,
    SpanReader,
    WindowReader,
    add_pieces,
    build_blocks_mapping,
    build_mapping,
)
from tokenloom.kernels.order import LegacyRandom, blending_counts, build_blending_indices, build_sample_index
from tokenloom.kernels.packs import count_packs, next_fit, pack_documents
from tokenloom.kernels.samples import gather_spans

_REFUSALS = (IndexError, ValueError, OverflowError, TypeError)
_CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
_MOST = 12


def check(data: bytes) -> None:
    """Data: which kernel, and then what it takes."""
    source = Bytes(data)
    kernel = KERNELS[source.integer(0, 255) % len(KERNELS)]
    with suppress(*_REFUSALS):
        kernel(source)


def _any_integers(source: Bytes, *, most: int = _MOST) -> NDArray[Any]:
    return source.array((np.int32, np.uint32, np.int64)[source.integer(0, 255) % 3], most=most)


def _exact(array: NDArray[Any]) -> NDArray[Any]:
    """Returns a copy that ends where its memory ends, so that reading behind it is seen."""
    return np.array(array)


def _spans(reader: SpanReader, source: Bytes) -> None:
    for position in (*range(4), -1, source.integer(0, 2**62)):
        with suppress(*_REFUSALS):
            reader.spans(np.array([position]), keep_empty=source.flag())


def _reader(source: Bytes, lengths: NDArray[Any]) -> SpanReader:
    sequence_length, extra = source.integer(1, 40), source.integer(0, 1)
    arrays = [_exact(_any_integers(source)) for _ in range(3)]
    if source.flag():
        arrays[1] = arrays[1][: len(arrays[1]) // 2 * 2].reshape(-1, 2)
        return WindowReader(
            lengths, *arrays, window_length=sequence_length, extra=extra, num_tokens=source.integer(-(2**62), 2**62)
        )
    return PackReader(lengths, *arrays, sequence_length=sequence_length, extra=extra)


def _windows_and_packs(source: Bytes) -> None:
    _spans(_reader(source, _exact(source.array(np.int32, most=_MOST))), source)


def _filled(source: Bytes) -> None:
    code = list(_CODES)[source.integer(0, 255) % len(_CODES)]
    lengths = _exact(source.array(np.int32, most=_MOST))
    pointers = _exact(source.array(np.int64, most=_MOST))
    reader = _reader(source, lengths)
    length, extra = source.integer(1, 40), source.integer(0, 1)
    options = [source.flag() for _ in range(4)]
    filler = GptFiller(
        sequence_length=length,
        extra=extra,
        pad_id=source.integer(-3, 300),
        eod_id=source.integer(-3, 300),
        reset_position_ids=options[0],
        reset_attention_mask=options[1],
        eod_mask_loss=options[2],
        inter_document_masking=options[3],
    )
    positions = source.array(np.int64, most=3)
    rows = len(positions)
    kind = np.int32 if source.flag() else np.int64
    tokens, labels, places = (np.zeros((rows, length), dtype=kind) for _ in range(3))
    samples = MappedSamples(reader, _exact(np.frombuffer(source.take(200), dtype=np.uint8)), pointers, code)
    filler.fill(
        samples,
        positions,
        None,
        tokens,
        labels,
        np.zeros((rows, length), dtype=np.float32),
        places,
        np.zeros((rows, length, length), dtype=bool) if options[1] else None,
        np.zeros((rows, length + 1), dtype=np.int32) if options[3] else None,
        np.zeros(rows, dtype=np.int32) if options[3] else None,
    )


def _gathered(source: Bytes) -> None:
    code = list(_CODES)[source.integer(0, 255) % len(_CODES)]
    out = np.zeros(source.integer(0, 50), dtype=_CODES[code])
    columns = [_exact(source.array(np.int64, most=4)) for _ in range(3)]
    pointers = _exact(source.array(np.int64, most=_MOST))
    data = _exact(np.frombuffer(source.rest(), dtype=np.uint8))
    gather_spans(data, pointers, dtype_code=code, sequences=columns[0], starts=columns[1], lengths=columns[2], out=out)


def _sample_index(source: Bytes) -> None:
    lengths = _exact(source.array(np.int32, most=_MOST))
    documents = _exact(source.array(np.int32 if source.flag() else np.int64, most=40))
    settings = {
        "window_length": source.integer(1, 2**40) if source.flag() else source.integer(1, 20),
        "extra": source.integer(0, 1),
        "num_windows": source.integer(0, 30),
        "dtype": np.dtype(np.int32 if source.flag() else np.int64),
    }
    build_sample_index(lengths, documents, **settings)
    parts = np.array([[len(documents), source.integer(0, 100)]])
    LegacyRandom(source.integer(0, 2**32 - 1)).shuffle_windows(documents.copy(), lengths, parts=parts, **settings)


def _mappings(source: Bytes) -> None:
    lengths, boundaries = _exact(source.array(np.int32, most=30)), _exact(source.array(np.int64, most=8))
    if source.flag():  # often enough the boundaries are good
        boundaries = np.sort(boundaries % (len(lengths) + 1))
    settings: dict[str, Any] = {
        "num_epochs": source.integer(0, 3),
        "max_num_samples": source.integer(0, 100),
        "max_length": source.integer(0, 2**40) if source.flag() else source.integer(0, 40),
        "seed": source.integer(0, 2**32 - 1),
        "min_sentences": source.integer(-1, 3),
        "dtype": np.dtype(np.uint64 if source.flag() else np.uint32),
    }
    if source.flag():
        build_mapping(lengths, boundaries, short_probability=source.integer(-1, 11) / 10, **settings)
    else:
        build_blocks_mapping(lengths, boundaries, _exact(source.array(np.int32, most=8)), **settings)


def _roles(source: Bytes) -> None:
    pointers, lengths = _exact(source.array(np.int64, most=6)), _exact(source.array(np.int32, most=6))
    count = min(len(pointers), len(lengths))
    roles = _exact(source.array(np.uint8, most=_MOST))
    parts = RoleParts(roles, pointers[:count], lengths[:count], source.integer(0, 3))
    train_on = source.integer(0, 2)
    sequences, available = (_exact(source.array(np.int64, most=3)) for _ in range(2))
    with suppress(*_REFUSALS):
        parts.count_trained(sequences, available, train_on, np.zeros(len(sequences), dtype=np.int64))
    rows, length = source.integer(0, 2), source.integer(0, 20)
    segments = source.array(np.int64, most=12)
    row_offsets = _exact(source.array(np.int64, most=3))
    matrices = [np.zeros((rows, length), dtype=dtype) for dtype in (np.int64, np.int64, np.float32, np.int64)]
    parts.fill(
        np.arange(source.integer(0, 40), dtype=np.int32),
        4,
        _exact(segments[: len(segments) // 4 * 4].reshape(-1, 4)),
        row_offsets,
        train_on,
        0,
        *matrices,
        np.zeros((rows, length + 1), dtype=np.int32),
        np.zeros(rows, dtype=np.int32),
    )


def _packing(source: Bytes) -> None:
    next_fit(
        _exact(source.array(np.int32, most=_MOST)),
        capacity=source.integer(-1, 2**40),
        most_items=source.integer(-1, 4),
        row=(source.integer(-1, 2**40), source.integer(-1, 5)),
    )
    lengths, documents = _exact(source.array(np.int32, most=_MOST)), _exact(source.array(np.int64, most=_MOST))
    rule = {"sequence_length": source.integer(0, 50), "extra": source.integer(0, 1)}
    histogram = np.zeros(rule["sequence_length"] + rule["extra"] + 1, dtype=np.int64)
    with suppress(*_REFUSALS):
        add_pieces(lengths % 10_000, histogram=histogram, **rule)
        count_packs(histogram, most_pieces=source.integer(-1, 9))
    pack_documents(
        lengths,
        documents,
        most_pieces=source.integer(-1, 9),
        first_piece=source.integer(0, 9),
        packs=np.zeros(source.integer(0, 20), dtype=np.int32),
        pieces=np.zeros((source.integer(0, 20), 2), dtype=np.int32),
        **rule,
    )


def _blends(source: Bytes) -> None:
    weights = _exact(source.array(np.float64, most=_MOST))
    sizes = _exact(source.array(np.int64, most=_MOST)) if source.flag() else None
    size = source.integer(0, 200)
    build_blending_indices(weights, size=size, sizes=sizes)
    blending_counts(weights, size)


KERNELS = (_windows_and_packs, _filled, _gathered, _sample_index, _mappings, _roles, _packing, _blends)


def seeds() -> Iterable[bytes]:
    generator = np.random.default_rng(1)
    for number in range(len(KERNELS)):
        yield bytes([number]) + bytes([3, 3, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 4, 1, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0]) * 4
        yield bytes([number]) + generator.integers(0, 9, size=160, dtype=np.uint8).tobytes()
