"""Extracts the data settings from the arguments of a Megatron run, for `tokenloom run init --args-file`.

The arguments file is a shell script, a list of arguments or flat YAML. The file is parsed, never executed: variables
that the file assigns are substituted; other shell expansions in a data setting are errors.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tokenloom.errors import ConfigError
from tokenloom.numbers import parse_integer, quoted

NOT_TAKEN = {
    "split": "a run holds out documents per source: use `--holdout`",
    "per-split-data-args-path": "a run has one blend: list its sources with `--data-path`, and use `--holdout`",
    "train-data-path": "use `--data-path`",
    **dict.fromkeys(
        ("valid-data-path", "test-data-path"), "add the data as a source with weight 0, or use `--holdout`"
    ),
    **dict.fromkeys(
        ("rampup-batch-size", "step-batch-size-schedule", "micro-batch-size"),
        "a run has no batch sizes: pass them to the sampler",
    ),
    "data-cache-path": "a run has no index cache: its order is computed",
    "dataloader-type": "a run has one order",
    "num-dataset-builder-threads": "a run has no index cache to build",
    **dict.fromkeys(("eval-iters", "eval-interval", "full-validation"), "your training loop decides when to validate"),
    "multiple-validation-sets": "pass source names to `Run.holdout`",
    "mid-level-dataset-surplus": "a source that runs out starts another epoch",
    "mock-data": "a run needs real data",
    **dict.fromkeys(("vocab-file", "merge-file"), "pass a `tokenizer.json` to `--tokenizer`"),
    "vocab-size": "the tokenizer defines it",
    "fim-data": 'set `dataset = "fim"` and the table [samples] in run.toml',
    "num-workers": "pass it to the loader",
}
"""Data arguments that have no equivalent in a run, each with the reason or the replacement."""

_FLAGS = ("reset-position-ids", "reset-attention-mask", "eod-mask-loss", "create-attention-mask-in-dataloader")
"""Flags that become entries of the table [samples] of `run.toml`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenArguments:
    """The data settings of a Megatron run; an attribute is None or empty if its argument is absent.

    Attributes:
        entries: weights and prefixes of the blend, in the order of `--data-path`.
        sequence_length, samples, seed, tokenizer, settings: arguments of `tokenloom.run.amend.draft_text`.
        not_taken: (name, reason) of each data argument that has no equivalent in a run.
        others: names of the arguments that do not affect data.
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
    """Converts the result of `read_arguments` to the data settings of a Megatron run.

    Raises:
        ConfigError: a value must be a number but is not, or a value contains a shell expansion.
    """
    left = dict(arguments)
    not_taken: list[tuple[str, str]] = []
    entries = _plain("data-path", left)
    if file := _one("data-args-path", left):
        entries = _text_of(file).split()
    samples = _number("train-samples", left)
    iterations, batch = _number("train-iters", left), _number("global-batch-size", left)
    if iterations is not None and ("rampup-batch-size" in left or "step-batch-size-schedule" in left):
        not_taken.append(("train-iters", "the batch size changes: pass the number of samples to `--samples`"))
    elif iterations is not None and batch is None:
        not_taken.append(("train-iters", "no `--global-batch-size`: pass the number of samples to `--samples`"))
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
        not_taken.append(("tokenizer-type", "pass a `tokenizer.json`, a model or a folder to `--tokenizer`"))
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
    """Removes the values of an option from `left` and returns them; shell expansions are errors."""
    words = left.pop(option, ())
    if unknown := [word for word in words if "$" in word or "`" in word]:
        message = f"`--{option}`: the file does not define the variable in {quoted(unknown[0])}"
        raise ConfigError(message, hint=f"assign the variable in the file, or pass `--{option}`")
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
        raise ConfigError(f"cannot read `{path}`: {error}") from error


_OPTION = re.compile(r"--([A-Za-z][A-Za-z0-9_-]*)(?:=(.*))?", re.DOTALL)
_YAML = re.compile(r"\s*(?:- )?(?:--)?([A-Za-z][A-Za-z0-9_-]*):(?:\s+(.*))?")
_YAML_ITEM = re.compile(r"\s*- +(.*)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_COMMENT = re.compile(r"""(?<!\S)#[^"'\n]*$""", re.MULTILINE)
"""A comment that contains no quote, because a # before a quote may be inside a string."""
_SHELL_ARRAY = re.compile(r"\w+\+?=\(([^()]*)\)")
_YAML_LIST = re.compile(r":\s*\[[^\[\]]*\]")


def read_arguments(path: str) -> dict[str, list[str]]:
    """Returns {name: values} of the options in a file, see `parse_arguments`."""
    return parse_arguments(_text_of(path), where=f"`{path}`")


def parse_arguments(text: str, *, where: str) -> dict[str, list[str]]:
    """Returns {name: values} of the options in a text. A name has no leading dashes, and `-` in place of `_`.

    `where` describes the text in error messages.

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
    """Yields the lines without comments; joins lines that a backslash continues, and lines inside brackets."""
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
        raise ConfigError(f"{where}: cannot split the line {quoted(line.strip())}: {error}") from error


def _options_of(words: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    values: list[str] = []  # words before the first option are dropped
    for word in words:
        if (option := _OPTION.fullmatch(word)) is None:
            values.append(word)
        else:
            values = found[option[1].replace("_", "-")] = [] if option[2] is None else [option[2]]
    return found
