"""Options from dataclasses: a field is an option, its type says what may be written, its docstring what it is for.

A command is a function that takes one of such a class. The settings of the rooms below are such dataclasses already,
and a command nests them in its own:

    @dataclass(frozen=True, kw_only=True)
    class Options:
        '''Join datasets into one pair.                     the description of the command

        Attributes:
            prefixes: datasets to join                      the help
        '''

        prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)] = ()
        part_bytes: Bytes | None = None
        settings: CorpusSettings = CorpusSettings()
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, NamedTuple, NoReturn, TypeVar

from tokenloom.cli.values import byte_count, count, number, signed_number, whole_number
from tokenloom.errors import ConfigError
from tokenloom.numbers import bytes_text

OptionsT = TypeVar("OptionsT")

OneOf = dict[str, tuple[str, ...]]
"""Fields of which one is needed, by what is said to be missing if none is given."""

Either = tuple[tuple[str, ...], ...]
"""Fields that exclude each other."""


WithoutEffect = dict[str, str]
"""Options that are taken and change nothing, by the reason: `--flag --option=N --several=N…`."""

_NUM_VALUES = {"": 0, "N": None, "N…": "+"}


Position = typing.Annotated[int, "position"]
"""A position of a run, or a `Step`: another option takes that, `--until-step` beside `--until-position`."""


class Step(int):
    """A step of a run, in the place of the position where it begins."""


class UsageError(Exception):
    """Options do not go together; it ends the command with status 2, as what cannot be parsed does."""


def refuse_usage(message: str) -> NoReturn:
    """Raises `UsageError`."""
    raise UsageError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How a field is written on the command line, where its name, its type and its docstring do not say all.

    Attributes:
        names: names in the place of that of the field, the first one shown.
        metavar: what stands for the value in help.
        parse: returns the value of a text.
        help: in the place of the docstring.
        show: shows the default.
        choices: the texts that there are.
        is_positional: whether it is no option, but a value by its place; with `names`, or an option in its place.
        is_hidden: whether help does not show it.
        is_repeated: whether the option is written once for each value.
        group: title of the group that it stands in, and the fields of a nested class, in the place of `GROUP`.
        without: fields of a nested class that are no options.
        fields: how fields of a nested class are written, by name.
        others: options that stand for other values of the field, with what argparse is to know of them.
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
    """How an answer is printed; a command documents what its object holds.

    Attributes:
        json: print one JSON object.
    """

    json: bool = False


_OF_TYPES: dict[Any, Written] = {
    "bytes": Written(metavar="SIZE", parse=byte_count, show=bytes_text),
    "count": Written(metavar="N", parse=count),
    "number": Written(metavar="N", parse=whole_number),
    "position": Written(metavar="N", parse=whole_number),
    "seconds": Written(metavar="SECONDS", parse=number, show="{:g}".format),
    int: Written(metavar="N", parse=signed_number),
    float: Written(metavar="NUMBER", parse=number, show="{:g}".format),
    str: Written(),
}
"""How values are written, by what their type is annotated with, or by the type; see `tokenloom.setting_types`."""


class _Option(NamedTuple):
    """A field that is an option, or a value by its place."""

    name: str
    type: Any
    marks: tuple[Any, ...]
    default: Any
    help: str
    written: Written
    group: str | None


def declare(
    parser: Any, kind: type[OptionsT], written: Written = Written()
) -> Callable[[argparse.Namespace], OptionsT]:
    """Declares the fields of a dataclass as options, those of nested classes too.

    The fields of a class with a `GROUP` stand in the group of that title. A command needs one `ONE_OF` each of the
    options that it names, and takes at most one of those of `EITHER`. `WITHOUT_EFFECT` are options that are taken, and
    change nothing; help does not show them, and `without_effect` of what is parsed tells of them.

    Returns what makes the dataclass of what was parsed, or raises a `ConfigError` where that refuses a value.
    """
    groups: dict[str, Any] = {}
    exclusive: dict[tuple[str, ...], list[Any]] = {}
    members: dict[str, Callable[[argparse.Namespace], Any]] = {}
    for owner in kind.__mro__:
        exclusive |= {names: [] for names in vars(owner).get("EITHER", ())}
    for each in _options_of(kind, written):
        if is_dataclass(each.type) and each.written.parse is None:  # no value that one text stands for
            members[each.name] = declare(parser, each.type, each.written)  # type: ignore[arg-type]  # a class
            continue
        members[each.name] = partial(_value_of, each.name)
        if each.group is not None and each.group not in groups:
            groups[each.group] = parser.add_argument_group(each.group)
        place = parser if each.group is None else groups[each.group]
        for together, made in exclusive.items():
            if each.name in together:
                made[:] = made or [place.add_mutually_exclusive_group()]
                [place] = made
        others = dict(each.written.others)
        if "position" in each.marks:
            given = {"metavar": "N", "type": option(lambda text: Step(whole_number(text)))}
            name = f"--{each.name.rpartition('_')[0] or 'at'}-step"
            others[name] = {"help": "the same, as a step from 0 on", **given}
        if each.written.is_positional and each.written.names:
            others[each.written.names[0]] = {"metavar": "PATH", "help": "the same, by an option"}
            parser.one_of[f"{each.written.metavar} (or {each.written.names[0]})"] = (each.name,)
        place = place.add_mutually_exclusive_group() if others else place
        shown = f"--{'no-' if each.default is True else ''}{each.name.replace('_', '-')}"
        names = (each.name,) if each.written.is_positional else each.written.names or (shown,)
        place.add_argument(*names, **_argument_of(each))
        for name, given in others.items():
            place.add_argument(name, dest=each.name, **given)
    for owner in kind.__mro__:
        parser.one_of |= vars(owner).get("ONE_OF", {})
        for reason, options in vars(owner).get("WITHOUT_EFFECT", {}).items():
            for name, _, values in (each.partition("=") for each in options.split()):
                given = {"nargs": _NUM_VALUES[values], "const": reason, "help": argparse.SUPPRESS}
                parser.add_argument(name, action=_TakeWithoutEffect, **given)
    return lambda options: kind(**{name: member(options) for name, member in members.items()})


class _TakeWithoutEffect(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = vars(namespace).get("without_effect", ())
        namespace.without_effect = (*before, f"{option_string} has no effect here: {self.const}")


def _value_of(name: str, options: argparse.Namespace) -> Any:
    found = getattr(options, name)
    return tuple(found) if isinstance(found, list) else found


def arguments_of(options: object, function: Callable[..., Any], **others: Any) -> dict[str, Any]:
    """Returns the options that are called like parameters of a function, or fields of a class, as its arguments.

    `others` are arguments that no option is, and those in the place of one.
    """
    names = inspect.signature(function).parameters
    return {name: value for name, value in vars(options).items() if name in names} | others


def _options_of(kind: type[Any], written: Written) -> Iterator[_Option]:
    hints, known = typing.get_type_hints(kind, include_extras=True), {each.name: each for each in fields(kind)}
    for owner in kind.__mro__:  # the command's own options come first
        for name in vars(owner).get("__annotations__", ()):
            if name in written.without or (field := known.pop(name, None)) is None:
                continue
            type_, marks = _taken_apart(hints[name])
            ours = written.fields.get(name) or next((mark for mark in marks if isinstance(mark, Written)), Written())
            default = field.default if field.default_factory is MISSING else field.default_factory()
            group = ours.group or written.group or vars(owner).get("GROUP")
            help_ = _docs(kind).get(name, "")  # type: ignore[arg-type]  # classes are hashable
            yield _Option(name, type_, marks, default, help_, ours, group)


def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a type without None and annotations, and the annotations, also those of the items of a tuple."""
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


