"""`megatron.training.datasets.fim_dataset`: fill in the middle, as the reference does it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.tokenizer import token_ids
from tokenloom.errors import ConfigError
from tokenloom.indexed.manifests import optional_attribute
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.utils import Split
from tokenloom.megatron.versions import reference_version

__all__ = [
    "GPTDataset",
    "GPTDatasetConfig",
    "GPTFIMDataset",
    "GPTFIMDatasetConfig",
    "IndexedDataset",
    "Split",
]

logger: logging.Logger = logging.getLogger(__name__)

_THREE_VALUES = (0, 19)
"""The version from which on a query gives the tokens of each document too."""

_TOKENS = ("prefix", "middle", "suffix", "pad", "eod")

Tokens = NDArray[Any]


@dataclass
class GPTFIMDatasetConfig(GPTDatasetConfig):
    """What fill-in-the-middle datasets need to know beyond the settings of GPT datasets.

    Attributes:
        fim_rate: share of texts that are rearranged.
        fim_spm_rate: share of these in the order suffix, prefix, middle; others are prefix, suffix, middle.
        fim_extra_tokens: the tokens that begin each part, "prefix", "middle" and "suffix", that fill up a sample,
            "pad", and that texts are parted at, "eod".
        fim_split_sample: a token that parts a text into fragments; with `fim_rate` it is decided whether the text is
            rearranged at all, then for each fragment.
        fim_fragment_rate: share of fragments that are rearranged.
        fim_no_prefix: texts that begin with this are left alone.
    """

    fim_rate: float | None = None
    fim_spm_rate: float | None = None
    fim_extra_tokens: Mapping[str, str | int] | None = None
    fim_split_sample: str | int | None = None
    fim_fragment_rate: float | None = None
    fim_no_prefix: str | None = None


class GPTFIMDataset(GPTDataset):
    """GPT samples in which texts are rearranged with their middle last, from one random state per dataset.

    So a sample depends on what was read before, as in the reference; each worker goes on from the same state. A sample
    counts as one document. `tokenloom.GPTFIMDataset` makes sample k the same whenever it is read, with true boundaries.

    A class may override `_fim_split_and_permute_sequence`, `_fim_permute_sequence` and `_permute`.

    Args and errors are those of `GPTDataset`, and:

    Raises:
        ConfigError: `fim_extra_tokens` lacks one of its tokens, or a rate is missing.
        TokenizerError: the tokenizer does not know one of the tokens.

    Attributes:
        np_rng: the random state.
        fim_rate, fim_spm_rate, fragment_fim_rate, no_fim_prefix, fim_split_sample: the settings, the last one as an id.
        prefix_tok_id, middle_tok_id, suffix_tok_id, pad_tok_id, eod_tok_id: the ids of the tokens.
    """

    config: GPTFIMDatasetConfig

    def __init__(
        self,
        indexed_dataset: IndexedDataset,
        dataset_path: str,
        indexed_indices: NDArray[Any],
        num_samples: int | None,
        index_split: Split,
        config: GPTFIMDatasetConfig,
    ) -> None:
        super().__init__(indexed_dataset, dataset_path, indexed_indices, num_samples, index_split, config)
        self.np_rng: np.random.RandomState = np.random.RandomState(seed=config.random_seed)
        logger.info("texts of %s are rearranged by the seed %d", self._name(), config.random_seed)
        self.fim_rate: float = _given("fim_rate", config.fim_rate)
        self.fim_spm_rate: float = _given("fim_spm_rate", config.fim_spm_rate)
        self.fragment_fim_rate = config.fim_fragment_rate
        self.no_fim_prefix: str | None = config.fim_no_prefix
        self.fim_split_sample: int | None = None
        if config.fim_split_sample:
            self.fragment_fim_rate = _given("fim_fragment_rate", config.fim_fragment_rate)
            self.fim_split_sample = token_ids(config.tokenizer, {"split": config.fim_split_sample})["split"]
        tokens = config.fim_extra_tokens or {}
        if missing := [name for name in _TOKENS if name not in tokens]:
            message = f"expected {', '.join(_TOKENS)} in `fim_extra_tokens`, found no {', '.join(missing)}"
            raise ConfigError(message)
        ids = token_ids(config.tokenizer, {name: tokens[name] for name in _TOKENS})
        prefix, middle, suffix, pad, eod = (ids[name] for name in _TOKENS)
        self.prefix_tok_id: int = prefix
        self.middle_tok_id: int = middle
        self.suffix_tok_id: int = suffix
        self.pad_tok_id: int = pad
        self.eod_tok_id: int = eod

    @property
    def item_hook(self) -> str | None:
        """What kernels would pass by: here always the query."""
        return f"{type(self).__name__}._query_document_sample_shuffle_indices"

    def _query_document_sample_shuffle_indices(self, idx: int) -> tuple[Any, ...]:
        """Returns the text of a sample, rearranged, its documents, and from 0.19 of the reference on its length.

        Returns:
            text: int64[sequence_length + 1].
            documents: int64[num_documents], the rows in the `.idx` file.
            lengths: the length of the text in a list, as of one document; of newer versions only.
        """
        parts, documents = self._parts(idx)
        read = np.concatenate(parts)
        moved = np.concatenate([read[:0], *self._texts(read)]).astype(np.int64)[: len(read)]
        text = np.concatenate([moved, np.full(len(read) - len(moved), self.pad_tok_id, dtype=np.int64)])
        missing = max(self.config.sequence_length + self._extra - len(text), 0)  # of a last, partial sample
        text = np.concatenate([text, np.full(missing, self._pad_token_id, dtype=np.int64)])
        values = (text, np.array(documents, dtype=np.int64))
        return values if reference_version() < _THREE_VALUES else (*values, [len(read)])

    def _texts(self, tokens: Tokens) -> Iterator[Tokens]:
        """Yields the texts between ends of documents, rearranged, with their ends; empty ones lose it."""
        for text, end in _parted(tokens, self.eod_tok_id):
            if len(text) or not len(end):
                yield self._fim_split_and_permute_sequence(text)
                yield end

    def _fim_split_and_permute_sequence(self, sequence: Tokens) -> Tokens:
        """Returns a text whose fragments are rearranged, or the whole of it where there are none."""
        if self.fim_split_sample is None or not (sequence == self.fim_split_sample).any():
            return self._fim_permute_sequence(sequence, self.fim_rate)
        if not self.np_rng.binomial(1, self.fim_rate):
            return sequence
        assert self.fragment_fim_rate is not None  # the constructor has checked it
        pieces = [sequence[:0]]
        for fragment, split in _parted(sequence, self.fim_split_sample):
            if len(fragment) or not len(split):
                pieces += [self._fim_permute_sequence(fragment, self.fragment_fim_rate), split]
        return np.concatenate(pieces)

    def _fim_permute_sequence(self, sequence: Tokens, rate: float) -> Tokens:
        """Returns a text, with probability `rate` rearranged."""
        return self._permute(
            sequence,
            rate,
            self.fim_spm_rate,
            self.config.tokenizer,
            truncate_or_pad=False,
            suffix_tok_id=self.suffix_tok_id,
            prefix_tok_id=self.prefix_tok_id,
            middle_tok_id=self.middle_tok_id,
            pad_tok_id=self.pad_tok_id,
            no_fim_prefix=self.no_fim_prefix,
        )

    def _permute(
        self,
        sample: Tokens,
        fim_rate: float,
        fim_spm_rate: float,
        tokenizer: Any,
        truncate_or_pad: bool = True,  # noqa: FBT001, FBT002 - the reference's signature
        suffix_tok_id: int | None = None,
        prefix_tok_id: int | None = None,
        middle_tok_id: int | None = None,
        pad_tok_id: int | None = None,
        no_fim_prefix: str | None = None,
    ) -> Tokens:
        """Returns a text, with probability `fim_rate` decoded, cut at two random characters, and rearranged.

        Args:
            sample: integers[length], the text.
            fim_rate: probability that it is rearranged.
            fim_spm_rate: probability that the suffix comes first then.
            tokenizer: decodes the text and encodes its parts.
            truncate_or_pad: keep its length: cut the suffix or fill it up; a text whose suffix is too short stays.
            suffix_tok_id: begins the suffix.
            prefix_tok_id: begins the prefix.
            middle_tok_id: begins the middle.
            pad_tok_id: fills up the suffix.
            no_fim_prefix: a text that begins with this stays.
        """
        if not self.np_rng.binomial(1, fim_rate):
            return sample
        decode, encode = _codec(tokenizer)
        contents = decode(sample)
        if no_fim_prefix is not None and contents.startswith(no_fim_prefix):
            return sample
        first, last = sorted(self.np_rng.randint(low=0, high=len(contents) + 1, size=2).tolist())
        texts = (contents[:first], contents[first:last], contents[last:])
        prefix, middle, suffix = (np.array([*encode(text)], dtype=np.int64) for text in texts)
        if truncate_or_pad:
            excess = len(prefix) + len(middle) + len(suffix) + 3 - len(sample)
            if excess > 0 and len(suffix) <= excess:
                return sample
            filling = np.full(max(-excess, 0), pad_tok_id)
            suffix = np.concatenate([suffix[: len(suffix) - max(excess, 0)], filling])
        if self.np_rng.binomial(1, fim_spm_rate):
            return np.concatenate([[prefix_tok_id, suffix_tok_id], suffix, [middle_tok_id], prefix, middle])
        return np.concatenate([[prefix_tok_id], prefix, [suffix_tok_id], suffix, [middle_tok_id], middle])


def _given(name: str, rate: float | None) -> float:
    if rate is None:
        message = f"expected `{name}`, found None"
        raise ConfigError(message)
    return rate


def _parted(tokens: Tokens, separator: int) -> Iterator[tuple[Tokens, Tokens]]:
    """Yields what is before each separator with it, then what is after the last one with nothing."""
    start = 0
    for stop in np.flatnonzero(tokens == separator).tolist():
        yield tokens[start:stop], tokens[stop : stop + 1]
        start = stop + 1
    yield tokens[start:], tokens[:0]


def _codec(tokenizer: Any) -> tuple[Callable[[Tokens], str], Callable[[str], Sequence[int]]]:
    """Returns what decodes tokens without special ones, and what encodes a text.

    Raises:
        ConfigError: the tokenizer does neither.
    """
    library = optional_attribute(tokenizer, "_tokenizer")
    if hasattr(library, "ids_to_text") and hasattr(library, "text_to_ids"):
        if "remove_special_tokens" in inspect.signature(library.ids_to_text).parameters:
            return lambda ids: library.ids_to_text(ids, remove_special_tokens=True), library.text_to_ids
        return library.ids_to_text, library.text_to_ids
    if hasattr(tokenizer, "detokenize") and hasattr(tokenizer, "tokenize"):
        return lambda ids: tokenizer.detokenize(ids.tolist()), tokenizer.tokenize
    message = f"expected a tokenizer with `tokenize` and `detokenize`, found {type(tokenizer).__name__}"
    raise ConfigError(message, hint="texts are cut between characters, and become tokens again")
