"""The data settings in the arguments of a Megatron run, for `tokenloom run init --args-file`.

A script, a list of arguments or flat YAML is read, not run: assignments in the file are substituted; other expansions
of a shell are errors where a setting needs them. Arguments without a counterpart in a run are listed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tokenloom.errors import ConfigError
from tokenloom.numbers import parse_integer, quoted

NOT_TAKEN = {
    "split": "documents are held out by source; see `--holdout`",
    "per-split-data-args-path": "a run has one blend, and a holdout",
    "train-data-path": "name it with `--data-path`",
    **dict.fromkeys(("valid-data-path", "test-data-path"), "make it a source without weight, or hold documents out"),
    **dict.fromkeys(
        ("rampup-batch-size", "step-batch-size-schedule", "micro-batch-size"),
        "batch sizes are no part of a run; samplers take them",
    ),
    "data-cache-path": "nothing is cached: the order is computed",
    "dataloader-type": "a run has one order",
    "num-dataset-builder-threads": "nothing is built",
    **dict.fromkeys(("eval-iters", "eval-interval", "full-validation"), "a holdout is read as often as you like"),
    "multiple-validation-sets": "name sources for `Run.holdout`",
    "mid-level-dataset-surplus": "a source begins another pass where it is short",
    "mock-data": "a run reads data",
    **dict.fromkeys(("vocab-file", "merge-file"), "name a `tokenizer.json` with `--tokenizer`"),
    "vocab-size": "the tokenizer knows it",
    "fim-data": 'set `dataset = "fim"` and [samples] by hand',
    "num-workers": "loaders take it",
}
"""Arguments about data without a counterpart in a run, and why."""

_FLAGS = ("reset-position-ids", "reset-attention-mask", "eod-mask-loss", "create-attention-mask-in-dataloader")
"""Flags that become settings of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenArguments:
    """The data settings in the arguments of a Megatron run; None or empty where absent.

    Attributes:
        entries: entries of the blend.
        sequence_length, samples, seed, tokenizer, settings: see `draft_text`.
        not_taken: (argument about data without a counterpart in a run, why).
        others: arguments that are not about data.
    """

    entries: tuple[str, ...] = ()
    sequence_length: int | None = None
    samples: int | None = None
    seed: int | None = None
    tokenizer: str | None = None
    settings: Mapping[str, bool] = field(default_factory=dict)
    not_taken: tuple[tuple[str, str], ...] = ()
    others: tuple[str, ...] = ()


def take_arguments(arguments: Mapping[str, Sequence[str]]) -> TakenArguments:
    """Returns the data settings in the arguments of a Megatron run: words by name without dashes.

    Raises:
        ConfigError: an argument is no number, or contains a shell expansion.
    """
    left = dict(arguments)
    not_taken: list[tuple[str, str]] = []
    entries = _plain("data-path", left)
    if file := _one("data-args-path", left):
        entries = _text_of(file).split()
    samples = _number("train-samples", left)
    iterations, batch = _number("train-iters", left), _number("global-batch-size", left)
    if iterations is not None and ("rampup-batch-size" in left or "step-batch-size-schedule" in left):
        not_taken.append(("train-iters", "batch sizes change; give the samples with `--samples`"))
    elif iterations is not None and batch is None:
        not_taken.append(("train-iters", "there is no `--global-batch-size`; give the samples with `--samples`"))
    elif iterations is not None and batch is not None:
        samples = iterations * batch
    flags = [name for name in _FLAGS if left.pop(name, None) is not None]
    settings = {name.removesuffix("-in-dataloader").replace("-", "_"): True for name in flags}
    left.pop("no-create-attention-mask-in-dataloader", None)
    kind, tokenizer = _one("tokenizer-type", left), _one("tokenizer-model", left)
    if kind == "NullTokenizer":
        size = _number("vocab-size", left)
        tokenizer = None if size is None else f"null:{size}"
    elif kind is not None and tokenizer is None:
        not_taken.append(("tokenizer-type", "name a `tokenizer.json`, a model or a folder with `--tokenizer`"))
    length, seed = _number("seq-length", left), _number("seed", left)
    reasons = {name: NOT_TAKEN.get("fim-data" if name.startswith("fim-") else name) for name in left}
    return TakenArguments(
        entries=tuple(entries),
        sequence_length=length,
        samples=samples,
        seed=seed,
        tokenizer=tokenizer,
        settings=settings,
        not_taken=(*not_taken, *((name, reason) for name, reason in reasons.items() if reason is not None)),
        others=tuple(name for name, reason in reasons.items() if reason is None),
    )


