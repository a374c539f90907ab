"""Consecutive blocks that are small, as one: what a thread is given should be worth its while, also of small files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tokenloom.inputs.blocks import Block
from tokenloom.inputs.left_out import joined_left_out, num_left_out
from tokenloom.inputs.parsing import ParsedBlock, Texts, parse_block
from tokenloom.inputs.utf8_texts import joined_texts


def bundled(blocks: Iterable[Block], *, num_bytes: int) -> Iterator[list[Block]]:
    """Yields all blocks, in order, in lists with at most so many bytes of text together, or of a single block."""
    bundle: list[Block] = []
    size = 0
    for block in blocks:
        if bundle and size + block.num_text_bytes > num_bytes:
            yield bundle
            bundle, size = [], 0
        bundle.append(block)
        size += block.num_text_bytes
        del block  # the receiver's to drop
    if bundle:
        yield bundle


def parse_bundle(bundle: Sequence[Block], keys: Sequence[str]) -> ParsedBlock:
    """Returns the texts of some blocks, one after the other, at least one; see `parse_block`."""
    parsed = [parse_block(block, keys) for block in bundle]
    if len(parsed) == 1:
        return parsed[0]
    return ParsedBlock(
        columns=tuple(_joined(texts) for texts in zip(*(each.columns for each in parsed), strict=True)),
        num_documents=sum(each.num_documents for each in parsed),
        num_blank_lines=sum(each.num_blank_lines for each in parsed),
        bad_lines=[bad_line for each in parsed for bad_line in each.bad_lines],
        left_out=joined_left_out((each.left_out, each.num_documents + num_left_out(each.left_out)) for each in parsed),
    )


def _joined(parts: Sequence[Texts]) -> Texts:
    """Returns the texts under one key."""
    texts = joined_texts([part.texts for part in parts])
    if all(part.document_ends is None for part in parts):
        return Texts(texts=texts)
    ends: list[NDArray[np.int64]] = []
    num_before = 0
    for part in parts:
        own = part.document_ends
        ends.append(num_before + (np.arange(1, len(part.texts) + 1, dtype=np.int64) if own is None else own))
        num_before += len(part.texts)
    return Texts(texts=texts, document_ends=np.concatenate(ends))
