"""A run as people write it: `run.toml`, read strictly, into what the program computes with.

Nothing is opened but the file itself. Whether data are there, fit together and suffice, `run.lock` knows.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, TypeVar

from tokenloom.errors import ConfigError
from tokenloom.inputs.patterns import is_pattern
from tokenloom.run.document_names import DocumentName, parse_name
from tokenloom.run.lock import RunLock, lock_path, read_lock_if_there
from tokenloom.run.sample_settings import CONVERSATIONS, KINDS, sample_settings
from tokenloom.run.toml_file import (
    Table,
    as_key,
    count_of,
    did_you_mean,
    listed,
    parse_toml,
    read_toml,
    share_of,
    shown,
    weight_of,
)
from tokenloom.storage.addresses import can_be_path, is_remote, parse_address
from tokenloom.storage.atomic import identity_at
from tokenloom.storage.publishing import journal_path, recover
from tokenloom.storage.secrets import admit
from tokenloom.tokenizers.kinds import KINDS as TOKENIZER_KINDS
from tokenloom.tokenizers.local_names import local_file

Key = TypeVar("Key")

NEWEST_ORDER = 1
"""The newest version of the order that is known here."""

DEFAULT_MIXING_BLOCK = 1024
LARGEST_MIXING_BLOCK = 1 << 20

_TOP = (
    *("order", "seed", "tokenizer", "documents", "windows", "mix", "mixing_block", "dataset", "samples", "sources"),
    *("stages", "denied"),
)
_SOURCE = ("data", "holdout", "max_passes")
_IN_STAGES = ("sequence_length", "tokens", "passes", "weights", "on_exhausted")
_ELSEWHERE = {
    **dict.fromkeys(_IN_STAGES, "it belongs to a stage"),
    **dict.fromkeys(_SOURCE, "it belongs to a source"),
    "seed": "write it at the top of the file, before the first [table]",
    "weight": "it belongs to a stage: `weights = { web = 8, code = 2 }`",
    "stage": "write `[[stages]]`",
    "source": "write `[sources]`",
    "deny": "write `[[denied]]`",
}
"""Where keys belong that are often written into another table."""
_SOURCE_EXAMPLE = 'such as `web = { data = "data/web/*_document" }` below `[sources]`'
_STAGE_EXAMPLE = "begin each with a line `[[stages]]`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """Data under one name.

    Attributes:
        name: its name.
        data: prefixes, globs, folders or catalogues, as in the file; `RunSettings.located` says where local ones are.
        holdout: share of its documents that training never reads, in (0, 1/2]; None for none.
        max_passes: how often it may be read; None for any number.
    """

    name: str
    data: tuple[str, ...]
    holdout: Fraction | None = None
    max_passes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """All that a `run.toml` says.

    Attributes:
        order: version of the order, or "megatron".
        seed: seed of everything random, in [0, 2**63).
        tokenizer: what `load_tokenizer` takes, as in the file, see `located_tokenizer`; None for none.
        documents: whether documents are shuffled in each pass: "shuffled", or "file".
        windows: how samples are cut: "concat", or "best_fit".
        mixing_block: positions that are permuted among themselves; 1 for an even mix.
        dataset: the kind of samples: gpt, fim, sft or varlen.
        samples: settings of the dataset class, see `sample_settings`.
        sources: the sources, in the order of the file.
        stages: the stages.
        denied: documents that are not read from some position on.
        path: the file; no part of equality.
        sha256: of the file; likewise.
    """

    order: int | Literal["megatron"]
    seed: int
    tokenizer: str | None
    documents: str
    windows: str
    mixing_block: int
    dataset: str
    samples: dict[str, Any]
    sources: tuple[SourceSettings, ...]
    stages: tuple[StageSettings, ...]
    denied: tuple[DenialSettings, ...]
    path: str = field(compare=False)
    sha256: str = field(compare=False)

    @property
    def folder(self) -> str:
        """The folder that local paths are relative to; empty for the working directory."""
        return os.path.dirname(self.path)

    def located(self, name: str) -> str:
        """Returns a path or glob of the file as it is to be opened; addresses and absolute paths are so already."""
        return _located(name, self.folder)

    @property
    def located_tokenizer(self) -> str | None:
        """The tokenizer as `load_tokenizer` takes it."""
        return None if self.tokenizer is None else located_tokenizer(self.tokenizer, self.folder)

    @property
    def content_sha256(self) -> str:
        """Hash of what matters of the file."""
        return hashlib.sha256(json.dumps(self.content(), sort_keys=True).encode()).hexdigest()

    def content(self) -> dict[str, Any]:
        """Returns what matters of the file, for `json`: comments, layout and the order of sources do not.

        Weights are the smallest whole numbers of the same ratio.
        """
        content = asdict(self)
        del content["path"], content["sha256"]
        content["sources"] = {source.pop("name"): source for source in content["sources"]}
        for stage in content["stages"]:
            stage["passes"] = stage["passes"] and dict(stage["passes"])
            stage["weights"] = stage["weights"] and dict(whole_weights(stage["weights"]))
        content["denied"] = [
            {"from": denial.start, "file": denial.file, "documents": sorted(denial.documents)} for denial in self.denied
        ]
        plain: dict[str, Any] = json.loads(json.dumps(content, default=str))
        return plain


def located_tokenizer(name: str, folder: str) -> str:
    """Returns the tokenizer of a run as `load_tokenizer` takes it."""
    is_file = not any(kind.is_specified_by(name) for kind in TOKENIZER_KINDS.values())
    located = _located(name, folder) if is_file else name
    return name if not os.path.exists(located) and local_file(name) is not None else located


def _located(name: str, folder: str) -> str:
    if is_remote(name) or not folder:
        return name
    return os.path.join(glob.escape(folder) if is_pattern(name) else folder, name)


def from_folder(name: str, folder: str) -> str:
    """Returns a path of the working directory as it is from a folder on; addresses and absolute paths as they are."""
    return name if is_remote(name) or os.path.isabs(name) else os.path.relpath(name, folder or os.curdir)


def whole_weights(weights: Iterable[tuple[Key, Fraction]]) -> list[tuple[Key, int]]:
    """Returns weights as the smallest whole numbers of the same ratio.

    Example:
        >>> whole_weights((("web", Fraction(8, 10)), ("code", Fraction(2, 10))))
        [('web', 4), ('code', 1)]
    """
    weights = list(weights)
    common = math.lcm(*(weight.denominator for _, weight in weights))
    whole = [int(weight * common) for _, weight in weights]
    divisor = math.gcd(*whole)
    return [(key, number // divisor) for (key, _), number in zip(weights, whole, strict=True)]


def read_run(path: str | os.PathLike[str]) -> RunSettings:
    """Returns what a `run.toml` says."""
    recover(lock_path(os.fspath(path)))
    return parse_run(read_toml(path), path=os.fspath(path))


def parse_run(text: str, *, path: str) -> RunSettings:
    """Returns what the text of a `run.toml` says."""
    top = parse_toml(text, path=path)
    if not top.values:
        top.refuse(None, "expected a run, found an empty file", hint="`tokenloom run init` writes one")
    top.refuse_others(_TOP, elsewhere=_ELSEWHERE)
    order = _order(top)
    seed = top.integer("seed", at_least=0, below=1 << 63, hint="such as `seed = 1234`" if "seed" not in top else None)
    dataset = top.choice("dataset", tuple(KINDS), "gpt")
    windows = top.choice("windows", ("concat", "best_fit"), "concat")
    if windows == "best_fit" and dataset in CONVERSATIONS:
        message = f'expected no `windows` for dataset "{dataset}", found "best_fit"'
        top.refuse("windows", message, hint="leave it out: conversations are packed whole")
    sources = _sources(top)
    stages = top.tables("stages", hint=_STAGE_EXAMPLE)
    if not stages:
        top.refuse("stages" if "stages" in top else None, "expected a stage, found none", hint=_STAGE_EXAMPLE)
    numbers = {source.name: number for number, source in enumerate(sources)}
    settings = RunSettings(
        order=order,
        seed=seed,
        tokenizer=top.text("tokenizer", hint='such as "tokenizer.json"') if "tokenizer" in top else None,
        documents=top.choice("documents", ("shuffled", "file"), "shuffled"),
        windows=windows,
        mixing_block=_mixing_block(top),
        dataset=dataset,
        samples=sample_settings(top.table("samples", name=" of [samples]"), dataset, windows),
        sources=sources,
        stages=parse_stages(stages, numbers),
        denied=tuple(
            _denial(table, numbers) for table in top.tables("denied", hint="begin each with a line `[[denied]]`")
        ),
        path=path,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    if order == "megatron":
        check_megatron(top)
    return settings


def _order(top: Table) -> int | Literal["megatron"]:
    value = top.values.get("order")
    if value == "megatron":
        return "megatron"
    expected = f'one of {", ".join(map(str, range(1, NEWEST_ORDER + 1)))} and "megatron"'
    if type(value) is int and value > NEWEST_ORDER:
        top.refuse_value("order", expected, hint="it is of a newer version of tokenloom; install that one")
    if type(value) is not int or value < 1:
        hint = f"write `order = {NEWEST_ORDER}`" if value is None or type(value) is str else None
        top.refuse_value("order", expected, hint=hint)
    return value


def _mixing_block(top: Table) -> int:
    mix = top.choice("mix", ("random", "even"), "random")
    if "mixing_block" not in top:
        return DEFAULT_MIXING_BLOCK if mix == "random" else 1
    block = top.integer("mixing_block", at_least=1, below=LARGEST_MIXING_BLOCK + 1)
    if "mix" in top and (mix == "even") != (block == 1):
        message = (
            f'expected a `mixing_block` {"of 1" if mix == "even" else "above 1"} beside `mix = "{mix}"`, found {block}'
        )
        top.refuse("mixing_block", message, hint="leave one of the two out")
    return block


def _sources(top: Table) -> tuple[SourceSettings, ...]:
    table = top.table("sources", hint=_SOURCE_EXAMPLE)
    if not table.values:
        top.refuse("sources" if "sources" in top else None, "expected a source, found none", hint=_SOURCE_EXAMPLE)
    return tuple(_source(table, name) for name in table.values)


def _source(sources: Table, name: str) -> SourceSettings:
    if (fault := fault_of_name(name)) is not None:
        sources.refuse(name, f"expected {fault} for a source, found {shown(name)}")
    value = sources.values[name]
    if isinstance(value, (str, list)):
        return SourceSettings(name=name, data=_data(sources, name, value, name))
    if not isinstance(value, dict):
        sources.refuse_value(name, "a table, a text or a list of texts", hint=_SOURCE_EXAMPLE)
    table = sources.table(name, name=f" of source {name!r}")
    table.refuse_others(_SOURCE, elsewhere=_ELSEWHERE)
    if "data" not in table:
        table.refuse_value("data", "", hint=_SOURCE_EXAMPLE)
    return SourceSettings(
        name=name,
        data=_data(table, "data", value["data"], name),
        holdout=table.read("holdout", share_of) if "holdout" in table else None,
        max_passes=table.integer("max_passes", at_least=1, below=1 << 22) if "max_passes" in table else None,
    )


def _data(table: Table, key: str, value: Any, name: str) -> tuple[str, ...]:
    entries = value if isinstance(value, list) else [value]
    if not entries:
        table.refuse(key, f"expected data of source {name!r}, found an empty list", hint=_SOURCE_EXAMPLE)
    found = []
    for entry in entries:
        if not isinstance(entry, str) or not entry.strip() or not can_be_path(entry):
            message = f"expected paths as data of source {name!r}, found {shown(entry)}"
            table.refuse(key, message, hint=_SOURCE_EXAMPLE)
        with table.at(key):
            path = admit(entry)
            if is_remote(path):
                parse_address(path, is_folder=path.endswith("/"))
        found.append(path)
    return tuple(found)


def read_locked(path: str) -> RunLock | None:
    """Returns the lock of a run, None if there is none; both files are read as they were at one moment."""
    key = lock_path(path)
    while True:
        recover(key)
        before = identity_at(key)
        try:
            lock = read_lock_if_there(key)
            if lock is not None:
                _check_unchanged(path, lock)
        except (ConfigError, OSError):
            if identity_at(key) == before and not os.path.lexists(journal_path(key)):
                raise  # else another process replaced both meanwhile
        else:
            return lock


def _check_unchanged(path: str, lock: RunLock) -> None:
    with open(path, "rb") as stream:
        if hashlib.sha256(stream.read()).hexdigest() == lock.settings_sha256:
            return
    if read_run(path).content_sha256 != lock.content_sha256:
        message = f"`{path}` was changed since it was locked"
        raise ConfigError(message, hint=f"lock it again: tokenloom run lock {path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DenialSettings:
    """Some documents, and from when on they are not read.

    Attributes:
        start: the first position at which they are padding.
        file: a file that lists them, one a line, as it is named in the settings; None where they are listed there.
        documents: (source, number of the document in it) or (input file, record), sorted; empty where `file` lists
            them. Which documents records became is looked up when the run is locked.
        reason: why, in words of whoever denied them; decides nothing.
    """

    start: int
    file: str | None = None
    documents: tuple[DocumentName, ...] = ()
    reason: str | None = None


def _denial(unnamed: Table, sources: Collection[str]) -> DenialSettings:
    table = replace(unnamed, name=" of [[denied]]")
    table.refuse_others(("documents", "from", "reason"))
    reason = table.text("reason", hint="leave it out, or say why") if "reason" in table else None
    start = table.integer("from", at_least=0, below=1 << 60) if "from" in table else 0
    documents: Any = table.values.get("documents")
    if isinstance(documents, str) and documents.strip() and can_be_path(documents):
        return DenialSettings(start=start, file=documents, reason=reason)
    if not isinstance(documents, list) or not documents:
        table.refuse_value("documents", 'the name of a file, or a list such as ["web:12345"]')
    found = []
    for document in documents:
        if not isinstance(document, str):
            table.refuse("documents", f"expected documents such as `web:12345`, found {shown(document)}")
        with table.at("documents"):
            found.append(parse_name(document, sources))
    return DenialSettings(start=start, documents=tuple(sorted(set(found))), reason=reason)


_NOT_IN_MEGATRON = {
    "documents": "the reference shuffles documents by a rule of its own",
    "windows": "the reference cuts the stream of all documents",
    "mix": "the reference mixes evenly",
    "mixing_block": "the reference mixes evenly",
    "denied": "the reference's order is stored, so nothing in it can be denied later",
}
_NOT_OF_SOURCES = {
    "holdout": "the reference divides data by `split`, which a run does not have",
    "max_passes": "the reference repeats data as often as it takes",
}
_NOT_OF_STAGES = {
    "passes": "the reference's blend counts samples, not passes",
    "on_exhausted": "the reference repeats data as often as it takes",
}
_MEGATRON_HINT = "leave it out, or write `order = 1`"


def check_megatron(top: Table) -> None:
    """Refuses settings of a run in the reference's order that this order cannot follow; others were checked before."""
    _refuse_keys(top, _NOT_IN_MEGATRON)
    if top.values["seed"] >= 1 << 32:
        message = f'expected `seed` in [0, 2**32) with `order = "megatron"`, found {top.values["seed"]}'
        top.refuse("seed", message)
    sources = top.table("sources")
    for name, value in sources.values.items():
        if isinstance(value, dict):
            _refuse_keys(sources.table(name, name=f" of source {name!r}"), _NOT_OF_SOURCES)
    stages = top.tables("stages", hint="")
    if len(stages) > 1:
        message = f'expected one stage with `order = "megatron"`, found {len(stages)}'
        hint = "leave the others out, or write `order = 1`"
        stages[1].refuse(None, f"{message}: the reference's order cannot change while it runs", hint=hint)
    _refuse_keys(stages[0], _NOT_OF_STAGES)
    if "tokens" not in stages[0] and "samples" not in stages[0]:
        message = 'expected `tokens` or `samples` with `order = "megatron"`, found none'
        stages[0].refuse(None, f"{message}: the reference's order is stored, so it has an end")


