"""BERT and T5 datasets: samples of consecutive sentences in which some words are masked."""

from __future__ import annotations

import logging
import os
import re
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import BertFiller, Masker, T5Filler, make_masker
from tokenloom.datasets.base import MegatronDataset, PairOrigin, PairSamples, open_pair
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.protocols import Int64s, Positions
from tokenloom.datasets.sample_arrays import recycled_empty
from tokenloom.datasets.shortcuts import UNCALLED_BY_ITEM
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import (
    NO_TOKEN,
    WordPieces,
    optional_token_id,
    required_sentinels,
    required_token_id,
    word_pieces,
)
from tokenloom.errors import ConfigError, IgnoredSettingWarning, TokenizerError, TokenloomError
from tokenloom.forks import cached_property
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.numbers import checked_integer
from tokenloom.order.sentences import SentenceOrder
from tokenloom.order.windows import SpanBatch
from tokenloom.overrides import Uncalled

logger: logging.Logger = logging.getLogger(__name__)
_GEOMETRIC_PROBABILITY = 0.2
"""Parameter of the geometric distribution of n-gram lengths in SpanBERT (https://arxiv.org/abs/1907.10529, 3.1)."""

_REQUIRED = (
    *("masking_probability", "short_sequence_probability", "masking_max_ngram", "masking_do_full_word"),
    *("masking_do_permutation", "masking_use_longer_ngrams", "masking_use_geometric_distribution"),
)
"""Required settings; all are part of the cache key."""


@dataclass
class MaskedWordPieceDatasetConfig(BlendedMegatronDatasetConfig):
    """Settings of masked datasets; all are required, except for `word_pieces`.

    Attributes:
        masking_probability: fraction of tokens to mask, in (0, 1).
        short_sequence_probability: probability that a sample has a shorter target length, in [0, 1].
        masking_max_ngram: maximum number of consecutive words to mask together.
        masking_do_full_word: mask all tokens of a word together.
        masking_do_permutation: also shuffle other tokens (as many as are masked), and predict the shuffled tokens.
        masking_use_longer_ngrams: draw long n-grams more often than short ones.
        masking_use_geometric_distribution: draw n-gram lengths as SpanBERT does; excludes `masking_do_permutation`.
        word_pieces: the vocabulary of the tokenizer; computed.
    """

    _special_tokens: ClassVar[int] = 0
    """Number of special tokens per sample."""
    _roles: ClassVar[Mapping[str, str]] = {}
    """{required special token: reason, for errors}."""

    masking_probability: float | None = None
    short_sequence_probability: float | None = None
    masking_max_ngram: int | None = None
    masking_do_full_word: bool | None = None
    masking_do_permutation: bool | None = None
    masking_use_longer_ngrams: bool | None = None
    masking_use_geometric_distribution: bool | None = None
    word_pieces: WordPieces | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer is None:
            raise ConfigError("no `tokenizer` given", hint="pass a path or the result of `load_tokenizer`")
        self._require(*_REQUIRED)
        if not 0 < (self.masking_probability or 0) < 1:
            raise ConfigError(f"`masking_probability`: must be in (0, 1), got {self.masking_probability!r}")
        if not 0 <= (self.short_sequence_probability or 0) <= 1:
            raise ConfigError(
                f"`short_sequence_probability`: must be in [0, 1], got {self.short_sequence_probability!r}"
            )
        checked_integer("masking_max_ngram", self.masking_max_ngram, at_least=1)
        if self.masking_use_geometric_distribution:
            if self.masking_do_permutation:
                message = "`masking_use_geometric_distribution` and `masking_do_permutation` exclude each other"
                raise ConfigError(message)
            if self.masking_use_longer_ngrams:
                message = "`masking_use_longer_ngrams` has no effect with `masking_use_geometric_distribution`"
                warnings.warn(message, IgnoredSettingWarning, stacklevel=4)
        self.word_pieces = word_pieces(self.tokenizer)
        least = self._special_tokens + (2 if self.short_sequence_probability else 1)
        hint = f"raise it: {self._special_tokens} tokens of a sample are special tokens"
        checked_integer("sequence_length", self.sequence_length, at_least=least, hint=hint)
        for role, reason in self._roles.items():
            required_token_id(self.tokenizer, role, reason)

    def _require(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) is None:
                raise ConfigError(f"no `{name}` given")


