"""Builds the command-line parser; the options of each command come from a dataclass.

Each field of the dataclass is an option: the type gives the allowed values, the entry under `Attributes` the help. A
command is a function whose argument `options` is such a dataclass. The module of the function is imported when the
command runs. The dataclass can nest the settings classes of other packages:

    @dataclass(frozen=True, kw_only=True)
    class Options:
        '''Merge datasets into one pair.                    description of the command

        Attributes:
            prefixes: datasets to merge                     help of the option
        '''

        prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)] = ()
        settings: CorpusSettings = CorpusSettings()

Wrong usage prints an `error:` and a `hint:` line and exits with status 2. Unknown options are reported before missing
options, because a misspelled option is both unknown and, under the right name, missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import itertools
import math
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from decimal import Decimal
from functools import cache, partial
from importlib import import_module
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar

from tokenloom.cli.commands import COMMANDS, Groups
from tokenloom.cli.output import Answers, print_answers, say
from tokenloom.errors import ConfigError, MissingExtraError
from tokenloom.numbers import bytes_text, items_of, parse_bytes, parse_integer, parse_number, quoted

OptionsT = TypeVar("OptionsT")


Position = typing.Annotated[int, "position"]
"""A position of a run. A field of this type gets a second option, such as `--until-step N`, whose value is a `Step`."""


class Step(int):
    """A step of a run, passed where a position is expected; stands for the first position of the step."""


class UsageError(Exception):
    """Options that do not fit together; the command exits with status 2, as after a parse error."""


def refuse_usage(message: str) -> NoReturn:
    """Raises `UsageError`."""
    raise UsageError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Overrides for the option that is derived from a field's name, type and docstring.

    Attributes:
        names: option strings, such as "--json-keys"; default: the name of the field.
        metavar: placeholder of the value in the help.
        parse: converts the text of an argument to the value.
        help: help text; default: the docstring of the field.
        show: formats the default value for the help text.
        choices: allowed texts.
        is_positional: makes the field a positional argument; with `names`, the user passes this argument or the option.
        is_hidden: omits the option from the help.
        is_repeated: the user repeats the option, once per value.
        group: title of the help group of this field, or of the fields of a nested class; replaces `GROUP`.
        without: fields of a nested class that get no option.
        fields: overrides for fields of a nested class, by name.
        others: more options that set the field: a mapping of option strings to keyword arguments of `add_argument`.
    """

    names: tuple[str, ...] = ()
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    help: str | None = None
    show: Callable[[Any], str] | None = None
    choices: tuple[str, ...] | None = None
    is_positional: bool = False
    is_hidden: bool = False
    is_repeated: bool = False
    group: str | None = None
    without: tuple[str, ...] = ()
    fields: typing.Mapping[str, Written] = dataclasses.field(default_factory=dict)
    others: typing.Mapping[str, dict[str, Any]] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    """Base class of the options of commands with `--json`; each command documents the keys of its JSON object.

    Attributes:
        json: print one JSON object.
    """

    json: bool = False


_SPLITS = ("train", "valid", "test")
_SPLIT_HINT = "write weights such as 98,1,1, or shares such as train=0.98,valid=0.01,test=0.01"


def refuse(message: str, *, hint: str | None = None) -> NoReturn:
    """Raises `ConfigError`, which ends the command with exit status 1."""
    raise ConfigError(message, hint=hint)


def _integer(text: str, *, at_least: int | None = None) -> int:
    number = parse_integer(text.strip(), quoted(text))
    if at_least is not None and number < at_least:
        refuse(f"must be {at_least} or more, got {number}")
    return number


count: partial[int] = partial(_integer, at_least=1)
whole_number: partial[int] = partial(_integer, at_least=0)


def _number(text: str) -> float:
    return parse_number(text.strip(), quoted(text))


def shares(text: str) -> dict[str, float]:
    """Parses shares, such as `train=0.99,valid=0.01`, or weights, such as `98,1,1`; returns {split: share}."""
    if "=" not in text:
        from tokenloom.datasets.splits import parse_and_normalize_split

        try:
            weights = parse_and_normalize_split(text)
        except ConfigError as error:
            refuse(error.message, hint=_SPLIT_HINT)
        return {name: share for name, share in zip(_SPLITS, weights, strict=True) if share}
    named = {}
    for name, value, where in named_values(text, "split", "share", hint=_SPLIT_HINT):
        named[name] = parse_number(value, where)
        if not 0 < named[name] <= 1:
            refuse(f"{where}: the share must be in (0, 1]", hint=_SPLIT_HINT)
    return named


