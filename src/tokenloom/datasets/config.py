"""Configuration classes of datasets. Each class validates its settings, which are named as in the reference."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace
from typing import Any, Literal

from tokenloom.datasets.attention import Attention
from tokenloom.datasets.blends import Blend, BlendLike, checked_blend, warn_of_duplicates
from tokenloom.datasets.columns import REQUIRED, ColumnNames
from tokenloom.datasets.splits import Split, SplitMatrix, parse_and_normalize_split, split_matrix, split_text
from tokenloom.errors import ConfigError
from tokenloom.indexed.columns import checked_name
from tokenloom.indexed.layout import DType
from tokenloom.numbers import checked_integer, checked_number
from tokenloom.order.block_shuffle import BlockShuffle
from tokenloom.order.cache import check_cache_folder
from tokenloom.order.policies import OrderPolicy, SampleShape, policy_of
from tokenloom.setting_types import check_local_folder, check_types
from tokenloom.storage.secrets import redacted
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.load import as_tokenizer

VerifyMode = Literal["quick", "full"]
_DEFAULT_STORAGE = ObjectStorageSettings()

SAMPLE_NAMES = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen")
"""Names of the arrays of samples; a column cannot have one of these names."""

_HEADING = "Attributes:"
_ENTRY = re.compile(r"\n {4}(\w+(?:, \w+)*): .*(?:\n {5,}.*)*")


class ShowsSettings:
    """A base class of settings: `help` also lists inherited settings; `repr` shows only values other than defaults."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__doc__ is not None and "__doc__" in vars(cls):
            cls.__doc__ = _with_inherited(cls)
        if "__repr__" not in vars(cls):  # otherwise `dataclass` would generate one
            cls.__repr__ = ShowsSettings.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        changed = []
        for each in fields(self):  # type: ignore[arg-type]  # its subclasses are dataclasses
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            if each.init and (value := getattr(self, each.name)) != default:
                changed.append(f"{each.name}={redacted(repr(value))}")
        return f"{type(self).__name__}({', '.join(changed)})"