def _plain(option: str, left: dict[str, Sequence[str]]) -> Sequence[str]:
    """Removes and returns the words of an option; shell expansions are errors."""
    words = left.pop(option, ())
    if unknown := [word for word in words if "$" in word or "`" in word]:
        message = f"`--{option}`: the file does not assign {quoted(unknown[0])}"
        raise ConfigError(message, hint=f"write its value into the file, or give `--{option}` yourself")
    return words


def _one(option: str, left: dict[str, Sequence[str]]) -> str | None:
    words = _plain(option, left)
    return words[-1] if words else None


def _number(option: str, left: dict[str, Sequence[str]]) -> int | None:
    word = _one(option, left)
    return None if word is None else parse_integer(word.replace("_", ""), f"`--{option}` {quoted(word)}", at_least=0)


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{path}` cannot be read: {error}") from error


_OPTION = re.compile(r"--([A-Za-z][A-Za-z0-9_-]*)(?:=(.*))?", re.DOTALL)
_YAML = re.compile(r"\s*(?:- )?(?:--)?([A-Za-z][A-Za-z0-9_-]*):(?:\s+(.*))?")
_YAML_ITEM = re.compile(r"\s*- +(.*)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_COMMENT = re.compile(r"""(?<!\S)#[^"'\n]*$""", re.MULTILINE)
"""A comment without quotes; with quotes it may be part of a word."""
_SHELL_ARRAY = re.compile(r"\w+\+?=\(([^()]*)\)")
_YAML_LIST = re.compile(r":\s*\[[^\[\]]*\]")


def read_arguments(path: str) -> dict[str, list[str]]:
    """Returns the words of each option in a file, by name without dashes and with `-` for `_`."""
    return parse_arguments(_text_of(path), where=f"`{path}`")


def parse_arguments(text: str, *, where: str) -> dict[str, list[str]]:
    """Returns the same of a text; `where` is its place, for errors.

    Example:
        >>> parse_arguments('LENGTH=4096\\npython train.py --seq-length $LENGTH --data-path web "code"', where="")
        {'seq-length': ['4096'], 'data-path': ['web', 'code']}
        >>> parse_arguments('seq_length: 4096\\ndata_path: [0.8, web, 0.2, code]', where="")
        {'seq-length': ['4096'], 'data-path': ['0.8', 'web', '0.2', 'code']}
    """
    found: dict[str, list[str]] = {}
    variables: dict[str, str] = {}
    option = ""
    for line in _lines(text):
        line = _VARIABLE.sub(lambda name: variables.get(name[1] or name[2], name[0]), line)
        if (yaml := _YAML.fullmatch(line)) is not None:
            option = yaml[1].replace("_", "-")
            found[option] = _yaml_words(yaml[2] or "", where)
        elif option and (item := _YAML_ITEM.fullmatch(line)) is not None:
            found[option] += _yaml_words(item[1], where)
        else:
            option = ""
            words = _words(line.removeprefix("export "), where)
            if len(words) == 1 and (assigned := _ASSIGNMENT.fullmatch(words[0])) is not None:
                variables[assigned[1]] = assigned[2]
            found |= _options_of(words)
    return found


def _lines(text: str) -> Iterator[str]:
    """Yields lines without comments; those that end in a backslash, or within brackets, are joined."""
    text = _COMMENT.sub("", text).replace("\\\n", " ")
    text = _SHELL_ARRAY.sub(lambda array: array[1].replace("\n", " "), text)
    text = _YAML_LIST.sub(lambda values: values[0].replace("\n", " "), text)
    yield from (line for line in text.splitlines() if line.strip())


def _yaml_words(text: str, where: str) -> list[str]:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].replace(",", " ")
    return [] if text in ("true", "True", "null", "~") else _words(text, where)


def _words(line: str, where: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise ConfigError(f"{where}: {quoted(line.strip())} is no shell words: {error}") from error


def _options_of(words: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    values: list[str] = []  # words before the first option are dropped
    for word in words:
        if (option := _OPTION.fullmatch(word)) is None:
            values.append(word)
        else:
            values = found[option[1].replace("_", "-")] = [] if option[2] is None else [option[2]]
    return found