def split_weights(text: str) -> str:
    """Parses weights or shares, see `shares`; returns the weights of train, valid and test as text: `98,1,1`."""
    named = shares(text)
    if "=" not in text:
        return text
    if not (set(named) <= set(_SPLITS) and math.isclose(sum(named.values()), 1)):
        refuse(f"shares of train, valid and test must add up to 1, got {quoted(text)}", hint=_SPLIT_HINT)
    return ",".join(str(Decimal(repr(named.get(name, 0.0)))) for name in _SPLITS)


def named_values(text: str, what: str, value: str, *, hint: str) -> Iterator[tuple[str, str, str]]:
    """Yields (name, value, location for errors) of each item of `NAME=VALUE,…`; a missing or repeated name is an error.

    `what` and `value` are the words for NAME and VALUE in error messages.
    """
    names = set()
    for item in items_of(text):
        where = f"{quoted(text)}: {item.place}"
        name, equals, found = item.text.rpartition("=")
        name = name.strip()
        if not equals or not name or name in names:
            refuse(f"{where} {f'repeats a {what}' if name in names else f'must be {what}={value}'}", hint=hint)
        names.add(name)
        yield name, found, where


_OF_TYPES: dict[Any, Written] = {
    "bytes": Written(metavar="SIZE", parse=lambda text: parse_bytes(text.strip()), show=bytes_text),
    "count": Written(metavar="N", parse=count),
    "number": Written(metavar="N", parse=whole_number),
    "position": Written(metavar="N", parse=whole_number),
    "seconds": Written(metavar="SECONDS", parse=_number, show="{:g}".format),
    int: Written(metavar="N", parse=_integer),
    float: Written(metavar="NUMBER", parse=_number, show="{:g}".format),
    str: Written(),
}
"""Overrides for the options of fields of one type. A key is an annotation (see `tokenloom.setting_types`) or a type."""


def declare(
    parser: Any, kind: type[OptionsT], written: Written = Written()
) -> Callable[[argparse.Namespace], OptionsT]:
    """Adds one option to `parser` for each field of the dataclass `kind` and nested dataclasses; subclass fields first.

    Class attributes refine the options:
        GROUP: title of the help group of the class's own fields.
        EITHER: tuples of mutually exclusive fields.
        ONE_OF: mapping of a name, for error messages, to a tuple of fields; at least one of the fields is required.
        WITHOUT_EFFECT: {reason: ignored options in one string, `--flag --option=N --several=N…`}; no help shows them.

    Returns a function that builds the dataclass from parsed options, and raises `ConfigError` for invalid values.
    """
    hints, docs = typing.get_type_hints(kind, include_extras=True), _docs(kind)  # type: ignore[arg-type]  # classes are hashable
    known = {field.name: field for field in fields(kind) if field.name not in written.without}  # type: ignore[arg-type]
    groups: dict[str | None, Any] = {None: parser}
    members: dict[str, Callable[[argparse.Namespace], Any]] = {}
    either = [names for owner in kind.__mro__ for names in vars(owner).get("EITHER", ())]
    exclusive = {names: parser.add_mutually_exclusive_group() for names in either}
    for owner, name in ((each, name) for each in kind.__mro__ for name in vars(each).get("__annotations__", ())):
        if (field := known.pop(name, None)) is None:
            continue
        type_, marks = _unwrap(hints[name])
        ours = written.fields.get(name) or next((mark for mark in marks if isinstance(mark, Written)), Written())
        group = ours.group or written.group or vars(owner).get("GROUP")
        ours = dataclasses.replace(ours, help=ours.help or docs.get(name, ""), group=group)
        if is_dataclass(type_) and ours.parse is None:  # nested settings, rather than one parsed value
            members[name] = declare(parser, type_, ours)  # type: ignore[arg-type]  # a class
            continue
        members[name] = attrgetter(name)
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        others = dict(ours.others)
        if "position" in marks:
            given = {"metavar": "N", "type": option(lambda text: Step(whole_number(text)))}
            others[f"--{name.rpartition('_')[0] or 'at'}-step"] = {"help": "first position of step N (from 0)", **given}
        if ours.is_positional and ours.names:
            others[ours.names[0]] = {"metavar": "PATH", "help": f"the same as {ours.metavar}"}
            parser.one_of[f"{ours.metavar} (or {ours.names[0]})"] = (name,)
        place = groups[group].add_mutually_exclusive_group() if others else groups[group]
        default = field.default if field.default_factory is MISSING else field.default_factory()
        shown = f"--{'no-' if default is True else ''}{name.replace('_', '-')}"
        names = (name,) if ours.is_positional else ours.names or (shown,)
        made = [place.add_argument(*names, **_argument_of(name, type_, marks, default, ours))]
        made += [place.add_argument(other, dest=name, **given) for other, given in others.items()]
        for together, its_group in exclusive.items():
            its_group._group_actions.extend(made if name in together else ())
    for owner in kind.__mro__:
        parser.one_of |= vars(owner).get("ONE_OF", {})
        for reason, options in vars(owner).get("WITHOUT_EFFECT", {}).items():
            for name, _, values in (each.partition("=") for each in options.split()):
                given = {"nargs": {"": 0, "N": None, "N…": "+"}[values], "const": reason, "help": argparse.SUPPRESS}
                parser.add_argument(name, action=_IgnoreOption, **given)

    def read(options: argparse.Namespace) -> OptionsT:
        found = {name: member(options) for name, member in members.items()}
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})

    return read


