"""Documents that are denied from a position of a run on, as people write them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from tokenloom.run.document_names import DocumentName, parse_name
from tokenloom.run.toml_file import Table, shown
from tokenloom.storage.addresses import can_be_path


@dataclass(frozen=True, slots=True, kw_only=True)
class DenialSettings:
    """Some documents, and from when on they are not read.

    Attributes:
        start: the first position at which they are padding.
        file: a file that lists them, one a line, as it is named in the settings; None where they are listed there.
        documents: (source, number of the document in it) or (input file, record), sorted; empty where `file` lists
            them. Which documents records became is looked up when the run is locked.
        reason: why, in words of whoever denied them; decides nothing.
    """

    start: int
    file: str | None = None
    documents: tuple[DocumentName, ...] = ()
    reason: str | None = None


def parse_denials(top: Table, sources: Collection[str]) -> tuple[DenialSettings, ...]:
    """Returns the `[[denied]]` of a file.

    Raises:
        ConfigError: a key is unknown, missing or of a value that it cannot have; the message names it.
    """
    return tuple(_denial(table, sources) for table in top.tables("denied", hint="begin each with a line `[[denied]]`"))


def _denial(unnamed: Table, sources: Collection[str]) -> DenialSettings:
    table = replace(unnamed, name=" of [[denied]]")
    table.refuse_others(("documents", "from", "reason"))
    reason = table.text("reason", hint="leave it out, or say why") if "reason" in table else None
    start = table.integer("from", at_least=0, below=1 << 60) if "from" in table else 0
    documents: Any = table.values.get("documents")
    if isinstance(documents, str) and documents.strip() and can_be_path(documents):
        return DenialSettings(start=start, file=documents, reason=reason)
    if not isinstance(documents, list) or not documents:
        table.refuse_value("documents", 'the name of a file, or a list such as ["web:12345"]')
    found = []
    for document in documents:
        if not isinstance(document, str):
            table.refuse("documents", f"expected documents such as `web:12345`, found {shown(document)}")
        with table.at("documents"):
            found.append(parse_name(document, sources))
    return DenialSettings(start=start, documents=tuple(sorted(set(found))), reason=reason)
