"""The settings of datasets, checked where they are held. Parameters are the reference's."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace
from typing import Any, Literal

from tokenloom.datasets.attention import Attention, check_window
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
"""Arrays of samples whose names no column can have."""


_HEADING = "Attributes:"
_ENTRY = re.compile(r"\n {4}(\w+(?:, \w+)*): .*(?:\n {5,}.*)*")


class ShowsSettings:
    """A dataclass of settings whose `help` describes inherited settings too, and whose `repr` is what differs.

    Each setting is described once, in the docstring of the class that declares it; a class that describes it again has
    the last word.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Completes the docstring of a class by the settings that it inherits."""
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
    """Returns the docstring of a class, with the settings that classes above it describe behind its own."""
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
    """What every dataset class needs to know.

    Attributes:
        random_seed: seed of all shuffles, in [0, 2**32).
        sequence_length: tokens per sample.
        blend: the data that `split` divides; not together with `blend_per_split`. (prefixes, weights or None), one
            prefix, a list of prefixes or of weights and prefixes by turns, [[weight, prefix], …], or {prefix: weight}.
            It is held in the first form.
        blend_per_split: one blend or None for train, valid and test each, in this order, or by these names.
        multiple_validation_sets: build one validation dataset per prefix instead of a blend.
        full_validation: samplers read the validation data once and whole; trainers then ask for one epoch of it. A
            size that the builder is given counts all the same.
        split: weights of train, valid and test, such as "99,1,0" or (99, 1, 0). It is held as a text.
        split_matrix: the interval of each split, computed from `split`.
        num_dataset_builder_threads: datasets built at once.
        path_to_cache: folder of the index cache, or the address of one in a bucket (`s3://bucket/indices`): who builds
            publishes there, and others download what they need. Beside the data if None; of data in object storage, in
            the local folder of `object_storage`.
        mmap_bin_files: map `.bin` files into memory, or read them by position.
        mock: no data was named, so it is made up; computed.
        tokenizer: tokenizer of the data: what `load_tokenizer` takes (a path, a name, or what another library has
            loaded), or any object with what datasets ask of one, see `TokenizerLike`.
        mid_level_dataset_surplus: share of samples built beyond what a blend needs of each dataset.
        allow_ambiguous_pad_tokens: let a pad id that is also another special token mask that token.
        fast_cache_load: trust that all caches exist.
        defer_npy_index_mmap: open cached indices at the first sample, not before.
        mixing_block: positions of a blend that are shuffled among themselves, such as 1024; 1 is the reference's order,
            which repeats itself, so that ranks may see other mixtures than the blend has.
        extend_short_datasets: where a blend takes more samples of a dataset than were built, build further epochs of
            it instead of raising.
        object_storage: how to read data in object storage.
        allow_tokenizer_mismatch: read data although the manifest beside them says that another tokenizer made them.
        verify: "quick" checks the ends of files when they are opened, all rows of an index before other indices are
            built from it, and cached arrays of up to 4 MiB with their checksums. "full" compares larger ones, too, when
            they are opened. It also reads all tokens, in the background and once per node, and compares them with the
            manifests; damage is raised by the next sample that is asked for, see `verification_of`.
        allow_data_mismatch: read data although the manifest beside them says that they are of a kind which this class
            does not read as it should: sentences or conversations as documents, for example. It then is a warning.
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
    _: KW_ONLY  # what follows is ours, and has no place in the order of the reference's settings
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
        """The blends as they are held: the one that is split, or those of train, valid and test."""
        found: Any = self.blend_per_split or [None] * len(Split) if self.blend is None else [self.blend]
        return list(found)

    def _check_data(self) -> None:
        """Checks what names the data and their splits, and computes `mock` and `split_matrix`."""
        if isinstance(self.blend_per_split, Mapping):
            names = [split.name for split in Split]
            if others := [name for name in self.blend_per_split if name not in names]:
                message = f"expected {', '.join(names)} in `blend_per_split`, found {others[0]!r}"
                raise ConfigError(message)
            self.blend_per_split = [self.blend_per_split.get(name) for name in names]
        if isinstance(self.blend_per_split, (str, os.PathLike)):
            message = f"expected three blends as `blend_per_split`, found the text {os.fspath(self.blend_per_split)!r}"
            raise ConfigError(message, hint="data that are split by weights are named by `blend`, beside `split`")
        if self.blend_per_split is not None and any(self.blend_per_split):
            self._check_blend_per_split(self.blend_per_split)
            return
        if self.blend is None:
            self.mock = True
            self.split = "1,1,1"
        else:
            self.blend = self._checked_blend(self.blend, "`blend`")
            if self.split is None:
                message = "expected `split` beside `blend`, found none"
                raise ConfigError(message, hint='such as split="99,1,0"')
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
                message = f"expected `path_to_cache` with `{name}`, found none"
                raise ConfigError(message, hint="name the folder in which the indices were built")

    def _check_blend_per_split(self, blends: Sequence[BlendLike | None]) -> None:
        for name in ("blend", "split"):
            if getattr(self, name) is not None:
                message = f"`{name}` and `blend_per_split` exclude each other, found both"
                raise ConfigError(message)
        if len(blends) != len(Split):
            message = f"expected {len(Split)} entries in `blend_per_split`, found {len(blends)}"
            raise ConfigError(message, hint="use None for a split without data")
        self.blend_per_split = [
            None if blend is None else self._checked_blend(blend, f"`blend_per_split[{number}]`")
            for number, blend in enumerate(blends)
        ]


