"""From denials as people write them to the documents that a lock denies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tokenloom.errors import ConfigError
from tokenloom.run.denial_settings import DenialSettings
from tokenloom.run.document_names import DocumentName, NamedDocuments, parse_name, resolve_names
from tokenloom.run.lock import LockedDenial, LockedSource
from tokenloom.run.settings import RunSettings
from tokenloom.storage.settings import ObjectStorageSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedDenials:
    """What a lock denies.

    Attributes:
        denials: the documents, by position.
        empty_records: names of records that gave no document.
        unknown_pairs: prefixes of pairs that do not know their input, where records are named: they may hold the same.
    """

    denials: tuple[LockedDenial, ...]
    empty_records: tuple[str, ...]
    unknown_pairs: tuple[str, ...]


def lock_denials(
    settings: RunSettings, sources: Sequence[LockedSource], *, object_storage: ObjectStorageSettings | None = None
) -> LockedDenials:
    """Returns what a run denies of its sources.

    Args:
        settings: the run.
        sources: its sources, as they are locked.
        object_storage: how to read what lies in object storage.

    Raises:
        ConfigError: there is no such document or record, or a list of them cannot be read.
    """
    denials: list[LockedDenial] = []
    empty: list[str] = []
    unknown: list[str] = []
    for denial in settings.denied:
        found = resolve_names(_listed(denial, settings), sources, object_storage=object_storage)
        empty += found.empty_records
        unknown += found.unknown_pairs
        denials += _by_position(denial, found, sources)
    return LockedDenials(
        denials=tuple(sorted(denials, key=lambda denial: denial.start)),
        empty_records=tuple(dict.fromkeys(empty)),
        unknown_pairs=tuple(dict.fromkeys(unknown)),
    )


def _by_position(
    denial: DenialSettings, found: NamedDocuments, sources: Sequence[LockedSource]
) -> Iterator[LockedDenial]:
    """Yields the documents of a denial, first those from its own position on.

    What a record became in pairs that come later is denied from where these come: so a source that grows, and has a
    record once more, leaves what was read as it was.
    """
    later: dict[int, dict[int, list[int]]] = {denial.start: {}}
    for source, documents in found.by_source:
        pairs = sources[source].pairs
        ends = list(accumulate(pair.num_documents for pair in pairs))
        number = 0
        for document in documents:
            while document >= ends[number]:
                number += 1
            of_record = (source, document) in found.of_records
            start = max(denial.start, pairs[number].since) if of_record else denial.start
            later.setdefault(start, {}).setdefault(source, []).append(document)
    for start, by_source in sorted(later.items()):
        yield LockedDenial(
            start=start, documents=tuple((source, tuple(chosen)) for source, chosen in sorted(by_source.items()))
        )


def _listed(denial: DenialSettings, settings: RunSettings) -> Iterator[DocumentName]:
    yield from denial.documents
    if denial.file is None:
        return
    path = settings.located(denial.file)
    names = [source.name for source in settings.sources]
    for number, line in enumerate(read_list(path), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                yield parse_name(line, names)
            except ConfigError as error:
                message = f"`{path}`, line {number}: {error.message}"
                raise ConfigError(message, hint=error.hint) from None


def read_list(path: str) -> list[str]:
    """Returns the lines of a list of documents.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"`{path}`: expected a list of documents such as `web:12345`, one a line; it cannot be read: {error}"
        raise ConfigError(message) from error
