"""What BERT and T5 samples share: runs of sentences, of which some words are masked."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import Masker, make_masker
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.data_match import check_kind
from tokenloom.datasets.pair_samples import PairOrigin, PairSamples
from tokenloom.datasets.protocols import Int64s, Positions
from tokenloom.datasets.shortcuts import UNCALLED_BY_ITEM
from tokenloom.datasets.splits import Split
from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import WordPieces, optional_token_id, word_pieces
from tokenloom.errors import ConfigError, IgnoredSettingWarning, TokenizerError, TokenloomError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.lengths import LengthHistogram, length_histogram
from tokenloom.numbers import checked_integer
from tokenloom.order.sentences import SentenceOrder
from tokenloom.order.windows import SpanBatch
from tokenloom.overrides import Uncalled

_GEOMETRIC_PROBABILITY = 0.2
"""Parameter of the distribution of n-gram lengths, from SpanBERT (https://arxiv.org/abs/1907.10529, section 3.1)."""


@dataclass
class MaskedWordPieceDatasetConfig(BlendedMegatronDatasetConfig):
    """What masked datasets need to know beyond the common settings; all are required.

    Attributes:
        masking_probability: share of the tokens that are masked, in (0, 1).
        short_sequence_probability: probability of a sample with a shorter target length, in [0, 1].
        masking_max_ngram: words that are masked together, at most.
        masking_do_full_word: whether the pieces of a word are masked together.
        masking_do_permutation: whether as many tokens that are not masked are shuffled, and predicted too.
        masking_use_longer_ngrams: whether long n-grams are more frequent than short ones.
        masking_use_geometric_distribution: draw lengths of n-grams as SpanBERT does; not with permutation.
        word_pieces: the vocabulary of the tokenizer; computed.
    """

    masking_probability: float | None = None
    short_sequence_probability: float | None = None
    masking_max_ngram: int | None = None
    masking_do_full_word: bool | None = None
    masking_do_permutation: bool | None = None
    masking_use_longer_ngrams: bool | None = None
    masking_use_geometric_distribution: bool | None = None
    word_pieces: WordPieces | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        """Checks the settings and reads the vocabulary."""
        super().__post_init__()
        if self.tokenizer is None:
            message = "expected `tokenizer`, found none"
            raise ConfigError(message, hint="load one with `load_tokenizer`")
        probability = self._given("masking_probability")
        if not 0 < probability < 1:
            message = f"expected masking_probability in (0, 1), found {probability!r}"
            raise ConfigError(message)
        probability = self._given("short_sequence_probability")
        if not 0 <= probability <= 1:
            message = f"expected short_sequence_probability in [0, 1], found {probability!r}"
            raise ConfigError(message)
        checked_integer("masking_max_ngram", self._given("masking_max_ngram"), at_least=1)
        for name in ("masking_do_full_word", "masking_do_permutation", "masking_use_longer_ngrams"):
            self._given(name)
        if self._given("masking_use_geometric_distribution"):
            if self.masking_do_permutation:
                message = "`masking_use_geometric_distribution` and `masking_do_permutation` exclude each other"
                raise ConfigError(message)
            if self.masking_use_longer_ngrams:
                message = "`masking_use_longer_ngrams` has no effect beside `masking_use_geometric_distribution`"
                warnings.warn(message, IgnoredSettingWarning, stacklevel=4)
        self.word_pieces = word_pieces(self.tokenizer)

    def _given(self, name: str) -> Any:
        """Returns a setting that has no default."""
        if (value := getattr(self, name)) is None:
            message = f"expected `{name}`, found None"
            raise ConfigError(message)
        return value

    def _check_room(self, num_special_tokens: int) -> None:
        """Checks that a sample has room for text beside its special tokens."""
        least = num_special_tokens + (2 if self.short_sequence_probability else 1)
        hint = f"{num_special_tokens} of its tokens are special ones"
        checked_integer("sequence_length", self.sequence_length, at_least=least, hint=hint)


class MaskedWordPieceDataset(PairSamples):
    """Samples of whole sentences, some words of which are masked: the base of BERT and T5 datasets.

    Data have one sequence per sentence, and splits divide documents. Sample k takes the sentences
    `sample_index[k]` and draws everything else from a generator of its own, seeded by (random_seed + k) % 2**32, so it
    is the same for any order, process and resumption.

    `dataset[k]` gives NumPy arrays and integers as the reference does, `dataset.sample(k)` NumPy arrays only, and
    `dataset.batch(positions)` many samples by one kernel call; torch's DataLoader gets batches of tensors. Safe from
    several threads, after a fork, and picklable. How many samples there are only the index knows: `len()` opens it.

    A subclass gives `_special_tokens`, `_min_sentences`, `_empty` and `_make_filler`.

    Args:
        indexed_dataset: the low-level dataset.
        dataset_path: its path, for the cache key.
        indexed_indices: integers[num_documents], the documents to expose; consecutive.
        num_samples: how many samples at least, from as many passes over the documents as that takes; None for one.
        index_split: which split this is.
        config: the settings.

    Raises:
        ConfigError: samples are wanted from documents that give none, or the documents are not consecutive.
        IndexCacheError: `path_to_cache` cannot be written, or deferred or fast loading finds no usable cache.
    """

    config: MaskedWordPieceDatasetConfig
    order: SentenceOrder
    uncalled_hooks: ClassVar[Mapping[str, Uncalled]] = {
        "_build_sample_index": Uncalled("choose the samples in a `__getitem__`"),
        "_create_masked_lm_predictions": UNCALLED_BY_ITEM,
        "_get_token_mask": UNCALLED_BY_ITEM,
    }

    _special_tokens: int
    _asks_items = True
    """Tokens of a sample that are not text."""

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
        if self.num_samples is not None and self.num_samples < 0:
            message = f"{self._name()}: expected num_samples of at least 0, found {self.num_samples}"
            raise ConfigError(message)
        check_kind(indexed_dataset, config, name=f"`{dataset_path or type(self).__name__}`", reads="sentences")
        self._filler: Any = None
        self.order = self._make_order(config.sequence_length - self._special_tokens, self._min_sentences)

    def _make_order(self, longest_text: int, min_sentences: int) -> SentenceOrder:
        """Returns the order of samples of so many tokens of text at most, and so many sentences at least."""
        # The reference has one cache for all splits of these.
        base = f"{self.unique_description_hash}-{type(self).__name__}"
        store = self._array_store(PairOrigin(dataset=self.dataset), base=base)
        return SentenceOrder(
            self.dataset,
            self.rows,
            self.num_samples,
            longest_text=longest_text,
            short_probability=float(self.config.short_sequence_probability or 0.0),
            seed=self.config.random_seed,
            min_sentences=min_sentences,
            store=store,
        )

    @property
    @abstractmethod
    def _min_sentences(self) -> int:
        """Sentences in a sample, at least."""

    @abstractmethod
    def _empty(self, count: int) -> Sample:
        """Returns the arrays of so many samples, to be filled."""

    @abstractmethod
    def _make_filler(self) -> Any:
        """Returns the kernel that masks and fills samples; made with the first of them."""

    def _fill(self, text: SentenceText) -> Sample:
        """Returns masked samples with a leading batch axis."""
        if self._filler is None:
            self._filler = self._make_filler()
        sample = self._empty(len(text.targets))
        self._filler.fill(text.tokens, text.sentence_lengths, text.row_offsets, text.targets, text.seeds, **sample)
        return sample

    def length_histogram(self) -> LengthHistogram:
        """Returns how many of the exposed sentences there are of each length; one pass over the lengths."""
        rows, boundaries = self.rows.consecutive, self.dataset.document_indices
        sentences = slice(int(boundaries[rows.start]), int(boundaries[rows.stop])) if rows else slice(0)
        return length_histogram([self.dataset.sequence_lengths[sentences]], name=self._name())

    def _sample_facts(self) -> dict[str, Any]:
        return super()._sample_facts() | {"documents exposed": f"{len(self.rows):,} of {self.dataset.num_documents:,}"}

    # --- building ---------------------------------------------------------------------------------------------

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: IndexedDataset) -> int:
        """Returns the number of documents: a document's sentences stay in one split."""
        return low_level_dataset.num_documents

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> IndexedDataset:
        """Opens the pair at a path."""
        if dataset_path is None:
            message = "expected data in `blend` or `blend_per_split`, found none"
            raise ConfigError(message, hint="only GPT samples can be made up")
        return IndexedDataset(
            dataset_path,
            mmap=config.mmap_bin_files,
            fast_cache_load=config.fast_cache_load,
            object_storage=config.storage_settings,
        )

    @staticmethod
    def _key_config_attributes() -> list[str]:
        return [
            *MegatronDataset._key_config_attributes(),
            "masking_probability",
            "short_sequence_probability",
            "masking_max_ngram",
            "masking_do_full_word",
            "masking_do_permutation",
            "masking_use_longer_ngrams",
            "masking_use_geometric_distribution",
        ]

    @property
    def sample_index(self) -> NDArray[Any]:
        """uint32[num_samples, 3], of each sample: first sentence, one past the last, target length in tokens."""
        return self.order.mapping()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_filler": None}

    # --- samples ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of samples; opens the index."""
        return self.order.num_samples

    def __getitem__(self, idx: int | None) -> Sample:
        """Returns a sample, see the class; None gives one with an all-zero loss mask, for filling up a batch."""
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
            return self._fill(self._read(rows))
        except TokenloomError:  # says already what is wrong
            raise
        except (IndexError, ValueError, OverflowError) as error:
            for row in rows if len(rows) > 1 else ():
                self._batch(np.array([row]))  # raises for the sample that is to blame
            raise self._explained(error, int(rows[0])) from error

    def _read(self, rows: Int64s) -> SentenceText:
        sentences, targets = self.order.sentences(rows)
        tokens = self._read_spans(self.dataset, sentences.documents, sentences.starts, sentences.lengths)
        return SentenceText(
            tokens=tokens.astype(np.int64),
            sentence_lengths=sentences.lengths,
            row_offsets=sentences.row_offsets,
            targets=targets,
            seeds=((self.config.random_seed + rows) % 2**32).astype(np.uint32),
        )

    def _explained(self, error: Exception, position: int) -> Exception:
        """Returns the error for what is wrong with a sample."""
        if isinstance(error, IndexError):
            return self._damaged(IndexError(f"sample {position}: {error}"))
        message = f"sample {position} of {self._name()}: {error}"
        if isinstance(error, OverflowError):
            hint = "lower `masking_probability`, or allow for more: sentinels, or a longer `sequence_length_decoder`"
            return ConfigError(message, hint=hint)
        return TokenizerError(message, hint="was the data made with this tokenizer?")

    def _masker(self) -> Masker:
        config = self.config
        assert config.word_pieces is not None  # the config has read it
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentenceText:
    """The samples of a batch before masking: sample i owns sentences [row_offsets[i], row_offsets[i + 1]).

    Attributes:
        tokens: int64[num_tokens], of all sentences, back to back.
        sentence_lengths: int64[num_sentences].
        row_offsets: int64[rows + 1].
        targets: int64[rows], tokens that a sample keeps of its text at most.
        seeds: uint32[rows], of each sample's generator.
    """

    tokens: Int64s
    sentence_lengths: Int64s
    row_offsets: Int64s
    targets: Int64s
    seeds: NDArray[np.uint32]


def _ngram_cdf(longest: int, *, longer: bool) -> NDArray[np.float64]:
    """Returns the probability of an n-gram of at most i + 1 words, where n has a weight of 1 / n: float64[longest].

    The order of the operations is that of `RandomState.choice` behind the reference's weights: a sum in another order
    has other last bits.
    """
    weights = 1.0 / np.arange(1, longest + 1)
    weights = weights / weights.sum(keepdims=True)
    if longer:
        weights = weights[::-1]
    probabilities = weights / weights.sum(keepdims=True)
    cumulated = np.cumsum(probabilities)
    return np.asarray(cumulated / cumulated[-1])
