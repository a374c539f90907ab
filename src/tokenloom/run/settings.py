"""Parses `run.toml` strictly into `RunSettings`, without opening data; locking validates the data."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import asdict, dataclass, field, fields
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.data_match import Kind
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.errors import ConfigError
from tokenloom.inputs.find import is_pattern
from tokenloom.numbers import quoted
from tokenloom.run.lock import RunLock, lock_path, read_lock_if_there
from tokenloom.run.toml_file import (
    MISSING,
    Convert,
    Table,
    as_key,
    choice,
    count_of,
    did_you_mean,
    format_options,
    integer,
    parse_toml,
    read_text,
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
DocumentName = tuple[str, int]
"""A source name and a document number from 0, or an input file path and a record number from 1."""

_NUMBER = re.compile("[0-9]{1,18}")
NEWEST_ORDER = 1  # the newest version of the order that this version of tokenloom implements
_MIXING_BLOCK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """One named source of data.

    Attributes:
        data: prefixes, globs, folders or catalogues, as written in the file; `join_path` resolves them.
        holdout: share of the source's documents that training never reads, in (0, 1/2].
        max_passes: maximum number of passes over the source; None if unlimited.
    """

    name: str
    data: tuple[str, ...]
    holdout: Fraction | None = None
    max_passes: int | None = None


Shares = tuple[tuple[str, Fraction], ...]  # (source name, number above 0) for each source, in the order of the sources


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """One stage of a run. At most one of `tokens`, `samples` and `passes` is given; if none is, the stage is endless.

    Attributes:
        name: unique name.
        sequence_length: tokens per sample.
        samples: number of samples.
        tokens: number of tokens, rounded down to whole samples.
        passes: number of passes over each source in this stage, possibly fractional; given instead of `weights`.
        weights: each source's share of the samples; sources without a weight are not read.
        on_exhausted: what to do when a source reaches `max_passes`: "stop", "renormalise" or "repeat".
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
        return self.tokens is None and self.samples is None and self.passes is None

    @property
    def num_samples(self) -> int | None:
        """Number of samples; None if the stage is endless or sized by `passes`."""
        return self.samples if self.tokens is None else self.tokens // self.sequence_length


