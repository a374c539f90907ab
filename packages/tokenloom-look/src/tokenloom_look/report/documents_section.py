"""The sections "Documents and tokens", with counts and lengths, and "Parts of the catalogue"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tokenloom.indexed.catalogue import CataloguePart
from tokenloom.rendering.words import counted, size
from tokenloom_look.html import Cell, Markup, element, facts, joined, table
from tokenloom_look.report.document_lengths import DocumentLengths
from tokenloom_look.report.run_pieces import largest_rows
from tokenloom_look.report.section import Chart, ReportOptions, Section, Series, share
from tokenloom_look.target import Target, TargetKind, TargetSource

PERCENTS = (1, 5, 25, 50, 75, 95, 99, 99.9)
MOST_SOURCES = 100  # maximum rows of a table; all other sources are summed up in one row
_MANY_EMPTY = 0.01
_MUCH_OF_ALL = 0.05  # a document with a larger share of all tokens makes a finding,
_FEW = 20  # if there are at least this many documents
_SAME_LENGTH = 0.2
_MANY = 100
_MOST_PARTS = 100


def documents_section(target: Target, _options: ReportOptions) -> Section:
    """Returns the numbers of documents and tokens, and statistics of document lengths."""
    of_sources, lengths, dtypes = [], DocumentLengths(), set[str]()
    num_bytes = 0
    for source in target.sources:
        before = lengths.num_documents, lengths.num_tokens
        for prefix in source.prefixes:
            data = target.pairs.get(prefix).data
            lengths.add(data)
            dtypes.add(data.dtype.name)
            num_bytes += data.num_tokens * data.dtype.itemsize
        of_sources.append((source, lengths.num_documents - before[0], lengths.num_tokens - before[1]))
    counts = facts(
        [
            ("documents", lengths.num_documents),
            ("tokens", lengths.num_tokens),
            ("bytes of tokens", num_bytes),
            ("dtype", ", ".join(sorted(dtypes)) or None),
            ("empty documents", lengths.num_empty),
            ("mean tokens per document", f"{lengths.mean:,.1f}" if lengths.num_documents else None),
            ("shortest non-empty document", _place(target, lengths.shortest)),
            ("longest document", _place(target, lengths.longest)),
        ]
    )
    percentiles = [] if lengths.shortest is None else [_percentiles(lengths)]
    html = [element("div", counts, *percentiles, class_="side-by-side")]
    if len(of_sources) > 1:
        html.append(_sources(of_sources, lengths.num_tokens))
    return Section(
        id="documents",
        title="Documents and tokens",
        html=joined(html),
        charts=list(_charts(lengths)),
        findings=list(_findings(target, lengths)),
    )


def _sources(of_sources: Sequence[tuple[TargetSource, int, int]], num_tokens: int) -> Markup:
    ranked = sorted(of_sources, key=lambda each: -each[2])
    weights = [source.weight for source, _, _ in of_sources if source.weight is not None]
    rows: list[list[Cell]] = []
    for source, documents, tokens in ranked[:MOST_SOURCES]:
        row: list[Cell] = [source.name, documents, tokens, share(tokens, num_tokens)]
        rows.append([*row, share(source.weight or 0, sum(weights))] if weights else row)
    if rest := ranked[MOST_SOURCES:]:
        documents, tokens = sum(each[1] for each in rest), sum(each[2] for each in rest)
        row = [f"{len(rest):,} others", documents, tokens, share(tokens, num_tokens)]
        weight = sum(each[0].weight or 0 for each in rest)
        rows.append([*row, share(weight, sum(weights))] if weights else row)
    columns = ["source", "documents", "tokens", "share of tokens", *(["weight"] if weights else [])]
    return table(columns, rows, caption=f"{len(of_sources):,} sources, largest first")


def _percentiles(lengths: DocumentLengths) -> Markup:
    found = zip(PERCENTS, lengths.percentiles(PERCENTS), strict=True)
    hundredth = lengths.share_of_tokens_in_longest(0.01)
    note = f"The longest 1% of the documents contain {share(hundredth, 1)} of the tokens."
    rows: list[list[Cell]] = [[f"{percent:g}%", tokens] for percent, tokens in found]
    return element("div", table(["percentile of documents", "tokens per document"], rows, note=note))


def _charts(lengths: DocumentLengths) -> Iterator[Chart]:
    if lengths.shortest is None or lengths.longest is None:
        return
    found = lengths.histogram()
    median, most = lengths.percentiles([50, 95])
    yield _chart(
        "document-lengths",
        "Lengths of documents",
        f"Half of the documents have at most {median:,} tokens, 95% at most {most:,}, the longest has "
        f"{lengths.longest[0]:,}.",
        found.edges,
        found.counts,
        "documents",
    )
    middle = _middle(found.edges, found.tokens)
    yield _chart(
        "tokens-by-length",
        "Tokens by document length",
        f"About half of the tokens are in documents of more than {middle:,} tokens.",
        found.edges,
        found.tokens,
        "tokens",
    )


def _chart(
    name: str, title: str, summary: str, edges: NDArray[np.int64], values: NDArray[np.int64], label: str
) -> Chart:
    return Chart(
        id=name,
        kind="bars",
        title=title,
        summary=summary,
        x_label="tokens of a document",
        x_scale="log",
        x=edges,
        y_label=label,
        y_format="tokens" if label == "tokens" else "count",
        series=[Series(label, values)],
    )


def _middle(edges: NDArray[np.int64], tokens: NDArray[np.int64]) -> int:
    """Returns a length such that about half of the tokens are in shorter documents."""
    below = np.cumsum(tokens)
    return int(edges[int(np.searchsorted(below, below[-1] / 2))])


def _place(target: Target, found: tuple[int, int, int] | None) -> str | None:
    """Describes the document `found`, (length, index in the pair, index of the pair), by its length and name."""
    return None if found is None else f"{counted(found[0], 'token')}, {_name(target, found)}"


def _name(target: Target, found: tuple[int, int, int]) -> str:
    source, number = target.named(found[2], found[1])
    return f"document {number:,}" + ("" if len(target.sources) == 1 else f" of {target.sources[source].name}")


def _findings(target: Target, lengths: DocumentLengths) -> Iterator[str]:
    num_documents, num_tokens = lengths.num_documents, lengths.num_tokens
    if not num_documents:
        yield "There are no documents."
        return
    if not num_tokens:
        yield "All documents are empty."
        return
    if lengths.num_empty > _MANY_EMPTY * num_documents:
        yield f"{share(lengths.num_empty, num_documents)} of the documents are empty."
    if lengths.longest is not None and num_documents >= _FEW and lengths.longest[0] > _MUCH_OF_ALL * num_tokens:
        name = _name(target, lengths.longest)
        yield f"{name[0].upper()}{name[1:]} alone has {share(lengths.longest[0], num_tokens)} of all tokens."
    length, count = lengths.commonest
    if num_documents >= _MANY and count > _SAME_LENGTH * num_documents and length > 1:
        yield f"{share(count, num_documents)} of the documents have exactly {length:,} tokens: were they truncated?"
    for source in target.sources:
        if target.kind is not TargetKind.pair and not source.num_tokens:
            yield f"{source.name} has no tokens."


def parts_section(target: Target, _options: ReportOptions) -> Section | None:
    """Returns the pairs of a catalogue; None for other targets."""
    catalogue = target.pairs.get(target.sources[0].name).data.catalogue
    if catalogue is None:
        return None
    parts = catalogue.parts
    total = sum(part.num_bytes for part in parts)

    def cells(first: str, parts: Sequence[CataloguePart]) -> list[Cell]:
        documents, sequences = sum(each.num_documents for each in parts), sum(each.num_sequences for each in parts)
        num_bytes = sum(each.num_bytes for each in parts)
        return [first, documents, sequences, size(num_bytes), share(num_bytes, total)]

    rows = largest_rows(
        parts,
        lambda part: part.num_bytes,
        lambda part: cells(part.prefix, [part]),
        lambda rest: cells("", rest)[1:],
        most=_MOST_PARTS,
    )
    columns = ["pair", "documents", "sequences", "tokens", "share"]
    caption = f"{len(parts):,} pairs, largest first"
    empty = [part.prefix for part in parts if not part.num_bytes]
    return Section(
        id="parts",
        title="Parts of the catalogue",
        html=table(columns, rows, caption=caption),
        findings=[f"{counted(len(empty), 'pair')} without tokens, such as {empty[0]}."] if empty else [],
    )
