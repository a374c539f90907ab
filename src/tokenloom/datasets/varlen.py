"""One conversation or text per sample, as long as it is: what a packing scheduler takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig, as_chat_config
from tokenloom.datasets.chat_data import SFTLowLevelDataset
from tokenloom.datasets.columns import LOSS_WEIGHT
from tokenloom.datasets.conversations import ConversationSamples
from tokenloom.datasets.exposure import TakenConversations
from tokenloom.datasets.mock import MockGPTLowLevelDataset
from tokenloom.datasets.protocols import Int64s, Positions
from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import TokenizerLike
from tokenloom.errors import ConfigError
from tokenloom.indexed.roles import SequenceRoles
from tokenloom.order.arrays import ArrayStore
from tokenloom.order.conversations import SingleConversations


class VarlenDataset(ConversationSamples):
    """Samples of one conversation or text each, padded to a multiple of `slot_multiple`, not to `sequence_length`.

    A sample of n tokens holds the first n - 1 as inputs and the last n - 1 as labels: tokens, labels (-100 where there
    is no loss), position_ids int64[P], loss_mask float32[P], original_seq_len int32[1] (n - 1) and padded_seq_len
    int32[1] (P, the next multiple). Longer ones than `sequence_length` are cut at its end, or what
    `long_conversations` says. Samples are shuffled epoch by epoch. `lengths()` gives the original lengths of all
    samples without reading a token. Safe from several threads, after a fork, and picklable.

    Besides what `preprocess_chat` makes, an ordinary pair will do: a text per sequence, with loss everywhere.

    Args:
        dataset: the conversations, see `build_low_level_dataset`.
        dataset_path: their path, for the cache key.
        indices: integers[num_conversations], those to expose.
        num_samples: how many samples, from as many epochs as that takes; None for one epoch.
        index_split: which split this is.
        config: a `VarlenDatasetConfig`, or a `GPTDatasetConfig` where the defaults will do.

    Raises:
        ConfigError: a setting is wrong, or samples are wanted and no conversation has anything to train.
        IndexCacheError: `path_to_cache` cannot be written, or deferred or fast loading finds no usable cache.
    """

    reads_ahead = 1
    reads_text = True
    shares_samples = False
    makes_batches = False
    config_class: ClassVar[type[SFTDatasetConfig]] = VarlenDatasetConfig

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        """Opens conversations or texts: the prefix of a pair, or a file that is then tokenized once."""
        return SFTLowLevelDataset(dataset_path, config, plain_text=VarlenDataset.reads_text)

    def _make_order(self, taken: TakenConversations, store: ArrayStore) -> SingleConversations:
        return SingleConversations(taken, self.num_samples, seed=self.config.random_seed, store=store)

    def lengths(self, positions: Positions | None = None) -> Int64s:
        """Returns the `original_seq_len` of samples, int64[num_positions], from the index alone; None for all."""
        return self._segment_column(positions, 1)

    def padded_lengths(self, positions: Positions | None = None) -> Int64s:
        """Returns the `padded_seq_len` of samples, int64[num_positions], from the index alone; None for all."""
        return self._segment_column(positions, 3)

    def _segment_column(self, positions: Positions | None, column: int) -> Int64s:
        if positions is None:
            chosen = self.document_index.astype(np.int64)
        else:
            chosen, _ = self.order.conversations(self._rows(positions)[0])
        segments = self._taken.segments(chosen)
        self._check_read()
        return np.ascontiguousarray(segments[:, column])

    def _sample(self, idx: int | None) -> Sample:
        """Returns a sample as NumPy arrays, made here."""
        sample = self._padded(0 if idx is None else self._position(idx))
        if idx is None:
            sample["loss_mask"][:] = 0
        return sample

    def batch(self, positions: Any) -> Sample:
        """Refused: samples of different lengths have no batch axis.

        Raises:
            ConfigError: always.
        """
        message = f"samples of {type(self).__name__} differ in length and make no batch of arrays"
        raise ConfigError(message, hint="take them one by one, and let a packing scheduler put them into rows")

    def _batch(self, rows: Int64s) -> Sample:
        return self.batch(rows)

    def _padded(self, position: int) -> Sample:
        sequences, row_offsets = self.order.conversations(np.array([position], dtype=np.int64))
        _, inputs, _, slots = self._taken.segments(sequences)[0].tolist()
        rows = self._fill(sequences, row_offsets, width=slots, with_boundaries=False)
        sample: Sample = {name: array[0] for name, array in rows.items()}
        sample.pop(LOSS_WEIGHT, None)  # which a scheduler would not carry; it is in the loss mask
        sample["original_seq_len"] = np.array([inputs], dtype=np.int32)
        sample["padded_seq_len"] = np.array([slots], dtype=np.int32)
        return sample


class MockVarlenLowLevelDataset(MockGPTLowLevelDataset):
    """Made-up texts: 1, 2, 3, … modulo the vocabulary, then end-of-document; their lengths follow a distribution.

    Args:
        tokenizer: whose vocabulary size and end-of-document id to use.
        mode: "distribution", or "file" for lengths from one.
        settings: settings of the mode, see `VarlenDatasetConfig`.

    Raises:
        ConfigError: a setting is missing or unknown, or the file holds no lengths.
    """

    seed = 0
    size = 1_000_000

    def __init__(self, tokenizer: TokenizerLike, *, mode: str, **settings: Any) -> None:
        self.vocab_size: int = tokenizer.vocab_size
        self.eod_token: int = tokenizer.eod
        modes: dict[str, Callable[..., Int64s]] = {"distribution": self._lognormal, "file": _lengths_of_file}
        if mode not in modes:
            message = f"expected the mode 'distribution' or 'file' of made-up data, found {mode!r}"
            raise ConfigError(message)
        try:
            lengths = modes[mode](**settings)
        except TypeError as error:
            message = f"the settings of made-up data do not fit the mode {mode!r}: {error}"
            raise ConfigError(message) from error
        self.sequence_lengths: NDArray[np.int32] = np.maximum(lengths, 2).astype(np.int32)
        self.roles: SequenceRoles = SequenceRoles()

    def _lognormal(
        self, *, type: str, min_seq_len: int, max_seq_len: int, mean_seq_len: float, lognormal_sigma: float
    ) -> Int64s:
        if type != "lognormal" or not 0 < min_seq_len <= max_seq_len or not mean_seq_len > 0 or lognormal_sigma < 0:
            message = (
                "expected a lognormal distribution with 0 < min_seq_len <= max_seq_len, found "
                f"{type!r} between {min_seq_len!r} and {max_seq_len!r}, {mean_seq_len!r} in the mean"
            )
            raise ConfigError(message)
        # The reference's generator and draws.
        random = np.random.RandomState(self.seed)
        drawn = random.lognormal(np.log(mean_seq_len) - lognormal_sigma**2 / 2, lognormal_sigma, self.size)
        return np.clip(drawn, min_seq_len, max_seq_len).astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "roles"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.roles = SequenceRoles()


def _lengths_of_file(*, path: str) -> Int64s:
    try:
        lengths: Int64s = np.loadtxt(path, dtype=np.int64, skiprows=1, ndmin=1, delimiter=",").ravel()
    except (OSError, ValueError) as error:
        message = f"`{path}` cannot be read as a heading and one length per line: {error}"
        raise ConfigError(message) from error
    if not len(lengths) or int(lengths.min()) < 1 or int(lengths.max()) > np.iinfo(np.int32).max:
        message = f"`{path}`: expected lengths of at least 1, at least one of them"
        raise ConfigError(message)
    return lengths


class MockVarlenDataset(VarlenDataset):
    """Samples of made-up texts of varying lengths, the same for everyone: for measuring a run without data."""

    in_place_of: ClassVar[type | None] = VarlenDataset

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> MockVarlenLowLevelDataset:
        """Returns the made-up texts; the path does not matter."""
        settings = as_chat_config(config, VarlenDatasetConfig).mock_dataset_config or {
            "mode": "distribution",
            "type": "lognormal",
            "min_seq_len": max(config.sequence_length // 2, 1),
            "max_seq_len": config.sequence_length,
            "mean_seq_len": max(config.sequence_length // 4 * 3, 1),
            "lognormal_sigma": 1.1,
        }
        return MockVarlenLowLevelDataset(config.tokenizer, **settings)