class MaskedWordPieceDataset(PairSamples):
    """The base class of BERT and T5 datasets: samples of whole sentences with masked words.

    The data have one sequence per sentence; a split has whole documents. `sample_index[k]` describes sample k.
    All random draws of sample k come from a generator seeded with (random_seed + k) % 2**32, so sample k is the same
    in every process, reading order and resumed run.

    `dataset[k]` returns NumPy arrays and integers as the reference does; `dataset.sample(k)` returns NumPy arrays only;
    `dataset.batch(positions)` fills many samples by one kernel call; torch's DataLoader gets batches of tensors.
    `len()` opens the index. Thread-safe, fork-safe and picklable.

    Subclasses implement `_min_sentences`, `_shapes` and `_make_filler`.

    Args:
        indexed_dataset: the low-level dataset.
        dataset_path: path of the low-level dataset, for the cache key.
        indexed_indices: integers[num_documents], the documents of the split; they must be consecutive.
        num_samples: minimum number of samples, which sets the number of epochs; None for one epoch.
        index_split: the split that these samples belong to.
        config: the settings.

    Raises:
        ConfigError: `num_samples` is above 0 and the documents give no samples, or the documents are not consecutive.
        IndexCacheError: `path_to_cache` cannot be written; or no valid index is cached and settings forbid building.
    """

    config: MaskedWordPieceDatasetConfig
    order: SentenceOrder
    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {
        "_build_sample_index": Uncalled("choose the samples in a `__getitem__`"),
        "_create_masked_lm_predictions": UNCALLED_BY_ITEM,
        "_get_token_mask": UNCALLED_BY_ITEM,
    }

    _reads_items = True
    _reads = "sentences"

    def __init__(
        self,
        indexed_dataset: IndexedDataset,
        dataset_path: str | None,
        indexed_indices: NDArray[Any],
        num_samples: int | None,
        index_split: Split,
        config: MaskedWordPieceDatasetConfig,
    ) -> None:
        super().__init__(indexed_dataset, dataset_path, indexed_indices, num_samples, index_split, config)
        self._check_pair()
        # As in the reference, file names contain the split only in the hash.
        base = f"{self.unique_description_hash}-{type(self).__name__}"
        self.order = SentenceOrder(
            self.dataset,
            self.rows,
            self.num_samples,
            longest_text=config.sequence_length - config._special_tokens,
            short_probability=float(config.short_sequence_probability or 0.0),
            seed=config.random_seed,
            min_sentences=self._min_sentences,
            store=self._array_store(PairOrigin(dataset=self.dataset), base=base),
        )

    @property
    @abstractmethod
    def _min_sentences(self) -> int:
        """The minimum number of sentences in a sample."""

    @property
    @abstractmethod
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array of a sample; all are int64."""

    @cached_property
    def _filler(self) -> Any:
        return self._make_filler()

    @abstractmethod
    def _make_filler(self) -> Any:
        """Returns the kernel that masks words and fills samples."""

    def _fill(self, spans: SpanBatch, targets: Int64s, seeds: NDArray[np.uint32]) -> Sample:
        """Returns a batch of masked samples; sample i has up to `targets[i]` text tokens and the seed `seeds[i]`."""
        tokens = self._read_spans(self.dataset, spans.documents, spans.starts, spans.lengths).astype(np.int64)
        sample = {name: recycled_empty((len(targets), *shape), np.int64) for name, shape in self._shapes.items()}
        self._filler.fill(tokens, spans.lengths, spans.row_offsets, targets, seeds, **sample)
        return sample

    def _sample_facts(self) -> dict[str, Any]:
        return super()._sample_facts() | {"documents exposed": f"{len(self.rows):,} of {self.dataset.num_documents:,}"}

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: IndexedDataset) -> int:
        """Returns the number of documents, as all sentences of a document belong to one split."""
        return low_level_dataset.num_documents

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> IndexedDataset:
        """Opens the pair at a path."""
        if dataset_path is None:
            raise ConfigError("no `blend` or `blend_per_split` given", hint="set one: this class has no mock data")
        return open_pair(dataset_path, config)

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [*MegatronDataset._key_config_attributes(), *_REQUIRED]

    @property
    def sample_index(self) -> NDArray[Any]:
        """uint32[num_samples, 3], per sample: first sentence, last sentence + 1, target length in tokens."""
        return self.order.mapping()

    def __len__(self) -> int:
        """Returns the number of samples; opens the index."""
        return self.order.num_samples

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample of NumPy arrays and integers; for None, a sample with an all-zero loss mask."""
        return {name: value if value.ndim else int(value) for name, value in self._sample_for_item(idx).items()}

    def span_batch(self, positions: Positions) -> SpanBatch:
        """Returns the spans of many samples."""
        rows, _ = self._rows(positions)
        try:
            spans, _ = self.order.sentences(rows)
        except IndexError as error:
            raise self._damaged(error) from error
        self.order.check()
        return spans

    def _batch(self, rows: Int64s) -> Sample:
        try:
            seeds = ((self.config.random_seed + rows) % 2**32).astype(np.uint32)
            return self._fill(*self.order.sentences(rows), seeds)
        except TokenloomError:
            raise
        except (IndexError, ValueError, OverflowError) as error:
            for row in rows if len(rows) > 1 else ():
                self._batch(np.array([row]))  # raises for the invalid sample
            raise self._explained(error, int(rows[0])) from error

    def _explained(self, error: Exception, position: int) -> Exception:
        if isinstance(error, IndexError):
            return self._damaged(IndexError(f"sample {position}: {error}"))
        message = f"sample {position} of {self._name()}: {error}"
        if isinstance(error, OverflowError):
            hint = "lower `masking_probability`, add sentinels to the tokenizer, or raise `sequence_length_decoder`"
            return ConfigError(message, hint=hint)
        return TokenizerError(message, hint="pass the tokenizer that made the data")

    def _masker(self) -> Masker:
        config = self.config
        assert config.word_pieces is not None
        return make_masker(
            pieces=config.word_pieces.kinds,
            cls_id=optional_token_id(config.tokenizer, "cls"),
            sep_id=optional_token_id(config.tokenizer, "sep"),
            masking_probability=float(config.masking_probability or 0.0),
            ngram_cdf=_ngram_cdf(config.masking_max_ngram or 1, longer=bool(config.masking_use_longer_ngrams)).tolist(),
            geometric_probability=_GEOMETRIC_PROBABILITY if config.masking_use_geometric_distribution else 0.0,
            whole_words=bool(config.masking_do_full_word),
            permute=bool(config.masking_do_permutation),
        )


