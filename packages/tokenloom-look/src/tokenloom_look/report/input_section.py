"""What became of the input: kept, rejected and why, blank, duplicates, empty; and the files that were read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tokenloom.indexed.manifests import DocumentLedger, InputRecord, Manifest
from tokenloom.preprocess.rejected_reasons import RejectedReasons, find_rejected
from tokenloom.rendering.words import size
from tokenloom_look.html import Cell, Markup, element, joined, table
from tokenloom_look.report.options import ReportOptions
from tokenloom_look.report.run_pieces import largest_rows
from tokenloom_look.report.section import Section
from tokenloom_look.report.words import share
from tokenloom_look.target import Target

_MOST_FILES = 20
_MOST_REASONS = 20
_MOST_REASON = 160
"""Characters of a reason on top of a page; the table has all of it."""

_MANY_REJECTED = 0.001
"""Share of the records from which on rejected ones are told of on top."""

_WORDS = {
    "num_kept": "kept",
    "num_rejected": "rejected: unusable, and set aside",
    "num_blank": "blank: nothing but white space",
    "num_duplicates": "duplicates of records that were kept",
    "num_empty": "empty: without tokens",
    "num_elsewhere": "went to other datasets, such as those of a split",
}


def input_section(target: Target, _options: ReportOptions) -> Section | None:
    """Returns what became of the input, as the manifests tell; None if there is no manifest.

    Raises:
        DatasetFormatError: a manifest is damaged, or another pair's.
        StorageError: what was set aside cannot be read.
    """
    manifests = dict(manifests_of(target))
    if not manifests:
        return None
    num_pairs = sum(len(source.prefixes) for source in target.sources)
    ledger = sum((each.ledger for each in manifests.values()), DocumentLedger(num_read=0, num_kept=0))
    reasons = _reasons(target, manifests)
    files = list(dict.fromkeys(record for each in manifests.values() for record in each.inputs))
    notes = []
    if len(manifests) < num_pairs:
        notes.append(f"{num_pairs - len(manifests):,} of {num_pairs:,} datasets have no manifest, and are not counted.")
    if len(manifests) > 1:
        notes.append("A record counts once for each dataset that it was read for.")
    html = [_ledger(ledger, " ".join(notes) or None)]
    if reasons.num_records:
        html.append(reasons_table(reasons))
    if files:
        html.append(_files(files))
    return Section(
        id="input",
        title="What became of the input",
        html=joined(html),
        findings=list(_findings(ledger, reasons)),
    )


def manifests_of(target: Target) -> Iterator[tuple[str, Manifest]]:
    """Yields the manifests of the pairs of a target, by prefix.

    Raises:
        DatasetFormatError: one is damaged, or another pair's.
    """
    for prefix in dict.fromkeys(prefix for source in target.sources for prefix in source.prefixes):
        manifest = target.pairs.get(prefix).manifest
        if manifest is not None:
            yield prefix, manifest


def _reasons(target: Target, manifests: dict[str, Manifest]) -> RejectedReasons:
    found, paths = RejectedReasons(), set[str]()
    for prefix, manifest in manifests.items():
        if manifest.ledger.num_rejected:
            path = find_rejected(prefix, manifest.options, settings=target.object_storage)
            if path is not None and path not in paths:  # of the pairs of one job, all name the same file
                paths.add(path)
                found.add_file(path, settings=target.object_storage)
    return found


def _ledger(ledger: DocumentLedger, note: str | None) -> Markup:
    rows: list[list[Cell]] = [["read", ledger.num_read, "100%"]]
    for name, count in dataclasses.asdict(ledger).items():
        if name in _WORDS and (count or name == "num_kept"):
            rows.append([_WORDS[name], count, share(count, ledger.num_read)])
    return table(["records of the input", "number", "of all"], rows, note=note)


def reasons_table(reasons: RejectedReasons) -> Markup:
    ranked = reasons.ranked()
    rows: list[list[Cell]] = []
    for each in ranked[:_MOST_REASONS]:
        first = each.examples[0]
        texts = [element("code", example.text) for example in each.examples if example.text is not None]
        example = [element("div", first.place, class_="note"), *(element("div", text) for text in texts[:1])]
        rows.append([first.reason, each.count, joined(example)])
    if rest := ranked[_MOST_REASONS:]:
        rows.append([f"{len(rest):,} other reasons", sum(each.count for each in rest), None])
    note = None if reasons.is_whole else "A file of rejected records is large: only its beginning was read."
    caption = f"Why records were rejected: {reasons.num_records:,} records, the most frequent reason first"
    return table(["reason", "records", "the first of them"], rows, caption=caption, note=note)


def _files(files: list[InputRecord]) -> Markup:
    rows = largest_rows(
        files,
        lambda file: file.num_bytes,
        lambda file: [file.path, size(file.num_bytes)],
        lambda rest: [size(sum(file.num_bytes for file in rest))],
        most=_MOST_FILES,
    )
    total = size(sum(file.num_bytes for file in files))
    words = f"1 file, {total}" if len(files) == 1 else f"{len(files):,} files, {total} in all, the largest first"
    return table(["input file", "size"], rows, caption=words)


def _findings(ledger: DocumentLedger, reasons: RejectedReasons) -> Iterator[str]:
    if ledger.num_rejected > _MANY_REJECTED * ledger.num_read:
        part = share(ledger.num_rejected, ledger.num_read)
        words = f"{part} of the records of the input were rejected: {ledger.num_rejected:,}"
        ranked = reasons.ranked()
        reason = f"; the most frequent reason: {ranked[0].examples[0].reason[:_MOST_REASON]}" if ranked else ""
        yield f"{words}{reason}."
    if ledger.num_duplicates > ledger.num_kept:
        yield f"More records were duplicates ({ledger.num_duplicates:,}) than were kept ({ledger.num_kept:,})."
