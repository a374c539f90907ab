"""The settings of datasets, checked where they are held. Parameters are the reference's."""

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
_USUAL_STORAGE = ObjectStorageSettings()

SAMPLE_NAMES = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen")
"""Names of arrays that no column can have."""

_HEADING = "Attributes:"
_ENTRY = re.compile(r"\n {4}(\w+(?:, \w+)*): .*(?:\n {5,}.*)*")


class ShowsSettings:
    """A dataclass of settings: `help` describes inherited settings too, `repr` shows those that differ from defaults.

    Each setting is described in the docstring of the class that declares it; a subclass may describe it again.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Adds inherited settings to the docstring."""
        super().__init_subclass__(**options)
        if cls.__doc__ is not None and "__doc__" in vars(cls):
            cls.__doc__ = with_inherited(cls)
        if "__repr__" not in vars(cls):  # else the decorator of dataclasses writes one
            cls.__repr__ = ShowsSettings.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        chosen = []
        for each in fields(self):  # type: ignore[arg-type]  # its subclasses are dataclasses
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            if each.init and (value := getattr(self, each.name)) != default:
                chosen.append(f"{each.name}={redacted(repr(value))}")
        return f"{type(self).__name__}({', '.join(chosen)})"


def with_inherited(cls: type) -> str:
    """Returns the docstring of a class, with inherited settings behind its own."""
    doc = inspect.cleandoc(cls.__doc__ or "")
    own = _entries(doc)
    known = {name for found in own for name in found[1].split(", ")}
    inherited = []
    for base in cls.__mro__[1:]:  # each completed already where it is of settings
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
        blend: the data that `split` divides; excludes `blend_per_split`. (prefixes, weights or None), one prefix, a
            list of prefixes or of weights and prefixes by turns, [[weight, prefix], …], or {prefix: weight}. Held in
            the first form.
        blend_per_split: a blend or None for train, valid and test each, in this order, or by these names.
        multiple_validation_sets: build one validation dataset per prefix instead of a blend.
        full_validation: samplers read the validation data once and whole; trainers then ask for one epoch of it. A
            size given to the builder still counts.
        split: weights of train, valid and test, such as "99,1,0" or (99, 1, 0). Held as text.
        split_matrix: the interval of each split; computed.
        num_dataset_builder_threads: datasets built at once.
        path_to_cache: folder of the index cache, or its address in a bucket (`s3://bucket/indices`), where the builder
            publishes and others download. None: beside the data; for data in object storage, in the local folder of
            `object_storage`.
        mmap_bin_files: map `.bin` files into memory, or read them by position.
        mock: no data was named, so it is made up; computed.
        tokenizer: tokenizer of the data: what `load_tokenizer` takes (a path, a name, or a tokenizer of another
            library), or any `TokenizerLike`.
        mid_level_dataset_surplus: share of samples built beyond those a blend needs of each dataset.
        allow_ambiguous_pad_tokens: let a pad id that is also another special token mask that token.
        fast_cache_load: trust that all caches exist.
        defer_npy_index_mmap: open cached indices at the first sample.
        mixing_block: positions of a blend that are shuffled among themselves, such as 1024; 1 is the reference's order,
            which is periodic, so that ranks may see other mixtures than the blend has.
        extend_short_datasets: build further epochs of a dataset that has too few samples for a blend instead of
            raising.
        object_storage: how to read data in object storage.
        allow_tokenizer_mismatch: read data although their manifest names another tokenizer.
        verify: "quick" checks the ends of files on open, all rows of an index before other indices are built from it,
            and checksums of cached arrays of up to 4 MiB. "full" also compares larger ones, and reads all tokens in the
            background, once per node, to compare them with the manifests; the next sample raises damage, see
            `verification_of`.
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
    _: KW_ONLY  # ours
    mixing_block: int = 1
    extend_short_datasets: bool = False
    object_storage: ObjectStorageSettings | None = None
    verify: VerifyMode = "quick"  # changes no byte of a sample, hence in no cache key
    allow_tokenizer_mismatch: bool = False  # changes no byte of a sample, hence in no cache key
    allow_data_mismatch: bool = False  # likewise

    @property
    def storage_settings(self) -> ObjectStorageSettings:
        """How to read data in object storage."""
        return self.object_storage or _USUAL_STORAGE

    def __post_init__(self) -> None:
        """Checks the settings and computes `mock` and `split_matrix`."""
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
        """The blend that is split, or those of train, valid and test."""
        found: Any = self.blend_per_split or [None] * len(Split) if self.blend is None else [self.blend]
        return list(found)

    def _check_data(self) -> None:
        if isinstance(self.blend_per_split, Mapping):
            names = [split.name for split in Split]
            if others := [name for name in self.blend_per_split if name not in names]:
                raise ConfigError(f"`blend_per_split`: keys are {', '.join(names)}, got {others[0]!r}")
            self.blend_per_split = [self.blend_per_split.get(name) for name in names]
        if isinstance(self.blend_per_split, (str, os.PathLike)):
            message = f"`blend_per_split`: must be three blends, got the text {os.fspath(self.blend_per_split)!r}"
            raise ConfigError(message, hint="name data that are split by weights with `blend` and `split`")
        if self.blend_per_split is not None and any(self.blend_per_split):
            self._check_blend_per_split(self.blend_per_split)
            return
        if self.blend is None:
            self.mock = True
            self.split = "1,1,1"
        else:
            self.blend = self._checked_blend(self.blend, "`blend`")
            if self.split is None:
                raise ConfigError("no `split` given for `blend`", hint='such as split="99,1,0"')
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
                raise ConfigError(f"no `path_to_cache` given for `{name}`", hint="name the folder of the indices")

    def _check_blend_per_split(self, blends: Sequence[BlendLike | None]) -> None:
        for name in ("blend", "split"):
            if getattr(self, name) is not None:
                raise ConfigError(f"`{name}` and `blend_per_split` exclude each other, got both")
        if len(blends) != len(Split):
            message = f"`blend_per_split`: must have {len(Split)} entries, got {len(blends)}"
            raise ConfigError(message, hint="use None for a split without data")
        self.blend_per_split = [
            None if blend is None else self._checked_blend(blend, f"`blend_per_split[{number}]`")
            for number, blend in enumerate(blends)
        ]