def _ngram_cdf(longest: int, *, longer: bool) -> NDArray[np.float64]:
    """Returns the cumulative distribution of n-gram lengths, float64[longest]: weights 1 / n, reversed if `longer`."""
    # The operations are in the order of the reference and of `RandomState.choice`, so the last bits are equal.
    weights = 1.0 / np.arange(1, longest + 1)
    weights = weights / weights.sum(keepdims=True)
    if longer:
        weights = weights[::-1]
    probabilities = weights / weights.sum(keepdims=True)
    cumulated = np.cumsum(probabilities)
    return np.asarray(cumulated / cumulated[-1])


@dataclass
class BERTMaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig):
    """Settings of BERT datasets.

    Attributes:
        classification_head: make samples of two segments, swapped in half of the samples, for next-sentence prediction.
            Required.
    """

    _special_tokens = 3  # cls, and sep after each segment
    _roles: ClassVar[Mapping[str, str]] = {
        "cls": "it begins each sample",
        "sep": "it ends each segment",
        "mask": "it replaces masked tokens",
    }

    classification_head: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("classification_head")


class BERTMaskedWordPieceDataset(MaskedWordPieceDataset):
    """A dataset of BERT samples: cls, segment A, sep; with `classification_head` also segment B, sep.

    While a text exceeds its target length, the longer segment loses its first or last token, at random. Of the masked
    tokens, 80 % become the mask token, 10 % a random token, and 10 % do not change. A sample has text, types (1 in
    segment B), labels, padding_mask and loss_mask, int64[S] each; is_random (1: A and B are swapped) and truncated.

    Labels are -1 at unmasked tokens (0 without a pad id). Pad ids within the text become 0 in text and labels. After
    the text, types and padding_mask contain the pad id, or -1 without a pad id, so they are 0 there only if the pad id
    is 0. The reference does the same, but its padding_mask also contains the pad id where the masked text does.

    Arguments and errors are those of `MaskedWordPieceDataset`.
    """

    config: BERTMaskedWordPieceDatasetConfig
    _masks_by_position = True

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [*MaskedWordPieceDataset._key_config_attributes(), "classification_head"]

    @property
    def _min_sentences(self) -> int:
        return 2 if self.config.classification_head else 1

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        names = ("text", "types", "labels", "is_random", "padding_mask", "loss_mask", "truncated")
        return {name: () if name in ("is_random", "truncated") else (self.config.sequence_length,) for name in names}

    def _fill(self, spans: SpanBatch, targets: Int64s, seeds: NDArray[np.uint32]) -> Sample:
        sample = super()._fill(spans, targets, seeds)
        if not self._masks_by_position or self._pad_token_id == NO_TOKEN:
            return sample
        # The kernel masks by value, as the reference does; here the padding mask becomes 1 everywhere in the text.
        sums = np.concatenate([[0], np.cumsum(spans.lengths)])[spans.row_offsets]
        lengths = np.minimum(np.diff(sums), targets) + 2  # cls and sep
        places = np.minimum(lengths, self.config.sequence_length - 1)
        lengths += sample["types"][np.arange(len(places)), places] == 1  # sep of the second segment
        sample["padding_mask"][np.arange(self.config.sequence_length) < lengths[:, None]] = 1
        return sample

    def _make_filler(self) -> BertFiller:
        assert self.config.word_pieces is not None  # read by the config
        return self._bert_filler(self.config.word_pieces.ids)

    def _bert_filler(self, replacements: NDArray[np.int64]) -> BertFiller:
        config = self.config
        return BertFiller(
            self._masker(),
            sequence_length=config.sequence_length,
            pad_id=self._pad_token_id,
            **{f"{role}_id": optional_token_id(config.tokenizer, role) for role in config._roles},
            classification_head=bool(config.classification_head),
            replacements=replacements,
        )


