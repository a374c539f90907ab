"""A run as people write it: `run.toml`, read strictly, into what the program computes with.

Nothing is opened but the file itself. Whether data are there, fit together and suffice, `run.lock` knows.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, TypeVar

from tokenloom.errors import ConfigError
from tokenloom.inputs.find import is_pattern
from tokenloom.run.document_names import DocumentName, parse_name
from tokenloom.run.lock import RunLock, lock_path, read_lock_if_there
from tokenloom.run.sample_settings import CONVERSATIONS, KINDS, sample_settings
from tokenloom.run.toml_file import (
    Convert,
    Table,
    as_key,
    choice,
    count_of,
    did_you_mean,
    integer,
    listed,
    parse_toml,
    read_toml,
    refuse,
    share_of,
    text,
    weight_of,
)
from tokenloom.storage.addresses import can_be_path, is_remote, parse_address
from tokenloom.storage.publishing import journal_path, recover
from tokenloom.storage.secrets import admit
from tokenloom.tokenizers.kinds import KINDS as TOKENIZER_KINDS
from tokenloom.tokenizers.load import local_file

Key = TypeVar("Key")

NEWEST_ORDER = 1
"""The newest version of the order that is known here."""

DEFAULT_MIXING_BLOCK = 1024
LARGEST_MIXING_BLOCK = 1 << 20


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
    is_file = not any(kind.takes(name) for kind in TOKENIZER_KINDS.values())
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


def name_of(value: Any, what: str) -> str:
    """Returns a value that has to be a name of a source or a stage."""
    name = text(value, what)
    if name.strip() != name or not name.isprintable() or len(name) > 200:
        refuse(what, "a name of at most 200 printable characters without blanks around it", name)
    return name


def _order(value: Any, what: str) -> int | Literal["megatron"]:
    if value != "megatron" and (type(value) is not int or not 1 <= value <= NEWEST_ORDER):
        hint = f"write `order = {NEWEST_ORDER}`"
        if type(value) is int and value > NEWEST_ORDER:
            hint = "it is of a newer version of tokenloom; install that one"
        refuse(what, f'one of {", ".join(map(str, range(1, NEWEST_ORDER + 1)))} and "megatron"', value, hint=hint)
    order: int | Literal["megatron"] = value
    return order


def _data(value: Any, what: str) -> tuple[str, ...]:
    found = []
    for entry in value if isinstance(value, list) and value else [value]:
        if not isinstance(entry, str) or not entry.strip() or not can_be_path(entry):
            refuse(what, "a path, or a list of paths", entry, hint=_SOURCE_EXAMPLE)
        found.append(admit(entry))
        if is_remote(found[-1]):
            parse_address(found[-1], is_folder=found[-1].endswith("/"))
    return tuple(found)


def _documents(value: Any, what: str) -> str | list[str]:
    for entry in value if isinstance(value, list) and value else [value]:
        if not isinstance(entry, str) or not entry.strip():
            refuse(what, 'the name of a file, or a list such as ["web:12345"]', entry)
    documents: str | list[str] = value
    return documents


TOP_KEYS: Mapping[str, Convert[Any] | None] = {
    "order": _order,
    "seed": integer(0, 1 << 63),
    "tokenizer": text,
    "documents": choice("shuffled", "file"),
    "windows": choice("concat", "best_fit"),
    "mix": choice("random", "even"),
    "mixing_block": integer(1, LARGEST_MIXING_BLOCK + 1),
    "dataset": choice(*KINDS),
    **dict.fromkeys(("samples", "sources", "stages", "denied")),
}
SOURCE_KEYS: Mapping[str, Convert[Any] | None] = {
    "data": _data,
    "holdout": share_of,
    "max_passes": integer(1, 1 << 22),
}
STAGE_KEYS: Mapping[str, Convert[Any] | None] = {
    "name": name_of,
    "sequence_length": integer(1, 1 << 31),  # positions in a sample are 32 bits wide
    "tokens": count_of,
    "samples": count_of,
    **dict.fromkeys(("passes", "weights")),
    "on_exhausted": choice("stop", "renormalise", "repeat"),
}
DENIAL_KEYS: Mapping[str, Convert[Any] | None] = {
    "documents": _documents,
    "from": integer(0, 1 << 60),
    "reason": text,
}
"""The keys of each table, and how they are read; the defaults are those of the classes."""

SIZES = ("tokens", "samples", "passes")

_ELSEWHERE = {
    **dict.fromkeys(STAGE_KEYS, "it belongs to a stage"),
    **dict.fromkeys(SOURCE_KEYS, "it belongs to a source"),
    "seed": "write it at the top of the file, before the first [table]",
    "weight": "it belongs to a stage: `weights = { web = 8, code = 2 }`",
    "stage": "write `[[stages]]`",
    "source": "write `[sources]`",
    "deny": "write `[[denied]]`",
}
"""Where keys belong that are often written into another table."""

_SOURCE_EXAMPLE = 'such as `web = { data = "data/web/*_document" }` below `[sources]`'
_STAGE_EXAMPLE = "begin each with a line `[[stages]]`"

_REPEATED = "the reference repeats data as often as it takes"
_NOT_IN_MEGATRON = {
    "documents": "the reference shuffles documents by a rule of its own",
    "windows": "the reference cuts the stream of all documents",
    "mix": "the reference mixes evenly",
    "mixing_block": "the reference mixes evenly",
    "denied": "the reference's order is stored, so nothing in it can be denied later",
    "holdout": "the reference divides data by `split`, which a run does not have",
    "max_passes": _REPEATED,
    "passes": "the reference's blend counts samples, not passes",
    "on_exhausted": _REPEATED,
}
"""Keys of any table that the reference's order cannot follow."""


