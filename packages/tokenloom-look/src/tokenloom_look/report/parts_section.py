"""The pairs that a catalogue is made of."""

from __future__ import annotations

from tokenloom.inspect.target import Target
from tokenloom.rendering.html import Cell, table
from tokenloom.rendering.largest import largest
from tokenloom.rendering.words import counted, size
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.section import Section
from tokenloom_look.report.words import share

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
    shown, rest = largest([part.file.num_bytes for part in parts], _MOST_PARTS)
    rows: list[list[Cell]] = []
    for number in shown:
        part = parts[number]
        num_bytes = part.file.num_bytes
        rows.append([part.prefix, part.num_documents, part.num_sequences, size(num_bytes), share(num_bytes, total)])
    if rest:
        sums = [
            sum(parts[number].num_documents for number in rest),
            sum(parts[number].num_sequences for number in rest),
        ]
        num_bytes = sum(parts[number].file.num_bytes for number in rest)
        rows.append([f"{len(rest):,} others", *sums, size(num_bytes), share(num_bytes, total)])
    columns = ["pair", "documents", "sequences", "tokens", "of all"]
    caption = f"{len(parts):,} pairs, the largest first"
    empty = [part.prefix for part in parts if not part.file.num_bytes]
    return Section(
        id="parts",
        title="Parts of the catalogue",
        html=table(columns, rows, caption=caption),
        findings=[f"{counted(len(empty), 'part')} without tokens, such as {empty[0]}."] if empty else [],
    )
