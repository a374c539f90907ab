"""`tokenloom completion`: scripts by which shells complete commands, options and their choices.

A script holds all words, so that completing starts no Python: it is made anew with another version.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenloom.cli.parser import CommandParser


@dataclass(frozen=True)
class _Place:
    """What can be typed behind `tokenloom WORDS`."""

    words: str
    commands: dict[str, str]
    """With their help."""

    options: dict[str, argparse.Action]

    @property
    def offered(self) -> str:
        """All of it, in a line."""
        return " ".join([*self.commands, *self.options])

    @property
    def choices(self) -> Iterator[tuple[str, str]]:
        """The options that take one of a few values, with these in a line."""
        for name, action in self.options.items():
            if action.choices is not None:
                yield name, " ".join(map(str, action.choices))


def add_parser(commands: Any) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "completion",
        description="Print a script by which a shell completes commands, options and their choices. bash: put "
        "`source <(tokenloom completion bash)` into ~/.bashrc; zsh: the same with zsh into ~/.zshrc, behind compinit; "
        "fish: `tokenloom completion fish > ~/.config/fish/completions/tokenloom.fish`.",
    )
    parser.add_argument("shell", choices=tuple(_SCRIPTS), metavar="SHELL", help="bash, zsh or fish")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints the script."""
    from tokenloom.cli import build_parser

    print(_SCRIPTS[options.shell](list(_places(build_parser()))), end="")
    return 0


def _places(parser: CommandParser, *words: str) -> Iterator[_Place]:
    commands = {name: text for group in parser.groups.values() for name, text in group.items()}
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    yield _Place(" ".join(words), commands, {name: action for action in shown for name in action.option_strings})
    for name in commands:
        yield from _places(parser.command(name), *words, name)


def _commands_with_commands(places: list[_Place]) -> str:
    """Returns an expression for the commands that have commands of their own, as bash and zsh take it."""
    return f"^({'|'.join(at.words for at in places if at.words and at.commands)})$"


def _bash(places: list[_Place]) -> str:
    values = [f'        "{at.words} {name}") words="{values}" ;;' for at in places for name, values in at.choices]
    outer = _commands_with_commands(places)
    words = [f'            "{at.words}") words="{at.offered}" ;;' for at in places]
    return "\n".join(
        [
            "_tokenloom() {",
            "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
            "    local command=${COMP_WORDS[1]} words=",
            "    (( COMP_CWORD == 1 )) && command=",
            f'    [[ $command =~ {outer} ]] && (( COMP_CWORD > 2 )) && command="$command ${{COMP_WORDS[2]}}"',
            '    case "$command $before" in',
            *values,
            f'        *) [[ $word == -* || -z $command || $command =~ {outer} ]] && case "$command" in',
            *words,
            "        esac ;;",
            "    esac",
            '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
            "}",
            "complete -o default -F _tokenloom tokenloom\n",
        ]
    )


def _zsh(places: list[_Place]) -> str:
    values = [f'        ("{at.words} {name}") offered=({values}) ;;' for at in places for name, values in at.choices]
    outer = _commands_with_commands(places)
    words = [f'            ("{at.words}") offered=({at.offered}) ;;' for at in places]
    return "\n".join(
        [
            "#compdef tokenloom",
            "_tokenloom() {",
            "    local command=${words[2]} before=${words[CURRENT-1]}",
            "    local -a offered",
            "    (( CURRENT == 2 )) && command=",
            f'    [[ $command =~ {outer} ]] && (( CURRENT > 3 )) && command="$command ${{words[3]}}"',
            '    case "$command $before" in',
            *values,
            f'        (*) [[ $PREFIX == -* || -z $command || $command =~ {outer} ]] && case "$command" in',
            *words,
            "        esac ;;",
            "    esac",
            "    if (( $#offered )); then compadd -- $offered; else _files; fi",
            "}",
            'if [[ $funcstack[1] == _tokenloom ]]; then _tokenloom "$@"; else compdef _tokenloom tokenloom; fi\n',
        ]
    )


def _fish(places: list[_Place]) -> str:
    return "\n".join(
        [
            "function __tokenloom_at",
            "    set -l typed (commandline -opc)",
            '    string match -q -- "$argv *" "$typed[2..-1] "',
            "end",
            "function __tokenloom_first",
            '    test (string join " " -- (commandline -opc)) = (string join " " -- tokenloom $argv)',
            "end",
            *(line for at in places for line in _fish_lines(at)),
            "",
        ]
    )


def _fish_lines(at: _Place) -> Iterator[str]:
    first = shlex.quote(f"__tokenloom_first {at.words}".strip())
    for name, text in at.commands.items():
        yield f"complete -c tokenloom -n {first} -f -a {name} -d {_fish_text(text)}"
    where = first if at.commands else shlex.quote(f"__tokenloom_at {at.words}")
    choices = dict(at.choices)
    for name, action in at.options.items():
        kind = "-l" if name.startswith("--") else "-s"
        values = f" -x -a {shlex.quote(choices[name])}" if name in choices else "" if action.nargs == 0 else " -r"
        yield f"complete -c tokenloom -n {where} {kind} {name.lstrip('-')}{values} -d {_fish_text(action.help or '')}"


def _fish_text(text: str) -> str:
    """Returns a text in quotes, as fish reads them."""
    plain = text.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'")
    return f"'{plain}'"


_SCRIPTS: dict[str, Callable[[list[_Place]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
