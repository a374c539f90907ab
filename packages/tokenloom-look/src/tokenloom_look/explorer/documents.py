"""Views of documents: a page of the list, and the tokens of one document."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.layout import IMAGE_MODE
from tokenloom.inspect.shown import OpenPair
from tokenloom_look.explorer.queries import Query
from tokenloom_look.explorer.session import PREVIEW_TOKENS, Session, preview
from tokenloom_look.shown_html import legend_html, shown_html

_ROWS, _MOST_ROWS = 50, 200
_TOKENS, MOST_TOKENS = 1024, 4096


def documents(session: Session, query: Query) -> dict[str, Any]:
    """Returns a page of documents: `total`, `first`, and `rows`; each row has length, sequences, origin and preview."""
    source = session.source(query)
    first, count = query.page(default=_ROWS, most=_MOST_ROWS)
    query.check_read()
    total = session.target.sources[source].num_documents
    numbers = np.arange(min(first, total), min(first + count, total), dtype=np.int64)
    sources = np.full(len(numbers), source, dtype=np.int32)
    pairs, rows = session.target.pair_rows.locate(sources, numbers)
    found: list[dict[str, Any]] = []
    for pair in np.unique(pairs).tolist():
        chosen = np.flatnonzero(pairs == pair)
        opened = session.target.pairs.get(session.target.pair_rows.prefixes[pair])
        found += _rows(session, opened, numbers[chosen], rows[chosen])
    return {"total": total, "first": first, "rows": found}


def document(session: Session, query: Query) -> dict[str, Any]:
    """Returns a range of tokens of a document as HTML, with heading, facts and legend."""
    source = session.source(query)
    number = session.document(query, source)
    first, count = query.page(default=_TOKENS, most=MOST_TOKENS)
    query.check_read()
    shown = session.target.document(source, number, first=first, count=count)
    return {
        "source": source,
        "document": number,
        "heading": shown.heading,
        "facts": shown.facts,
        "num_tokens": shown.num_tokens,
        "first": first,
        "count": len(shown.tokens),
        "html": shown_html(shown),
        "legend_html": legend_html(shown),
    }


def _rows(
    session: Session, pair: OpenPair, numbers: NDArray[np.int64], rows: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Returns the table rows of consecutive documents of one pair."""
    data = pair.data
    if session.target.run is not None:  # a run counts sequences as documents
        owners = np.array([pair.document_of(row) for row in rows.tolist()], dtype=np.int64)
        firsts, stops = rows, rows + 1
    else:
        owners = rows
        boundaries = data.document_indices[rows[0] : rows[-1] + 2].astype(np.int64)
        firsts, stops = boundaries[:-1], boundaries[1:]
    num_sequences = (data.document_indices[owners + 1] - data.document_indices[owners]).tolist()
    lengths = pair.data.sequence_lengths
    tokens = [int(lengths[first:stop].sum()) for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True)]
    previews = _previews(session, pair, firsts, stops)
    files, records = _origins(pair, owners.astype(np.int64))
    columns = (numbers.tolist(), tokens, num_sequences, previews, files, records)
    names = ("document", "num_tokens", "num_sequences", "preview", "file", "record")
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _previews(session: Session, pair: OpenPair, firsts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[str]:
    data = pair.data
    texts = ["" for _ in firsts]
    some = np.flatnonzero(stops > firsts)
    if data.multimodal:
        is_image = np.asarray(data.sequence_modes)[firsts[some]] == IMAGE_MODE
        for index in some[is_image].tolist():
            texts[index] = "[image]"
        some = some[~is_image]
    rows = firsts[some]
    lengths = np.minimum(data.sequence_lengths[rows].astype(np.int64), PREVIEW_TOKENS)
    ids = data.gather(rows, np.zeros_like(rows), lengths).tolist() if len(rows) else []
    ends = np.cumsum(lengths).tolist()
    for index, end, length in zip(some.tolist(), ends, lengths.tolist(), strict=True):
        texts[index] = preview(ids[end - length : end], session.target.tokenizer)
    return texts


def _origins(pair: OpenPair, owners: NDArray[np.int64]) -> tuple[list[str | None], list[int | None]]:
    """Returns the input file and the record number of each document; None if unknown."""
    if pair.origins is None:
        return [None] * len(owners), [None] * len(owners)
    files, records = pair.origins.locate(owners)
    names = [None if file < 0 else pair.origins.files[file].path for file in files.tolist()]
    return names, [None if file < 0 else record for file, record in zip(files.tolist(), records.tolist(), strict=True)]
