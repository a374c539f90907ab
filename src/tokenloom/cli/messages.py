"""Messages on stderr: errors and warnings with options in place of settings, and progress.

The rooms below name settings as in Python: `` `restart=True` ``, `` `memory_bytes` ``. Here these become options of the
running command. A hint's alternative without an option is dropped, if there is another one.
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
"""Settings whose option has another name, for commands without an option of the setting's name."""

_ELSEWHERE = {
    "append_eod": "`tokenloom preprocess --append-eod`",
    "split_sentences": "`tokenloom preprocess --split-sentences`",
}
"""Settings of other commands."""

_MISSING_KEY = re.compile(r": no key '.*'; found ")

_SETTING = re.compile(r"(\bwith )?`(?:\w+\(\w+, )?([a-z]\w*)(=[^`()]*)?\)?`")
"""A setting, with or without value, or a call with one: `IndexedDataset(prefix, multimodal=True)`."""

_ALTERNATIVES = re.compile(r"(; |, or (?:else )?)")


def in_options(text: str, parser: argparse.ArgumentParser) -> str:
    """Returns a text with the options of a command in place of settings, where it has them."""

    def option(found: re.Match[str]) -> str:
        with_, setting, value = found[1] or "", found[2], found[3]
        if (typed := _option_of(parser, setting, None if value is None else value[1:])) is None:
            return found[0]
        return f"without {typed}" if with_ and value == "=False" and "`--no-" not in typed else f"{with_}{typed}"

    return _SETTING.sub(option, text)


def hint_in_options(hint: str, parser: argparse.ArgumentParser) -> str | None:
    """Returns a hint with the options of a command; None if the command has options for no part of it."""
    parts = _ALTERNATIVES.split(hint)
    kept = ""
    for between, part in zip(["", *parts[1::2]], parts[::2], strict=True):
        told = in_options(part, parser)
        if not any(found[3] for found in _SETTING.finditer(told)):
            kept = f"{kept}{between}{told}" if kept else told
    return kept or None


def error_lines(error: errors.TokenloomError, parser: argparse.ArgumentParser) -> str:
    """Returns the lines of an error: message, hint, and the page about its class."""
    lines = [f"error: {in_options(error.message, parser)}"]
    hint = None if error.hint is None else hint_in_options(error.hint, parser)
    if _MISSING_KEY.search(error.message) and "keys" in _actions_of(parser):
        hint = f"name the key of the texts with `--json-keys`, or {hint}"
    if hint is not None:
        lines.append(f"hint: {hint}")
    # The page has a section per public class.
    name = next(each.__name__ for each in type(error).__mro__ if vars(errors).get(each.__name__) is each)
    return "\n".join([*lines, f"more: docs/troubleshooting.md#{name.lower()}"])


@contextmanager
def warnings_in_options(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Prints warnings, raised or logged, as lines `warning: …` in the `with` block."""

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
    return {action.dest: action for action in reversed(parser._actions)}  # the first of those with one name


def _option_of(parser: argparse.ArgumentParser, setting: str, value: str | None) -> str | None:
    """Returns a setting as typed on the command line, in backticks; None without an option for it."""
    known, plain = _actions_of(parser), (value or "").strip("'\"")
    if value is None and ("_" not in setting or "run_path" in known):
        return None  # rather a file, or a key of run.toml
    for action in (known.get(setting), known.get(_OTHER_NAMES.get(setting, ""))):
        if action is not None and action.option_strings:
            name = next((name for name in action.option_strings if name.startswith("--")), action.option_strings[0])
            is_flag = action.nargs == 0 or value in (None, "", "True", "False", "...", "…")
            return f"`{name}`" if is_flag else f"`{name} {plain}`"
    if setting not in _ELSEWHERE and value is not None and "settings" in known:
        return f"`--set {setting}={plain.lower()}`"
    return _ELSEWHERE.get(setting)


@contextmanager
def progress_shown() -> Iterator[None]:
    """Shows the progress of the `with` block on stderr."""
    is_animated = False  # on a capable terminal, in its foreground
    with suppress(ValueError, OSError):  # stderr is closed, or no terminal of this session
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
    """Shows the outermost task on one changing line, cut to the terminal; other output goes above it."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(self._show, say, clock=clock)
        self.seconds_between_looks = 0.2
        self._stream = stream
        self._shown: Task | None = None
        self._line: Live | None = None

    def end(self, task: Task, *, is_complete: bool) -> None:
        if task is self._shown:
            self.hide()

    def hide(self) -> None:
        """Removes the line."""
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
