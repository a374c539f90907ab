"""The first `run.toml` of a run: from a blend as Megatron has it, or from folders."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.numbers import number_or_none, quoted
from tokenloom.run.settings import Shares, SourceSettings, StageSettings, from_folder, parse_run, whole_weights
from tokenloom.run.sources import find_pairs
from tokenloom.run.toml_edit import source_value, stage_lines
from tokenloom.run.toml_file import as_key, as_text, weight_of
from tokenloom.tokenizers.kinds import KINDS as TOKENIZER_KINDS

_SUFFIX = re.compile(r"_?(?:text_)?(?:document|sentence)$")
_COMMENT_COLUMN = 24


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


def draft_text(draft: RunDraft, *, path: str) -> str:
    """Returns the text of a new `run.toml`, with comments for who reads it."""
    folder = os.path.dirname(path)
    names = _names(draft.data)
    sources = [
        SourceSettings(name=name, data=(from_folder(entry, folder),), holdout=draft.holdout)
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


def _tokenizer_from_folder(name: str, folder: str) -> str:
    is_file = not any(kind.is_specified_by(name) for kind in TOKENIZER_KINDS.values())
    return from_folder(name, folder) if is_file and os.path.exists(name) else name


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
