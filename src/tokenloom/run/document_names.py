"""What names of documents stand for: `web:12345`, a source and a number, or `crawl/0007.jsonl:88`, a file and a record.

Where a source is named like an input file, the source is meant.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenloom.errors import ConfigError
from tokenloom.numbers import quoted
from tokenloom.run.audit.span_table import PairRows
from tokenloom.run.lock import LockedSource
from tokenloom.run.toml_file import did_you_mean
from tokenloom.storage.settings import ObjectStorageSettings

if TYPE_CHECKING:  # a start names no documents
    pass

DocumentName = tuple[str, int]
"""A source and the number of a document in it, from 0; or an input file and a record of it, from 1."""

_NUMBER = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDocuments:
    """The documents that names stand for.

    Attributes:
        by_source: (source, its documents), rising.
        of_records: those of them that a record was named for: (source, document).
        empty_records: names of records that gave no document.
        unknown_pairs: prefixes without origins, where records were named: documents of theirs may be of these, too.
    """

    by_source: tuple[tuple[int, tuple[int, ...]], ...]
    of_records: frozenset[tuple[int, int]]
    empty_records: tuple[str, ...]
    unknown_pairs: tuple[str, ...] = ()


def parse_name(text: str, sources: Collection[str]) -> DocumentName:
    """Returns what a document is named by; whether there is such a record is not looked at."""
    name, separator, number = text.strip().rpartition(":")
    if not separator or not name or not _NUMBER.fullmatch(number):
        message = f"expected a document such as `web:12345` or `crawl/0007.jsonl:88`, found {quoted(text)}"
        hint = "the name of a source and the number of a document in it, from 0; or an input file and a record, from 1"
        raise ConfigError(message, hint=hint)
    if name not in sources:
        if not _like_file(name):
            message = f"expected a document of a source of this run, found {quoted(text)}"
            hint = did_you_mean(name, sources) or f"an input file without a folder is written `./{name}:{number}`"
            raise ConfigError(message, hint=hint)
        if int(number) < 1:
            message = f"expected a record from 1 on, found {quoted(text)}"
            raise ConfigError(message, hint="lines and rows of input files count from 1")
    return name, int(number)


def record_name(text: str, sources: Collection[str]) -> str:
    """Returns a name of a record as it is told from that of a document of a source.

    Example:
        >>> record_name("web:7", ["web"]), record_name("crawl/0007.jsonl:88", ["web"])
        ('./web:7', 'crawl/0007.jsonl:88')
    """
    name = text.strip().rpartition(":")[0]
    return text.strip() if _like_file(name) and name not in sources else f"./{text.strip()}"


def resolve_names(
    names: Iterable[DocumentName],
    sources: Sequence[LockedSource],
    *,
    object_storage: ObjectStorageSettings | None = None,
) -> NamedDocuments:
    """Returns the documents that names stand for."""
    from tokenloom.run.audit.source_origins import SourceOrigins

    numbers = {source.name: number for number, source in enumerate(sources)}
    counts = [sum(pair.num_documents for pair in source.pairs) for source in sources]
    pairs = PairRows.of([[(pair.prefix, pair.num_documents) for pair in source.pairs] for source in sources])
    origins = SourceOrigins(pairs, object_storage=object_storage)
    documents: dict[int, set[int]] = {}
    of_records: set[tuple[int, int]] = set()
    empty = []
    for name, number in names:
        if (source := numbers.get(name)) is not None:
            if number >= counts[source]:
                message = f"expected a document of source {name!r} in [0, {counts[source]}), found `{name}:{number}`"
                raise ConfigError(message, hint="documents are numbered over the pairs of a source, as in run.lock")
            documents.setdefault(source, set()).add(number)
            continue
        try:
            found = origins.documents_of(name, number)
        except ConfigError as error:
            message = f"`{name}:{number}`: {error.message}"
            raise ConfigError(message, hint=did_you_mean(name, numbers) or error.hint) from error
        of_records.update(found)
        if not found:
            empty.append(f"{name}:{number}")
        for source, document in found:
            documents.setdefault(source, set()).add(document)
    return NamedDocuments(
        by_source=tuple((source, tuple(sorted(chosen))) for source, chosen in sorted(documents.items())),
        of_records=frozenset(of_records),
        empty_records=tuple(empty),
        unknown_pairs=tuple(origins.missing),
    )


def _like_file(name: str) -> bool:
    """Whether a name may be one of an input file: it has a folder, or an ending."""
    return "/" in name or "." in name
