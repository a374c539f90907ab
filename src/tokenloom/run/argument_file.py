"""The arguments of a Megatron run, from a shell script, a list of arguments, or lines of YAML: option by option.

Nothing is run: assignments of the file itself are put in for `$NAME`, and what else a shell would work out is an error.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from tokenloom.errors import ConfigError
from tokenloom.numbers import quoted

_OPTION = re.compile(r"--([A-Za-z][A-Za-z0-9_-]*)(?:=(.*))?", re.DOTALL)
_YAML = re.compile(r"(\s*)(?:- )?(?:--)?([A-Za-z][A-Za-z0-9_-]*):(?:\s+(.*))?")
_YAML_ITEM = re.compile(r"\s*- +(.*)")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_COMMENT = re.compile(r"""(?<![^\s])#[^"']*$""")
"""A comment without quotes; one with quotes may be none."""

_MOST_EXPANSIONS = 20


def read_arguments(path: str) -> dict[str, list[str]]:
    """Returns the options that a file names, without their dashes and with `-` for `_`, and the words of each.

    Raises:
        ConfigError: the file cannot be read, or something in it is not plain.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        message = f"`{path}` cannot be read: {error}"
        raise ConfigError(message) from error
    return parse_arguments(text, where=f"`{path}`")


def parse_arguments(text: str, *, where: str) -> dict[str, list[str]]:
    """Returns the same of a text.

    Example:
        >>> parse_arguments('LENGTH=4096\\npython train.py --seq-length $LENGTH --data-path web "code"', where="")
        {'seq-length': ['4096'], 'data-path': ['web', 'code']}
        >>> parse_arguments('seq_length: 4096\\ndata_path: [0.8, web, 0.2, code]', where="")
        {'seq-length': ['4096'], 'data-path': ['0.8', 'web', '0.2', 'code']}

    Args:
        text: the text.
        where: where it is from, for errors.

    Raises:
        ConfigError: something in it is not plain.
    """
    found: dict[str, list[str]] = {}
    variables: dict[str, str] = {}
    option: str | None = None
    for number, line in _lines(text):
        place = f"{where}, line {number}"
        if (yaml := _YAML.fullmatch(line)) is not None and yaml[2].lower() not in ("http", "https", "s3"):
            option = yaml[2].replace("_", "-")
            found[option] = _yaml_words(yaml[3] or "", place)
            continue
        if (item := _YAML_ITEM.fullmatch(line)) is not None and option is not None:
            found[option] += _yaml_words(item[1], place)
            continue
        option = None
        if (assigned := _ASSIGNMENT.fullmatch(line.strip())) is not None and not assigned[2].startswith("("):
            variables[assigned[1]] = " ".join(_words(assigned[2], place))
            continue
        found |= {name: values for name, values in _options(_words(line, place), variables, place) if name is not None}
    return found


def options_of(words: Sequence[str]) -> dict[str, list[str]]:
    """Returns the options of a list of arguments, and the words of each.

    Example:
        >>> options_of(["--seed=1", "--data-path", "web", "--bf16"])
        {'seed': ['1'], 'data-path': ['web'], 'bf16': []}
    """
    return {name: values for name, values in _options(words, {}, "the arguments") if name is not None}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines with their numbers; one that ends in a backslash, or lies in a list in brackets, goes on."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not joined:
            first = number
        line = _COMMENT.sub("", line)
        if not line.strip():
            continue
        joined += line.removesuffix("\\")
        is_open = re.match(r"\s*(?:export\s+)?\w+\+?=\(", joined) and not joined.rstrip().endswith(")")
        is_open = is_open or joined.count("[") > joined.count("]")
        if line.endswith("\\") or is_open:
            joined += " "
            continue
        if joined.strip():
            yield first, joined
        joined = ""
    if joined.strip():
        yield first, joined


def _yaml_words(text: str, place: str) -> list[str]:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].replace(",", " ")
    return [] if text in ("true", "True", "null", "~") else _words(text, place)


def _words(line: str, place: str) -> list[str]:
    array = re.fullmatch(r"\s*(?:export\s+)?\w+\+?=\((.*)\)\s*", line, re.DOTALL)
    try:
        return shlex.split(array[1] if array else line, comments=True)
    except ValueError as error:
        message = f"{place}: expected words as a shell takes them, found {quoted(line.strip())}: {error}"
        raise ConfigError(message) from error


def _options(words: Sequence[str], variables: Mapping[str, str], place: str) -> Iterator[tuple[str | None, list[str]]]:
    """Yields options and their words; words before the first option under None."""
    name: str | None = None
    values: list[str] = []
    for word in _expanded(words, variables, place, depth=0):
        if (found := _OPTION.fullmatch(word)) is None:
            values.append(word)
            continue
        yield name, values
        name, values = found[1].replace("_", "-"), [] if found[2] is None else [found[2]]
    yield name, values


def _expanded(words: Sequence[str], variables: Mapping[str, str], place: str, *, depth: int) -> Iterator[str]:
    for word in words:
        whole = _VARIABLE.fullmatch(word)
        name = None if whole is None else whole[1] or whole[2]
        if name in variables and name is not None and depth < _MOST_EXPANSIONS:
            yield from _expanded(variables[name].split(), variables, place, depth=depth + 1)
        else:
            yield _VARIABLE.sub(lambda found: _value(found, variables), word)


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    value = variables.get(found[1] or found[2])
    return found[0] if value is None else value


def check_plain(option: str, words: Sequence[str]) -> None:
    """Checks that nothing is left in the words of an option that a shell would have to work out.

    Raises:
        ConfigError: something is.
    """
    for word in words:
        if "$" in word or "`" in word:
            message = f"expected plain words for `--{option}`, found {quoted(word)}, which the file does not explain"
            raise ConfigError(message, hint=f"write its value into the file, or give `--{option}` yourself")
