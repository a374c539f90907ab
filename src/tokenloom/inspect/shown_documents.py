"""Documents as spans and tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.images import IMAGE_MODE, item_to_image
from tokenloom.inspect.open_pairs import OpenPair
from tokenloom.inspect.shown import NO_PART, Shown, ShownSpan, SpecialTokens, TokenKind, texts_of
from tokenloom.inspect.token_texts import Detokenizer
from tokenloom.rendering.words import counted

_CONTEXT = 8
"""Tokens before and after a window that are decoded with it: a character may begin or end there."""


def shown_document(
    pair: OpenPair,
    document: int,
    tokenizer: Detokenizer | None,
    *,
    source: str | None = None,
    number: int | None = None,
    first: int = 0,
    count: int | None = None,
) -> Shown:
    """Returns a document, or some tokens of it; reads no others.

    Args:
        pair: the pair.
        document: number of the document in the pair; negative ones count from the end.
        tokenizer: what decodes it; None for ids.
        source: what the data are called; None for the prefix.
        number: what the document is called in its source; None for its number in the pair.
        first: the first token to show; of an image, all count as one.
        count: how many; None for the rest.

    Raises:
        IndexError: there is no such document.
        ConfigError: the tokenizer cannot decode it.
    """
    data = pair.data
    if not -data.num_documents <= document < data.num_documents:
        message = f"document {document} of `{pair.prefix}` was asked for, but it has {data.num_documents}"
        raise IndexError(message)
    document %= data.num_documents
    rows = range(*(int(row) for row in data.document_indices[document : document + 2]))
    called = document if number is None else number
    lengths = _lengths(pair, rows)
    stops = np.cumsum(lengths)
    num_tokens = int(lengths.sum())
    stop = num_tokens if count is None else min(num_tokens, first + count)
    special = SpecialTokens.of(tokenizer, pair.manifest)
    origin = pair.origin(document)
    spans, parts = [], []
    for sequence, row in enumerate(rows):
        before = int(stops[sequence] - lengths[sequence])
        start, end = max(first - before, 0), min(stop - before, int(lengths[sequence]))
        if start >= end and (count is not None or first):
            continue
        spans.append(
            ShownSpan(
                source=pair.prefix if source is None else source,
                prefix=pair.prefix,
                document=called,
                row=row,
                sequence=sequence,
                num_sequences=len(rows),
                start=start,
                stop=end,
                num_tokens=int(lengths[sequence]),
                slot=before + start - first,
                origin=origin,
            )
        )
        parts.append(_sequence(pair, row, start, end, tokenizer, special))
    facts = [("tokens", f"{num_tokens:,}"), ("sequences", f"{len(rows):,}")] if len(rows) != 1 else []
    facts = facts or [("tokens", f"{num_tokens:,}")]
    return Shown(
        heading=f"document {called:,} of {pair.prefix if source is None else source}",
        facts=tuple(facts if origin is None else [*facts, ("made of", origin)]),
        spans=tuple(spans),
        first=first,
        num_tokens=num_tokens,
        ids=np.concatenate([np.empty(0, dtype=np.int64), *(part[0] for part in parts)]),
        texts=tuple(text for part in parts for text in part[1]),
        kinds=np.concatenate([np.empty(0, dtype=np.uint8), *(part[2] for part in parts)]),
        spans_of=np.repeat(np.arange(len(parts), dtype=np.int32), [len(part[0]) for part in parts]),
        parts=np.concatenate([np.empty(0, dtype=np.int8), *(part[3] for part in parts)]),
        has_texts=tokenizer is not None,
    )


def part_kinds(pair: OpenPair, row: int, start: int, stop: int) -> NDArray[np.int8]:
    """Returns whether tokens of a sequence are prompt, answer or text: int8[stop - start], see `PartKind`."""
    kinds = np.full(stop - start, NO_PART, dtype=np.int8)
    if pair.roles is not None:
        for first, last, kind in pair.roles.of(row):
            kinds[max(first - start, 0) : max(last - start, 0)] = kind
    return kinds


def _lengths(pair: OpenPair, rows: range) -> NDArray[np.int64]:
    """Returns the tokens of each sequence; 1 of an image."""
    lengths = np.asarray(pair.data.sequence_lengths[rows.start : rows.stop]).astype(np.int64)
    if pair.data.multimodal:
        lengths[[_is_image(pair, row) for row in rows]] = 1
    return lengths


def _is_image(pair: OpenPair, row: int) -> bool:
    return int(pair.data.sequence_modes[row]) == IMAGE_MODE


def _sequence(
    pair: OpenPair, row: int, start: int, stop: int, tokenizer: Detokenizer | None, special: SpecialTokens
) -> tuple[NDArray[np.int64], tuple[str, ...], NDArray[np.uint8], NDArray[np.int8]]:
    """Returns ids, texts, kinds and parts of some tokens of a sequence."""
    if pair.data.multimodal and _is_image(pair, row):
        tokens, _ = pair.data[row]
        try:
            text = f"image of {len(item_to_image(tokens)):,} bytes"
        except DatasetFormatError:  # what a mode means is up to whoever wrote the data
            text = f"{counted(len(tokens), 'token')} of mode {IMAGE_MODE}, no image"
        return np.array([-1]), (text,), np.array([TokenKind.image], dtype=np.uint8), np.array([NO_PART], dtype=np.int8)
    begin = max(start - _CONTEXT, 0)
    found = pair.data.get(row, begin, min(stop + _CONTEXT, int(pair.data.sequence_lengths[row])) - begin)
    around = np.asarray(found[0] if pair.data.multimodal else found).astype(np.int64)
    here = slice(start - begin, stop - begin)
    ids, texts = around[here], texts_of(around, tokenizer, special)[here]
    return ids, texts, special.kinds(ids), part_kinds(pair, row, start, stop)
