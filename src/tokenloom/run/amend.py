"""Writes and edits `run.toml`, and amends a run: changes `run.toml` and its lock from a given position on.

`tomlkit` edits the text and keeps comments, blank lines and the order of keys. The edited text is parsed again. If the
parsed settings are not the intended ones, the error shows the lines to write by hand.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from itertools import chain, count
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import tomlkit
from numpy.typing import NDArray
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Item, Key, Table

from tokenloom.datasets.blends import parse_alternating
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.numbers import number_or_none, quoted
from tokenloom.run.audit.trace import SpanTable, denied_from
from tokenloom.run.changes import lock_changes
from tokenloom.run.dataset import Reading
from tokenloom.run.digest import order_digest
from tokenloom.run.held_out import are_held_out
from tokenloom.run.lock import RunLock, lock_path, read_lock
from tokenloom.run.locking import LockedRun, lock_run, write_both
from tokenloom.run.run import Run
from tokenloom.run.settings import (
    SIZES,
    DenialSettings,
    RunSettings,
    SourceSettings,
    StageSettings,
    from_folder,
    parse_name,
    parse_run,
    whole_weights,
)
from tokenloom.run.sources import find_pairs
from tokenloom.run.toml_file import as_key, as_text, did_you_mean, read_text, weight_of
from tokenloom.storage.publishing import OutputLock
from tokenloom.tokenizers.kinds import KINDS as TOKENIZER_KINDS

_Body = list[tuple[Key | None, Item]]  # items of a table in file order; comments and blank lines have the key None


def rewritten(text: str, settings: RunSettings) -> tuple[str, RunSettings]:
    """Edits the text of `run.toml` to have the given settings; returns the new text and the settings parsed from it.

    Stages can get another size or other weights, or be inserted; sources and denials can be appended. Stages after an
    inserted stage keep their name and sequence length, which are written out where they were implicit.
    """
    edit, old = _Edit(text, settings.path), parse_run(text, path=settings.path)
    for source in settings.sources[len(old.sources) :]:
        edit.add_source(source)
    known = {stage.name: stage for stage in old.stages}
    for number, stage in enumerate(settings.stages):
        if stage.name not in known:
            edit.insert_stage(number, settings.stages)
        elif (before := known[stage.name]) != stage:
            edit.set_samples(number, stage, sets_weights=stage.weights != before.weights)
    for denial in settings.denied[len(old.denied) :]:
        edit.append("[[denied]]", *denial_lines(denial))
    return edit.result(settings) if edit.lines else (text, old)


class _Edit:
    """An edit of the text of `run.toml`; `lines` has all lines inserted so far, for the hints of errors."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path = text, path
        self.lines: list[str] = []

    def set_samples(self, number: int, stage: StageSettings, *, sets_weights: bool) -> None:
        """Replaces the size of stage `number` by a line `samples = …`; if `sets_weights`, also replaces the weights."""
        shares = stage.weights if sets_weights else None
        lines = _lines({"samples": stage.samples, "weights": shares and dict(shares)})
        self.lines += lines
        body = self._tables[number].value.body
        added, trailing = _body_of(lines), _take_trailing(body)
        replaced = SIZES if shares is None else (*SIZES, "weights")
        kept: _Body = []
        at = 0
        for key, item in body:
            if key is None or key.key not in replaced:
                kept.append((key, item))
            elif key.key in SIZES:
                at, old, new = len(kept), item.trivia, added[0][1].trivia
                new.indent, new.comment_ws, new.comment = old.indent, old.comment_ws, old.comment
        body[:] = [*kept[:at], *added, *kept[at:], *trailing]

    def insert_stage(self, number: int, stages: Sequence[StageSettings]) -> None:
        lines = ["[[stages]]", *stage_lines(stages[number])]
        self.lines += lines
        for place, (table, later) in enumerate(zip(self._tables[number:], stages[number + 1 :], strict=True)):
            names = {key.key for key, _ in table.value.body if key is not None}
            pinned = [] if "name" in names else [f"name = {as_text(later.name)}"]
            if not place and "sequence_length" not in names:
                pinned.append(f"sequence_length = {later.sequence_length}")
            table.value.body[:0] = _body_of(pinned)
        new = _body_of(lines)[0][1]
        assert isinstance(new, AoT)
        new[0].trivia.indent = "\n"
        new[0].value.body.extend(_take_trailing(self._tables[number - 1].value.body))
        self._tables.insert(number, new[0])

    def add_source(self, source: SourceSettings) -> None:
        table = self._document["sources"]
        body = table.value.body if isinstance(table, Table) else []
        if body and all(key is None or key.is_dotted() or not isinstance(item, Table) for key, item in body):
            line = f"{as_key(source.name)} = {source_value(source)}"
            self.lines += ["[sources]", line]
            trailing = _take_trailing(body)
            body += [*_body_of([line]), *trailing]
        else:  # each source is a table
            self.append(f"[sources.{as_key(source.name)}]", f"data = {_value(*source.data)}")

    def append(self, *lines: str) -> None:
        self.lines += lines
        self._document.body.extend(_body_of(["", *lines]))

    def result(self, settings: RunSettings) -> tuple[str, RunSettings]:
        """Returns the new text and its parsed settings; raises an error if these settings differ from `settings`."""
        text = self._document.as_string()
        text = text.replace("\n", "\r\n") if "\r\n" in self._text else text
        try:
            found = parse_run(text, path=self._path)
        except ConfigError as error:
            message = f"`{self._path}` was not changed: the edited file would be invalid: {error.message}"
            raise ConfigError(message, hint=error.hint or self._by_hand()) from error
        if found.content() != settings.content():
            self._refuse("the edit would also change other settings")
        return text, found

    @cached_property
    def _document(self) -> tomlkit.TOMLDocument:
        text = self._text.replace("\r\n", "\n").removesuffix("\n") + "\n"
        try:
            document = tomlkit.parse(text)
        except TOMLKitError as error:
            self._refuse(f"tomlkit cannot read the file: {error}")
        if document.as_string() != text:  # for example tables of an array in several places
            self._refuse("the file cannot be edited, because the order of its tables would change")
        return document

    @property
    def _tables(self) -> AoT:
        stages = self._document["stages"]
        if not isinstance(stages, AoT):
            self._refuse("stages can be edited only if they are `[[stages]]` tables")
        return stages

    def _by_hand(self) -> str:
        return "write by hand:" + "".join(f"\n    {line}" for line in self.lines)

    def _refuse(self, message: str) -> NoReturn:
        raise ConfigError(f"`{self._path}` was not changed: {message}", hint=self._by_hand())