def _refuse_keys(table: Table, reasons: dict[str, str]) -> None:
    for key, reason in reasons.items():
        if key in table:
            message = f'expected no `{key}`{table.name} with `order = "megatron"`, found it: {reason}'
            table.refuse(key, message, hint=_MEGATRON_HINT)


STAGE_KEYS = ("name", "sequence_length", "tokens", "samples", "passes", "weights", "on_exhausted")
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


def parse_stages(tables: list[Table], sources: Mapping[str, int]) -> tuple[StageSettings, ...]:
    """Returns the stages."""
    stages: list[StageSettings] = []
    named: dict[str, int] = {}
    for number, unnamed in enumerate(tables, 1):
        name = unnamed.text("name") if "name" in unnamed else f"stage {number}"
        if (fault := fault_of_name(name)) is not None:
            unnamed.refuse_value("name", fault)
        table = replace(unnamed, name=f" of stage {name!r}")
        if (other := named.setdefault(name, number)) != number:
            message = f"expected another name than {name!r}, which stage {other} of the file has"
            table.refuse("name" if "name" in table else None, message)
        table.refuse_others(STAGE_KEYS, elsewhere=_ELSEWHERE)
        stage = _stage(table, name, stages[-1] if stages else None, sources)
        if stage.is_endless and number < len(tables):
            message = f"expected `tokens`, `samples` or `passes`{table.name}, found none; stages follow it"
            table.refuse(None, message, hint="only the last stage may go on for ever")
        stages.append(stage)
    return tuple(stages)


def fault_of_name(name: str) -> str | None:
    """Returns what a name should have been; None for a good one."""
    if name.strip() != name or not name:
        return "a name without blanks around it"
    if not name.isprintable() or len(name) > 200:
        return "a name of at most 200 printable characters"
    return None


def _stage(table: Table, name: str, before: StageSettings | None, sources: Mapping[str, int]) -> StageSettings:
    if "sequence_length" in table or before is None:
        example = "such as `sequence_length = 4096`; later stages may leave it out"
        hint = None if "sequence_length" in table else example
        length = table.integer("sequence_length", at_least=1, below=LONGEST_SEQUENCE, hint=hint)
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
            table.refuse(
                name, message, hint=did_you_mean(name, sources) or f"there are {', '.join(list(sources)[:10])}"
            )
        found[name] = table.read(name, weight_of)
    shares = tuple((name, found[name]) for name in sources if found.get(name))
    if not shares:
        what = "only 0" if found else "none"
        message = f"expected a source with a number above 0 in `{key}`{stage.name}, found {what}"
        stage.refuse(key, message)
    return shares
