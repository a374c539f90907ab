"""A run as lines of `run.toml`: its first text, and edits that put such lines in and leave all else as it is.

`tomlkit` keeps comments, blank lines and the order of keys. What comes out is read again, and has to say what was
meant; of a file that is laid out otherwise than edits know, the lines to write by hand are shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import NoReturn

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Item, Key, Table

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.numbers import number_or_none, quoted
from tokenloom.run.settings import (
    SIZES,
    DenialSettings,
    RunSettings,
    Shares,
    SourceSettings,
    StageSettings,
    from_folder,
    parse_run,
    whole_weights,
)
from tokenloom.run.sources import find_pairs
from tokenloom.run.toml_file import as_key, as_text, weight_of
from tokenloom.tokenizers.kinds import KINDS as TOKENIZER_KINDS

_Body = list[tuple[Key | None, Item]]
"""Keys and values of a table in the order of the file; comments and blank lines have no key."""

_MOST_DECIMALS = 30
"""What `weight_of` reads."""


def rewritten(text: str, settings: RunSettings) -> tuple[str, RunSettings]:
    """Returns the text of a run that says something else, and what it says.

    What may differ are sizes and weights of stages; new are sources and denials behind the others, and stages, whose
    followers are given what they had: their names, and their sequence length if they went by the one before.
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
    """A file that is edited, and all lines that were put in so far."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path = text, path
        self.lines: list[str] = []

    def set_samples(self, number: int, stage: StageSettings, *, sets_weights: bool) -> None:
        """Gives a stage its number of samples, in the place of the size that it has, and its weights."""
        shares = stage.weights if sets_weights else None
        lines = [f"samples = {stage.samples}"] + ([] if shares is None else [f"weights = {_shares(shares)}"])
        self.lines += lines
        body = self._tables[number].value.body
        added, trailing = _body_of(lines), _take_trailing(body)
        gone = SIZES if shares is None else (*SIZES, "weights")
        kept: _Body = []
        at = 0
        for key, item in body:
            if key is None or key.key not in gone:
                kept.append((key, item))
            elif key.key in SIZES:
                at, old, new = len(kept), item.trivia, added[0][1].trivia
                new.indent, new.comment_ws, new.comment = old.indent, old.comment_ws, old.comment
        body[:] = [*kept[:at], *added, *kept[at:], *trailing]

    def insert_stage(self, number: int, stages: Sequence[StageSettings]) -> None:
        """Inserts one of the stages that there are going to be, before those that follow it."""
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
        """Adds a source behind the others."""
        table = self._document["sources"]
        body = table.value.body if isinstance(table, Table) else []
        if body and all(key is None or key.is_dotted() or not isinstance(item, Table) for key, item in body):
            line = f"{as_key(source.name)} = {source_value(source)}"
            self.lines += ["[sources]", line]
            trailing = _take_trailing(body)
            body += [*_body_of([line]), *trailing]
        else:  # each source in a table of its own
            self.append(f"[sources.{as_key(source.name)}]", f"data = {as_text(*source.data)}")

    def append(self, *lines: str) -> None:
        """Appends a table to the file."""
        self.lines += lines
        self._document.body.extend(_body_of(["", *lines]))

    def result(self, settings: RunSettings) -> tuple[str, RunSettings]:
        """Returns the new text, which has to say what was meant, and what it says."""
        text = self._document.as_string()
        text = text.replace("\n", "\r\n") if "\r\n" in self._text else text
        try:
            found = parse_run(text, path=self._path)
        except ConfigError as error:
            message = f"`{self._path}` is left as it is, since the change would be wrong: {error.message}"
            raise ConfigError(message, hint=error.hint or self._by_hand()) from error
        if found.content() != settings.content():
            self._refuse("the change would change something else, too")
        return text, found

    @cached_property
    def _document(self) -> tomlkit.TOMLDocument:
        text = self._text.replace("\r\n", "\n").removesuffix("\n") + "\n"
        try:
            document = tomlkit.parse(text)
        except TOMLKitError as error:
            self._refuse(f"tomlkit cannot read it: {error}")
        if document.as_string() != text:  # such as tables of an array that lie apart
            self._refuse("an edit would change the order of its tables")
        return document

    @property
    def _tables(self) -> AoT:
        """The stages as tables of the document."""
        stages = self._document["stages"]
        if not isinstance(stages, AoT):
            self._refuse("expected lines `[[stages]]`, found stages that are written otherwise")
        return stages

    def _by_hand(self) -> str:
        return "write by hand:" + "".join(f"\n    {line}" for line in self.lines)

    def _refuse(self, message: str) -> NoReturn:
        message = f"`{self._path}` is left as it is: {message}"
        raise ConfigError(message, hint=self._by_hand())


def _body_of(lines: Sequence[str]) -> _Body:
    return tomlkit.parse("".join(f"{line}\n" for line in lines)).body


def _take_trailing(body: _Body) -> _Body:
    """Removes blank lines and comments behind the last key, which belong to what follows; returns them."""
    if body and isinstance(body[-1][1], Table):
        return _take_trailing(body[-1][1].value.body)
    stop = max((place for place, (key, _) in enumerate(body, 1) if key is not None), default=0)
    taken = body[stop:]
    del body[stop:]
    return taken


def stage_lines(stage: StageSettings) -> list[str]:
    """Returns the lines below `[[stages]]`.

    Example:
        >>> shares = (("web", Fraction(8)), ("code", Fraction(5, 2)))
        >>> stage = StageSettings(name="main", sequence_length=4096, tokens=9 * 10**11, weights=shares)
        >>> print(*stage_lines(stage), sep=chr(10))
        name = "main"
        sequence_length = 4096
        tokens = 900_000_000_000
        weights = { web = 8, code = 2.5 }
    """
    lines = [f"name = {as_text(stage.name)}", f"sequence_length = {stage.sequence_length}"]
    lines += [] if stage.tokens is None else [f"tokens = {stage.tokens:_}"]
    lines += [] if stage.samples is None else [f"samples = {stage.samples}"]
    lines += [] if stage.passes is None else [f"passes = {_shares(stage.passes)}"]
    lines += [] if stage.weights is None else [f"weights = {_shares(stage.weights)}"]
    lines += [] if stage.on_exhausted == "stop" else [f"on_exhausted = {as_text(stage.on_exhausted)}"]
    return lines


def source_value(source: SourceSettings) -> str:
    """Returns what is behind the name of a source and `=`.

    Example:
        >>> source_value(SourceSettings(name="web", data=("data/web/*",), holdout=Fraction(1, 1000)))
        '{ data = "data/web/*", holdout = "0.1%" }'
    """
    data = [as_text(entry) for entry in source.data]
    keys = [f"data = {data[0]}" if len(data) == 1 else f"data = [{', '.join(data)}]"]
    keys += [] if source.holdout is None else [f'holdout = "{_decimal(source.holdout * 100)}%"']
    keys += [] if source.max_passes is None else [f"max_passes = {source.max_passes}"]
    return f"{{ {', '.join(keys)} }}"


def denial_lines(denial: DenialSettings) -> list[str]:
    """Returns the lines below `[[denied]]`."""
    if denial.file is not None:
        documents = as_text(denial.file)
    else:
        documents = f"[{', '.join(as_text(f'{source}:{number}') for source, number in denial.documents)}]"
    reason = [] if denial.reason is None else [f"reason = {as_text(denial.reason)}"]
    return [f"documents = {documents}", f"from = {denial.start}", *reason]


def _shares(shares: Shares) -> str:
    """Returns weights or passes as a table of one line."""
    return f"{{ {', '.join(f'{as_key(name)} = {_decimal(number)}' for name, number in shares)} }}"


def _decimal(number: Fraction) -> str:
    """Returns a number from 0 on, exactly."""
    for decimals in range(_MOST_DECIMALS + 1):
        scaled = number * 10**decimals
        if scaled.denominator == 1:
            digits = str(scaled.numerator).zfill(decimals + 1)
            return f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits
    message = f"expected a number that ends as a decimal, found {number}"
    raise ConfigError(message, hint="give weights as whole numbers")


_SUFFIX = re.compile(r"_?(?:text_)?(?:document|sentence)$")
_COMMENT_COLUMN = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDraft:
    """What a new `run.toml` will say.

    Attributes:
        data: prefixes, globs or folders, each of which becomes a source; relative to the working directory.
        weights: weight of each; empty if they are to be read in proportion to their tokens.
        tokens, samples: size of the stage; at most one. With none, data without weights are read once, and others for
            ever.
        holdout: share of the documents of each source that is held out; None for none.
    """

    data: tuple[str, ...]
    weights: tuple[Fraction, ...] = ()
    sequence_length: int
    tokens: int | None = None
    samples: int | None = None
    seed: int = 1234
    tokenizer: str | None = None
    holdout: Fraction | None = None
    settings: Mapping[str, bool] = field(default_factory=dict)


def weighted_entries(entries: Sequence[str]) -> tuple[tuple[str, ...], tuple[Fraction, ...]]:
    """Returns data and weights of a blend as Megatron has it: weights and prefixes by turns, or prefixes alone.

    Example:
        >>> weighted_entries(["0.8", "web", "0.2", "code"])
        (('web', 'code'), (Fraction(4, 5), Fraction(1, 5)))
    """
    are_numbers = [number_or_none(entry, f"entry {row} {entry!r}") is not None for row, entry in enumerate(entries, 1)]
    if not any(are_numbers):
        return tuple(entries), ()
    turns = [row % 2 == 0 for row in range(len(entries))]
    if are_numbers != turns or len(entries) % 2:
        row = next((row for row in range(len(entries)) if are_numbers[row] != turns[row]), len(entries) - 1)
        message = (
            f"expected weights and prefixes by turns, or prefixes alone, found entry {row + 1} "
            f"{quoted(entries[row])} of {len(entries)}"
        )
        raise ConfigError(message, hint="such as `0.8 web 0.2 code`")
    weights = []
    for row, entry in enumerate(entries[::2]):
        weight = weight_of(Decimal(entry), f"the weight of `{entries[2 * row + 1]}`")
        if not weight:
            message = f"expected a weight above 0 for `{entries[2 * row + 1]}`, found {entry}"
            raise ConfigError(message, hint="leave it out; a source may be added later")
        weights.append(weight)
    return tuple(entries[1::2]), tuple(weights)


def draft_text(draft: RunDraft, *, path: str) -> str:
    """Returns the text of a new `run.toml`, with comments for who reads it."""
    folder = os.path.dirname(path)
    names = _names(draft.data)
    sources = [
        SourceSettings(name=name, data=(from_folder(entry, folder),), holdout=draft.holdout)
        for name, entry in zip(names, draft.data, strict=True)
    ]
    shares: Shares = tuple(zip(names, draft.weights or (Fraction(1),) * len(names), strict=True))
    is_sized = draft.tokens is not None or draft.samples is not None
    stage = StageSettings(
        name="main",
        sequence_length=draft.sequence_length,
        tokens=draft.tokens,
        samples=draft.samples,
        passes=None if draft.weights or is_sized else shares,
        weights=shares if draft.weights or is_sized else None,
    )
    text = _text(draft, sources, stage, folder)
    settings = parse_run(text, path=path)
    if is_sized and not draft.weights and len(sources) > 1:
        counts = [
            sum(IndexedDataset(prefix, mmap=False).num_tokens for prefix in find_pairs(source, settings))
            for source in settings.sources
        ]
        if 0 in counts:
            message = f"expected tokens in `{draft.data[counts.index(0)]}`, found none"
            raise ConfigError(message, hint="leave it out")
        counted = tuple((name, Fraction(count)) for name, count in zip(names, counts, strict=True))
        whole = tuple((name, Fraction(weight)) for name, weight in whole_weights(counted))
        stage = replace(stage, weights=whole)
        text = _text(draft, sources, stage, folder)
        parse_run(text, path=path)
    return text


def _text(draft: RunDraft, sources: Sequence[SourceSettings], stage: StageSettings, folder: str) -> str:
    lines = [
        "# What a training run reads, from its first sample to its last. The order is",
        "# computed from this file and run.lock, which `tokenloom run lock` writes. Until",
        "# training begins, change it as you like; then with `tokenloom run amend`, and",
        "# nothing that was read will move.",
        "",
        _commented("order = 1", "version of the order"),
        _commented(f"seed = {draft.seed}", "of everything random"),
    ]
    if draft.tokenizer is not None:
        lines.append(
            _commented(f"tokenizer = {as_text(_tokenizer_from_folder(draft.tokenizer, folder))}", "of the data")
        )
    lines += [
        _commented('documents = "shuffled"', '"file": as on disk, one range per sample'),
        _commented('windows = "concat"', '"best_fit": whole documents, packed'),
        _commented('mix = "random"', '"even": sources by turns'),
    ]
    if draft.settings:
        lines += ["", "[samples]", *(f"{name} = {str(value).lower()}" for name, value in draft.settings.items())]
    lines += [
        "",
        "# A source is data under one name: a prefix, glob, folder, catalogue, or a list",
        '# of these, relative to this file. `holdout = "0.1%"` keeps documents for',
        "# validation, `max_passes = 4` limits how often it is read.",
        "[sources]",
        *(f"{as_key(source.name)} = {source_value(source)}" for source in sources),
        "",
        "# A stage is a stretch of the run, as long as its `tokens`, `samples` or",
        "# `passes` say; the last may have none of these, and goes on for ever. Weights",
        "# are shares of the samples.",
        "[[stages]]",
        *stage_lines(stage),
    ]
    return "\n".join(lines) + "\n"


def _commented(line: str, comment: str) -> str:
    return f"{line:<{_COMMENT_COLUMN}}  # {comment}"


def _tokenizer_from_folder(name: str, folder: str) -> str:
    is_file = not any(kind.is_specified_by(name) for kind in TOKENIZER_KINDS.values())
    return from_folder(name, folder) if is_file and os.path.exists(name) else name


def _names(data: Sequence[str]) -> list[str]:
    """Returns a name for each source, of the last part of its path that says something; each another one."""
    names: list[str] = []
    for entry in data:
        name = _name(entry)
        number = 1
        while (numbered := name if number == 1 else f"{name}_{number}") in names:
            number += 1
        names.append(numbered)
    return names


def _name(entry: str) -> str:
    for part in reversed(prefix_of(entry.rstrip("/")).split("/")):
        literal = re.split(r"[*?\[]", part)[0]
        name = _SUFFIX.sub("", literal).strip("_-. ") or (literal if literal == part else "").strip("_-. ")
        if name:
            return name
    return "data"