def _body_of(lines: Sequence[str]) -> _Body:
    return tomlkit.parse("".join(f"{line}\n" for line in lines)).body


def _take_trailing(body: _Body) -> _Body:
    """Removes and returns the blank lines and comments after the last key of a table; they belong to the next table."""
    if body and isinstance(body[-1][1], Table):
        return _take_trailing(body[-1][1].value.body)
    stop = max((place for place, (key, _) in enumerate(body, 1) if key is not None), default=0)
    taken = body[stop:]
    del body[stop:]
    return taken


def stage_lines(stage: StageSettings) -> list[str]:
    tokens = () if stage.tokens is None else (f"tokens = {stage.tokens:_}",)
    first = _lines({"name": stage.name, "sequence_length": stage.sequence_length})
    shares = {key: each and dict(each) for key, each in (("passes", stage.passes), ("weights", stage.weights))}
    exhausted = None if stage.on_exhausted == "stop" else stage.on_exhausted
    return [*first, *tokens, *_lines({"samples": stage.samples, **shares, "on_exhausted": exhausted})]


def source_value(source: SourceSettings) -> str:
    data = source.data[0] if len(source.data) == 1 else source.data
    holdout = None if source.holdout is None else f"{_value(source.holdout * 100)}%"
    return _value({"data": data, "holdout": holdout, "max_passes": source.max_passes})


def denial_lines(denial: DenialSettings) -> list[str]:
    listed = [f"{source}:{number}" for source, number in denial.documents]
    documents = listed if denial.file is None else denial.file
    return _lines({"documents": documents, "from": denial.start, "reason": denial.reason})