_SEPARATE_MASKS_FOR_ALL = (1, 10)
"""First version of Transformer Engine in which all kernels accept separate masks of encoder and decoder."""

_SEPARATE_MASKS_AT_ALL = (1, 7)
"""First version in which flash and fused attention accept separate masks."""


def dense_mask(queries: Any, keys: Any, *, causal: bool = False) -> Any:
    """Returns the attention mask of tokens, bool[batch, 1, queries, keys], True = masked; token id 0 is padding."""
    seen = (queries >= 1).unsqueeze(2) & (keys >= 1).unsqueeze(1)
    return ~(seen.tril() if causal else seen).unsqueeze(1)


def _accepts_separate_masks(te_version: str | None) -> bool:
    """Returns whether attention kernels accept separate encoder and decoder masks; True without Transformer Engine."""
    try:
        te_version = te_version or metadata.version("transformer-engine")
    except metadata.PackageNotFoundError:
        return True
    major, minor = (*map(int, re.findall(r"\d+", te_version)), 0)[:2]
    version = (major, minor)
    enabled = [name for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN") if os.environ.get(name) == "1"]
    if version >= _SEPARATE_MASKS_FOR_ALL:
        return True
    if version < _SEPARATE_MASKS_AT_ALL and enabled:
        message = f"Transformer Engine {te_version}: T5 needs flash and fused attention off, got {enabled[0]}=1"
        raise ConfigError(message, hint="set NVTE_FLASH_ATTN=0 and NVTE_FUSED_ATTN=0, or upgrade to 1.7 or newer")
    return bool(enabled)


@dataclass
class T5MaskedWordPieceDatasetConfig(MaskedWordPieceDatasetConfig):
    """Settings of T5 datasets.

    Attributes:
        sequence_length_encoder: number of encoder tokens, equal to `sequence_length`; computed.
        sequence_length_decoder: number of decoder tokens. Required.
    """

    _special_tokens = 2  # the reference reserves bos and eos, although the encoder reads neither
    _roles: ClassVar[Mapping[str, str]] = {"bos": "it begins decoder inputs", "eos": "it ends decoder labels"}

    sequence_length_encoder: int | None = field(init=False, default=None)
    sequence_length_decoder: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sequence_length_encoder = self.sequence_length
        self._require("sequence_length_decoder")
        checked_integer("sequence_length_decoder", self.sequence_length_decoder, at_least=1)
        num_sentinels = len(required_sentinels(self.tokenizer))
        longest = self.sequence_length - self._special_tokens
        if num_sentinels < (most := int((self.masking_probability or 0.0) * longest)):
            message = "samples of %d tokens can have up to %d masked runs of words, but the tokenizer has %d sentinels"
            logger.warning(f"{message}: samples with more runs than sentinels will raise", longest, most, num_sentinels)


class T5MaskedWordPieceDataset(MaskedWordPieceDataset):
    """A dataset of T5 samples: sentinels replace runs of masked words, and the decoder predicts the masked words.

    The decoder inputs are bos, then each sentinel followed by the tokens that it replaces. The labels are the inputs
    without bos, then eos. Texts above their target length are truncated. A sample has text_enc and enc_mask,
    int64[sequence_length_encoder]; text_dec, labels, loss_mask and dec_mask, int64[sequence_length_decoder]; and
    truncated (1 if the text was truncated).

    If the text itself contains the pad id, tokens, labels, enc_mask and dec_mask are 0 there. In the padding after the
    text, tokens and masks are 0, and labels are -1 (0 if the tokenizer has no pad id).

    Arguments and errors are those of `MaskedWordPieceDataset`. Reading a sample raises ConfigError if the sample has
    more masked runs than the tokenizer has sentinels, or does not fit the decoder.
    """

    config: T5MaskedWordPieceDatasetConfig

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [*MaskedWordPieceDataset._key_config_attributes(), "sequence_length_decoder"]

    @staticmethod
    def config_attention_mask(
        encoder_tokens: Any,
        decoder_tokens: Any,
        encoder_mask: Any,
        decoder_mask: Any,
        use_local: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
        test_te_version: str | None = None,
    ) -> tuple[Any, Any, Any]:
        """Returns the attention masks of the encoder, the decoder and cross attention for a batch of tensors.

        With `use_local`, all masks are dense: bool[batch, 1, queries, keys], True = masked; token id 0 is padding.
        Otherwise, the decoder mask is None, as the decoder's kernel is causal. The other masks depend on the version of
        Transformer Engine and on NVTE_FLASH_ATTN and NVTE_FUSED_ATTN. Usually, the encoder mask is [batch, 1, 1,
        length] and the cross mask is a pair (decoder mask, encoder mask); for old unfused kernels, both are dense.

        Args:
            encoder_tokens: `text_enc`, [batch, sequence_length_encoder].
            decoder_tokens: `text_dec`, [batch, sequence_length_decoder].
            encoder_mask: `enc_mask`.
            decoder_mask: `dec_mask`.
            use_local: True if the model does not use Transformer Engine.
            test_te_version: version of Transformer Engine to assume; None for the installed version.

        Raises:
            ConfigError: the version is older than 1.7 and flash or fused attention is enabled.
        """
        if not use_local and _accepts_separate_masks(test_te_version):
            encoder_mask, decoder_mask = (mask.unsqueeze(1).unsqueeze(1) for mask in (encoder_mask, decoder_mask))
            return encoder_mask, None, (decoder_mask, encoder_mask)
        decoder = dense_mask(decoder_tokens, decoder_tokens, causal=True) if use_local else None
        return dense_mask(encoder_tokens, encoder_tokens), decoder, dense_mask(decoder_tokens, encoder_tokens)

    @property
    def _min_sentences(self) -> int:
        return 1

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        encoder, decoder = (self.config.sequence_length,), (self.config.sequence_length_decoder or 0,)
        shapes = {"text_enc": encoder} | dict.fromkeys(("text_dec", "labels", "loss_mask"), decoder)
        return shapes | {"truncated": (), "enc_mask": encoder, "dec_mask": decoder}

    def _make_filler(self) -> T5Filler:
        config = self.config
        assert config.sequence_length_decoder is not None  # validated by the config
        return T5Filler(
            self._masker(),
            encoder_length=config.sequence_length,
            decoder_length=config.sequence_length_decoder,
            pad_id=self._pad_token_id,
            **{f"{role}_id": optional_token_id(config.tokenizer, role) for role in config._roles},
            sentinels=required_sentinels(config.tokenizer),
        )