class _IgnoreOption(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        say(f"{option_string} has no effect here: {self.const}")


def arguments_of(options: object, function: Callable[..., Any], **others: Any) -> dict[str, Any]:
    """Returns keyword arguments for `function`: the `options` with the name of one of its parameters, and `others`."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in vars(options).items() if name in names} | others


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns (type, annotations) of a type hint; the type is without `Annotated` and None."""
    marks: tuple[Any, ...] = ()
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            marks += hint.__metadata__
            hint = hint.__origin__
        elif origin in (typing.Union, UnionType):
            [hint] = [each for each in typing.get_args(hint) if each is not NoneType]
        else:
            return hint, marks


def _argument_of(name: str, type_: Any, marks: tuple[Any, ...], default: Any, ours: Written) -> dict[str, Any]:
    """Returns keyword arguments for `ArgumentParser.add_argument`."""
    help_ = argparse.SUPPRESS if ours.is_hidden else ours.help or ""
    given: dict[str, Any] = {} if ours.is_positional else {"dest": name}
    if type_ is bool:
        return given | {"action": "store_false" if default is True else "store_true", "help": help_}
    is_needed = default is MISSING
    given["default"] = None if is_needed else default
    if ours.is_positional and ours.names:  # a default would overwrite the option's value
        given |= {"nargs": "?", "default": argparse.SUPPRESS}
    elif ours.is_positional:
        given["nargs"] = None if is_needed else "?"
    else:
        given["required"] = is_needed
    if typing.get_origin(type_) is tuple:
        several = {"nargs": "*" if ours.is_positional and not is_needed else "+"}
        given |= {"action": "append", "default": list(default)} if ours.is_repeated else several
        type_, more = _unwrap(typing.get_args(type_)[0])
        marks += more
    choices = ours.choices or (typing.get_args(type_) if typing.get_origin(type_) is typing.Literal else None)
    known = next((_OF_TYPES[mark] for mark in marks if isinstance(mark, str)), _OF_TYPES.get(type_, Written()))
    if (parse := ours.parse or known.parse) is not None:
        given["type"] = option(parse)
    if ours.metavar or choices is None:
        given["metavar"] = ours.metavar or known.metavar or name.rpartition("_")[2].upper()
    if default not in (MISSING, None, (), "", {}) and help_ is not argparse.SUPPRESS and "(default" not in help_:
        show = known.show or str
        help_ += f" (default {' '.join(map(show, default)) if isinstance(default, tuple) else show(default)})"
    return given | {"choices": choices, "help": help_ if help_ is argparse.SUPPRESS else help_.replace("%", "%%")}


def option(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wraps `parse` so that argparse prints the message and the hint of a `ConfigError`."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError("; ".join(filter(None, (error.message, error.hint)))) from None

    return parsed


@cache
def _docs(kind: Any) -> dict[str, str]:
    """Returns the texts under "Attributes" in the docstrings of a class and its bases, by attribute name."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        section = (inspect.cleandoc(owner.__doc__ or "") + "\n").partition("\nAttributes:\n")[2]
        for entry in re.findall(r"^    (\w.*(?:\n {8,}.*)*)", section.partition("\n\n")[0], re.MULTILINE):
            names, _, text = re.sub(r"\s+", " ", entry).partition(": ")
            found |= dict.fromkeys(names.split(", "), text.rstrip("."))
    return found


_REQUIRED = "the following arguments are required: "

_WORDS = (
    (r"expected (one|at least one) argument", "no value given"),
    (r"not allowed with argument (\S+)", r"cannot be combined with `\1`"),
    (r"ignored explicit argument (.+)", r"takes no value, got \1"),
)
"""Patterns in argparse's error messages, with their replacements."""


class CommandParser(argparse.ArgumentParser):
    """An argument parser that does not accept abbreviated options; its subparsers have the same class.

    The meaning of an abbreviation could change with each new option, and the typo `--overwrit` would replace data.

    Attributes:
        groups: the subcommands by group, as in `COMMANDS`.
        one_of: mapping of a name, for error messages, to a tuple of destinations; one or more must be set.
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
        """Adds subcommands; `load` imports their modules."""
        self.groups = groups
        self._known = {name: each for commands in groups.values() for name, each in commands.items()}
        self._commands = self.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)

    def add_parser(self, name: str, **settings: Any) -> CommandParser:
        """Creates and returns the parser of a subcommand; its help comes from `groups`."""
        return self._commands.add_parser(name, help=self._known[name][1], **settings)

    def load(self, names: Iterable[str] | None = None) -> None:
        """Imports the modules of subcommands (default: all) and adds their parsers.

        A module defines `add_parser`, `run`, or a function named like the command, such as `run_lock`. Other
        distributions provide commands through the entry point group `tokenloom.commands`.

        Raises:
            MissingExtraError: the distribution of a command is not installed.
        """
        for name in self._known if names is None else names:
            if name in self._commands.choices:
                continue
            place, extra = self._known[name][0], self._known[name][0].strip("[]")
            if place == extra:
                module: Any = import_module(place if "." in place else f"{__package__}.{place}")
            else:
                from importlib.metadata import entry_points

                if not (found := [*entry_points(group="tokenloom.commands", name=name)]):
                    message = f"`tokenloom {name}` is in tokenloom-{extra}, which is not installed"
                    raise MissingExtraError(message, hint=f"run `pip install 'tokenloom[{extra}]'`")
                module = found[0].load()
            if hasattr(module, "add_parser"):
                module.add_parser(self)
                continue
            whole = re.sub("[ -]", "_", f"{self.prog} {name}".partition(" ")[2])
            self._add_command(name, getattr(module, "run", None) or getattr(module, whole))
        for parser in self._commands.choices.values() if names is None else ():
            if parser.groups:
                parser.load()

    def _add_command(self, name: str, run: Callable[..., Answers]) -> None:
        """Adds a command; `run` takes a dataclass `options`, and optionally the `parser`."""
        hints = typing.get_type_hints(run)

        def read_and_run(options: argparse.Namespace) -> int:
            try:
                given = read(options)
                answers = run(given, parser) if "parser" in hints else run(given)
                return print_answers(answers, as_json=getattr(given, "json", False))
            except UsageError as error:
                parser.error(str(error))

        description = inspect.cleandoc(hints["options"].__doc__).partition("\nAttributes:")[0]
        parser = self.add_parser(name, description=re.sub(r"\s+", " ", description).strip())
        read = declare(parser, hints["options"])
        parser.set_defaults(run=read_and_run)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses arguments like the base class, but treats an unexpected argument as an error."""
        self._words = sys.argv[1:] if args is None else list(args)
        self._parsed = argparse.Namespace() if namespace is None else namespace
        if self.groups and not self._words:
            self.error("no command given")
        if self.groups and not self._words[0].startswith("-"):
            if (name := self._words[0]) not in self._known:
                self.error(f"unknown command `{name}`", hint=did_you_mean(name, self._known))
            self.load([name])
        else:
            self._refuse_unknown(self._words[:1] if self.groups else self._words)
        try:
            parsed, left = super().parse_known_args(self._words, self._parsed)
        except argparse.ArgumentError as error:
            self._refuse(error)
        if left:
            self.error(f"unexpected {_quoted(left)}")
        if missing := self._missing():
            self.error(f"missing: {missing}")
        return parsed, left

    def error(self, message: str, *, hint: str | None = None) -> NoReturn:
        """Prints an error with a hint; exits with status 2."""
        if message.startswith(_REQUIRED):
            message = f"missing: {self._missing()}"
        for pattern, ours in _WORDS:
            message = re.sub(pattern, ours, message)
        what = "commands" if self.groups else "options"
        first = "" if hint is None else f"{hint} "
        say(f"error: {message}\nhint: {first}`{self.prog} --help` lists all {what}")
        self.exit(2)

    def format_help(self) -> str:
        """Returns the help text; lists subcommands by group without importing their modules."""
        if not self.groups:
            return super().format_help()
        options = {", ".join(each.option_strings): ("", each.help) for each in self._actions if each.option_strings}
        sections: dict[str, Any] = {**self.groups, "options": options}
        width = max(map(len, [*self._known, *options]))
        formatter = self._get_formatter()
        formatter.add_usage(f"{self.prog} COMMAND …", (), ())
        formatter.add_text(self.description)
        parts = [formatter.format_help()]
        for title, commands in sections.items():
            lines = (f"  {name:<{width}}  {text}" for name, (_, text) in commands.items())
            parts.append("\n".join([f"{title}:", *lines, ""]))
        return "\n".join([*parts, f"`{self.prog} COMMAND --help` shows the options of a command.\n"])

    def _refuse_unknown(self, words: Iterable[str]) -> None:
        """Exits with an error if `words` contains unknown options."""
        unknown = dict[str, None]()
        for word in itertools.takewhile(lambda word: word != "--", words):
            found: Any = self._parse_optional(name := word.partition("=")[0])
            if found is not None and (found[0] if isinstance(found, tuple) else found[0][0]) is None:
                unknown[name] = None
        if unknown:
            shown = [name for each in self._actions if each.help != argparse.SUPPRESS for name in each.option_strings]
            message = f"unknown option{'s' if len(unknown) > 1 else ''} {_quoted(unknown)}"
            self.error(message, hint=did_you_mean(unknown, shown))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            *others, last = map(str, action.choices)
            expected = f"{', '.join(others)} or {last}" if others else last
            error = argparse.ArgumentError(action, f"must be {expected}, got {value!r}")
            self._refuse(error, hint=did_you_mean(str(value), [*others, last]))

    def _refuse(self, error: argparse.ArgumentError, *, hint: str | None = None) -> NoReturn:
        """Exits with an error about an argument; names the option as the user typed it."""
        if error.argument_name is None:
            self.error(error.message)
        names = error.argument_name.split("/")
        typed = {word.partition("=")[0] for word in self._words}
        name = next((name for name in names if name in typed), _long(names))
        self.error(f"`{name}`: {error.message}", hint=hint)

    def _missing(self) -> str:
        """Returns the missing required arguments as text, such as "--output-prefix PREFIX"; "" if none is missing."""
        parsed: dict[str, Any] = vars(self._parsed)
        nothing: tuple[Any, ...] = (None, [], ())
        needed = [each for each in self._actions if each.required and parsed.get(each.dest, "") in nothing]
        words = [f"{_long(each.option_strings)} {each.metavar or each.dest.upper()}".strip() for each in needed]
        given = {name for name, value in parsed.items() if value not in nothing}
        others = [text for text, names in self.one_of.items() if given.isdisjoint(names)]
        return ", ".join([*words, *others])


def build_parser(names: Iterable[str] | None = None) -> CommandParser:
    """Returns the command-line parser; loads the modules of the commands `names` (default: all commands)."""
    parser = CommandParser(prog="tokenloom", description="A data pipeline for training large language models.")
    version = f"tokenloom {sys.modules['tokenloom'].__version__}"
    parser.add_argument("-V", "--version", action="version", version=version, help="print the version and stop")
    parser.add_commands(COMMANDS)
    parser.load(names)
    return parser


def did_you_mean(words: str | Iterable[str], known: Iterable[str]) -> str | None:
    """Returns a hint such as "did you mean `--tokenizer`?"; None if no known word is similar."""
    from difflib import get_close_matches

    names, guesses = list(known), dict[str, None]()
    for word in [words] if isinstance(words, str) else words:
        near = get_close_matches(word, names, n=1, cutoff=0.75)
        if not near and len(word) >= 4:  # `word` may be a prefix, such as `--to`
            near = [name for name in names if name.startswith(word)][:3]
        if near:
            guesses[" or ".join(f"`{name}`" for name in near)] = None
    return f"did you mean {', '.join(guesses)}?" if guesses else None


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _long(names: Sequence[str]) -> str:
    return next((name for name in names if name.startswith("--")), names[0] if names else "")
