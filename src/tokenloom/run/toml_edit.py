"""Edits of a `run.toml` that leave everything else of it as it is: comments, blank lines, the order of keys.

Each takes the text of a file and returns the new one. What comes out is read again, and has to say what was meant; a
file that is written in a way that no edit here understands is left alone, with the lines to write by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

from tokenloom.errors import ConfigError
from tokenloom.run.amounts import count_of
from tokenloom.run.denial_settings import DenialSettings
from tokenloom.run.document_names import parse_name
from tokenloom.run.settings import RunSettings, SourceSettings, parse_run
from tokenloom.run.stage_settings import SIZES, Shares, StageSettings
from tokenloom.run.toml_file import TomlFile, as_key, as_text, did_you_mean
from tokenloom.run.toml_lines import KeyPath, TomlPlaces
from tokenloom.run.toml_words import denial_lines, shares_text, source_value, stage_lines


def set_stage_size(
    text: str, stage: str, key: str, value: int | str | Shares, *, path: str, weights: Shares | None = None
) -> str:
    """Returns the text with another size of a stage, in the place of the one it has.

    Args:
        text: text of the file.
        stage: name of the stage.
        key: `tokens`, `samples` or `passes`.
        value: the new size, as it is to be written.
        path: the file, for errors.
        weights: weights of the stage from now on; needed where it had passes and is to have another size.

    Raises:
        ConfigError: there is no such stage, the result is no valid run, or the file cannot be edited.
    """
    edit = _Edit(text, path)
    number = edit.number_of(stage)
    old = edit.settings.stages[number]
    size = shares_text(value) if isinstance(value, tuple) else as_text(value) if isinstance(value, str) else str(value)
    lines = [f"{key} = {size}"] + ([] if weights is None else [f"weights = {shares_text(weights)}"])
    intended = {
        **dict.fromkeys(SIZES),
        key: value if isinstance(value, tuple) else count_of(value, f"`{key}`"),
        "weights": None if key == "passes" else weights or old.weights,
    }
    where: KeyPath = ("stages", number)
    known = edit.file.root.tables("stages", hint="")[number].values
    if weights is not None and "weights" in known:
        edit.set_key((*where, "weights"), lines.pop(), lines)
    if key == "passes" and "weights" in known:
        edit.remove_key((*where, "weights"), lines)
    present = next((each for each in SIZES if each in known), None)
    if present is None:
        edit.insert_after_header(where, lines, lines)
    else:
        edit.set_key((*where, present), lines[0], lines, further=lines[1:])
    stages = list(edit.settings.stages)
    stages[number] = replace(old, **intended)  # type: ignore[arg-type]  # by name
    return edit.result(replace(edit.settings, stages=tuple(stages)), lines)


def append_stage(text: str, stage: StageSettings, *, path: str) -> str:
    """Returns the text with one more stage behind the last.

    Raises:
        ConfigError: see `insert_stage_after`.
    """
    return insert_stage_after(text, parse_run(text, path=path).stages[-1].name, stage, path=path)


def insert_stage_after(text: str, before: str, stage: StageSettings, *, path: str) -> str:
    """Returns the text with one more stage behind another.

    Stages behind it that went by the sequence length before them, or by a number for a name, are given what they had.

    Args:
        text: text of the file.
        before: name of the stage that it follows.
        stage: the new one.
        path: the file, for errors.

    Raises:
        ConfigError: there is no such stage, it goes on for ever, the result is no valid run, or the file cannot be
            edited.
    """
    edit = _Edit(text, path)
    number = edit.number_of(before)
    lines = ["[[stages]]", *stage_lines(stage)]
    if edit.settings.stages[number].is_endless:
        message = f"expected a stage with an end before stage {stage.name!r}, found {before!r}, which goes on for ever"
        raise ConfigError(message, hint="give it `tokens`, `samples` or `passes` first")
    edit.insert_behind(("stages", number), ["", *lines], lines)
    stages = list(edit.settings.stages)
    tables = edit.file.root.tables("stages", hint="")
    for later in range(number + 1, len(stages)):
        pinned = [] if "name" in tables[later] else [f"name = {as_text(stages[later].name)}"]
        if later == number + 1 and "sequence_length" not in tables[later]:
            pinned.append(f"sequence_length = {stages[later].sequence_length}")
        if pinned:
            edit.insert_after_header(("stages", later), pinned, lines)
    stages.insert(number + 1, stage)
    return edit.result(replace(edit.settings, stages=tuple(stages)), lines)


def append_denial(
    text: str, documents: str | Sequence[str], *, start: int, path: str, reason: str | None = None
) -> str:
    """Returns the text with one more `[[denied]]` at its end.

    Args:
        text: text of the file.
        documents: a file that lists documents, or names of documents such as `web:12345`.
        start: the first position at which they are padding.
        path: the file, for errors.
        reason: why, in words.

    Raises:
        ConfigError: the result is no valid run, or the file cannot be edited.
    """
    edit = _Edit(text, path)
    names = [source.name for source in edit.settings.sources]
    if isinstance(documents, str):
        denial = DenialSettings(start=start, file=documents, reason=reason)
    else:
        found = {parse_name(document, names) for document in documents}
        denial = DenialSettings(start=start, documents=tuple(sorted(found)), reason=reason)
    lines = ["[[denied]]", *denial_lines(denial)]
    edit.insert_at(len(text), ["", *lines])
    return edit.result(replace(edit.settings, denied=(*edit.settings.denied, denial)), lines)


def add_source(
    text: str,
    name: str,
    data: str | Sequence[str],
    *,
    path: str,
    holdout: Fraction | None = None,
    max_passes: int | None = None,
) -> str:
    """Returns the text with one more source behind the others.

    Args:
        text: text of the file.
        name: name of the source.
        data: its data, relative to the file.
        path: the file, for errors.
        holdout, max_passes: see `SourceSettings`.

    Raises:
        ConfigError: there is such a source, the result is no valid run, or the file cannot be edited.
    """
    edit = _Edit(text, path)
    if name in edit.file.values["sources"]:
        raise edit.file.error(("sources", name), f"expected a new source, found {name!r}, which is there")
    entries = (data,) if isinstance(data, str) else tuple(data)
    source = SourceSettings(name=name, data=entries, holdout=holdout, max_passes=max_passes)
    line = f"{as_key(name)} = {source_value(source)}"
    header = edit.places.find(("sources",))
    assert header is not None
    if header.is_header and header.path == ("sources",):
        edit.insert_in_section(header.start, [line])
    elif header.is_header:  # each in a table of its own
        edit.insert_behind(("sources",), ["", "[sources]", line], [line])
    else:
        edit.by_hand("expected a line `[sources]`, found sources that are written otherwise", [line])
    return edit.result(replace(edit.settings, sources=(*edit.settings.sources, source)), ["[sources]", line])


class _Edit:
    """A text, and what is to be replaced in it. Lines to write by hand are given where an edit may not be possible."""

    def __init__(self, text: str, path: str) -> None:
        self.settings = parse_run(text, path=path)
        self.file = TomlFile(text, path=path)
        self._end = "\r\n" if "\r\n" in text else "\n"
        self._changes: list[tuple[int, int, str]] = []

    @property
    def places(self) -> TomlPlaces:
        """Where everything stands."""
        return self.file.places

    def number_of(self, stage: str) -> int:
        """Returns which stage has a name."""
        names = [each.name for each in self.settings.stages]
        if stage not in names:
            message = f"expected a stage of `{self.file.path}`, found {stage!r}, which it does not have"
            raise ConfigError(message, hint=did_you_mean(stage, names) or f"there are {', '.join(names)}")
        return names.index(stage)

    def set_key(self, where: KeyPath, line: str, lines: list[str], *, further: Sequence[str] = ()) -> None:
        """Replaces a key and its value."""
        place = self.places.find(where)
        if place is None or place.path != where or place.is_header:
            self.by_hand(f"expected a line `{where[-1]} = …`, found it written otherwise", lines)
        indent = self.file.text[self.places.start_of_line(place.start) : place.start]
        if indent.strip():
            self.by_hand(f"expected `{where[-1]}` on a line of its own, found it in another value", lines)
        self._changes.append((place.start, place.stop, line))
        if further:
            self.insert_at(self.places.end_of_line(place.stop), [indent + each for each in further])

    def remove_key(self, where: KeyPath, lines: list[str]) -> None:
        """Takes out a key, its value and what is behind it on its line."""
        place = self.places.find(where)
        assert place is not None
        start, stop = self.places.start_of_line(place.start), self.places.end_of_line(place.stop)
        if place.path != where or place.is_header or self.file.text[start : place.start].strip():
            self.by_hand(f"expected a line `{where[-1]} = …`, found it written otherwise", lines)
        self._changes.append((start, stop, ""))

    def insert_after_header(self, where: KeyPath, added: Sequence[str], lines: list[str]) -> None:
        """Puts lines at the beginning of a table."""
        place = self.places.find(where)
        if place is None or place.path != where or not place.is_header:
            self.by_hand(f"expected a line `[[{where[0]}]]`, found {where[0]} that are written otherwise", lines)
        self.insert_at(self.places.end_of_line(place.stop), added)

    def insert_behind(self, where: KeyPath, added: Sequence[str], lines: list[str]) -> None:
        """Puts lines behind all that is in a table."""
        inside = [place for place in self.places.places if place.path[: len(where)] == where]
        if not inside or not inside[0].is_header:
            self.by_hand(f"expected a line `[[{where[0]}]]`, found {where[0]} that are written otherwise", lines)
        self.insert_at(self.places.end_of_line(max(place.stop for place in inside)), added)

    def insert_in_section(self, header: int, added: Sequence[str]) -> None:
        """Puts lines behind the keys that stand right below a header."""
        stop = header
        for place in self.places.places:
            if place.start >= header:
                if place.is_header and place.start > header:
                    break
                stop = max(stop, place.stop)
        self.insert_at(self.places.end_of_line(stop), added)

    def insert_at(self, offset: int, lines: Sequence[str]) -> None:
        """Puts lines at the beginning of a line, or at the end of the text."""
        text = self.file.text
        missing = "" if offset == 0 or text[offset - 1] == "\n" else self._end
        self._changes.append((offset, offset, missing + "".join(f"{line}{self._end}" for line in lines)))

    def result(self, intended: RunSettings, lines: list[str]) -> str:
        """Returns the new text, which says what was meant."""
        text = self.file.text
        for start, stop, new in sorted(self._changes, key=lambda change: change[:2], reverse=True):
            text = text[:start] + new + text[stop:]
        try:
            TomlFile(text, path=self.file.path)
        except ConfigError as error:
            self.by_hand(f"the change would make it no TOML: {error.message}", lines)
        try:
            found = parse_run(text, path=self.file.path)
        except ConfigError as error:
            message = f"`{self.file.path}` is left as it is, since the change would be wrong: {error.message}"
            raise ConfigError(message, hint=error.hint) from error
        if found.content() != intended.content():
            self.by_hand("expected the change to change nothing else, found that it would", lines)
        return text

    def by_hand(self, message: str, lines: list[str]) -> NoReturn:
        """Refuses to edit, and shows what to write."""
        shown = "".join(f"\n    {line}" for line in lines)
        message = f"`{self.file.path}` is left as it is: {message}"
        raise ConfigError(message, hint=f"write by hand:{shown}")