def parse_run(text: str, *, path: str) -> RunSettings:
    """Returns what the text of a `run.toml` says."""
    top = parse_toml(text, path=path)
    if not top.values:
        top.refuse(None, "expected a run, found an empty file", hint="`tokenloom run init` writes one")
    required = {"order": f"`order = {NEWEST_ORDER}`", "seed": "`seed = 1234`"}
    given = top.read_all(TOP_KEYS, required=required, elsewhere=_ELSEWHERE)
    dataset, windows = given.get("dataset", "gpt"), given.get("windows", "concat")
    if windows == "best_fit" and dataset in CONVERSATIONS:
        message = f'expected no `windows` for dataset "{dataset}", found "best_fit"'
        top.refuse("windows", message, hint="leave it out: conversations are packed whole")
    sources = top.table("sources", name=" in [sources]", hint=_SOURCE_EXAMPLE)
    if not sources.values:
        top.refuse(
            "sources" if "sources" in top.values else None, "expected a source, found none", hint=_SOURCE_EXAMPLE
        )
    stages = top.tables("stages", hint=_STAGE_EXAMPLE)
    if not stages:
        top.refuse("stages" if "stages" in top.values else None, "expected a stage, found none", hint=_STAGE_EXAMPLE)
    denied = top.tables("denied", name=" of [[denied]]", hint="begin each with a line `[[denied]]`")
    settings = RunSettings(
        order=given["order"],
        seed=given["seed"],
        tokenizer=given.get("tokenizer"),
        documents=given.get("documents", "shuffled"),
        windows=windows,
        mixing_block=_mixing_block(top, given),
        dataset=dataset,
        samples=sample_settings(top.table("samples", name=" of [samples]"), dataset, windows),
        sources=tuple(_source(sources, name) for name in sources.values),
        stages=_stages(stages, sources.values),
        denied=tuple(_denial(table, sources.values) for table in denied),
        path=path,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    if settings.order == "megatron":
        _check_megatron(settings, top, sources, stages)
    return settings


def _mixing_block(top: Table, given: Mapping[str, Any]) -> int:
    mix = given.get("mix", "random")
    block: int = given.get("mixing_block", DEFAULT_MIXING_BLOCK if mix == "random" else 1)
    if "mix" in given and (mix == "even") != (block == 1):
        beside = f'{"of 1" if mix == "even" else "above 1"} beside `mix = "{mix}"`'
        message = f"expected a `mixing_block` {beside}, found {block}"
        top.refuse("mixing_block", message, hint="leave one of the two out")
    return block


def _source(sources: Table, name: str) -> SourceSettings:
    try:
        name_of(name, "the name of a source")
    except ConfigError as error:
        raise sources.error(name, error.message) from error
    if isinstance(sources.values[name], (str, list)):
        return SourceSettings(name=name, data=sources.read(name, _data))
    table = sources.table(name, name=f" of source {name!r}", hint=_SOURCE_EXAMPLE)
    given = table.read_all(
        SOURCE_KEYS, elsewhere=_ELSEWHERE, required={"data": _SOURCE_EXAMPLE.removeprefix("such as ")}
    )
    return SourceSettings(name=name, **given)


def _stages(tables: Sequence[Table], sources: Collection[str]) -> tuple[StageSettings, ...]:
    stages: list[StageSettings] = []
    for number, unnamed in enumerate(tables, 1):
        name = unnamed.read("name", name_of, f"stage {number}")
        table = replace(unnamed, name=f" of stage {name!r}")
        if (other := next((row for row, stage in enumerate(stages, 1) if stage.name == name), None)) is not None:
            message = f"expected another name than {name!r}, which stage {other} of the file has"
            table.refuse("name" if "name" in table.values else None, message)
        stage = _stage(table, name, stages[-1].sequence_length if stages else None, sources)
        if stage.is_endless and number < len(tables):
            message = f"expected `tokens`, `samples` or `passes`{table.name}, found none; stages follow it"
            table.refuse(None, message, hint="only the last stage may go on for ever")
        stages.append(stage)
    return tuple(stages)


def _stage(table: Table, name: str, length: int | None, sources: Collection[str]) -> StageSettings:
    given = {"sequence_length": length, **table.read_all(STAGE_KEYS, elsewhere=_ELSEWHERE), "name": name}
    if given["sequence_length"] is None:
        example = "such as `sequence_length = 4096`; later stages may leave it out"
        table.refuse_missing("sequence_length", hint=example)
    sizes = [key for key in SIZES if key in table.values]
    if len(sizes) > 1:
        message = f"expected one of {listed(SIZES)}{table.name}, found {' and '.join(f'`{key}`' for key in sizes)}"
        table.refuse(sizes[1], message, hint="leave all but one out")
    if given.get("tokens", given["sequence_length"]) < given["sequence_length"]:
        message = f"expected at least the {given['sequence_length']} tokens of a sample as `tokens`{table.name}"
        table.refuse("tokens", f"{message}, found {given['tokens']}")
    shares = [key for key in ("passes", "weights") if key in table.values]
    if len(shares) > 1:
        message = f"expected `passes` or `weights`{table.name}, found both"
        table.refuse("weights", message, hint="leave one of the two out: passes are weights, too")
    if not shares:
        table.refuse_missing("weights", hint=f"such as `weights = {{ {as_key(next(iter(sources)))} = 1 }}`")
    given[shares[0]] = _shares(table, shares[0], sources)
    return StageSettings(**given)


def _shares(stage: Table, key: str, sources: Collection[str]) -> Shares:
    example = ", ".join(f"{as_key(name)} = 1" for name, _ in zip(sources, range(2), strict=False))
    table = stage.table(key, name=f" in `{key}`{stage.name}", hint=f"write `{key} = {{ {example} }}`")
    for name in table.values:
        if name not in sources:
            message = f"expected a source in `{key}`{stage.name}, found {name!r}, which [sources] does not have"
            hint = did_you_mean(name, sources) or f"there are {', '.join(list(sources)[:10])}"
            table.refuse(name, message, hint=hint)
    found = {name: table.read(name, weight_of) for name in table.values}
    shares = tuple((name, found[name]) for name in sources if found.get(name))
    if not shares:
        what = "only 0" if found else "none"
        stage.refuse(key, f"expected a source with a number above 0 in `{key}`{stage.name}, found {what}")
    return shares


def _denial(table: Table, sources: Collection[str]) -> DenialSettings:
    given = table.read_all(DENIAL_KEYS, required={"documents": 'a list such as ["web:12345"]'})
    start, reason, documents = given.get("from", 0), given.get("reason"), given["documents"]
    if isinstance(documents, str):
        return DenialSettings(start=start, file=documents, reason=reason)
    names = table.read("documents", lambda value, _: tuple(sorted({parse_name(each, sources) for each in value})))
    return DenialSettings(start=start, documents=names, reason=reason)


def _check_megatron(settings: RunSettings, top: Table, sources: Table, stages: Sequence[Table]) -> None:
    """Refuses settings of a run in the reference's order that this order cannot follow."""
    of_sources = [
        sources.table(name, name=f" of source {name!r}")
        for name, value in sources.values.items()
        if isinstance(value, dict)
    ]
    ours = 'with `order = "megatron"`'
    for table in (top, *of_sources, *stages):
        if key := next((key for key in table.values if key in _NOT_IN_MEGATRON), None):
            message = f"expected no `{key}`{table.name} {ours}, found it: {_NOT_IN_MEGATRON[key]}"
            table.refuse(key, message, hint="leave it out, or write `order = 1`")
    if settings.seed >= 1 << 32:
        top.refuse("seed", f"expected `seed` in [0, 2**32) {ours}, found {settings.seed}")
    if len(stages) > 1:
        message = f"expected one stage {ours}, found {len(stages)}: the reference's order cannot change while it runs"
        stages[1].refuse(None, message, hint="leave the others out, or write `order = 1`")
    if settings.stages[0].is_endless:
        message = (
            f"expected `tokens` or `samples` {ours}, found none: the reference's order is stored, so it has an end"
        )
        stages[0].refuse(None, message)


def read_locked(path: str) -> RunLock | None:
    """Returns the lock of a run, None if there is none; both files are read as they were at one moment."""
    key = lock_path(path)
    while True:
        recover(key)
        before = _identity_at(key)
        try:
            lock = read_lock_if_there(key)
            if lock is not None:
                _check_unchanged(path, lock)
        except (ConfigError, OSError):
            if _identity_at(key) == before and not os.path.lexists(journal_path(key)):
                raise  # else another process replaced both meanwhile
        else:
            return lock


def _identity_at(path: str) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        return found.st_ino, found.st_ctime_ns
    return None


def _check_unchanged(path: str, lock: RunLock) -> None:
    with open(path, "rb") as stream:
        if hashlib.sha256(stream.read()).hexdigest() == lock.settings_sha256:
            return
    if read_run(path).content_sha256 != lock.content_sha256:
        message = f"`{path}` was changed since it was locked"
        raise ConfigError(message, hint=f"lock it again: tokenloom run lock {path}")
