"""Parts of a run as lines of `run.toml`, and edits that put such lines in and leave all else as it is.

`tomlkit` keeps comments, blank lines and the order of keys. What comes out is read again, and has to say what was
meant; of a file that is laid out otherwise than edits know, the lines to write by hand are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import NoReturn

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Item, Key, Table

from tokenloom.errors import ConfigError
from tokenloom.run.document_names import parse_name
from tokenloom.run.settings import SIZES, DenialSettings, RunSettings, Shares, SourceSettings, StageSettings, parse_run
from tokenloom.run.toml_file import as_key, as_text, did_you_mean

_Body = list[tuple[Key | None, Item]]
"""Keys and values of a table in the order of the file; comments and blank lines have no key."""

_MOST_DECIMALS = 30
"""What `weight_of` reads."""


class RunEdit:
    """Edits of a `run.toml`.

    Args:
        text: text of the file.
        path: the file, for errors.

    Attributes:
        settings: what the file says after the edits so far.

    Raises:
        ConfigError: it is no valid run.
    """

    def __init__(self, text: str, *, path: str) -> None:
        self.settings: RunSettings = parse_run(text, path=path)
        self._text = text
        self._lines: list[str] = []

    def set_samples(self, stage: str, samples: int, *, weights: Shares | None = None) -> None:
        """Gives a stage a number of samples, in the place of the size it has.

        Args:
            stage: name of the stage.
            samples: the number, from 1 on.
            weights: weights of the stage from now on; needed where it had passes.

        Raises:
            ConfigError: there is no such stage, or the file cannot be edited.
        """
        number = self._number_of(stage)
        lines = [f"samples = {samples}"] + ([] if weights is None else [f"weights = {_shares(weights)}"])
        self._lines += lines
        body = self._tables[number].value.body
        added, trailing = _body_of(lines), _take_trailing(body)
        gone = SIZES if weights is None else (*SIZES, "weights")
        kept: _Body = []
        at = 0
        for key, item in body:
            if key is None or key.key not in gone:
                kept.append((key, item))
            elif key.key in SIZES:
                at, old, new = len(kept), item.trivia, added[0][1].trivia
                new.indent, new.comment_ws, new.comment = old.indent, old.comment_ws, old.comment
        body[:] = [*kept[:at], *added, *kept[at:], *trailing]
        stages = list(self.settings.stages)
        shares = weights or stages[number].weights
        stages[number] = replace(stages[number], tokens=None, samples=samples, passes=None, weights=shares)
        self.settings = replace(self.settings, stages=tuple(stages))

    def insert_stage(self, stage: StageSettings, *, after: str) -> None:
        """Inserts a stage behind another.

        Stages behind it that went by the sequence length before them, or by a number for a name, are given what they
        had.

        Args:
            stage: the new one.
            after: name of the stage that it follows.

        Raises:
            ConfigError: there is no such stage, it goes on for ever, or the file cannot be edited.
        """
        number = self._number_of(after)
        stages = list(self.settings.stages)
        if stages[number].is_endless:
            message = f"stage {stage.name!r} cannot follow stage {after!r}, which goes on for ever"
            raise ConfigError(message, hint="give it `tokens`, `samples` or `passes` first")
        lines = ["[[stages]]", *stage_lines(stage)]
        self._lines += lines
        for later in range(number + 1, len(stages)):
            body = self._tables[later].value.body
            names = {key.key for key, _ in body if key is not None}
            pinned = [] if "name" in names else [f"name = {as_text(stages[later].name)}"]
            if later == number + 1 and "sequence_length" not in names:
                pinned.append(f"sequence_length = {stages[later].sequence_length}")
            body[:0] = _body_of(pinned)
        new = _body_of(lines)[0][1]
        assert isinstance(new, AoT)
        new[0].trivia.indent = "\n"
        new[0].value.body.extend(_take_trailing(self._tables[number].value.body))
        self._tables.insert(number + 1, new[0])
        stages.insert(number + 1, stage)
        self.settings = replace(self.settings, stages=tuple(stages))

    def append_denial(self, documents: str | Sequence[str], *, start: int, reason: str | None = None) -> None:
        """Appends a `[[denied]]` to the file.

        Args:
            documents: a file that lists documents, or names of documents such as `web:12345`.
            start: the first position at which they are padding.
            reason: why, in words.

        Raises:
            ConfigError: a name is none of a document, or the file cannot be edited.
        """
        if isinstance(documents, str):
            denial = DenialSettings(start=start, file=documents, reason=reason)
        else:
            names = [source.name for source in self.settings.sources]
            found = sorted({parse_name(document, names) for document in documents})
            denial = DenialSettings(start=start, documents=tuple(found), reason=reason)
        self._append("[[denied]]", *denial_lines(denial))
        self.settings = replace(self.settings, denied=(*self.settings.denied, denial))

    def add_source(self, name: str, data: str) -> None:
        """Adds a source behind the others.

        Args:
            name: name of the source.
            data: its data, relative to the file.

        Raises:
            ConfigError: there is such a source, or the file cannot be edited.
        """
        if name in [source.name for source in self.settings.sources]:
            message = f"`{self.settings.path}` has a source {name!r} already"
            raise ConfigError(message, hint="choose another name")
        source = SourceSettings(name=name, data=(data,))
        table = self._document["sources"]
        body = table.value.body if isinstance(table, Table) else []
        if body and all(key is None or key.is_dotted() or not isinstance(item, Table) for key, item in body):
            line = f"{as_key(name)} = {source_value(source)}"
            self._lines += ["[sources]", line]
            trailing = _take_trailing(body)
            body += [*_body_of([line]), *trailing]
        else:  # each source in a table of its own
            self._append(f"[sources.{as_key(name)}]", f"data = {as_text(data)}")
        self.settings = replace(self.settings, sources=(*self.settings.sources, source))

    def result(self) -> tuple[str, RunSettings]:
        """Returns the new text and what it says.

        Raises:
            ConfigError: it would be no valid run, or the file cannot be edited.
        """
        if not self._lines:
            return self._text, self.settings
        text, path = self._document.as_string(), self.settings.path
        text = text.replace("\n", "\r\n") if "\r\n" in self._text else text
        try:
            found = parse_run(text, path=path)
        except ConfigError as error:
            message = f"`{path}` is left as it is, since the change would be wrong: {error.message}"
            raise ConfigError(message, hint=error.hint or self._by_hand()) from error
        if found.content() != self.settings.content():
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

    def _append(self, *lines: str) -> None:
        self._lines += lines
        self._document.body.extend(_body_of(["", *lines]))

    def _number_of(self, stage: str) -> int:
        names = [each.name for each in self.settings.stages]
        if stage not in names:
            message = f"`{self.settings.path}` has no stage {stage!r}"
            raise ConfigError(message, hint=did_you_mean(stage, names) or f"there are {', '.join(names)}")
        return names.index(stage)

    def _by_hand(self) -> str:
        return "write by hand:" + "".join(f"\n    {line}" for line in self._lines)

    def _refuse(self, message: str) -> NoReturn:
        message = f"`{self.settings.path}` is left as it is: {message}"
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
