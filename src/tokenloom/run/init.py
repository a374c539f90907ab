"""The first `run.toml` of a run: from a blend as Megatron has it, from arguments of a Megatron run, or from folders."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.numbers import number_or_none, parse_integer, quoted
from tokenloom.run.amounts import weight_of
from tokenloom.run.settings import Shares, SourceSettings, StageSettings, parse_run, whole_weights
from tokenloom.run.sources import find_pairs
from tokenloom.run.toml_edit import source_value, stage_lines
from tokenloom.run.toml_file import as_key, as_text
from tokenloom.storage.addresses import is_remote
from tokenloom.tokenizers.kinds import KINDS as TOKENIZER_KINDS

_SUFFIX = re.compile(r"_?(?:text_)?(?:document|sentence)$")
_COMMENT_COLUMN = 24

NOT_TAKEN = {
    "split": "documents are held out by source; see `--holdout`",
    "per-split-data-args-path": "a run has one blend, and a holdout",
    "train-data-path": "name it with `--data-path`",
    "valid-data-path": "make it a source without weight, or hold documents out",
    "test-data-path": "make it a source without weight, or hold documents out",
    "rampup-batch-size": "batch sizes are no part of a run; samplers take them",
    "step-batch-size-schedule": "batch sizes are no part of a run; samplers take them",
    "micro-batch-size": "batch sizes are no part of a run; samplers take them",
    "data-cache-path": "nothing is cached: the order is computed",
    "dataloader-type": "a run has one order",
    "num-dataset-builder-threads": "nothing is built",
    "eval-iters": "a holdout is read as often as you like",
    "eval-interval": "a holdout is read as often as you like",
    "full-validation": "a holdout is read as often as you like",
    "multiple-validation-sets": "name sources for `Run.holdout`",
    "mid-level-dataset-surplus": "a source begins another pass where it is short",
    "mock-data": "a run reads data",
    "vocab-file": "name a `tokenizer.json` with `--tokenizer`",
    "merge-file": "name a `tokenizer.json` with `--tokenizer`",
    "vocab-size": "the tokenizer knows it",
    "fim-data": 'set `dataset = "fim"` and [samples] by hand',
    "num-workers": "loaders take it",
}
"""Arguments about data that have no place in a run, and why."""

_FLAGS = {
    "reset-position-ids": ("reset_position_ids", True),
    "reset-attention-mask": ("reset_attention_mask", True),
    "eod-mask-loss": ("eod_mask_loss", True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDraft:
    """What a new `run.toml` will say.

    Attributes:
        data: prefixes, globs or folders, each of which becomes a source; relative to the working directory.
        weights: weight of each; empty if they are to be read in proportion to their tokens.
        sequence_length: tokens per sample.
        tokens, samples: size of the stage; at most one. With none, data without weights are read once, and others for
            ever.
        seed: seed of the order.
        tokenizer: the tokenizer; None for none.
        holdout: share of the documents of each source that is held out; None for none.
        settings: settings of samples.
    """

    data: tuple[str, ...]
    weights: tuple[Fraction, ...] = ()
    sequence_length: int
    tokens: int | None = None
    samples: int | None = None
    seed: int = 1234
    tokenizer: str | None = None
    holdout: Fraction | None = None
    settings: Mapping[str, bool] = field(default_factory=dict)


def weighted_entries(entries: Sequence[str]) -> tuple[tuple[str, ...], tuple[Fraction, ...]]:
    """Returns data and weights of a blend as Megatron has it: weights and prefixes by turns, or prefixes alone.

    Example:
        >>> weighted_entries(["0.8", "web", "0.2", "code"])
        (('web', 'code'), (Fraction(4, 5), Fraction(1, 5)))

    Raises:
        ConfigError: weights and prefixes do not take turns, or a weight is none above 0.
    """
    are_numbers = [number_or_none(entry, f"entry {row} {entry!r}") is not None for row, entry in enumerate(entries, 1)]
    if not any(are_numbers):
        return tuple(entries), ()
    turns = [row % 2 == 0 for row in range(len(entries))]
    if are_numbers != turns or len(entries) % 2:
        row = next((row for row in range(len(entries)) if are_numbers[row] != turns[row]), len(entries) - 1)
        message = (
            f"expected weights and prefixes by turns, or prefixes alone, found entry {row + 1} "
            f"{quoted(entries[row])} of {len(entries)}"
        )
        raise ConfigError(message, hint="such as `0.8 web 0.2 code`")
    weights = []
    for row, entry in enumerate(entries[::2]):
        weight = weight_of(Decimal(entry), f"the weight of `{entries[2 * row + 1]}`")
        if not weight:
            message = f"expected a weight above 0 for `{entries[2 * row + 1]}`, found {entry}"
            raise ConfigError(message, hint="leave it out; a source may be added later")
        weights.append(weight)
    return tuple(entries[1::2]), tuple(weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenArguments:
    """What the arguments of a Megatron run say about its data. None, or empty, where they say nothing.

    Attributes:
        entries: entries of the blend.
        sequence_length, samples, seed, tokenizer, settings: see `RunDraft`.
        not_taken: (argument about data that has no place in a run, why).
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
    """Returns what the arguments of a Megatron run say about its data.

    Args:
        arguments: words of each, by its name without dashes.

    Raises:
        ConfigError: one of them is no number that it has to be, or not plain.
    """
    left = dict(arguments)
    not_taken: list[tuple[str, str]] = []
    entries = _plain("data-path", left.pop("data-path", ()))
    if file := _one("data-args-path", left):
        entries = _entries_in(file)
    samples = _number("train-samples", left)
    iterations, batch = _number("train-iters", left), _number("global-batch-size", left)
    if iterations is not None:
        if "rampup-batch-size" in left or "step-batch-size-schedule" in left:
            not_taken.append(("train-iters", "batch sizes change; say the samples with `--samples`"))
        elif batch is None:
            not_taken.append(("train-iters", "there is no `--global-batch-size`; say the samples with `--samples`"))
        else:
            samples = iterations * batch
    settings = {key: value for name, (key, value) in _FLAGS.items() if left.pop(name, None) is not None}
    if left.pop("create-attention-mask-in-dataloader", None) is not None:
        settings["create_attention_mask"] = True
    left.pop("no-create-attention-mask-in-dataloader", None)
    tokenizer = _tokenizer(left, not_taken)
    taken = TakenArguments(
        entries=tuple(entries),
        sequence_length=_number("seq-length", left),
        samples=samples,
        seed=_number("seed", left),
        tokenizer=tokenizer,
        settings=settings,
    )
    not_taken += [(name, NOT_TAKEN[name]) for name in left if name in NOT_TAKEN]
    not_taken += [(name, NOT_TAKEN["fim-data"]) for name in left if name.startswith("fim-") and name not in NOT_TAKEN]
    named = {name for name, _ in not_taken}
    return replace(taken, not_taken=tuple(not_taken), others=tuple(name for name in left if name not in named))


