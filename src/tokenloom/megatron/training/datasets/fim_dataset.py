"""`megatron.training.datasets.fim_dataset`: GPT samples with fill-in-the-middle (FIM), equal to Megatron's."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets import fim
from tokenloom.datasets.tokenizer import token_ids
from tokenloom.errors import ConfigError
from tokenloom.indexed.manifests import optional_attribute
from tokenloom.megatron.core.datasets.gpt_dataset import QUERY_HAS_LENGTHS, GPTDataset, GPTDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.utils import Split
from tokenloom.megatron.installation import reference_version

logger: logging.Logger = logging.getLogger(__name__)

Tokens = NDArray[Any]


@dataclass
class GPTFIMDatasetConfig(fim.GPTFIMDatasetConfig, GPTDatasetConfig):
    """Settings of FIM datasets, with Megatron's validation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.columns:
            raise ConfigError("`columns`: not supported by this dataset", hint="use `tokenloom.GPTFIMDataset`")


class GPTFIMDataset(GPTDataset):
    """A dataset of GPT samples; the middle of each document is moved to the document's end with probability `fim_rate`.

    As in Megatron, one random state serves all samples: a sample depends on the previous reads, and all workers
    start from the same state. Each sample counts as one document. `tokenloom.GPTFIMDataset` does not have these limits.

    A subclass may override `_fim_split_and_permute_sequence`, `_fim_permute_sequence` and `_permute`. Arguments and
    errors are those of `GPTDataset`; an unknown FIM token raises `TokenizerError`.

    Attributes:
        np_rng: the random state that all samples share.
        fim_rate, fim_spm_rate, fragment_fim_rate, no_fim_prefix: the settings `fim_…` of the config.
        fim_split_sample: id of the token that separates fragments; None if there is no such token.
        prefix_tok_id, middle_tok_id, suffix_tok_id, pad_tok_id, eod_tok_id: ids of the FIM tokens.
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
        logger.info("FIM of %s: seed %d", self._name(), config.random_seed)
        settings: Any = config  # the config has validated that no rate is None
        self.fim_rate: float = settings.fim_rate
        self.fim_spm_rate: float = settings.fim_spm_rate
        self.fragment_fim_rate: Any = settings.fim_fragment_rate
        self.no_fim_prefix: str | None = settings.fim_no_prefix
        split = {"split": config.fim_split_sample} if config.fim_split_sample else {}
        self.fim_split_sample: int | None = token_ids(settings.tokenizer, split).get("split")
        ids = token_ids(settings.tokenizer, settings.fim_extra_tokens)
        self.prefix_tok_id: int = ids["prefix"]
        self.middle_tok_id: int = ids["middle"]
        self.suffix_tok_id: int = ids["suffix"]
        self.pad_tok_id: int = ids.get("pad", self._pad_token_id)
        self.eod_tok_id: int = ids.get("eod", settings.tokenizer.eod)

    @property
    def item_hook(self) -> str | None:
        """The name of the method to call for each sample, because native kernels do not apply FIM; never None."""
        return f"{type(self).__name__}._query_document_sample_shuffle_indices"

    def _query_document_sample_shuffle_indices(self, idx: int) -> tuple[Any, ...]:
        """Returns a sample's tokens after FIM, document indices and, since Megatron 0.19, length.

        Returns:
            text: int64[sequence_length + 1]; int64[sequence_length] without `add_extra_token_to_sequence`.
            documents: int64[num_documents], index in the pair of each document of the sample.
            lengths: list with one entry, the number of tokens without padding.
        """
        parts, documents = self._parts(idx)
        tokens = np.concatenate(parts)
        moved = np.concatenate([tokens[:0], *self._permuted_documents(tokens)]).astype(np.int64)[: len(tokens)]
        missing = max(self.config.sequence_length + self._extra - len(tokens), 0)  # of a partial last sample
        padding = [self.pad_tok_id] * (len(tokens) - len(moved)) + [self._pad_token_id] * missing
        text = np.concatenate([moved, np.array(padding, dtype=np.int64)])
        values = (text, np.array(documents, dtype=np.int64))
        return values if reference_version() < QUERY_HAS_LENGTHS else (*values, [len(tokens)])

    def _permuted_documents(self, tokens: Tokens) -> Iterator[Tokens]:
        """Yields each document after FIM, then the document's end token; skips empty documents."""
        for text, end in fim.split_at(tokens, self.eod_tok_id):
            if len(text) or not len(end):
                yield self._fim_split_and_permute_sequence(text)
                yield end

    def _fim_split_and_permute_sequence(self, sequence: Tokens) -> Tokens:
        """Applies FIM to each fragment of a document, or to the whole document if it has no fragments."""
        if self.fim_split_sample is None or not (sequence == self.fim_split_sample).any():
            return self._fim_permute_sequence(sequence, self.fim_rate)
        if not self.np_rng.binomial(1, self.fim_rate):
            return sequence
        pieces = [sequence[:0]]
        for fragment, split in fim.split_at(sequence, self.fim_split_sample):
            if len(fragment) or not len(split):
                pieces += [self._fim_permute_sequence(fragment, self.fragment_fim_rate), split]
        return np.concatenate(pieces)

    def _fim_permute_sequence(self, sequence: Tokens, rate: float) -> Tokens:
        """Applies FIM to the tokens of a text with probability `rate`."""
        names = ("suffix_tok_id", "prefix_tok_id", "middle_tok_id", "pad_tok_id", "no_fim_prefix")
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        return self._permute(
            sequence, rate, self.fim_spm_rate, self.config.tokenizer, truncate_or_pad=False, **settings
        )

    def _permute(
        self,
        sample: Tokens,
        fim_rate: float,
        fim_spm_rate: float,
        tokenizer: Any,
        truncate_or_pad: bool = True,
        suffix_tok_id: int | None = None,
        prefix_tok_id: int | None = None,
        middle_tok_id: int | None = None,
        pad_tok_id: int | None = None,
        no_fim_prefix: str | None = None,
    ) -> Tokens:
        """With probability `fim_rate`, decodes tokens, cuts the text at two random characters and reorders the parts.

        A text that starts with `no_fim_prefix` is unchanged. `truncate_or_pad` truncates or pads the suffix to keep the
        number of tokens; a text with a suffix too short to truncate is unchanged.
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


def _codec(tokenizer: Any) -> tuple[Callable[[Tokens], str], Callable[[str], Sequence[int]]]:
    """Returns a function that decodes tokens, omitting special tokens if possible, and a function that encodes text."""
    library = optional_attribute(tokenizer, "_tokenizer")
    if not (hasattr(library, "ids_to_text") and hasattr(library, "text_to_ids")):
        return lambda ids: tokenizer.detokenize(ids.tolist()), tokenizer.tokenize
    if "remove_special_tokens" in inspect.signature(library.ids_to_text).parameters:
        return lambda ids: library.ids_to_text(ids, remove_special_tokens=True), library.text_to_ids
    return library.ids_to_text, library.text_to_ids
