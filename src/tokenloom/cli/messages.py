"""Prints errors, warnings and progress to stderr.

Messages of other packages name Python settings, such as `` `restart=True` `` or `` `memory_bytes` ``. This module
replaces these settings by options of the running command, such as `` `--restart` ``. A hint may offer alternatives, as
in `A; B` or `A, or B`. An alternative is removed if it names a setting for which the command has no option.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from tokenloom import errors
from tokenloom.cli.output import say
from tokenloom.progress import LineReporter, Task, reporting_to
from tokenloom.rendering.words import printable
from tokenloom.storage.secrets import redacted

if TYPE_CHECKING:
    from rich.live import Live

_OTHER_NAMES = {
    "load_tokenizer": "tokenizer",
    "sequences_per_dataset": "per_dataset_sequences_path",
    "special_tokens": "tokenizer_special_tokens",
    "template": "chat_template",
}
"""{setting: name of the option}, for commands that have no option with the name of the setting."""

_OTHER_COMMANDS = {
    "append_eod": "`tokenloom preprocess --append-eod`",
    "split_sentences": "`tokenloom preprocess --split-sentences`",
}
"""{setting: option of another command}, for commands that have no option for the setting."""

_MISSING_KEY = re.compile(r": no key '.*'; found ")

_SETTING = re.compile(r"(\bwith )?`(?:\w+\(\w+, )?([a-z]\w*)(=[^`()]*)?\)?`")
"""A setting such as `restart` or `restart=True`, or a call such as `IndexedDataset(prefix, multimodal=True)`."""

_ALTERNATIVES = re.compile(r"(; |, or (?:else )?)")


def in_options(text: str, parser: argparse.ArgumentParser) -> str:
    """Returns `text` with each setting replaced by the option of the command; settings without an option stay."""

    def replace(match: re.Match[str]) -> str:
        with_, setting, value = match[1] or "", match[2], match[3]
        if (option := _option_of(parser, setting, None if value is None else value[1:])) is None:
            return match[0]
        return f"without {option}" if with_ and value == "=False" and "`--no-" not in option else f"{with_}{option}"

    return _SETTING.sub(replace, text)


def hint_in_options(hint: str, parser: argparse.ArgumentParser) -> str | None:
    """Like `in_options`, but omits alternatives whose `setting=value` has no option; None if all are omitted."""
    parts = _ALTERNATIVES.split(hint)
    kept = ""
    for separator, part in zip(["", *parts[1::2]], parts[::2], strict=True):
        replaced = in_options(part, parser)
        if not any(match[3] for match in _SETTING.finditer(replaced)):
            kept = f"{kept}{separator}{replaced}" if kept else replaced
    return kept or None


def error_lines(error: errors.TokenloomError, parser: argparse.ArgumentParser) -> str:
    """Returns the lines that report an error: message, hint and a link to a section of docs/troubleshooting.md."""
    lines = [f"error: {in_options(error.message, parser)}"]
    hint = None if error.hint is None else hint_in_options(error.hint, parser)
    if _MISSING_KEY.search(error.message) and "keys" in _actions_of(parser):
        hint = f"pass the key of the texts with `--json-keys`, or {hint}"
    if hint is not None:
        lines.append(f"hint: {hint}")
    name = next(each.__name__ for each in type(error).__mro__ if vars(errors).get(each.__name__) is each)
    return "\n".join([*lines, f"more: docs/troubleshooting.md#{name.lower()}"])


@contextmanager
def print_warnings(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Prints Python and logged warnings of the `with` block as `warning: …` lines that name options, not settings."""

    def line_of(message: Warning | str, *_: object, **__: object) -> str:
        return f"warning: {printable(redacted(in_options(str(message), parser)))}\n"

    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("tokenloom")
    handler.emit = lambda record: say(f"warning: {in_options(record.getMessage(), parser)}")  # type: ignore[method-assign]
    before = warnings.formatwarning
    warnings.formatwarning = line_of
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        warnings.formatwarning = before


def _actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {action.dest: action for action in reversed(parser._actions)}  # keeps the first action of each destination


def _option_of(parser: argparse.ArgumentParser, setting: str, value: str | None) -> str | None:
    """Returns a setting's option, with backticks, such as "`--workers 4`"; None if the command has no such option."""
    known, plain = _actions_of(parser), (value or "").strip("'\"")
    if value is None and ("_" not in setting or "run_path" in known):
        return None  # the word may be a file or a key of run.toml
    for action in (known.get(setting), known.get(_OTHER_NAMES.get(setting, ""))):
        if action is not None and action.option_strings:
            name = next((name for name in action.option_strings if name.startswith("--")), action.option_strings[0])
            is_flag = action.nargs == 0 or value in (None, "", "True", "False", "...", "…")
            return f"`{name}`" if is_flag else f"`{name} {plain}`"
    if setting not in _OTHER_COMMANDS and value is not None and "settings" in known:
        return f"`--set {setting}={plain.lower()}`"
    return _OTHER_COMMANDS.get(setting)


@contextmanager
def show_progress() -> Iterator[None]:
    """Prints the progress of the `with` block to stderr: one changing line on a terminal, else log lines."""
    is_animated = False  # true for a foreground process on a terminal with cursor control
    with suppress(ValueError, OSError):  # raised if stderr is closed, or is the terminal of another session
        if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            is_animated = os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    reporter = TerminalReporter(sys.stderr) if is_animated else LineReporter(say, say)
    try:
        with reporting_to(reporter):
            yield
    finally:
        if isinstance(reporter, TerminalReporter):
            reporter.hide()


class TerminalReporter(LineReporter):
    """A reporter that shows the outermost task as one changing line, cut to the terminal width, below other output."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(self._show, say, clock=clock)
        self.seconds_between_looks: float = 0.2
        self._stream = stream
        self._shown: Task | None = None
        self._line: Live | None = None

    def end(self, task: Task, *, is_complete: bool) -> None:
        if task is self._shown:
            self.hide()

    def hide(self) -> None:
        """Removes the progress line from the terminal."""
        self._shown = None
        if self._line is not None:
            self._line.stop()
            self._line = None

    def _is_due(self, task: Task, now: float) -> bool:
        self._shown = task
        return True

    def _show(self, line: str) -> None:
        from rich.text import Text

        if self._line is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            self._line = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._line.start()
        text = Text(printable(redacted(line), keep=""), no_wrap=True, overflow="ellipsis")
        self._line.update(text, refresh=True)
