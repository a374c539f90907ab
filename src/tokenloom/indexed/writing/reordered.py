"""The documents of a pair in another order, as a pair: tokens, origins, hashes and manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.document_hashes import read_document_hashes
from tokenloom.indexed.layout import bin_path, idx_path, prefix_of
from tokenloom.indexed.manifest.check import combined_manifest
from tokenloom.indexed.opening import inputs_stay
from tokenloom.indexed.origins import OriginRuns, Origins, read_origins
from tokenloom.indexed.roles import has_roles
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.indexed.writing.concatenate import check_inputs, check_output
from tokenloom.indexed.writing.joined_sidecars import WrittenSidecars, write_sidecars
from tokenloom.progress import task
from tokenloom.storage.local import ByteSource
from tokenloom.storage.publishing import make_folder_of

Int64s = NDArray[np.int64]

_TOKENS_AT_ONCE = 1 << 22
_ROWS_AT_ONCE = 1 << 18


def write_reordered(
    prefix: str, order: Int64s, output_prefix: str, *, overwrite: bool = False, durable: bool = True
) -> IndexedDataset:
    """Writes the documents of a pair in another order as a pair, and returns that opened.

    What lies beside the pair goes with its documents: origins, hashes, manifest. Memory: some million tokens, or the
    longest document, and 30 bytes per document.

    Args:
        prefix: prefix of the pair, of documents of one sequence or none, without roles.
        order: int64[num_documents], each document once.
        output_prefix: prefix of the result.
        overwrite: whether a pair that is there is replaced.
        durable: whether the result survives a loss of power.

    Raises:
        ConfigError: the order has not each document once; the pair has roles, or documents of several sequences; or the
            output is the input.
        OutputExistsError: something is there, and no `overwrite`.
        TokenloomError: reading or writing failed; nothing was written.
    """
    prefix, target = prefix_of(prefix), prefix_of(output_prefix)
    check_output(target, [prefix])
    with inputs_stay([prefix]):
        check_inputs([prefix], multimodal=False, tokens=False)
        pair = IndexedDataset(prefix)
        _check(pair, order)
        make_folder_of(target)
        manifest = combined_manifest([prefix], multimodal=False, copied_tokens="unverified")
        with IndexedDatasetBuilder(
            bin_path(target), dtype=pair.dtype, checksums=manifest is not None, durable=durable, overwrite=overwrite
        ) as builder:
            with task("documents in their order", unit="documents", total=len(order)) as advance:
                boundaries = np.array(pair.document_indices)
                for documents in _blocks(pair, boundaries, order):
                    counts = boundaries[documents + 1] - boundaries[documents]  # of sequences: 1, or 0 of an empty one
                    sequences = boundaries[documents[counts > 0]]
                    lengths = pair.sequence_lengths[sequences].astype(np.int64)
                    tokens = pair.gather(sequences, np.zeros(len(sequences), dtype=np.int64), lengths)
                    builder.append_block(tokens, lengths.astype(np.int32), document_ends=np.cumsum(counts))
                    advance(len(documents))
            write = partial(_write_sidecars, prefix, order, target, durable=durable)
            builder.finalize(idx_path(target), manifest=manifest, sidecars=write)
    return IndexedDataset(target)


def _check(pair: IndexedDataset, order: Int64s) -> None:
    num_documents = pair.num_documents
    if num_documents and (most := int(np.diff(pair.document_indices).max())) > 1:
        message = f"`{pair.path_prefix}`: expected documents of one sequence each, found one of {most}"
        raise ConfigError(message)
    if has_roles(pair):
        message = f"`{pair.path_prefix}`: expected text, found conversations with roles"
        raise ConfigError(message, hint="conversations are packed, not read one after the other")
    seen = np.zeros(num_documents, dtype=np.bool_)
    if len(order) == num_documents and (not len(order) or 0 <= int(order.min()) <= int(order.max()) < num_documents):
        seen[order] = True
    if not seen.all() or len(order) != num_documents:
        message = f"expected each of the {num_documents} documents of `{pair.path_prefix}` once in the order"
        raise ConfigError(message)


def _blocks(pair: IndexedDataset, boundaries: Int64s, order: Int64s) -> Iterator[Int64s]:
    """Yields documents in order, as many at once as have some million tokens, at least one."""
    for start in range(0, len(order), _ROWS_AT_ONCE):
        part = order[start : start + _ROWS_AT_ONCE]
        lengths = np.zeros(len(part), dtype=np.int64)
        has_one = boundaries[part + 1] > boundaries[part]
        lengths[has_one] = pair.sequence_lengths[boundaries[part[has_one]]]
        ends = np.cumsum(lengths)
        first = 0
        while first < len(part):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + _TOKENS_AT_ONCE, side="right")))
            yield np.ascontiguousarray(part[first:last])
            first = last


def _write_sidecars(prefix: str, order: Int64s, target: str, index: ByteSource, *, durable: bool) -> WrittenSidecars:
    """Writes origins and hashes of a pair in another order."""
    parts = [order[start : start + _ROWS_AT_ONCE] for start in range(0, len(order), _ROWS_AT_ONCE)]
    origins, hashes = read_origins(prefix), read_document_hashes(prefix, is_checked=True)
    return write_sidecars(
        target,
        index,
        origins=None if origins is None else (origins.files, _runs(origins, parts)),
        hashes=None if hashes is None else (np.asarray(hashes[part]) for part in parts),
        durable=durable,
    )


def _runs(origins: Origins, parts: Iterable[Int64s]) -> Iterator[OriginRuns]:
    for part in parts:
        files, records = origins.locate(part)
        yield OriginRuns(file_numbers=files, first_records=records, num_documents=np.ones(len(part), dtype=np.int64))