def _check_kind(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        message = f"`{name}`: must be of class `{kind.__name__}`, got {value!r}"
        raise ConfigError(message, hint=f"such as `{name}={kind.__name__}(…)`")


def checked_columns(columns: ColumnNames) -> ColumnNames:
    """Returns columns in the form that configs hold: a tuple or dict."""
    if isinstance(columns, str):
        raise ConfigError(f"`columns`: must be a list, got {columns!r}", hint=f"write columns=[{columns!r}]")
    for name in columns:
        if checked_name(name) in SAMPLE_NAMES or list(columns).count(name) > 1:
            raise ConfigError(f"`columns`: {name!r} is taken", hint=f"samples have {', '.join(SAMPLE_NAMES)}")
    if not isinstance(columns, Mapping):
        return tuple(columns)
    for name, value in columns.items():
        if value != REQUIRED:
            checked_number(f"the value of {name!r} in `columns`, or {REQUIRED!r}", value)
    return dict(columns)


@dataclass
class GPTDatasetConfig(BlendedMegatronDatasetConfig):
    """Settings of GPT datasets.

    Attributes:
        reset_position_ids: positions restart after each end-of-document token. (The reference's class requires this and
            the next two; its program sets them to False.)
        reset_attention_mask: no attention across an end-of-document token.
        eod_mask_loss: no loss where the input token is end-of-document.
        create_attention_mask: samples hold a dense mask, bool[1, S, S]: S² bytes each, not needed by fused attention.
        drop_last_partial_validation_sequence: drop the last, incomplete validation sample.
        add_extra_token_to_sequence: read one token beyond the sample for its last label.
        object_storage_cache_path: local cache folder of object storage; overrides that of `object_storage`.
        block_shuffle: instead of the reference's order, one that stays within some blocks of the data at a time: for
            data in object storage.
        data_parallel_size, sequence_parallel_size, hybrid_context_parallel, context_parallel_size: settings of the run;
            without effect on GPT samples.
        sequences_per_dataset: {prefix: [sequences, document boundaries]}, checked against the headers. With
            `fast_cache_load`, each GPT dataset is opened and checked with its first sample, or when its length is
            needed, as in a blend without weights.
        token_dtype_code: dtype code of the tokens for the vocabulary size; computed.
        inter_document_masking: samples hold document boundaries (`cu_seqlens`, `max_seqlen`) from the index instead
            of a dense mask, and positions restart at every document.
        window_policy: "concat" cuts the stream of all documents every `sequence_length` tokens, as the reference does.
            "best_fit" packs whole documents into samples, filled up with padding; only documents longer than a sample
            are cut, and no token is dropped. Every pack counts, in every split. Best with `inter_document_masking`, so
            that packed documents do not attend to each other. Or the name of a registered policy.
        most_documents: most documents of a sample of "best_fit", since many tiny ones make steps slow; None for any
            number.
        attention: arrays for attention within documents; implies `inter_document_masking`. "cu_seqlens" adds nothing
            to its boundaries; "document_ids" adds the document number of each token, int32[S]; "block_mask" adds the
            blocks of FlexAttention's mask, see `flex_block_mask`. Shapes are the same for all samples.
        attention_block_size: tokens of a block of the mask.
        attention_window: tokens that a token sees, itself included; None for all before it in its document.
        columns: columns beside the data to add to samples, each under its name: dtype[S] or dtype[S, k], per token or
            per label; a column per sequence or document repeats its value for each token. `loss_weight` also multiplies
            the loss mask. All data need them, or {name: the value where data lack it, or "required"}.
        loss_weights: factors of the loss mask by prefix; in a run by source. 1 by default.
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
        """How to read data in object storage: `object_storage`, with `object_storage_cache_path` as its folder."""
        settings = super().storage_settings
        if self.object_storage_cache_path is None:
            return settings
        return replace(settings, cache_path=self.object_storage_cache_path)

    def _check_loss_weights(self) -> None:
        known = self.prefixes
        for name, weight in self.loss_weights.items():
            checked_number(f"the weight of {name!r} in `loss_weights`", weight, above=0)
            if known and name not in known:
                hint = f"there are {', '.join(sorted({*known})[:10])}"
                raise ConfigError(f"`loss_weights`: no prefix {name!r} in the blend", hint=hint)

    @property
    def prefixes(self) -> list[str]:
        """The prefixes of all blends."""
        return [prefix for blend in self.blends if blend is not None for prefix in blend[0]]

    @property
    def num_extra_tokens(self) -> int:
        """Tokens that a sample reads beyond its length: 1 or 0."""
        return int(self.add_extra_token_to_sequence)

    def keeps_partial_sample(self, split: Split) -> bool:
        """Whether the last, incomplete sample of a split counts."""
        return split == Split.valid and not self.drop_last_partial_validation_sequence

    def shape_of(self, split: Split) -> SampleShape:
        """Returns the shape of the samples of a split."""
        return SampleShape(
            sequence_length=self.sequence_length,
            extra=self.num_extra_tokens,
            keep_partial=self.keeps_partial_sample(split),
            blocks=self.block_shuffle,
            most_documents=self.most_documents,
        )

    def policy_of(self, split: Split) -> OrderPolicy:
        """Returns the policy that makes samples of documents."""
        return policy_of(self.window_policy, self.shape_of(split))

    def __post_init__(self) -> None:
        """Checks the settings and computes `token_dtype_code`."""
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
            hint = 'name the one that made the data, such as `tokenizer="tokenizer.json"`'
            raise ConfigError("no `tokenizer` given", hint=hint)
        if self.block_shuffle is not None and self.mock:
            raise ConfigError("no data given for `block_shuffle`", hint="made-up data has no blocks")
        if self.attention_window is not None and self.attention != "block_mask":
            message = f'`attention_window`: needs `attention="block_mask"`, got {self.attention!r}'
            raise ConfigError(message, hint="other samples do not hold a window: pass it to attention itself")
        self.inter_document_masking |= self.attention is not None
        for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
            if getattr(self, name) is None:
                raise ConfigError(f"`{name}`: must be True or False, got None")
            if self.inter_document_masking and name != "eod_mask_loss" and getattr(self, name):
                hint = f"set `{name}` to False: document boundaries come from the index, not from tokens"
                raise ConfigError(f"`inter_document_masking` and `{name}` exclude each other, got both", hint=hint)
        if self.tokenizer.vocab_size is not None:
            self.token_dtype_code = DType.code_from_dtype(DType.optimal_dtype(self.tokenizer.vocab_size))