def _check_kind(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        message = f"expected `{kind.__name__}` as `{name}`, found {value!r}"
        raise ConfigError(message, hint=f"such as `{name}={kind.__name__}(…)`")


def checked_columns(columns: ColumnNames) -> ColumnNames:
    """Returns the columns as they are held; `ConfigError` for one that a sample has already, or that is none."""
    if isinstance(columns, str):
        message = f"expected a list of columns, found the text {columns!r}"
        raise ConfigError(message, hint=f"write columns=[{columns!r}]")
    for name in columns:
        if checked_name(name) in SAMPLE_NAMES or list(columns).count(name) > 1:
            message = f"expected columns with names of their own, found {name!r}"
            raise ConfigError(message, hint=f"samples have {', '.join(SAMPLE_NAMES)} already")
    if not isinstance(columns, Mapping):
        return tuple(columns)
    for name, value in columns.items():
        if value != REQUIRED:
            checked_number(f"the value of {name!r} in `columns`, or {REQUIRED!r}", value)
    return dict(columns)


@dataclass
class GPTDatasetConfig(BlendedMegatronDatasetConfig):
    """What GPT datasets need to know beyond the common settings.

    Attributes:
        reset_position_ids: positions restart after each end-of-document token. (The reference's class wants this and
            the next two to be given; its program sets them to False.)
        reset_attention_mask: no attention across an end-of-document token.
        eod_mask_loss: no loss where the input token is end-of-document.
        create_attention_mask: whether samples hold a dense mask, bool[1, S, S]: S² bytes each, which kernels of
            attention do without.
        drop_last_partial_validation_sequence: whether the last, incomplete validation sample is left out.
        add_extra_token_to_sequence: read one token beyond the sample for its last label.
        object_storage_cache_path: folder for what is kept of data in object storage; overrides that of
            `object_storage`.
        block_shuffle: instead of the reference's order, one that stays within some blocks of the data at a time: for
            data in object storage that is read from afar.
        data_parallel_size, sequence_parallel_size, hybrid_context_parallel, context_parallel_size: settings of the run;
            without effect on GPT samples.
        sequences_per_dataset: {prefix: [sequences, document boundaries]}, checked against the headers. With
            `fast_cache_load`, GPT datasets are opened, and checked, with their first sample: a start over many opens
            none, unless it asks for their lengths, as a blend without weights does.
        token_dtype_code: dtype code of the tokens that the vocabulary size implies; computed.
        inter_document_masking: samples hold document boundaries (`cu_seqlens`, `max_seqlen`) from the index instead
            of a dense mask, and positions restart at every document.
        window_policy: "concat" cuts the stream of all documents every `sequence_length` tokens, as the reference does.
            "best_fit" packs whole documents into samples, filled up with padding where nothing fits; only documents
            longer than a sample are cut, and no token is dropped. Every pack counts, in every split. Best with
            `inter_document_masking`, so that packed documents do not attend to each other. Or the name of a policy
            that another module has registered.
        most_documents: most documents of a sample of "best_fit", for many tiny ones make steps slow; others go to
            further samples. None for any number.
        attention: what samples say of their documents, for attention that keeps them apart; implies
            `inter_document_masking`. "cu_seqlens" adds nothing to its boundaries; "document_ids" adds the number of the
            document of each token, int32[S]; "block_mask" adds the blocks of the mask that FlexAttention works on, see
            `flex_block_mask`. All arrays have one shape for all samples.
        attention_block_size: tokens of a block of the mask.
        attention_window: how many tokens a token sees, itself included; None for all of its document before it.
        columns: columns beside the data that samples have too, each under its name: dtype[S] or dtype[S, k], beside
            tokens, or beside labels where the column says so; of columns per sequence or document, each token has the
            value of its own. `loss_weight` also multiplies the loss mask. All data need them, or {name: the value where
            data lack it, or "required"}.
        loss_weights: numbers that multiply the loss mask of samples, apart from their shares, by prefix; in a run by
            source. Others count as 1.
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
                message = f"expected a prefix of the blend in `loss_weights`, found {name!r}"
                raise ConfigError(message, hint=f"there are {', '.join(sorted({*known})[:10])}")

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
        """Returns what the samples of a split are like."""
        return SampleShape(
            sequence_length=self.sequence_length,
            extra=self.num_extra_tokens,
            keep_partial=self.keeps_partial_sample(split),
            blocks=self.block_shuffle,
            most_documents=self.most_documents,
        )

    def policy_of(self, split: Split) -> OrderPolicy:
        """Returns how samples of a split are made of documents."""
        return policy_of(self.window_policy, self.shape_of(split))

    def __post_init__(self) -> None:
        """Checks the settings and computes `token_dtype_code`."""
        super().__post_init__()
        check_local_folder("object_storage_cache_path", self.object_storage_cache_path)
        _check_kind("block_shuffle", self.block_shuffle, BlockShuffle)
        self.columns = checked_columns(self.columns)
        self._check_loss_weights()
        if self.most_documents is not None:
            checked_integer("most_documents", self.most_documents, at_least=1)
        self.policy_of(Split.train)
        if self.tokenizer is None:
            message = "expected `tokenizer`, found none"
            raise ConfigError(message, hint='the one that made the data, such as `tokenizer="tokenizer.json"`')
        if self.block_shuffle is not None and self.mock:
            message = "expected data for `block_shuffle`, found none"
            raise ConfigError(message, hint="made-up data has no blocks")
        checked_integer("attention_block_size", self.attention_block_size, at_least=1)
        check_window("attention_window", self.attention_window)
        if self.attention_window is not None and self.attention != "block_mask":
            message = f'expected `attention="block_mask"` with `attention_window`, found {self.attention!r}'
            raise ConfigError(message, hint="other samples say nothing of a window: give it to attention itself")
        self.inter_document_masking |= self.attention is not None
        for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
            if getattr(self, name) is None:
                message = f"expected `{name}` to be True or False, found None"
                raise ConfigError(message)
            if self.inter_document_masking and name != "eod_mask_loss" and getattr(self, name):
                message = f"`inter_document_masking` and `{name}` exclude each other, found both"
                raise ConfigError(
                    message, hint=f"set `{name}` to False: document boundaries come from the index, not from tokens"
                )
        if self.tokenizer.vocab_size is not None:
            self.token_dtype_code = DType.code_from_dtype(DType.optimal_dtype(self.tokenizer.vocab_size))
