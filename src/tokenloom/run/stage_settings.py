"""The stages of a run as people write them: how long each is, and what it reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from tokenloom.run.amounts import MOST_SAMPLES, count_of, weight_of
from tokenloom.run.toml_file import Table, as_key, did_you_mean, listed

KEYS = ("name", "sequence_length", "tokens", "samples", "passes", "weights", "on_exhausted")
SIZES = ("tokens", "samples", "passes")
ON_EXHAUSTED = ("stop", "renormalise", "repeat")
LONGEST_SEQUENCE = 1 << 31
"""More than the longest: positions in a sample are 32 bits wide."""

Shares = tuple[tuple[str, Fraction], ...]
"""Sources and a number above 0 of each, in the order of the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """A stretch of a run. At most one of `tokens`, `samples` and `passes` is given; none: it goes on for ever.

    Attributes:
        name: its name, which no other stage has.
        sequence_length: tokens per sample.
        tokens: how many tokens it reads; a last, incomplete sample is not read.
        samples: how many samples.
        passes: how often each source is read in it, instead of weights; fractions, too.
        weights: shares of the samples; sources that are not named are not read. None beside `passes`.
        on_exhausted: what happens where a source has been read `max_passes` times.
    """

    name: str
    sequence_length: int
    tokens: int | None = None
    samples: int | None = None
    passes: Shares | None = None
    weights: Shares | None = None
    on_exhausted: str = "stop"

    @property
    def is_endless(self) -> bool:
        """Whether it has no end of its own."""
        return self.tokens is None and self.samples is None and self.passes is None

    @property
    def num_samples(self) -> int | None:
        """Samples, as far as the settings alone tell: None for an endless stage, and for passes."""
        return self.samples if self.tokens is None else self.tokens // self.sequence_length

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that it reads."""
        return tuple(name for name, _ in self.passes or self.weights or ())


def parse_stages(tables: list[Table], sources: Mapping[str, int]) -> tuple[StageSettings, ...]:
    """Returns the stages.

    Args:
        tables: the `[[stages]]` of a file.
        sources: its sources, and their order.

    Raises:
        ConfigError: a key is unknown, missing or of a value that it cannot have; the message names it.
    """
    stages: list[StageSettings] = []
    named: dict[str, int] = {}
    total = 0
    for number, unnamed in enumerate(tables, 1):
        name = name_of(unnamed, "name") if "name" in unnamed else f"stage {number}"
        table = replace(unnamed, name=f" of stage {name!r}")
        if (other := named.setdefault(name, number)) != number:
            message = f"expected another name than {name!r}, which stage {other} of the file has"
            table.refuse("name" if "name" in table else None, message)
        table.refuse_others(KEYS, elsewhere=_ELSEWHERE)
        stage = _stage(table, name, stages[-1] if stages else None, sources)
        if stage.is_endless and number < len(tables):
            message = f"expected `tokens`, `samples` or `passes`{table.name}, found none; stages follow it"
            table.refuse(None, message, hint="only the last stage may go on for ever")
        total += stage.num_samples or 0
        if total > MOST_SAMPLES:
            message = f"expected at most 2**60 samples up to the end{table.name}, found {total}"
            table.refuse(None, message)
        stages.append(stage)
    return tuple(stages)


_ELSEWHERE = {
    "holdout": "it belongs to a source",
    "max_passes": "it belongs to a source",
    "data": "it belongs to a source",
    "sources": "name them in `weights`",
    "seed": "write it at the top of the file, before the first [table]",
    "weight": "write `weights = { web = 8, code = 2 }`",
}


def name_of(table: Table, key: str) -> str:
    """Returns a value that has to be a name: printable, without blanks around it."""
    name = table.text(key)
    if (fault := fault_of_name(name)) is not None:
        table.refuse_value(key, fault)
    return name


def fault_of_name(name: str) -> str | None:
    """Returns what a name should have been; None for a good one."""
    if name.strip() != name or not name:
        return "a name without blanks around it"
    if not name.isprintable() or len(name) > 200:
        return "a name of at most 200 printable characters"
    return None


def _stage(table: Table, name: str, before: StageSettings | None, sources: Mapping[str, int]) -> StageSettings:
    if "sequence_length" in table or before is None:
        length = table.integer("sequence_length", at_least=1, below=LONGEST_SEQUENCE, hint=_length_hint(table))
    else:
        length = before.sequence_length
    given = [key for key in SIZES if key in table]
    if len(given) > 1:
        message = f"expected one of {listed(SIZES)}{table.name}, found {' and '.join(f'`{key}`' for key in given)}"
        table.refuse(given[1], message, hint="leave all but one out")
    tokens = table.read("tokens", count_of) if "tokens" in table else None
    samples = table.read("samples", count_of) if "samples" in table else None
    if tokens is not None and tokens < length:
        message = f"expected at least the {length} tokens of a sample as `tokens`{table.name}, found {tokens}"
        table.refuse("tokens", message)
    return StageSettings(
        name=name,
        sequence_length=length,
        tokens=tokens,
        samples=samples,
        passes=_shares(table, "passes", sources) if "passes" in table else None,
        weights=_weights(table, sources),
        on_exhausted=table.choice("on_exhausted", ON_EXHAUSTED, "stop"),
    )


def _length_hint(table: Table) -> str | None:
    if "sequence_length" in table:
        return None
    return "such as `sequence_length = 4096`; later stages may leave it out"


def _weights(table: Table, sources: Mapping[str, int]) -> Shares | None:
    if "passes" in table:
        if "weights" in table:
            message = f"expected `passes` or `weights`{table.name}, found both"
            table.refuse("weights", message, hint="leave one of the two out: passes are weights, too")
        return None
    if "weights" not in table:
        table.refuse_value("weights", "", hint=f"such as `weights = {{ {as_key(next(iter(sources), 'web'))} = 1 }}`")
    return _shares(table, "weights", sources)


def _shares(stage: Table, key: str, sources: Collection[str]) -> Shares:
    example = ", ".join(f"{as_key(name)} = 1" for name, _ in zip(sources, range(2), strict=False))
    table = stage.table(key, name=f" in `{key}`{stage.name}", hint=f"write `{key} = {{ {example} }}`")
    found: dict[str, Fraction] = {}
    for name in table.values:
        if name not in sources:
            message = f"expected a source in `{key}`{stage.name}, found {name!r}, which [sources] does not have"
            table.refuse(name, message, hint=did_you_mean(name, sources) or _there_are(sources))
        found[name] = table.read(name, weight_of)
    shares = tuple((name, found[name]) for name in sources if found.get(name))
    if not shares:
        what = "only 0" if found else "none"
        message = f"expected a source with a number above 0 in `{key}`{stage.name}, found {what}"
        stage.refuse(key, message)
    return shares


def _there_are(sources: Collection[str]) -> str:
    names = list(sources)
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names[:10])}{' …' if len(names) > 10 else ''}"
