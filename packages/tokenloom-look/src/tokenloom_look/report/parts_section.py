"""The pairs that a catalogue is made of."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.indexed.catalogue import CataloguePart
from tokenloom.rendering.words import counted, size
from tokenloom_look.html import Cell, table
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.run_pieces import largest_rows
from tokenloom_look.report.section import Section
from tokenloom_look.report.words import share
from tokenloom_look.target import Target

_MOST_PARTS = 100


def parts_section(target: Target, _options: ReportOptions) -> Section | None:
    """Returns the pairs of a catalogue; None where there is none.

    Raises:
        DatasetFormatError: the catalogue is damaged.
    """
    catalogue = target.pairs.get(target.sources[0].name).data.catalogue
    if catalogue is None:
        return None
    parts = catalogue.parts
    total = sum(part.file.num_bytes for part in parts)

    def cells(first: str, parts: Sequence[CataloguePart]) -> list[Cell]:
        documents, sequences = sum(each.num_documents for each in parts), sum(each.num_sequences for each in parts)
        num_bytes = sum(each.file.num_bytes for each in parts)
        return [first, documents, sequences, size(num_bytes), share(num_bytes, total)]

    rows = largest_rows(
        parts,
        lambda part: part.file.num_bytes,
        lambda part: cells(part.prefix, [part]),
        lambda rest: cells("", rest)[1:],
        most=_MOST_PARTS,
    )
    columns = ["pair", "documents", "sequences", "tokens", "of all"]
    caption = f"{len(parts):,} pairs, the largest first"
    empty = [part.prefix for part in parts if not part.file.num_bytes]
    return Section(
        id="parts",
        title="Parts of the catalogue",
        html=table(columns, rows, caption=caption),
        findings=[f"{counted(len(empty), 'part')} without tokens, such as {empty[0]}."] if empty else [],
    )
