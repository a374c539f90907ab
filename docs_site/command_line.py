"""The reference of the command line: a page per command, from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from docs_site.docstrings import table
from tokenloom.cli import build_parser
from tokenloom.cli.commands import COMMANDS

EXIT_STATUS = (
    ("0", "success"),
    ("1", "a problem that is reported: of the data, of a file, of a setting; or a check found something"),
    ("2", "wrong usage: an option or a command that there is not, a value that cannot be one"),
    ("129, 130, 143", "stopped: by SIGHUP, by Ctrl-C, by SIGTERM"),
    ("141", "nobody reads the output any more, as behind `| head`"),
)


def pages() -> dict[str, str]:
    """Returns the pages by their paths below `reference/command-line/`."""
    parsers = _commands_of(build_parser())
    parts = [
        "# Command line",
        "Every command prints its options with `--help`. Data go to stdout, all else to stderr; `--json` prints one "
        "JSON object. Options are written by their whole names.",
    ]
    for title, commands in COMMANDS.items():
        rows = [(f"[`tokenloom {name}`]({name}.md)", text) for name, (_, text) in commands.items()]
        parts += [f"## {title[0].upper()}{title[1:]}", table(("command", "what it does"), rows)]
    parts += ["## Exit status", table(("status", "means"), list(EXIT_STATUS))]
    made = {f"{name}.md": command_page(name, parser) for name, parser in parsers.items()}
    return made | {"index.md": "\n\n".join(parts) + "\n"}


def command_page(name: str, parser: argparse.ArgumentParser) -> str:
    """Returns the page of a command, with the commands in it."""
    inner = [f"## `{below.prog}`\n\n{_body(below)}" for below in _commands_of(parser).values()]
    return "\n".join([f"# `tokenloom {name}`\n\n{_body(parser)}", *inner])


def options_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields what a command takes that it does not hide."""
    for action in parser._actions:
        is_shown = action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)
        if is_shown and not isinstance(action, argparse._SubParsersAction):
            yield action


def _body(parser: argparse.ArgumentParser) -> str:
    needed = [action for action in options_of(parser) if action.required and action.option_strings]
    given = [action for action in options_of(parser) if not action.option_strings]
    words = [f"{action.option_strings[-1]} {_value(parser, action)}" for action in needed]
    usage = " ".join([parser.prog, *(_value(parser, action) for action in given), *words, "[OPTION …]"])
    parts = [parser.description or "", f"```text\n{usage}\n```"]
    for group in parser._action_groups:
        rows = [_row(parser, action) for action in options_of(parser) if action in group._group_actions]
        if rows:
            title = "" if group.title in ("options", "positional arguments") else f"**{group.title}**\n\n"
            parts.append(title + table(("option", "value", "default", "meaning"), rows))
    return "\n\n".join(part for part in [*parts, parser.epilog or ""] if part) + "\n"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{_value(parser, action)}`"
    value = _value(parser, action) if action.option_strings else ""
    is_default = action.default not in (None, False, argparse.SUPPRESS, [], ()) and not callable(action.default)
    default = "needed" if action.required and action.option_strings else f"`{action.default}`" if is_default else ""
    return (
        names,
        f"`{value}`" if value else "",
        default,
        parser._get_formatter()._expand_help(action) if action.help else "",
    )


def _value(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return "" if action.nargs == 0 else parser._get_formatter()._format_args(action, action.dest.upper())


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