def _argument_of(each: _Option) -> dict[str, Any]:
    """Returns what argparse is to know of an option."""
    ours, type_, marks = each.written, each.type, each.marks
    help_ = argparse.SUPPRESS if ours.is_hidden else ours.help or each.help
    given: dict[str, Any] = {} if ours.is_positional else {"dest": each.name}
    if type_ is bool:
        return given | {"action": "store_false" if each.default is True else "store_true", "help": help_}
    is_needed = each.default is MISSING
    given["default"] = None if is_needed else each.default
    if ours.is_positional and ours.names:  # what is left out must not take the place of the option's value
        given |= {"nargs": "?", "default": argparse.SUPPRESS}
    elif ours.is_positional:
        given["nargs"] = None if is_needed else "?"
    else:
        given["required"] = is_needed
    if typing.get_origin(type_) is tuple:
        given |= (
            {"action": "append", "default": list(each.default)}
            if ours.is_repeated
            else {"nargs": "*" if ours.is_positional and not is_needed else "+"}
        )
        type_, more = _taken_apart(typing.get_args(type_)[0])
        marks += more
    choices = ours.choices or (typing.get_args(type_) if typing.get_origin(type_) is typing.Literal else None)
    known = next((_OF_TYPES[mark] for mark in marks if isinstance(mark, str)), _OF_TYPES.get(type_, Written()))
    if (parse := ours.parse or known.parse) is not None:
        given["type"] = option(parse)
    if ours.metavar or choices is None:
        given["metavar"] = ours.metavar or known.metavar or each.name.rpartition("_")[2].upper()
    if each.default not in (MISSING, None, (), "", {}) and help_ is not argparse.SUPPRESS and "(default" not in help_:
        show = known.show or str
        value = " ".join(map(show, each.default)) if isinstance(each.default, tuple) else show(each.default)
        help_ = f"{help_} (default {value})"
    return given | {"choices": choices, "help": help_ if help_ is argparse.SUPPRESS else help_.replace("%", "%%")}


def option(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a parser of values whose errors argparse shows as they are."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ConfigError as error:
            message = error.message if error.hint is None else f"{error.message}; {error.hint}"
            raise argparse.ArgumentTypeError(message) from None

    return parsed


@cache
def _docs(kind: Any) -> dict[str, str]:
    """Returns what the docstrings of a class and those above it say of each attribute."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        section = (inspect.cleandoc(owner.__doc__ or "") + "\n").partition("\nAttributes:\n")[2]
        for entry in re.findall(r"^    (\w.*(?:\n {8,}.*)*)", section.partition("\n\n")[0], re.MULTILINE):
            names, _, text = re.sub(r"\s+", " ", entry).partition(": ")
            found |= dict.fromkeys(names.split(", "), text.rstrip("."))
    return found


def description_of(kind: type[Any]) -> str:
    """Returns what the docstring of a class says before its attributes."""
    return re.sub(r"\s+", " ", inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:")[0]).strip()
