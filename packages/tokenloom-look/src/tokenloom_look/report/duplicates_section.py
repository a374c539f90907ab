"""What of a benchmark is in the corpus, as `tokenloom near-duplicates` found: documents, similarities, both texts."""

from __future__ import annotations

from itertools import islice

import numpy as np

from tokenloom.inspect.shown_chunks import duplicate_words
from tokenloom.inspect.target import Target
from tokenloom.rendering.html import Cell, Markup, element, facts, joined, table
from tokenloom.rendering.plain import printable
from tokenloom.rendering.words import counted
from tokenloom.retro.document_neighbors import ShownChunk
from tokenloom.retro.pair_duplicates import NearDuplicates, read_near_duplicates
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.section import Chart, Section, Series
from tokenloom_look.report.words import share

_MOST_SHOWN = 50
_NUM_BARS = 20


def duplicates_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns what is nearly the same; None where no file is named.

    Raises:
        InputError: the file holds something else.
        StorageError: it cannot be read.
    """
    if options.near_duplicates is None:
        return None
    return section_of_duplicates(read_near_duplicates(options.near_duplicates))


def section_of_duplicates(found: NearDuplicates) -> Section:
    """Returns the same of what was read already."""
    html: list[Cell] = [_facts(found)]
    if found.documents:
        html.append(_documents(found))
    html += [_pair(number, found) for number in range(min(len(found.chunks), _MOST_SHOWN))]
    if found.num_pairs > _MOST_SHOWN:
        more = counted(found.num_pairs - _MOST_SHOWN, "more pair")
        html.append(element("p", f"And {more}.", class_="note"))
    return Section(
        id="near-duplicates",
        title="Near duplicates",
        html=joined(html),
        charts=[_similarities(found)] if found.chunks else [],
        findings=[f"{duplicate_words(found)}."] if found.num_pairs else [],
    )


def _facts(found: NearDuplicates) -> Markup:
    return facts(
        [
            ("corpus", found.corpus),
            ("benchmark", found.benchmark),
            ("least similarity", f"{found.threshold:g}"),
            ("embedder", found.embedder),
            ("tokens of a chunk", found.chunk_length),
            ("index", found.index),
            ("chunks", found.num_chunks),
            ("chunks with a near duplicate", f"{found.num_found:,} ({share(found.num_found, found.num_chunks)})"),
            ("pairs of chunks", found.num_pairs),
            ("pairs of documents", found.num_document_pairs),
            ("pairs inside one document, not counted", found.num_inside_documents or None),
            (f"pairs with fewer than {found.least_tokens:,} tokens, not counted", found.num_short or None),
            ("chunks that may have more", found.num_full or None),
        ]
    )


def _documents(found: NearDuplicates) -> Markup:
    side = "corpus" if found.benchmark is None else "benchmark"
    columns = [f"document of the {side}", "of the corpus", "pairs", "share of the one", "of the other", "similarity"]
    rows: list[list[Cell]] = [
        [
            each.first,
            each.second,
            each.num_pairs,
            share(each.first_share, 1),
            share(each.second_share, 1),
            f"{each.similarity:.3f}",
        ]
        for each in islice(found.documents, _MOST_SHOWN)
    ]
    more = found.num_document_pairs - len(rows)
    note = f"And {counted(more, 'more pair')}." if more else None
    return table(columns, rows, caption="Documents that share most", note=note)


def _pair(number: int, found: NearDuplicates) -> Markup:
    pair = found.chunks[number]
    rows: list[list[Cell]] = [
        [_place(chunk), element("code", printable(chunk.text))] for chunk in (pair.first, pair.second)
    ]
    return table(["place", "text"], rows, caption=f"Similarity {pair.similarity:.3f}")


def _place(chunk: ShownChunk) -> str:
    origin = "" if chunk.origin is None else f" ({chunk.origin})"
    return f"{chunk.prefix}, document {chunk.document:,}{origin}, tokens [{chunk.start:,}, {chunk.end:,})"


def _similarities(found: NearDuplicates) -> Chart:
    values = np.array([pair.similarity for pair in found.chunks])
    counts, edges = np.histogram(values, bins=_NUM_BARS, range=(found.threshold, max(1.0, found.threshold + 1e-6)))
    note = "" if len(values) == found.num_pairs else f"Of the {len(values):,} most similar pairs."
    return Chart(
        id="similarities",
        kind="bars",
        title="How similar the pairs are",
        summary=f"{int((values >= 1 - 1e-6).sum()):,} pairs are equal.",
        x_label="similarity",
        x=edges,
        y_label="pairs",
        y_format="count",
        series=[Series("pairs", counts)],
        note=note,
    )