@dataclass(frozen=True, slots=True, kw_only=True)
class DenialSettings:
    """Documents that are replaced by padding from position `start` on.

    Attributes:
        start: first position at which the documents are padding.
        file: a file that lists the documents, one per line; None if `documents` lists them.
        documents: (source, index of the document) or (input file, record from 1), sorted.
        reason: why the documents are denied; a note without effect.
    """

    start: int
    file: str | None = None
    documents: tuple[DocumentName, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a `run.toml`.

    Attributes:
        order: version of the order, or "megatron".
        seed: seed of all shuffling, in [0, 2**63).
        tokenizer: tokenizer name or path as written in the file; `located_tokenizer` resolves it.
        documents: "shuffled" shuffles documents in each pass; "file" keeps the order of the data files.
        windows: how documents are cut into samples: "concat" or "best_fit".
        mixing_block: number of positions that are permuted together; 1 for an even mix.
        dataset: kind of samples: gpt, fim, sft or varlen.
        samples: settings of the dataset class; see `sample_settings`.
        sources: sources in the order of the file.
        stages: stages in the order of the file.
        denied: documents that are padding from some position on.
        path, sha256: path of the file and hash of its bytes; ignored by `==`.
    """

    order: int | Literal["megatron"]
    seed: int
    tokenizer: str | None = None
    documents: str = "shuffled"
    windows: str = "concat"
    mixing_block: int
    dataset: str = "gpt"
    samples: dict[str, Any]
    sources: tuple[SourceSettings, ...]
    stages: tuple[StageSettings, ...]
    denied: tuple[DenialSettings, ...]
    path: str = field(compare=False)
    sha256: str = field(compare=False)

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)

    @property
    def content_sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.content(), sort_keys=True).encode()).hexdigest()

    def content(self) -> dict[str, Any]:
        """Returns a JSON object of settings, independent of comments, layout, order of sources and scale of weights."""
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
    """Converts `tokenizer` of `run.toml` to an argument of `load_tokenizer`; joins a relative path to `folder`."""
    is_file = not any(kind.takes(name) for kind in TOKENIZER_KINDS.values())
    found = join_path(name, folder) if is_file else name
    return name if not os.path.exists(found) and local_file(name) is not None else found


def join_path(name: str, folder: str) -> str:
    """Joins a relative local path or glob to `folder`, the folder of `run.toml`; returns other names unchanged."""
    if is_remote(name) or not folder:
        return name
    return os.path.join(glob.escape(folder) if is_pattern(name) else folder, name)


def from_folder(name: str, folder: str) -> str:
    """Makes a path that is relative to the working directory relative to `folder`; keeps URLs and absolute paths."""
    return name if is_remote(name) or os.path.isabs(name) else os.path.relpath(name, folder or os.curdir)


def whole_weights(weights: Iterable[tuple[Key, Fraction]]) -> list[tuple[Key, int]]:
    """Scales weights to the smallest integers with the same ratios."""
    weights = list(weights)
    common = math.lcm(*(weight.denominator for _, weight in weights))
    divisor = math.gcd(*(int(weight * common) for _, weight in weights))
    return [(key, int(weight * common) // divisor) for key, weight in weights]


def read_run(path: str | os.PathLike[str]) -> RunSettings:
    recover(lock_path(os.fspath(path)))
    return parse_run(read_text(path), path=os.fspath(path))


def name_of(value: Any) -> str:
    name = text(value)
    if name.strip() != name or not name.isprintable() or len(name) > 200:
        refuse("a name of at most 200 printable characters without leading or trailing blanks", name)
    return name


def parse_name(text: str, sources: Collection[str]) -> DocumentName:
    """Parses a document name such as `web:12345` or `crawl/0007.jsonl:88`. Does not check that the document exists."""
    name, separator, number = text.strip().rpartition(":")
    if not separator or not name or not _NUMBER.fullmatch(number):
        message = f"document name must be like `web:12345` or `crawl/0007.jsonl:88`, got {quoted(text)}"
        raise ConfigError(message, hint="write `SOURCE:DOCUMENT` (first is 0) or `INPUT_FILE:RECORD` (first is 1)")
    if name not in sources and not _like_file(name):
        message = f"{quoted(text)}: the run has no source {quoted(name)}"
        hint = did_you_mean(name, sources) or f"for an input file, write `./{name}:{number}`"
        raise ConfigError(message, hint=hint)
    return name, int(number)


def record_name(text: str, sources: Collection[str]) -> str:
    """Returns the name of a record; adds `./` if the name of its file could be mistaken for the name of a source."""
    name = text.strip().rpartition(":")[0]
    return text.strip() if _like_file(name) and name not in sources else f"./{text.strip()}"


def _like_file(name: str) -> bool:
    return "/" in name or "." in name


def _order(value: Any) -> Any:
    if value != "megatron" and (type(value) is not int or value != NEWEST_ORDER):
        is_newer = type(value) is int and value > NEWEST_ORDER
        hint = "upgrade tokenloom: a newer version wrote this file" if is_newer else f"write `order = {NEWEST_ORDER}`"
        refuse(f'{NEWEST_ORDER} or "megatron"', value, hint=hint)
    return value


def _data(value: Any) -> tuple[str, ...]:
    found = []
    for entry in value if isinstance(value, list) and value else [value]:
        if not isinstance(entry, str) or not entry.strip() or not can_be_path(entry):
            refuse("a path or a list of paths", entry, hint=_SOURCE_EXAMPLE)
        found.append(admit(entry))
        if is_remote(found[-1]):
            parse_address(found[-1], is_folder=found[-1].endswith("/"))
    return tuple(found)


def _documents(value: Any) -> Any:
    for entry in value if isinstance(value, list) and value else [value]:
        if not isinstance(entry, str) or not entry.strip():
            refuse('a file name or a list such as ["web:12345"]', entry)
    return value


KINDS: Mapping[str, type[GPTDatasetConfig]] = {
    "gpt": GPTDatasetConfig,
    "fim": GPTFIMDatasetConfig,
    "sft": SFTDatasetConfig,
    "varlen": VarlenDatasetConfig,
}
"""The dataset settings class for each value of `dataset`."""

CONVERSATIONS = ("sft", "varlen")  # values of `dataset` whose samples are whole conversations

DEFAULTS: Mapping[str, Any] = dict.fromkeys(
    ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask"), False
)
"""Defaults of [samples] that override those of the dataset class."""

WITHOUT_EFFECT = ("allow_tokenizer_mismatch", "allow_data_mismatch")  # settings of [samples] that change no sample

_HINTS = (
    ("write `seed` at the top of the file", "random_seed"),
    ("write it in a `[[stages]]` table", "sequence_length"),
    ("write it at the top of the file", "tokenizer", "mixing_block"),
    ("write `windows` at the top of the file", "window_policy"),
    ("write `documents` at the top of the file", "block_shuffle"),
    ("write data in [sources] and `weights` in a stage", "blend", "blend_per_split"),
    ("set `holdout` of the sources", "split", "multiple_validation_sets", "full_validation"),
    ("set `max_passes` of the source", "extend_short_datasets"),
    ("pass it to `Run.open`", "object_storage", "object_storage_cache_path", "mmap_bin_files", "verify"),
    ("remove it: a run builds no index", "path_to_cache", "fast_cache_load", "defer_npy_index_mmap"),
    ("remove it: a run builds no index", "num_dataset_builder_threads", "mid_level_dataset_surplus"),
    ("remove it", "drop_last_partial_validation_sequence", "sequences_per_dataset", "mock_dataset_config"),
    ("remove it: the data are already tokenized", "chat_template", "schema", "skip_bad_lines"),
)
NOT_HERE = {name: hint for hint, *names in _HINTS for name in names}  # settings that [samples] does not accept

# These settings decide which lengths a sample of conversations may have.
_PARALLEL = ("data_parallel_size", "sequence_parallel_size", "hybrid_context_parallel", "context_parallel_size")

TOP_KEYS: Mapping[str, Convert[Any] | None] = {
    "order": _order,
    "seed": integer(0, 1 << 63),
    "tokenizer": text,
    "documents": choice("shuffled", "file"),
    "windows": choice("concat", "best_fit"),
    "mix": choice("random", "even"),
    "mixing_block": integer(1, (1 << 20) + 1),
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
"""The keys of each table of `run.toml` with their converters; the dataclasses own the defaults."""

SIZES = ("tokens", "samples", "passes")

_ELSEWHERE = {
    **dict.fromkeys(STAGE_KEYS, "write it in a `[[stages]]` table"),
    **dict.fromkeys(SOURCE_KEYS, "write it in a source, such as `[sources.web]`"),
    "seed": "write it at the top of the file, before the first [table]",
    "weight": "write `weights = { web = 8, code = 2 }` in a stage",
}
"""Hints for keys that users often write into the wrong table."""

_SOURCE_EXAMPLE = 'write `web = { data = "data/web/*_document" }` below `[sources]`'
_STAGE_EXAMPLE = "begin each stage with a line `[[stages]]`"

_NOT_IN_MEGATRON = (
    *("documents", "windows", "mix", "mixing_block", "denied", "loss_weights"),
    *("holdout", "max_passes", "passes", "on_exhausted"),
)
"""Keys that `order = "megatron"` refuses, because this order is stored and mixes evenly."""


def parse_run(text: str, *, path: str) -> RunSettings:
    top = parse_toml(text, path=path)
    if not top.values:
        top.refuse(None, "file is empty", hint="create it with `tokenloom run init`")
    required = {"order": f"write `order = {NEWEST_ORDER}`", "seed": "write `seed = 1234`"}
    required |= {"sources": _SOURCE_EXAMPLE, "stages": _STAGE_EXAMPLE}
    given = top.read_all(TOP_KEYS, required=required, elsewhere=_ELSEWHERE)
    dataset, windows, mix = given.get("dataset", "gpt"), given.get("windows", "concat"), given.get("mix", "random")
    block: int = given.get("mixing_block", _MIXING_BLOCK if mix == "random" else 1)
    if "mix" in given and (mix == "even") != (block == 1):
        message = f'must be {"1" if mix == "even" else "above 1"} with `mix = "{mix}"`, got {block}'
        top.refuse("mixing_block", message, hint="remove `mix` or `mixing_block`")
    if windows == "best_fit" and dataset in CONVERSATIONS:
        message = f'"best_fit" has no effect with `dataset = "{dataset}"`: conversations are never cut'
        top.refuse("windows", message, hint="remove `windows`")
    sources = top.table("sources", hint=_SOURCE_EXAMPLE)
    stages = top.tables("stages", hint=_STAGE_EXAMPLE)
    denied = top.tables("denied", hint="begin each denial with a line `[[denied]]`")
    settings = RunSettings(
        **{name: value for name, value in given.items() if name not in ("mix", "mixing_block")},
        mixing_block=block,
        samples=sample_settings(top.table("samples"), dataset, windows),
        sources=tuple(_source(sources, name) for name in sources.values),
        stages=_stages(stages, sources.values),
        denied=tuple(_denial(table, sources.values) for table in denied),
        path=path,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    if settings.order == "megatron":
        _check_megatron(settings, top, sources, stages)
    for name in settings.samples.get("loss_weights", {}):
        if name not in sources.values:
            message = f"`loss_weights` has {name!r}, which is not in [sources]"
            top.refuse("samples", message, hint=did_you_mean(name, sources.values))
    return settings


def _source(sources: Table, name: str) -> SourceSettings:
    sources.read(name, lambda _: name_of(name))
    if isinstance(sources.values[name], (str, list)):
        return SourceSettings(name=name, data=sources.read(name, _data))
    table = sources.table(name, hint=_SOURCE_EXAMPLE)
    required = {"data": _SOURCE_EXAMPLE}
    return SourceSettings(name=name, **table.read_all(SOURCE_KEYS, elsewhere=_ELSEWHERE, required=required))


def _stages(tables: Sequence[Table], sources: Collection[str]) -> tuple[StageSettings, ...]:
    stages: list[StageSettings] = []
    for number, table in enumerate(tables, 1):
        name = table.read("name", name_of) if "name" in table.values else f"stage {number}"
        if (other := next((row for row, stage in enumerate(stages, 1) if stage.name == name), None)) is not None:
            message = f"stage {other} already has the name {name!r}"
            table.refuse("name" if "name" in table.values else None, message, hint="choose another `name`")
        stage = _stage(table, name, stages[-1].sequence_length if stages else None, sources)
        if stage.is_endless and number < len(tables):
            message = "has no size, but only the last stage may be endless"
            table.refuse(None, message, hint=f"write one of {format_options(SIZES)}")
        stages.append(stage)
    return tuple(stages)


def _stage(table: Table, name: str, length: int | None, sources: Collection[str]) -> StageSettings:
    given = {"sequence_length": length, **table.read_all(STAGE_KEYS, elsewhere=_ELSEWHERE), "name": name}
    if given["sequence_length"] is None:
        table.refuse("sequence_length", MISSING, hint="write `sequence_length = 4096`; later stages inherit it")
    for keys in (SIZES, ("passes", "weights")):
        if len(both := [key for key in keys if key in table.values]) > 1:
            table.refuse(both[1], f"cannot be combined with `{both[0]}`", hint=f"write one of {format_options(keys)}")
    if given.get("tokens", given["sequence_length"]) < given["sequence_length"]:
        table.refuse("tokens", f"must be at least {given['sequence_length']}, the sample length, got {given['tokens']}")
    key = "passes" if "passes" in table.values else "weights"
    example = f"write `{key} = {{ {', '.join(f'{as_key(name)} = 1' for name in list(sources)[:2])} }}`"
    if key not in table.values:
        table.refuse(key, MISSING, hint=example)
    shares = table.table(key, hint=example)
    found = shares.read_all(dict.fromkeys(sources, weight_of), unknown="not in [sources]")
    given[key] = tuple((name, share) for name, share in found.items() if share)
    if not given[key]:
        table.refuse(key, "at least one source needs a number above 0")
    return StageSettings(**given)


def _denial(table: Table, sources: Collection[str]) -> DenialSettings:
    given = table.read_all(DENIAL_KEYS, required={"documents": 'write a list such as `documents = ["web:12345"]`'})
    start, reason, documents = given.get("from", 0), given.get("reason"), given["documents"]
    if isinstance(documents, str):
        return DenialSettings(start=start, file=documents, reason=reason)
    names = table.read("documents", lambda value: tuple(sorted({parse_name(each, sources) for each in value})))
    return DenialSettings(start=start, documents=names, reason=reason)


def _check_megatron(settings: RunSettings, top: Table, sources: Table, stages: Sequence[Table]) -> None:
    of_sources = [sources.table(name) for name, value in sources.values.items() if isinstance(value, dict)]
    for table in (top, top.table("samples"), *of_sources, *stages):
        if key := next((key for key in table.values if key in _NOT_IN_MEGATRON), None):
            table.refuse(key, f"has no effect {_OURS}", hint="remove it, or write `order = 1`")
    if settings.seed >= 1 << 32:
        top.refuse("seed", f"must be in [0, 2**32) {_OURS}, got {settings.seed}")
    if len(stages) > 1:
        stages[1].refuse(None, f"only one stage is allowed {_OURS}", hint="remove this stage, or write `order = 1`")
    if settings.stages[0].is_endless:
        stages[0].refuse(None, f"must not be endless {_OURS}", hint="write `tokens` or `samples`")


_OURS = 'with `order = "megatron"`'
_ANY_TOKENIZER = SimpleNamespace(vocab_size=None, tokenize=str, detokenize=str)  # a placeholder for validation


def sample_settings(table: Table, dataset: str, windows: str) -> dict[str, Any]:
    """Validates the settings in [samples]; returns those in `DEFAULTS`, and those that differ from class defaults."""
    no_effect = f'remove it: it has no effect with `dataset = "{dataset}"`'
    elsewhere = NOT_HERE | dict.fromkeys(() if dataset in CONVERSATIONS else _PARALLEL, no_effect)
    usual = {
        each.name: None if each.default is NO_DEFAULT else each.default
        for each in fields(KINDS[dataset])
        if each.init and each.name not in elsewhere
    }
    given = table.read_all(dict.fromkeys(usual, _plain), elsewhere=elsewhere)
    try:
        sizes = [value for name in _PARALLEL if type(value := given.get(name)) is int and value > 0]
        # The sequence length only has to be a multiple of all sizes.
        config_of(dataset, {**DEFAULTS, **given, "window_policy": windows}, 2 * math.prod(sizes))
    except ConfigError as error:
        named = [key for key in given if key in error.message]
        table.refuse(max(named, key=len) if named else None, error.message, hint=error.hint, cause=error)
    changed = {key: value for key, value in given.items() if key in DEFAULTS or value != usual[key]}
    return dict(sorted({**DEFAULTS, **changed}.items()))


def class_of(dataset: str) -> Any:
    if dataset in CONVERSATIONS:  # imported here, because other runs need not load this module
        from tokenloom.datasets.conversations import SFTDataset, VarlenDataset

        return {"sft": SFTDataset, "varlen": VarlenDataset}[dataset]
    return {"gpt": GPTDataset, "fim": GPTFIMDataset}[dataset]


def data_kind(dataset: str) -> Kind:
    """Returns the kind of data that the setting `dataset` reads: "conversations" or "documents"."""
    return "conversations" if dataset in CONVERSATIONS else "documents"


def most_in_pack(run: RunSettings | RunLock) -> int | None:
    """Returns the maximum number of documents or conversations per pack; None if unlimited."""
    return run.samples.get(f"most_{data_kind(run.dataset)}")


def config_of(dataset: str, samples: Mapping[str, Any], sequence_length: int) -> GPTDatasetConfig:
    """Builds the settings of the dataset class with a placeholder tokenizer, for validation and counting samples."""
    return KINDS[dataset](random_seed=0, sequence_length=sequence_length, tokenizer=_ANY_TOKENIZER, **samples)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, Decimal) and value.is_finite():
        return float(value)
    if not isinstance(value, (bool, str)) and not (isinstance(value, int) and abs(value) < 1 << 63):
        refuse("a string, number, true or false", value)
    return value


def read_locked(path: str) -> RunLock | None:
    """Returns the lock (None if missing); checks that the lock matches `run.toml`; retries during writes."""
    key = lock_path(path)
    while True:
        before = _identity_at(key)
        try:
            if (lock := read_lock_if_there(key)) is not None:
                _check_unchanged(path, lock)
        except (ConfigError, OSError):
            if _identity_at(key) == before and not os.path.lexists(journal_path(key)):
                raise
        else:
            return lock


def _identity_at(path: str) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        return found.st_ino, found.st_ctime_ns
    return None


def _check_unchanged(path: str, lock: RunLock) -> None:
    with open(path, "rb") as stream:
        is_same = hashlib.sha256(stream.read()).hexdigest() == lock.settings_sha256
    if not is_same and read_run(path).content_sha256 != lock.content_sha256:
        raise ConfigError(f"`{path}` changed after it was locked", hint=f"run `tokenloom run lock {path}`")