def _tokenizer(left: dict[str, Sequence[str]], not_taken: list[tuple[str, str]]) -> str | None:
    kind, model = _one("tokenizer-type", left), _one("tokenizer-model", left)
    if kind == "NullTokenizer":
        size = _number("vocab-size", left)
        return None if size is None else f"null:{size}"
    if model is None and kind is not None:
        not_taken.append(("tokenizer-type", "name a `tokenizer.json`, a model or a folder with `--tokenizer`"))
    return model


def _plain(option: str, words: Sequence[str]) -> Sequence[str]:
    check_plain(option, words)
    return words


def _one(option: str, left: dict[str, Sequence[str]]) -> str | None:
    words = _plain(option, left.pop(option, ()))
    return words[-1] if words else None


def _number(option: str, left: dict[str, Sequence[str]]) -> int | None:
    word = _one(option, left)
    return None if word is None else parse_integer(word.replace("_", ""), f"`--{option}` {quoted(word)}", at_least=0)


def _entries_in(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().split()
    except (OSError, UnicodeDecodeError) as error:
        message = f"`{path}` of `--data-args-path` cannot be read: {error}"
        raise ConfigError(message) from error


def draft_text(draft: RunDraft, *, path: str) -> str:
    """Returns the text of a new `run.toml`, with comments for who reads it.

    Args:
        draft: what it says.
        path: where it will be; data are named from there on.

    Raises:
        ConfigError: it would be no run; or data cannot be opened, where their sizes decide their shares.
        DatasetNotFoundError: likewise.
    """
    folder = os.path.dirname(path)
    names = _names(draft.data)
    sources = [
        SourceSettings(name=name, data=(_from_folder(entry, folder),), holdout=draft.holdout)
        for name, entry in zip(names, draft.data, strict=True)
    ]
    shares: Shares = tuple(zip(names, draft.weights or (Fraction(1),) * len(names), strict=True))
    is_sized = draft.tokens is not None or draft.samples is not None
    stage = StageSettings(
        name="main",
        sequence_length=draft.sequence_length,
        tokens=draft.tokens,
        samples=draft.samples,
        passes=None if draft.weights or is_sized else shares,
        weights=shares if draft.weights or is_sized else None,
    )
    text = _text(draft, sources, stage, folder)
    settings = parse_run(text, path=path)
    if is_sized and not draft.weights and len(sources) > 1:
        counts = [
            sum(IndexedDataset(prefix, mmap=False).num_tokens for prefix in find_pairs(source, settings))
            for source in settings.sources
        ]
        if 0 in counts:
            message = f"expected tokens in `{draft.data[counts.index(0)]}`, found none"
            raise ConfigError(message, hint="leave it out")
        counted = tuple((name, Fraction(count)) for name, count in zip(names, counts, strict=True))
        whole = tuple((name, Fraction(weight)) for name, weight in whole_weights(counted))
        stage = replace(stage, weights=whole)
        text = _text(draft, sources, stage, folder)
        parse_run(text, path=path)
    return text


def _text(draft: RunDraft, sources: Sequence[SourceSettings], stage: StageSettings, folder: str) -> str:
    lines = [
        "# What a training run reads, from its first sample to its last. The order is",
        "# computed from this file and run.lock, which `tokenloom run lock` writes. Until",
        "# training begins, change it as you like; then with `tokenloom run amend`, and",
        "# nothing that was read will move.",
        "",
        _commented("order = 1", "version of the order"),
        _commented(f"seed = {draft.seed}", "of everything random"),
    ]
    if draft.tokenizer is not None:
        lines.append(
            _commented(f"tokenizer = {as_text(_tokenizer_from_folder(draft.tokenizer, folder))}", "of the data")
        )
    lines += [
        _commented('documents = "shuffled"', '"file": as on disk, one range per sample'),
        _commented('windows = "concat"', '"best_fit": whole documents, packed'),
        _commented('mix = "random"', '"even": sources by turns'),
    ]
    if draft.settings:
        lines += ["", "[samples]", *(f"{name} = {str(value).lower()}" for name, value in draft.settings.items())]
    lines += [
        "",
        "# A source is data under one name: a prefix, glob, folder, catalogue, or a list",
        '# of these, relative to this file. `holdout = "0.1%"` keeps documents for',
        "# validation, `max_passes = 4` limits how often it is read.",
        "[sources]",
        *(f"{as_key(source.name)} = {source_value(source)}" for source in sources),
        "",
        "# A stage is a stretch of the run, as long as its `tokens`, `samples` or",
        "# `passes` say; the last may have none of these, and goes on for ever. Weights",
        "# are shares of the samples.",
        "[[stages]]",
        *stage_lines(stage),
    ]
    return "\n".join(lines) + "\n"


def _commented(line: str, comment: str) -> str:
    return f"{line:<{_COMMENT_COLUMN}}  # {comment}"


def _from_folder(entry: str, folder: str) -> str:
    """Returns a path of the working directory as it is from a folder on."""
    if is_remote(entry) or os.path.isabs(entry):
        return entry
    return os.path.relpath(entry, folder or os.curdir)


def _tokenizer_from_folder(name: str, folder: str) -> str:
    is_file = not any(kind.is_specified_by(name) for kind in TOKENIZER_KINDS.values())
    return _from_folder(name, folder) if is_file and os.path.exists(name) else name


def _names(data: Sequence[str]) -> list[str]:
    """Returns a name for each source, of the last part of its path that says something; each another one."""
    names: list[str] = []
    for entry in data:
        name = _name(entry)
        number = 1
        while (numbered := name if number == 1 else f"{name}_{number}") in names:
            number += 1
        names.append(numbered)
    return names


def _name(entry: str) -> str:
    for part in reversed(prefix_of(entry.rstrip("/")).split("/")):
        literal = re.split(r"[*?\[]", part)[0]
        name = _SUFFIX.sub("", literal).strip("_-. ") or (literal if literal == part else "").strip("_-. ")
        if name:
            return name
    return "data"


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
