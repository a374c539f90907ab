"""The section "Input records": kept, rejected, blank, duplicate and empty records, and the input files."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tokenloom.errors import StorageError
from tokenloom.indexed.manifests import DocumentLedger, InputRecord, Manifest
from tokenloom.indexed.writing.outputs import REJECTED_SUFFIX
from tokenloom.rendering.words import size
from tokenloom.storage.json_files import parse_json
from tokenloom.storage.resolve import exists, read_start
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom_look.html import Cell, Markup, element, joined, table
from tokenloom_look.report.run_pieces import largest_rows
from tokenloom_look.report.section import ReportOptions, Section, share
from tokenloom_look.target import Target

_MOST_FILES = 20
_MOST_REASONS = 20
_MOST_REASON = 160  # maximum characters of a reason in a finding; the table shows three times as many
_MOST_BYTES = 64 << 20  # maximum bytes to read of a file of rejected records
_VARYING = re.compile(r"'[^']*'|`[^`]*`|\"[^\"]*\"|\d+")  # parts of a reason that are ignored when reasons are counted
_MANY_REJECTED = 0.001  # a larger share of rejected records makes a finding

_WORDS = {
    "num_kept": "kept",
    "num_rejected": "rejected: unusable",
    "num_blank": "blank: only white space",
    "num_duplicates": "duplicates of kept records",
    "num_empty": "empty: no tokens",
    "num_elsewhere": "written to other datasets, such as other splits",
}


@dataclasses.dataclass(slots=True)
class RejectedReasons:
    """Rejected records, counted by reason; reasons that differ only in numbers and names are counted together."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    first: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    is_whole: bool = True

    @property
    def num_records(self) -> int:
        return self.counts.total()

    def add_file(self, path: str, *, settings: ObjectStorageSettings | None = None) -> None:
        data = read_start(path, _MOST_BYTES + 1, settings=settings)
        if len(data) > _MOST_BYTES:
            self.is_whole = False
            data = data[: data.rfind(b"\n", 0, _MOST_BYTES) + 1]
        for line in data.splitlines():
            try:
                record = parse_json(line)
                kind = _VARYING.sub("#", record["reason"])
            except (ValueError, KeyError, TypeError) as error:
                raise StorageError(f"`{path}` has a line that is not a JSON object with `reason`") from error
            self.counts[kind] += 1
            self.first.setdefault(kind, record)


def input_section(target: Target, _options: ReportOptions) -> Section | None:
    """Returns the number of kept and rejected records according to the pairs' manifests; None without manifests."""
    manifests = dict(manifests_of(target))
    if not manifests:
        return None
    num_pairs = sum(len(source.prefixes) for source in target.sources)
    ledger = sum((each.ledger for each in manifests.values()), DocumentLedger(num_read=0, num_kept=0))
    reasons = _reasons(target, manifests)
    files = list(dict.fromkeys(record for each in manifests.values() for record in each.inputs))
    notes = []
    if len(manifests) < num_pairs:
        notes.append(f"{num_pairs - len(manifests):,} of {num_pairs:,} datasets have no manifest and are not counted.")
    if len(manifests) > 1:
        notes.append("A record is counted once per dataset that it was read for.")
    html = [_ledger(ledger, " ".join(notes) or None)]
    if reasons.num_records:
        html.append(reasons_table(reasons))
    if files:
        html.append(_files(files))
    return Section(id="input", title="Input records", html=joined(html), findings=list(_findings(ledger, reasons)))


def manifests_of(target: Target) -> Iterator[tuple[str, Manifest]]:
    for prefix in dict.fromkeys(prefix for source in target.sources for prefix in source.prefixes):
        manifest = target.pairs.get(prefix).manifest
        if manifest is not None:
            yield prefix, manifest


def _reasons(target: Target, manifests: dict[str, Manifest]) -> RejectedReasons:
    found, paths = RejectedReasons(), set[str]()
    for prefix, manifest in manifests.items():
        options = manifest.options
        name = prefix  # remove the suffixes that `PlannedDataset` adds to the job's prefix
        if isinstance(key := options.get("key"), str):
            level = "sentence" if options.get("split_sentences") else "document"
            name = name.removesuffix(f"_{key.replace('/', '_')}_{level}")
        if isinstance(split := options.get("split"), str):
            name = name.removesuffix(f"_{split}")
        if manifest.ledger.num_rejected:
            paths |= {f"{each}{REJECTED_SUFFIX}" for each in (prefix, name)}  # the pairs of a job share one file
    for path in sorted(paths):
        if exists(path, settings=target.object_storage):
            found.add_file(path, settings=target.object_storage)
    return found


def _ledger(ledger: DocumentLedger, note: str | None) -> Markup:
    rows: list[list[Cell]] = [["read", ledger.num_read, "100%"]]
    for name, count in dataclasses.asdict(ledger).items():
        if name in _WORDS and (count or name == "num_kept"):
            rows.append([_WORDS[name], count, share(count, ledger.num_read)])
    return table(["input records", "number", "share"], rows, note=note)


def reasons_table(reasons: RejectedReasons) -> Markup:
    ranked = reasons.counts.most_common()
    rows: list[list[Cell]] = []
    for kind, count in ranked[:_MOST_REASONS]:
        record = reasons.first[kind]
        number = next((f":{record[unit]}" for unit in ("line", "row") if unit in record), "")
        example: list[Cell] = [element("div", f"{record.get('file', '')}{number}", class_="note")]
        if isinstance(text := record.get("text"), str):
            example.append(element("div", element("code", text[: 3 * _MOST_REASON])))
        rows.append([record["reason"][: 3 * _MOST_REASON], count, joined(example)])
    if rest := ranked[_MOST_REASONS:]:
        rows.append([f"{len(rest):,} other reasons", sum(count for _, count in rest), None])
    note = None if reasons.is_whole else "A large file of rejected records was read only in part."
    caption = f"Reasons of {reasons.num_records:,} rejected records, most frequent first"
    return table(["reason", "records", "first record"], rows, caption=caption, note=note)


def _files(files: list[InputRecord]) -> Markup:
    rows = largest_rows(
        files,
        lambda file: file.num_bytes,
        lambda file: [file.path, size(file.num_bytes)],
        lambda rest: [size(sum(file.num_bytes for file in rest))],
        most=_MOST_FILES,
    )
    total = size(sum(file.num_bytes for file in files))
    words = f"1 file, {total}" if len(files) == 1 else f"{len(files):,} files, {total} in total, largest first"
    return table(["input file", "size"], rows, caption=words)


def _findings(ledger: DocumentLedger, reasons: RejectedReasons) -> Iterator[str]:
    if ledger.num_rejected > _MANY_REJECTED * ledger.num_read:
        part = share(ledger.num_rejected, ledger.num_read)
        words = f"{part} of the input records were rejected: {ledger.num_rejected:,}"
        first = [reasons.first[kind]["reason"] for kind, _ in reasons.counts.most_common(1)]
        reason = f"; most frequent reason: {first[0][:_MOST_REASON]}" if first else ""
        yield f"{words}{reason}."
    if ledger.num_duplicates > ledger.num_kept:
        yield f"More records are duplicates ({ledger.num_duplicates:,}) than were kept ({ledger.num_kept:,})."