def _lines(members: Mapping[str, object]) -> list[str]:
    return [f"{as_key(name)} = {_value(value)}" for name, value in members.items() if value is not None]


def _value(value: object) -> str:
    """Formats a value as TOML in one line; fractions become exact decimals."""
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_lines(value))} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if not isinstance(value, Fraction):
        return str(value).lower()
    return f"{Context(prec=100).divide(Decimal(value.numerator), Decimal(value.denominator)):f}"


_SUFFIX = re.compile(r"_?(?:text_)?(?:document|sentence)$")


def weighted_entries(entries: Sequence[str]) -> tuple[tuple[str, ...], tuple[Fraction, ...]]:
    """Splits blend arguments, such as `0.8 web 0.2 code`, into prefixes and weights (empty if none are given)."""
    prefixes, weights = parse_alternating(entries, "the blend")
    if weights is not None:
        return tuple(prefixes), tuple(weight_of(Decimal(weight)) for weight in entries[::2])
    for row, entry in enumerate(entries, 1):
        if number_or_none(entry, f"entry {row} {entry!r}") is not None:
            message = f"entry {row} of the blend must be a prefix, got the number {quoted(entry)}"
            raise ConfigError(message, hint="alternate weights and prefixes, such as `0.8 web 0.2 code`")
    return tuple(prefixes), ()


def draft_text(
    data: Sequence[str],
    *,
    path: str,
    sequence_length: int,
    weights: Sequence[Fraction] = (),
    tokens: int | None = None,
    samples: int | None = None,
    seed: int = 1234,
    tokenizer: str | None = None,
    holdout: Fraction | None = None,
    settings: Mapping[str, bool] = MappingProxyType({}),
) -> str:
    """Returns the text of a new `run.toml` with comments.

    Each path in `data`, relative to the working directory, becomes a source. Without `weights`, the only stage
    reads each source once or, if `tokens` or `samples` is given, all sources in proportion to their tokens.
    `settings` are values of [samples].
    """
    folder, names = os.path.dirname(path), _names(data)
    if tokenizer and os.path.exists(tokenizer) and not any(kind.takes(tokenizer) for kind in TOKENIZER_KINDS.values()):
        tokenizer = from_folder(tokenizer, folder)
    named = zip(names, data, strict=True)
    sources = [SourceSettings(name=name, data=(from_folder(each, folder),), holdout=holdout) for name, each in named]
    is_sized = tokens is not None or samples is not None
    shares = list(zip(names, weights or [Fraction(1)] * len(names), strict=True))
    if is_sized and not weights and len(names) > 1:
        prefixes = [find_pairs(source, folder) for source in sources]
        counts = [sum(IndexedDataset(each, mmap=False).num_tokens for each in found) for found in prefixes]
        if 0 in counts:
            raise ConfigError(f"`{data[counts.index(0)]}` has no tokens", hint="remove it")
        in_proportion = whole_weights(zip(names, map(Fraction, counts), strict=True))
        shares = [(name, Fraction(weight)) for name, weight in in_proportion]
    sizes: Any = {"sequence_length": sequence_length, "tokens": tokens, "samples": samples}
    sizes["weights" if weights or is_sized else "passes"] = tuple(shares)
    text = _TEXT.format(
        seed=f"seed = {seed}",
        tokenizer="" if tokenizer is None else f"{f'tokenizer = {_value(tokenizer)}':<24}  # of the data\n",
        samples="".join(f"{line}\n" for line in ["", "[samples]", *_lines(settings)]) if settings else "",
        sources="\n".join(f"{as_key(source.name)} = {source_value(source)}" for source in sources),
        stage="\n".join(stage_lines(StageSettings(name="main", **sizes))),
    )
    parse_run(text, path=path)
    return text