def _with_inherited(cls: type) -> str:
    """Returns the docstring of a class, in which inherited settings follow the settings of the class itself."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    own = _entries(doc)
    known = {name for found in own for name in found[1].split(", ")}
    inherited = []
    for base in cls.__mro__[1:]:
        described = vars(base).get("__doc__") if issubclass(base, ShowsSettings) else None
        for found in _entries(inspect.cleandoc(described or "")):
            if not known.issuperset(found[1].split(", ")):
                known.update(found[1].split(", "))
                inherited.append(found[0])
    if not own:
        return doc + (f"\n\n{_HEADING}" if inherited else "") + "".join(inherited)
    end = own[-1].end()
    return doc[:end] + "".join(inherited) + doc[end:]


def _entries(doc: str) -> list[re.Match[str]]:
    return [*_ENTRY.finditer(doc, doc.index(_HEADING))] if _HEADING in doc else []


@dataclass
class BlendedMegatronDatasetConfig(ShowsSettings):
    """Settings of all dataset classes.

    Attributes:
        random_seed: seed of all shuffles, in [0, 2**32).
        sequence_length: tokens per sample.
        blend: data that `split` divides into train, valid and test; excludes `blend_per_split`. One of: (prefixes,
            weights or None), one prefix, a list of prefixes, a list of alternating weights and prefixes,
            [[weight, prefix], …], or {prefix: weight}. Stored as (prefixes, weights or None).
        blend_per_split: the blends of train, valid and test: a list of three, or a dict with the keys "train", "valid"
            and "test". None instead of a blend stands for no data.
        multiple_validation_sets: build one validation dataset per prefix instead of one blend.
        full_validation: let Megatron's samplers read the validation data exactly once per validation. Pass the builder
            the size None for valid; with `multiple_validation_sets`, any other size raises.
        split: weights of train, valid and test, such as "99,1,0" or (99, 1, 0). Stored as text.
        split_matrix: interval of each split within [0, 1]; computed.
        num_dataset_builder_threads: number of threads that build datasets.
        path_to_cache: folder of the index cache, or its address in a bucket (`s3://bucket/indices`): the rank that
            builds indices uploads them, and other ranks download them. None stores indices of local data beside the
            data, and indices of data in object storage in the local folder of `object_storage`.
        mmap_bin_files: map `.bin` files into memory; False reads them with `pread`.
        mock: True if no data are configured, so that mock data are used; computed.
        tokenizer: tokenizer of the data: an argument of `load_tokenizer` (a path, a name, or a tokenizer of another
            library), or any `TokenizerLike`.
        mid_level_dataset_surplus: extra samples per dataset, as a fraction of the samples that a blend needs from it.
        allow_ambiguous_pad_tokens: mask the pad id even if another special token has the same id and so is masked too.
        fast_cache_load: raise if an index is not in the cache, instead of building it.
        defer_npy_index_mmap: open cached indices when the first sample is read; raise if they are not in the cache.
        mixing_block: number of consecutive blend positions shuffled among themselves, such as 1024. 1 keeps the
            reference's order, which is periodic: single ranks may then see mixtures that differ from the blend.
        extend_short_datasets: build more epochs of a dataset that has too few samples for a blend, instead of raising.
        object_storage: settings for reading data in object storage.
        allow_tokenizer_mismatch: read data even if the manifest names another tokenizer.
        verify: "quick" validates the ends of files on open, all rows of an `.idx` file before index arrays are built
            from it, and checksums of cached arrays of up to 4 MiB. "full" also verifies larger arrays, and compares all
            tokens with the manifests in the background, once per node. Once damage is found, reading a sample raises
            (see `verification_of`).
        allow_data_mismatch: warn instead of raising if the manifest says that the data are of another kind, such as
            sentences or conversations for a class that reads documents.
    """

    random_seed: int
    sequence_length: int
    blend: BlendLike | None = None
    blend_per_split: Sequence[BlendLike | None] | Mapping[str, BlendLike | None] | None = None
    multiple_validation_sets: bool | None = None
    full_validation: bool | None = None
    split: str | Sequence[float] | None = None
    split_matrix: SplitMatrix | None = field(init=False, default=None)
    num_dataset_builder_threads: int = 1
    path_to_cache: str | None = None
    mmap_bin_files: bool = True
    mock: bool = field(init=False, default=False)
    tokenizer: Any = None
    mid_level_dataset_surplus: float = 0.005
    allow_ambiguous_pad_tokens: bool | None = False
    fast_cache_load: bool = False
    defer_npy_index_mmap: bool = False
    _: KW_ONLY  # settings that the reference does not have
    mixing_block: int = 1
    extend_short_datasets: bool = False
    object_storage: ObjectStorageSettings | None = None
    # The next three settings change no byte of a sample, so they are not in cache keys.
    verify: VerifyMode = "quick"
    allow_tokenizer_mismatch: bool = False
    allow_data_mismatch: bool = False

    @property
    def storage_settings(self) -> ObjectStorageSettings:
        """The settings for reading object storage: `object_storage`, or the defaults."""
        return self.object_storage or _DEFAULT_STORAGE

    def __post_init__(self) -> None:
        check_types(self)
        if self.split is not None:
            self.split = split_text(self.split)
        self.tokenizer = as_tokenizer(self.tokenizer)
        checked_integer("random_seed", self.random_seed, at_least=0, below=2**32)
        checked_integer("sequence_length", self.sequence_length, at_least=1)
        checked_integer("num_dataset_builder_threads", self.num_dataset_builder_threads, at_least=1)
        checked_integer("mixing_block", self.mixing_block, at_least=1)
        checked_number("mid_level_dataset_surplus", self.mid_level_dataset_surplus, at_least=0)
        self._check_cache_folder()
        self._check_cache_options()
        _check_kind("object_storage", self.object_storage, ObjectStorageSettings)
        self._check_data()
        for number, blend in enumerate(self.blends):
            name = "`blend`" if self.blend is not None else f"`blend_per_split[{number}]`"
            if blend is not None:
                warn_of_duplicates([(name, blend)])

    @property
    def blends(self) -> list[Blend | None]:
        """`[blend]`, or the blends of train, valid and test; None instead of a blend for a split without data."""
        found: Any = self.blend_per_split or [None] * len(Split) if self.blend is None else [self.blend]
        return list(found)

    def _check_data(self) -> None:
        if isinstance(self.blend_per_split, Mapping):
            names = [split.name for split in Split]
            if others := [name for name in self.blend_per_split if name not in names]:
                raise ConfigError(f"`blend_per_split`: keys must be {', '.join(names)}, got {others[0]!r}")
            self.blend_per_split = [self.blend_per_split.get(name) for name in names]
        if isinstance(self.blend_per_split, (str, os.PathLike)):
            message = f"`blend_per_split`: must be three blends, got the text {os.fspath(self.blend_per_split)!r}"
            raise ConfigError(message, hint="set `blend` and `split` to divide one blend by weights")
        if self.blend_per_split is not None and any(self.blend_per_split):
            self._check_blend_per_split(self.blend_per_split)
            return
        if self.blend is None:
            self.mock = True
            self.split = "1,1,1"
        else:
            self.blend = self._checked_blend(self.blend, "`blend`")
            if self.split is None:
                raise ConfigError("no `split` given for `blend`", hint='add a split such as split="99,1,0"')
        assert isinstance(self.split, str)
        self.split_matrix = self._matrix_of(self._shares_of(self.split))

    @staticmethod
    def _checked_blend(blend: Any, where: str) -> Blend:
        return checked_blend(blend, where)

    @staticmethod
    def _shares_of(split: str) -> list[float]:
        return parse_and_normalize_split(split)

    @staticmethod
    def _matrix_of(shares: Sequence[float], within: Sequence[float] | None = None) -> SplitMatrix:
        return split_matrix(shares, within)

    def _check_cache_folder(self) -> None:
        if self.path_to_cache is not None:
            self.path_to_cache = os.fspath(self.path_to_cache)
            check_cache_folder("path_to_cache", self.path_to_cache)

    def _check_cache_options(self) -> None:
        for name in ("fast_cache_load", "defer_npy_index_mmap"):
            if getattr(self, name) and self.path_to_cache is None:
                hint = "set `path_to_cache` to the folder of the indices"
                raise ConfigError(f"`{name}`: needs `path_to_cache`", hint=hint)

    def _check_blend_per_split(self, blends: Sequence[BlendLike | None]) -> None:
        for name in ("blend", "split"):
            if getattr(self, name) is not None:
                raise ConfigError(f"`{name}` and `blend_per_split` exclude each other, got both")
        if len(blends) != len(Split):
            message = f"`blend_per_split`: must have {len(Split)} entries, got {len(blends)}"
            raise ConfigError(message, hint="pass None for a split without data")
        self.blend_per_split = [
            None if blend is None else self._checked_blend(blend, f"`blend_per_split[{number}]`")
            for number, blend in enumerate(blends)
        ]


def _check_kind(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        message = f"`{name}`: must be of class `{kind.__name__}`, got {value!r}"
        raise ConfigError(message, hint=f"pass `{name}={kind.__name__}(…)`")


def checked_columns(columns: ColumnNames) -> ColumnNames:
    """Validates `columns`; returns a tuple of names, or a dict if there are default values."""
    if isinstance(columns, str):
        raise ConfigError(f"`columns`: must be a list, got {columns!r}", hint=f"write columns=[{columns!r}]")
    for name in columns:
        if checked_name(name) in SAMPLE_NAMES or list(columns).count(name) > 1:
            hint = f"use each name once, and none of {', '.join(SAMPLE_NAMES)}"
            raise ConfigError(f"`columns`: the name {name!r} is already in use", hint=hint)
    if not isinstance(columns, Mapping):
        return tuple(columns)
    for name, value in columns.items():
        if value != REQUIRED:
            checked_number(f"the value of {name!r} in `columns` (unless {REQUIRED!r})", value)
    return dict(columns)


@dataclass
class GPTDatasetConfig(BlendedMegatronDatasetConfig):
    """Settings of GPT datasets.

    Attributes:
        reset_position_ids: restart position ids after each end-of-document token. (The reference requires a value for
            this setting and the next two; Megatron's training program passes False.)
        reset_attention_mask: block attention across end-of-document tokens.
        eod_mask_loss: set the loss mask to 0 where the input token is end-of-document.
        create_attention_mask: add a dense mask, bool[1, S, S], of S² bytes to samples; fused attention needs no mask.
        drop_last_partial_validation_sequence: drop the last validation sample if it is incomplete.
        add_extra_token_to_sequence: read one token beyond `sequence_length`; this extra token is the last label.
        object_storage_cache_path: local cache folder of object storage; overrides `object_storage.cache_path`.
        block_shuffle: a shuffle that reads a few blocks of the data at a time, for data in object storage; None for the
            reference's shuffle.
        data_parallel_size, sequence_parallel_size, hybrid_context_parallel, context_parallel_size: settings of the run;
            no effect on GPT samples.
        sequences_per_dataset: {prefix: [number of sequences, number of document boundaries]}, checked against the file
            headers. With `fast_cache_load`, each GPT dataset then opens its data when the first sample or the dataset's
            length is needed. A blend without weights needs the lengths of all datasets at the start.
        token_dtype_code: code of the token dtype that the vocabulary size needs; computed.
        inter_document_masking: add document boundaries (`cu_seqlens`, `max_seqlen`), read from the `.idx` file, to
            samples instead of a dense mask, and restart position ids at every document.
        window_policy: "concat" divides the concatenated documents into windows of `sequence_length` tokens, as the
            reference does. "best_fit" packs whole documents into samples and pads them; it splits only documents longer
            than a sample, and drops neither tokens nor incomplete packs. Set `inter_document_masking` too, so that
            packed documents do not attend to each other. The name of a registered policy is also allowed.
        most_documents: maximum number of documents in a "best_fit" sample, since many documents make steps slow; None
            for no limit.
        attention: arrays for attention within documents; implies `inter_document_masking`. "cu_seqlens" adds no further
            array; "document_ids" adds the document number of each token, int32[S]; "block_mask" adds the block lists of
            FlexAttention's mask, see `flex_block_mask`. All samples have the same shapes.
        attention_block_size: tokens per block of FlexAttention's mask.
        attention_window: maximum number of tokens that a token attends to, including itself; None for no limit in its
            document.
        columns: columns to add to samples, as dtype[S] or dtype[S, k] with one row per token or per label: a list of
            names, or {name: default value for data without the column, or "required"}. A column per sequence or
            document repeats its value for each token. The column `loss_weight` also multiplies the loss mask.
        loss_weights: {prefix: factor of the loss mask}; in a run, {source: factor}. The default factor is 1.
    """

    reset_position_ids: bool | None = False
    reset_attention_mask: bool | None = False
    eod_mask_loss: bool | None = False
    create_attention_mask: bool = False
    drop_last_partial_validation_sequence: bool = True
    add_extra_token_to_sequence: bool = True
    object_storage_cache_path: str | None = None
    data_parallel_size: int = 1
    sequence_parallel_size: int = 0
    hybrid_context_parallel: bool = False
    sequences_per_dataset: dict[str, list[int]] | None = None
    token_dtype_code: int | None = field(init=False, default=None)
    context_parallel_size: int | None = None
    inter_document_masking: bool = False
    _: KW_ONLY
    window_policy: str = "concat"
    most_documents: int | None = None
    block_shuffle: BlockShuffle | None = None
    attention: Attention | None = None
    attention_block_size: int = 128
    attention_window: int | None = None
    columns: ColumnNames = ()
    loss_weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def storage_settings(self) -> ObjectStorageSettings:
        """The settings for reading object storage; `object_storage_cache_path`, if set, is the cache folder."""
        settings = super().storage_settings
        if self.object_storage_cache_path is None:
            return settings
        return replace(settings, cache_path=self.object_storage_cache_path)

    def _check_loss_weights(self) -> None:
        known = self.prefixes
        for name, weight in self.loss_weights.items():
            checked_number(f"the weight of {name!r} in `loss_weights`", weight, above=0)
            if known and name not in known:
                hint = f"use a prefix of the blend: {', '.join(sorted({*known})[:10])}"
                raise ConfigError(f"`loss_weights`: no prefix {name!r} in the blend", hint=hint)

    @property
    def prefixes(self) -> list[str]:
        """The prefixes of all blends."""
        return [prefix for blend in self.blends if blend is not None for prefix in blend[0]]

    @property
    def num_extra_tokens(self) -> int:
        """Number of tokens that a sample reads beyond `sequence_length`: 1 or 0."""
        return int(self.add_extra_token_to_sequence)

    def keeps_partial_sample(self, split: Split) -> bool:
        """Returns whether a split keeps its last sample if that sample is incomplete."""
        return split == Split.valid and not self.drop_last_partial_validation_sequence

    def shape_of(self, split: Split) -> SampleShape:
        """Returns the settings by which `window_policy` divides the documents of a split into samples."""
        return SampleShape(
            sequence_length=self.sequence_length,
            extra=self.num_extra_tokens,
            keep_partial=self.keeps_partial_sample(split),
            blocks=self.block_shuffle,
            most_documents=self.most_documents,
        )

    def policy_of(self, split: Split) -> OrderPolicy:
        """Returns the `OrderPolicy` that `window_policy` names: it divides the documents of a split into samples."""
        return policy_of(self.window_policy, self.shape_of(split))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_local_folder("object_storage_cache_path", self.object_storage_cache_path)
        _check_kind("block_shuffle", self.block_shuffle, BlockShuffle)
        self.columns = checked_columns(self.columns)
        self._check_loss_weights()
        for name in ("most_documents", "attention_block_size", "attention_window"):
            if (count := getattr(self, name)) is not None:
                checked_integer(name, count, at_least=1)
        self.policy_of(Split.train)
        if self.tokenizer is None:
            hint = 'pass the tokenizer that made the data, such as `tokenizer="tokenizer.json"`'
            raise ConfigError("no `tokenizer` given", hint=hint)
        if self.block_shuffle is not None and self.mock:
            raise ConfigError("`block_shuffle`: needs data, got mock data", hint="set `blend`, or drop `block_shuffle`")
        if self.attention_window is not None and self.attention != "block_mask":
            message = f'`attention_window`: needs `attention="block_mask"`, got {self.attention!r}'
            raise ConfigError(message, hint="remove it, and pass the window to the attention of the model")
        self.inter_document_masking |= self.attention is not None
        for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
            if getattr(self, name) is None:
                raise ConfigError(f"`{name}`: must be True or False, got None")
            if self.inter_document_masking and name != "eod_mask_loss" and getattr(self, name):
                hint = f"set `{name}` to False: document boundaries come from the `.idx` file, not from tokens"
                raise ConfigError(f"`inter_document_masking` and `{name}` exclude each other, got both", hint=hint)
        if self.tokenizer.vocab_size is not None:
            self.token_dtype_code = DType.code_from_dtype(DType.optimal_dtype(self.tokenizer.vocab_size))
