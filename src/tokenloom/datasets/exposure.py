"""Tokenized conversations, and what samples take of each: tokens, slots, and which are dropped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import SourceDocuments
from tokenloom.datasets.chat_config import TRAIN_ON, SFTDatasetConfig, as_chat_config
from tokenloom.datasets.columns import SampleColumns
from tokenloom.datasets.ledger import Count
from tokenloom.datasets.outputs import Output
from tokenloom.datasets.protocols import Int64s
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError, OutputBusyError, TokenizerError, UntrainableWarning
from tokenloom.indexed.columns import has_column
from tokenloom.indexed.dataset import IndexedDataset, dataset_identity, span_reader
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.indexed.layout import DType, column_path, prefix_of
from tokenloom.indexed.roles import NAME, SequenceRoles, read_roles
from tokenloom.order.arrays import refuse_to_build_now
from tokenloom.order.documents import Rows
from tokenloom.preprocess.chat import preprocess_chat
from tokenloom.preprocess.chat_templates import find_chat_template
from tokenloom.preprocess.settings import BadRecordBudget, ChatSettings
from tokenloom.progress import waiting_for
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.local import MappedFile, sampled_hash
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer

logger: logging.Logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2


class SFTLowLevelDataset:
    """Tokenized conversations: a pair and its roles; each sequence is a conversation.

    Raw input (JSON lines, Parquet) is tokenized once into `path_to_cache`, or into a folder `cache` beside it, under a
    name that follows from the file, the tokenizer and the template. Thread-safe, and picklable (opened again from the
    pair, of object storage in the same version).

    Args:
        dataset_path: prefix or address of a pair made by `preprocess_chat`, or a local file of raw conversations.
        config: the settings; needed for raw conversations.
        plain_text: whether a pair without roles counts as text, with loss everywhere.

    Raises:
        DatasetNotFoundError: there is no such file, or no roles beside the pair.
        ConfigError: raw conversations come without a Hugging Face tokenizer.
    """

    def __init__(self, dataset_path: str, config: Any = None, *, plain_text: bool = False) -> None:
        prefix = prefix_of(dataset_path)
        if os.path.isfile(dataset_path) and not IndexedDataset.exists(prefix):
            if config is None:
                hint = "tokenize it with `tokenloom preprocess-chat`"
                raise ConfigError(f"`{dataset_path}` is not tokenized yet: no `config` given", hint=hint)
            prefix = _tokenized(dataset_path, as_chat_config(config))
        mmap = True if config is None else bool(config.mmap_bin_files)
        storage = None if config is None else config.storage_settings
        self._take(IndexedDataset(prefix, mmap=mmap, object_storage=storage), plain_text=plain_text)

    @classmethod
    def of_pair(cls, pair: IndexedDataset, *, plain_text: bool) -> Self:
        """Returns the conversations of an open pair."""
        data = cls.__new__(cls)
        data._take(pair, plain_text=plain_text)
        return data

    def _take(self, pair: IndexedDataset, *, plain_text: bool) -> None:
        self.pair = pair
        self.path_prefix: str = pair.path_prefix
        self._read_spans = span_reader(pair, whole=True)
        is_text = plain_text and not has_column(pair, NAME)
        self.roles: SequenceRoles = SequenceRoles() if is_text else read_roles(pair)

    def __len__(self) -> int:
        """The number of conversations."""
        return len(self.pair)

    def __getitem__(self, idx: int) -> NDArray[Any]:
        """Returns the tokens of a conversation."""
        tokens: NDArray[Any] = self.pair[idx]
        return tokens

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[num_conversations], tokens of each."""
        return self.pair.sequence_lengths

    def gather(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> NDArray[Any]:
        """Returns the tokens of many spans, back to back."""
        return self._read_spans(self.pair, sequences, starts, lengths)

    def identity(self) -> dict[str, Any]:
        """Returns the identity of pair and roles."""
        return {**dataset_identity(self.pair), "roles": self.roles.identity()}


def _tokenized(path: str, config: SFTDatasetConfig) -> str:
    """Returns the prefix of the conversations of a raw file, and tokenizes them if need be."""
    tokenizer = config.tokenizer
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        message = f"`{path}` is not tokenized yet, which needs a Hugging Face tokenizer, got {tokenizer!r}"
        raise ConfigError(message, hint="tokenize it with `tokenloom preprocess-chat`, and name the output's prefix")
    file = MappedFile(path)
    key = json.dumps(
        {
            "num_bytes": file.num_bytes,
            "sample": sampled_hash(file) if file.num_bytes else "",
            "tokenizer": tokenizer.unique_identifiers,
            "special_tokens": tokenizer.special_tokens_dict,
            "chat_template": _template_source(tokenizer, config),
            "schema": config.schema,
            "skip_bad_lines": config.skip_bad_lines,
        }
    )
    folder = config.path_to_cache
    if folder is None or is_remote(folder):  # pairs are made where they are read
        folder = os.path.join(os.path.dirname(path), "cache")
    digest = hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
    prefix = os.path.join(folder, f"{digest}-{os.path.basename(path)}")
    if _is_tokenized(prefix):
        return prefix
    refuse_to_build_now(f"`{path}`")
    os.makedirs(folder, exist_ok=True)
    bad_records = BadRecordBudget(most=None if config.skip_bad_lines else 0)
    settings = ChatSettings(chat_template=config.chat_template, schema=config.schema, bad_records=bad_records)
    with waiting_for(f"`{prefix}`, which another process makes"):
        while not _is_tokenized(prefix):
            try:
                summary = preprocess_chat(path, prefix, tokenizer, settings, overwrite=True)
            except OutputBusyError:
                time.sleep(_POLL_SECONDS)
            else:
                logger.info("tokenized `%s` into `%s`: %d records", path, prefix, summary.num_documents)
    return prefix


def _is_tokenized(prefix: str) -> bool:
    return IndexedDataset.exists(prefix) and os.path.exists(column_path(prefix, NAME))


def _template_source(tokenizer: HuggingFaceTokenizer, config: SFTDatasetConfig) -> str | None:
    """Returns the template; None without one, which texts need not have, and tokenizing reports otherwise."""
    try:
        return find_chat_template(tokenizer, config.chat_template).source
    except TokenizerError:
        if config.chat_template is not None:
            raise
        return None


_dtype_code = cache(DType.code_from_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Which conversations of a split become samples.

    Attributes:
        shares: int64[count, 5], see `TakenConversations.shares`.
        empty, too_long, untrainable: bool[count], dropped for this reason; at most one of them is true.
    """

    shares: Int64s
    empty: NDArray[np.bool_]
    too_long: NDArray[np.bool_]
    untrainable: NDArray[np.bool_]

    @property
    def lengths(self) -> Int64s:
        """int64[count], tokens of each."""
        return self.shares[:, 0]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """bool[count], the conversations in samples."""
        return ~(self.empty | self.too_long | self.untrainable)

    def count(self, chosen: NDArray[np.bool_]) -> Count:
        """Returns the count of chosen conversations and their tokens."""
        return Count(conversations=int(chosen.sum()), tokens=int(self.lengths[chosen].sum()))


class TakenConversations:
    """The conversations of a split, for samples.

    Args:
        data: the conversations and their roles, see `SFTLowLevelDataset`.
        rows: those of the split.
        config: the settings.
        reads_ahead: tokens of a conversation beyond its inputs: 1 if the last one is only a label.
        name: name of the dataset, for messages.
        beside: prefixes of other data.
    """

    def __init__(
        self, data: Any, rows: Rows, config: SFTDatasetConfig, reads_ahead: int, name: str, beside: Sequence[str] = ()
    ) -> None:
        self.data = data
        self.rows = rows
        self.config = config
        self.reads_ahead = reads_ahead
        self.name = name
        self.train_on: int = TRAIN_ON.index(config.train_on)
        self.columns: SampleColumns | None = None
        if config.columns:
            source, elsewhere = getattr(data, "pair", data), (*beside, *config.prefixes)
            self.columns = SampleColumns(source, config.columns, shifts=False, elsewhere=elsewhere)
        self._read_spans = span_reader(data, whole=True)

    @property
    def num_sequences(self) -> int:
        """The number of conversations in the data."""
        return len(self.data)

    def kept(self) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Returns the conversations in samples and their slots: integers[count], int32[count].

        Warns of the others, or raises if a setting asks for it.
        """
        exposure = self.exposure()
        self._report(exposure)
        kept = exposure.kept
        return self.rows.array()[kept], exposure.shares[kept, 3].astype(np.int32)

    def places(self) -> NDArray[np.int32]:
        """Returns the slots of each, 0 for dropped ones: int32[count]; without a warning."""
        exposure = self.exposure()
        return np.where(exposure.kept, exposure.shares[:, 3], 0).astype(np.int32)

    def exposure(self) -> Exposure:
        """Returns which conversations of the split become samples; one pass over lengths and roles."""
        shares = self.shares(self.rows.array().astype(np.int64))
        lengths, inputs, available, _, trained = shares.T
        empty = inputs < 1
        too_long = (lengths > available) & ~empty & (self.config.long_conversations == "drop")
        untrainable = (trained == 0) & ~empty & ~too_long & (self.config.untrainable_conversations == "drop")
        return Exposure(shares=shares, empty=empty, too_long=too_long, untrainable=untrainable)

    def segments(self, sequences: Int64s) -> Int64s:
        """Returns (sequence, inputs, tokens, slots) of each in a sample: int64[count, 4]."""
        segments = np.empty((len(sequences), 4), dtype=np.int64)
        segments[:, 0] = sequences
        most = self.config.sequence_length + self.reads_ahead
        available = np.minimum(self.data.sequence_lengths[sequences], most, out=segments[:, 2])
        inputs = np.maximum(available - self.reads_ahead, 0, out=segments[:, 1])
        multiple = self.config.slot_multiple
        segments[:, 3] = -(-inputs // multiple) * multiple
        return segments

    def shares(self, sequences: Int64s) -> Int64s:
        """Returns (tokens, inputs, tokens read, slots, labels with loss) of each: int64[count, 5]."""
        shares = np.empty((len(sequences), 5), dtype=np.int64)
        shares[:, 0] = self.data.sequence_lengths[sequences]
        shares[:, 1:4] = self.segments(sequences)[:, 1:]
        trained = np.empty(len(sequences), dtype=np.int64)
        self.data.roles.parts.count_trained(sequences, np.ascontiguousarray(shares[:, 2]), self.train_on, trained)
        shares[:, 4] = trained
        return shares

    def fill(
        self,
        sequences: Int64s,
        row_offsets: Int64s,
        *,
        fill_id: int,
        out: Sample,
        denied: NDArray[np.bool_] | None = None,
    ) -> None:
        """Fills rows of a batch: row r holds conversations [row_offsets[r], row_offsets[r + 1]).

        Slots without a token, and those of `denied` conversations, bool[count], get `fill_id`.
        """
        segments, chosen = self.segments(sequences), sequences
        available = np.ascontiguousarray(segments[:, 2])
        if denied is not None and denied.any():
            segments[denied, 1:3] = 0
            chosen, available = sequences[~denied], available[~denied]
        text = self._read_spans(self.data, chosen, np.zeros_like(chosen), available)
        self.data.roles.parts.fill(
            text,
            _dtype_code(text.dtype),
            segments,
            row_offsets,
            self.train_on,
            fill_id,
            out["tokens"],
            out["labels"],
            out["loss_mask"],
            out["position_ids"],
            out.get("cu_seqlens"),
            out.get("max_seqlen"),
        )
        if self.columns is not None:
            self.columns.fill_slots(segments, row_offsets, out)

    def column_outputs(self, length: int) -> list[Output]:
        """Returns the columns of a sample of so many tokens."""
        return [] if self.columns is None else self.columns.outputs(length)

    def check(self) -> None:
        """Checks that the file of lengths is unchanged."""
        if isinstance(self.data, SFTLowLevelDataset):
            self.data.pair.check_index()

    def _report(self, exposure: Exposure) -> None:
        """Warns of unusable conversations, or raises if a setting asks for it."""
        config = self.config
        lengths, _, available, _, trained = exposure.shares.T

        def first_of(chosen: NDArray[np.bool_]) -> str:
            first = int(np.argmax(chosen))
            return f"the first is sequence {self.rows.chosen[first]}, of {lengths[first]} tokens"

        cut = (lengths > available) & ~exposure.empty
        if config.long_conversations == "error" and cut.any():
            message = f"{self.name}: {cut.sum()} conversations are longer than a sample of {config.sequence_length}"
            hint = 'make samples longer, or set `long_conversations` to "truncate" or "drop"'
            raise ConfigError(f"{message} tokens; {first_of(cut)}", hint=hint)
        useless = (trained == 0) & ~exposure.too_long
        if not useless.any():
            return
        message = (
            f"{self.name}: {useless.sum()} of {len(useless)} conversations have no token to train on within a "
            f"sample of {config.sequence_length}; {first_of(useless)}"
        )
        if (policy := config.untrainable_conversations) == "error":
            raise ConfigError(message, hint='make samples longer, or set `untrainable_conversations` to "drop"')
        dropped = policy == "drop" or bool(exposure.empty[useless].all())
        warnings.warn(f"{message}; they are {'dropped' if dropped else 'kept'}", UntrainableWarning, stacklevel=2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TakenOfPairs:
    """The conversations of several pairs, for samples; see `TakenConversations`.

    They are numbered one pair after the other; a denied one has -1 - its number. Thread-safe; not picklable.

    Attributes:
        pairs: the pairs, each opened on first use.
        plain_text: whether a pair without roles counts as text, with loss everywhere.
        config, reads_ahead, name: as of `TakenConversations`.
    """

    pairs: JoinedPairs
    plain_text: bool
    config: SFTDatasetConfig
    reads_ahead: int
    name: str
    _of_pairs: dict[int, TakenConversations] = field(default_factory=dict)

    def tell(self, documents: SourceDocuments, *, shares_samples: bool) -> None:
        """Passes the slots of each conversation of a pair, 0 for dropped ones, to a kernel when the pair is opened.

        Each counts as 1 unless conversations share samples.
        """

        def places(number: int, pair: IndexedDataset) -> NDArray[np.int32]:
            taken = self._taken(number, pair).places()
            return taken if shares_samples else np.minimum(taken, 1)

        self.pairs.connect(documents, places)

    def _taken(self, number: int, pair: IndexedDataset | None = None) -> TakenConversations:
        """Returns those of a pair, which is opened on first use; raises as `JoinedPairs.open` does."""
        if (taken := self._of_pairs.get(number)) is None:  # made by several threads at once at worst
            data = SFTLowLevelDataset.of_pair(pair or self.pairs.open(number), plain_text=self.plain_text)
            beside = [*(pair.prefix for pair in self.pairs.pairs), *self.pairs.beside]
            taken = taken_of_pair(data, self.config, reads_ahead=self.reads_ahead, beside=beside)
            taken = self._of_pairs.setdefault(number, taken)
        return taken

    def _parts(self, sequences: Int64s) -> Iterator[tuple[TakenConversations, int, Int64s]]:
        """Yields each pair with some of these, its first number, and their indices: int64[count]."""
        numbers = self.pairs.numbers(sequences)
        for number in np.unique(numbers).tolist():
            yield self._taken(number), self.pairs.first_of(number), np.flatnonzero(numbers == number)

    def segments(self, sequences: Int64s) -> Int64s:
        """Returns `TakenConversations.segments`, of denied ones too."""
        segments = self._of_each(sequences, TakenConversations.segments, 4)
        segments[:, 0] = sequences
        return segments

    def shares(self, sequences: Int64s) -> Int64s:
        """Returns `TakenConversations.shares`, of denied ones too."""
        return self._of_each(sequences, TakenConversations.shares, 5)

    def _of_each(self, sequences: Int64s, find: Callable[[TakenConversations, Int64s], Int64s], width: int) -> Int64s:
        known = np.where(sequences < 0, -1 - sequences, sequences)
        found = np.empty((len(sequences), width), dtype=np.int64)
        for taken, first, chosen in self._parts(known):
            found[chosen] = find(taken, known[chosen] - first)
            taken.check()
        return found

    def exposure_of(self, number: int) -> Exposure:
        """Returns which conversations of a pair, which is opened, become samples; a pass over lengths and roles."""
        taken = self._taken(number)
        exposure = taken.exposure()
        taken.check()
        return exposure

    def fill(self, sequences: Int64s, row_offsets: Int64s, *, fill_id: int, out: Sample) -> None:
        """Fills rows, each of conversations of one pair; see `TakenConversations.fill`."""
        denied = sequences < 0
        known = np.where(denied, -1 - sequences, sequences)
        for taken, first, rows in self._parts(known[row_offsets[:-1]]):
            if len(rows) == len(row_offsets) - 1:
                taken.fill(known - first, row_offsets, fill_id=fill_id, out=out, denied=denied)
            else:
                counts = np.diff(row_offsets)[rows]
                offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
                chosen = np.repeat(row_offsets[rows] - offsets[:-1], counts) + np.arange(int(offsets[-1]))
                part = {name: np.empty((len(rows), *array.shape[1:]), array.dtype) for name, array in out.items()}
                taken.fill(known[chosen] - first, offsets, fill_id=fill_id, out=part, denied=denied[chosen])
                for name, array in part.items():
                    out[name][rows] = array
            taken.check()

    def column_outputs(self, length: int) -> list[Output]:
        """Returns the columns of a sample of so many tokens; opens the first pair."""
        return self._taken(0).column_outputs(length) if self.config.columns else []

    def check(self) -> None:
        """Does nothing: lengths are checked where they are read."""


def taken_of_pair(
    data: SFTLowLevelDataset, config: SFTDatasetConfig, *, reads_ahead: int, beside: Sequence[str] = ()
) -> TakenConversations:
    """Returns all conversations of a pair, for samples."""
    return TakenConversations(data, Rows.of(range(len(data))), config, reads_ahead, f"`{data.path_prefix}`", beside)