_TEXT = """\
# What a training run reads, from its first sample to its last. This file and
# run.lock, which `tokenloom run lock` writes, decide the order. Edit this file
# freely until training begins; later change it with `tokenloom run amend`,
# which keeps the samples that were read.

order = 1                 # version of the order
{seed:<24}  # seed of all shuffling
{tokenizer}documents = "shuffled"    # "file": as on disk, one range per sample
windows = "concat"        # "best_fit": packs of whole documents
mix = "random"            # "even": sources alternate evenly
{samples}
# A source is a name for data: a prefix, glob, folder, catalogue, or a list of
# these, relative to this file. `holdout = "0.1%"` keeps documents for
# validation; `max_passes = 4` limits how often the source is read.
[sources]
{sources}

# `tokens`, `samples` or `passes` set the size of a stage; the last stage may be
# endless. Weights are shares of the samples.
[[stages]]
{stage}
"""


def _names(data: Sequence[str]) -> list[str]:
    """Returns a unique source name for each path, made from the last path component that gives a name."""
    names: list[str] = []
    for entry in data:
        name = ""
        for part in reversed(prefix_of(entry.rstrip("/")).split("/")):
            literal = re.split(r"[*?\[]", part)[0]
            whole = literal if literal == part else ""
            name = name or _SUFFIX.sub("", literal).strip("_-. ") or whole.strip("_-. ")
        numbered = (f"{name or 'data'}_{number}" for number in count(2))
        names.append(next(each for each in chain([name or "data"], numbered) if each not in names))
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """A change of a run from a position on.

    Attributes:
        position: first position whose sample may change.
        weights, sequence_length: settings of a new stage, which begins at `position` and replaces the rest of an old
            stage; if a setting is empty or None, the new stage has the setting of the old stage.
        stage_name: name of the new stage; None for a name derived from the position.
        tokens, samples: size of the new stage; if both are None, the new stage is as long as the rest of the old stage.
        sources: `data` of new sources, by name of the source.
        denied: path of a file that lists documents to deny; None without a file.
        denied_documents: names of documents to deny.
        reason: why the documents are denied; stored in `run.toml`, without effect.
        grows: whether to add the pairs that match `data` of the existing sources and are not in the lock.
    """

    position: int
    weights: tuple[tuple[str, Fraction], ...] = ()
    stage_name: str | None = None
    sequence_length: int | None = None
    tokens: int | None = None
    samples: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    denied: str | None = None
    denied_documents: tuple[str, ...] = ()
    reason: str | None = None
    grows: bool = False

    @property
    def has_stage(self) -> bool:
        settings = self.weights or None, self.stage_name, self.sequence_length, self.tokens, self.samples
        return any(each is not None for each in settings)

    @property
    def denies(self) -> bool:
        return self.denied is not None or bool(self.denied_documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amended:
    """The result of an amendment: the text of `run.toml` before and after, and in `locked` the old and the new lock."""

    before: str
    after: str
    locked: LockedRun


def amend_run(
    path: str | os.PathLike[str], amendment: Amendment, *, reading: Reading | None = None, write: bool = True
) -> Amended:
    """Amends a run: changes `run.toml` and its lock. Both files stay unchanged on errors, or if `write` is False."""
    path = os.fspath(path)
    with OutputLock(lock_path(path)) if write else nullcontext():
        old, before = read_lock(lock_path(path)), read_text(path)
        settings = parse_run(before, path=path)
        _check(amendment, settings, old)
        located = ((name, from_folder(data, settings.folder)) for name, data in amendment.sources.items())
        sources = [SourceSettings(name=name, data=(data,)) for name, data in located]
        settings = replace(settings, sources=(*settings.sources, *sources))
        if amendment.has_stage:
            settings = replace(settings, stages=_with_stage(settings, amendment, old))
        settings = replace(settings, denied=(*settings.denied, *_new_denials(amendment, settings)))
        after, new = rewritten(before, settings)
        locked = lock_run(path, at=amendment.position, settings=new, reading=reading, write=False)
        _check_growth(amendment, locked)
        if amendment.denies and not _added(locked):
            records = ", ".join(locked.empty_records[:3])
            message = f"no documents to deny: {f'none was made from {records}' if records else 'the list is empty'}"
            hint = "check the records: blank, invalid and duplicate records give no document"
            raise ConfigError(message, hint=hint if records else None)
        if write:
            write_both(path, after, locked.lock)
    return Amended(before=before, after=after, locked=locked)


def _check(amendment: Amendment, settings: RunSettings, old: RunLock) -> None:
    path, position, end = settings.path, amendment.position, old.num_samples
    if not (amendment.has_stage or amendment.sources or amendment.denies or amendment.grows):
        message = "nothing to change: no stage, source, documents to deny, or new data"
        raise ConfigError(message, hint="pass a change, such as `--weights web=5,code=5`")
    if settings.content_sha256 != old.content_sha256 and not amendment.grows:
        raise ConfigError(f"`{path}` changed after it was locked", hint="run `tokenloom run lock`, or pass `--grow`")
    if known := next((source.name for source in settings.sources if source.name in amendment.sources), None):
        raise ConfigError(f"`{path}` already has a source {known!r}", hint="choose another name")
    if position < old.consumed:
        message = f"position must be at least {old.consumed}, the number of consumed positions, got {position}"
        back = "`tokenloom run lock --consumed-samples N --drop consumed`"
        raise ConfigError(message, hint=f"pass a later position; to go back to an earlier position N, run {back}")
    if end is not None and position > end:
        raise ConfigError(f"position {position} out of range: the run has {end} samples")


def _check_growth(amendment: Amendment, locked: LockedRun) -> None:
    assert locked.old is not None
    changes = lock_changes(locked.old, locked.lock)
    grown = [(each.name, each.pairs[0].prefix) for each in changes.new_data if each.name not in changes.new_sources]
    if amendment.grows and not grown:
        message = "nothing to grow: the lock already has all pairs in `data` of the sources"
        raise ConfigError(message, hint="write new pairs where `data` of a source finds them, or change `data`")
    if grown and not amendment.grows:
        message = f"`data` of source {grown[0][0]!r} has a new pair, `{grown[0][1]}`"
        raise ConfigError(message, hint="pass `--grow` to read the pair from this position on, or move it elsewhere")


def _new_denials(amendment: Amendment, settings: RunSettings) -> Iterator[DenialSettings]:
    start, reason = amendment.position, amendment.reason
    if amendment.denied is not None:
        yield DenialSettings(start=start, file=from_folder(amendment.denied, settings.folder), reason=reason)
    names = [source.name for source in settings.sources]
    if found := sorted({parse_name(document, names) for document in amendment.denied_documents}):
        yield DenialSettings(start=start, documents=tuple(found), reason=reason)


def _with_stage(settings: RunSettings, amendment: Amendment, old: RunLock) -> tuple[StageSettings, ...]:
    path, stages, position = settings.path, list(settings.stages), amendment.position
    segment = next(each for each in reversed(old.segments) if each.start < position or each.start == 0)
    if segment.stage not in (known := [stage.name for stage in stages]):
        raise ConfigError(f"stage {segment.stage!r} is in the lock, not in `{path}`", hint="run `tokenloom run lock`")
    number = known.index(segment.stage)
    current = stages[number]
    start = min(each.start for each in old.segments if each.stage == current.name)
    following = [each.start for each in old.segments if each.start >= position and each.stage != current.name]
    end = following[0] if following else old.num_samples
    weights = current.weights or tuple((old.sources[each].name, Fraction(weight)) for each, weight in segment.weights)
    left = None
    if position == end and not following:
        if amendment.tokens is None and amendment.samples is None:
            message = f"a new stage at the end of the run, position {position}, needs a size"
            raise ConfigError(message, hint="pass a size such as `--tokens 50B`")
    elif position in (start, end):
        name = current.name if position == start else next(each.stage for each in old.segments if each.start == end)
        message = f"position {position} is where stage {name!r} begins, so no new stage can begin there"
        raise ConfigError(message, hint=f"edit `{path}`, then run `tokenloom run lock --consumed-samples {position}`")
    else:
        left = None if end is None else end - position
        stages[number] = replace(current, tokens=None, samples=position - start, passes=None, weights=weights)
    names = [source.name for source in settings.sources]
    if (unknown := next((name for name, _ in amendment.weights if name not in names), None)) is not None:
        message = f"a weight is given for {unknown!r}, which is not a source of the run"
        raise ConfigError(message, hint=did_you_mean(unknown, names) or "add it with `--add-source NAME=DATA`")
    in_order = sorted(amendment.weights, key=lambda each: names.index(each[0]))
    length = amendment.sequence_length or current.sequence_length
    tokens, samples = amendment.tokens, amendment.samples
    if tokens is None and samples is None and left is not None:
        samples = left if length == current.sequence_length else None
        tokens = left * current.sequence_length if samples is None else None
    new = StageSettings(
        name=amendment.stage_name or f"from {position}",
        sequence_length=length,
        tokens=tokens,
        samples=samples,
        weights=tuple((name, weight) for name, weight in in_order if weight) if in_order else weights,
        on_exhausted=current.on_exhausted,
    )
    return (*stages[: number + 1], new, *stages[number + 1 :])


AHEAD = 1 << 20  # number of positions whose changes are listed if the run is endless
Documents = Mapping[int, NDArray[np.int64]]  # document numbers in ascending order, by source number


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Denied:
    """The result of a denial.

    Attributes:
        documents: indices of all documents that the denial lists, by index of the source.
        again: those of `documents` that were already denied. held_out: those of `documents` that are held out.
        changed: spans that become padding, at positions from the denial up to `stop`, exclusive.
        seen: spans of `documents` in samples before the denial's position; None if not requested.
        digests: digests of the order before the denial's position, by the old lock and by the new lock.
        order_digests: digests of the order before `stop` without any denials, by the old lock and by the new lock.
    """

    amended: Amended
    documents: Documents
    again: Documents
    held_out: Documents
    changed: SpanTable
    stop: int
    seen: SpanTable | None
    digests: tuple[str, str]
    order_digests: tuple[str, str]

    @property
    def nothing_else_moved(self) -> bool:
        return self.digests[0] == self.digests[1] and self.order_digests[0] == self.order_digests[1]


def deny_documents(
    path: str | os.PathLike[str],
    denial: Amendment,
    *,
    until: int | None = None,
    since_start: bool = False,
    reading: Reading | None = None,
    write: bool = True,
) -> Denied:
    """Denies documents from a position on: adds a `[[denied]]` table to `run.toml` and locks the run; see `amend_run`.

    The result lists the spans that become padding before position `until`; None stands for the end of the run, or in an
    endless run for `AHEAD` positions from the denial on. With `since_start`, the result has earlier spans, too.
    """
    if until is not None and until < denial.position:
        raise ConfigError(f"`until` must be at least {denial.position}, the position of the denial, got {until}")
    path, reading = os.fspath(path), reading or Reading()
    amended = amend_run(path, denial, reading=reading, write=write)
    documents = _added(amended.locked)
    old, new = amended.locked.old, amended.locked.lock
    assert old is not None
    run, position = Run(path, new, reading=reading), denial.position
    ahead = position + AHEAD if new.num_samples is None else new.end
    stop = min(ahead if until is None else until, new.end)
    changed = run.occurrences(documents, start=position, stop=stop)
    seen = run.occurrences(documents, stop=position) if since_start else None
    again = {each: chosen[denied_from(old, each, chosen) <= position] for each, chosen in documents.items()}
    held_out = {each: chosen[are_held_out(new, each, chosen)] for each, chosen in documents.items()}
    is_new = changed.denied.copy()
    for source in documents:
        rows = np.flatnonzero(changed.sources == source)
        is_new[rows] &= changed.positions[rows] < denied_from(old, source, changed.documents[rows])
    return Denied(
        amended=amended,
        documents=documents,
        again=again,
        held_out=held_out,
        changed=changed.take(is_new),
        stop=stop,
        seen=None if seen is None else seen.take(~seen.denied),
        digests=(order_digest(old, position), order_digest(new, position)),
        order_digests=(order_digest(replace(old, denials=()), stop), order_digest(replace(new, denials=()), stop)),
    )


def _added(locked: LockedRun) -> dict[int, NDArray[np.int64]]:
    assert locked.old is not None
    found: dict[int, set[int]] = {}
    for denial in Counter(locked.lock.denials) - Counter(locked.old.denials):
        for source, documents in denial.documents:
            found.setdefault(source, set()).update(documents)
    return {source: np.array(sorted(documents), dtype=np.int64) for source, documents in sorted(found.items())}
