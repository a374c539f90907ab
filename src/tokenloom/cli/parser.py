"""The parser of all commands: it imports only the command that is asked for, and says of a mistake what was meant.

A mistake is one line that begins with `error:`, and one with `hint:`; the exit status is 2. What is unknown is named
before what is missing, since it is often the same.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, get_type_hints

from tokenloom.cli.commands import Groups, satellite_module

if TYPE_CHECKING:
    from tokenloom.cli.output import Found

_REQUIRED = "the following arguments are required: "

_WORDS = (
    (r"expected one argument", "expected a value, found none"),
    (r"expected at least one argument", "expected one value or more, found none"),
    (r"expected (\d+) arguments?", r"expected \1 values"),
    (r"not allowed with argument (\S+)", r"cannot stand beside `\1`"),
    (r"ignored explicit argument (.+)", r"takes no value, found \1"),
    (r"invalid \w+ value: (.+)", r"expected another value, found \1"),
)
"""How argparse words mistakes, and how we do."""

_COLUMN_OF_HELP = 25
"""Where the help of a command begins: the longest names have 21 characters."""


class CommandParser(argparse.ArgumentParser):
    """A parser that takes options by their whole names only; the parsers of its commands are of its class.

    An abbreviation would change its meaning with the next option that begins like it, and `--overwrit` is a typing
    error that would replace data.

    Attributes:
        groups: its commands.
        one_of: arguments of which one is needed, as attributes of what is parsed, by what is said to be missing.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False, exit_on_error=False)
        self.groups: Groups = {}
        self.one_of: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, tuple[str, str]] = {}
        self._words: Sequence[str] = ()
        self._parsed = argparse.Namespace()
        self.set_defaults(parser=self)

    def add_commands(self, groups: Groups) -> None:
        """Declares commands; the module of each is imported when it is asked for."""
        self.groups = groups
        self._known = {name: each for commands in groups.values() for name, each in commands.items()}
        self._commands = self.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)

    def add_parser(self, name: str, **settings: Any) -> CommandParser:
        """Returns the parser of a command, which its module calls for; its help is what the groups say."""
        return self._commands.add_parser(name, help=self._known[name][1], **settings)

    def add_command(self, name: str, run: Callable[..., Found]) -> CommandParser:
        """Returns the parser of a command: a function of `options`, a dataclass whose fields are its options, and of
        `parser` if it takes that; see `tokenloom.cli.options`."""
        from tokenloom.cli.options import UsageError, declare, description_of
        from tokenloom.cli.output import print_answers, say

        hints = get_type_hints(run)

        def read_and_run(options: argparse.Namespace) -> int:
            try:
                given = read(options)
                for note in vars(options).get("without_effect", ()):
                    say(note)
                found = run(given, parser) if "parser" in hints else run(given)
                return print_answers(found, as_json=getattr(given, "json", False))
            except UsageError as error:
                parser.error(str(error))

        parser = self.add_parser(name, description=description_of(hints["options"]))
        read = declare(parser, hints["options"])
        parser.set_defaults(run=read_and_run)
        return parser

    def load(self, names: Iterable[str]) -> None:
        """Imports the modules of commands, each of which has the function of its command.

        It is called `run`, or, in a module of several, as all that is typed for it: `run_lock`. A module that has
        `add_parser` declares its commands by that.
        """
        for name in names:
            if name in self._commands.choices:
                continue
            whole = f"{self.prog} {name}".partition(" ")[2]
            place = self._known[name][0]
            if place.startswith("["):
                module: Any = satellite_module(name, place[1:-1])
            else:
                module = import_module(place if "." in place else f"{__package__}.{place}")
            if hasattr(module, "add_parser"):
                module.add_parser(self)
            else:
                self.add_command(name, getattr(module, "run", None) or getattr(module, re.sub("[ -]", "_", whole)))

    def load_all(self) -> None:
        """Imports the modules of all commands, and of those that these have."""
        self.load(self._known)
        for parser in self._commands.choices.values():
            if parser.groups:
                parser.load_all()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Returns what words say, and the words that are left: none, since that is a mistake here."""
        self._words = sys.argv[1:] if args is None else list(args)
        self._parsed = argparse.Namespace() if namespace is None else namespace
        if self.groups and not self._words:
            self.error("expected a command, found none")
        if self.groups and not self._words[0].startswith("-"):
            if (name := self._words[0]) not in self._known:
                self.error(f"unknown command `{name}`", hint=did_you_mean(name, self._known))
            self.load([name])
        elif self.groups:
            self._refuse_unknown(self._words[:1])
        else:
            self._refuse_unknown(self._words)
        try:
            parsed, left = super().parse_known_args(self._words, self._parsed)
        except argparse.ArgumentError as error:
            self._refuse(error)
        if left:
            self.error(f"expected no further value, found {_quoted(left)}")
        if missing := self._missing():
            self.error(f"missing: {', '.join(missing)}")
        return parsed, left

    def error(self, message: str, *, hint: str | None = None) -> NoReturn:
        """Says what is wrong, and where help is; ends with status 2."""
        from tokenloom.cli.output import say

        if message.startswith(_REQUIRED):
            missing = [self._usage_of(name) for name in message.removeprefix(_REQUIRED).split(", ")]
            message = f"missing: {', '.join(dict.fromkeys([*missing, *self._missing()]))}"
        for theirs, ours in _WORDS:
            message = re.sub(theirs, ours, message)
        what = "commands" if self.groups else "options"
        first = "" if hint is None else f"{hint} " if hint.endswith("?") else f"{hint}; "
        say(f"error: {message}\nhint: {first}`{self.prog} --help` shows all {what}")
        self.exit(2)

    def format_help(self) -> str:
        """Returns the help; commands stand in their groups, whether their modules are imported or not."""
        if not self.groups:
            return super().format_help()
        formatter = argparse.HelpFormatter(prog=self.prog, max_help_position=_COLUMN_OF_HELP)
        formatter.add_usage(f"{self.prog} COMMAND …", (), ())
        formatter.add_text(self.description)
        sections = {
            title: [argparse.Action([], dest=name, metavar=name, help=text) for name, (_, text) in commands.items()]
            for title, commands in self.groups.items()
        }
        for title, actions in (sections | {"options": [each for each in self._actions if each.option_strings]}).items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(f"`{self.prog} COMMAND --help` shows the options of a command.")
        return formatter.format_help()

    def _refuse_unknown(self, words: Iterable[str]) -> None:
        """Refuses options that are not there, before anything is said of what they leave missing."""
        known, unknown = self._option_string_actions, dict[str, None]()
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            # A value, as argparse sees it.
            is_value = len(word) < 2 or re.fullmatch(r"-\d+|-\d*\.\d+", word) or (" " in word and "=" not in word)
            is_known = word in known or name in known or (word[1:2] != "-" and word[:2] in known)
            if word.startswith("-") and not is_value and not is_known:
                unknown[name] = None
        if unknown:
            actions = [action for action in self._actions if action.help != argparse.SUPPRESS]
            shown = [name for action in actions for name in action.option_strings]
            message = f"unknown option{'s' if len(unknown) > 1 else ''} {_quoted(unknown)}"
            self.error(message, hint=did_you_mean(unknown, shown))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            *others, last = map(str, action.choices)
            expected = f"{', '.join(others)} or {last}" if others else last
            error = argparse.ArgumentError(action, f"expected {expected}, found {value!r}")
            self._refuse(error, hint=did_you_mean(str(value), [*others, last]))

    def _refuse(self, error: argparse.ArgumentError, *, hint: str | None = None) -> NoReturn:
        """Says what is wrong with an argument, which is called as the user called it."""
        if error.argument_name is None:
            self.error(error.message)
        names = error.argument_name.split("/")
        typed = {word.partition("=")[0] for word in self._words}
        name = next((name for name in names if name in typed), _long(names))
        self.error(f"`{name}`: {error.message}", hint=hint)

    def _missing(self) -> list[str]:
        given = {name for name, value in vars(self._parsed).items() if value not in (None, [], ())}
        return [words for words, names in self.one_of.items() if given.isdisjoint(names)]

    def _usage_of(self, name: str) -> str:
        """Returns an argument as it is to be typed: `--output-prefix PREFIX`."""
        option = _long(name.split("/"))
        action = self._option_string_actions.get(option)
        if action is None or action.nargs == 0:
            return option
        return f"{option} {action.metavar or action.dest.upper()}"


def did_you_mean(words: str | Iterable[str], known: Iterable[str]) -> str | None:
    """Returns a question for what may have been meant by a word or several; None if nothing is near.

    Example:
        >>> did_you_mean("--tokeniser", ["--tokenizer", "--tokenizer-type", "--workers"])
        'did you mean `--tokenizer`?'
    """
    from difflib import get_close_matches

    names, guesses = list(known), dict[str, None]()
    for word in [words] if isinstance(words, str) else words:
        near = get_close_matches(word, names, n=1, cutoff=0.75)
        if not near and len(word) >= 4:  # with the characters that make it an option
            near = [name for name in names if name.startswith(word)][:3]
        if near:
            guesses[" or ".join(f"`{name}`" for name in near)] = None
    return f"did you mean {', '.join(guesses)}?" if guesses else None


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _long(names: Sequence[str]) -> str:
    return next((name for name in names if name.startswith("--")), names[0])
