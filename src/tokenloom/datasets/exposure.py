"""Opens tokenized conversations, decides which ones to drop, and fills samples with all other conversations."""

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
from tokenloom.datasets.protocols import Int64s
from tokenloom.datasets.sample_arrays import Output
from tokenloom.datasets.slot_counts import Count
from tokenloom.datasets.tensors import Sample
from tokenloom.errors import ConfigError, OutputBusyError, TokenizerError, UntrainableWarning
from tokenloom.indexed.columns import has_column
from tokenloom.indexed.dataset import IndexedDataset, dataset_identity, span_reader
from tokenloom.indexed.joined import JoinedPairs
from tokenloom.indexed.layout import DType, column_path, prefix_of
from tokenloom.indexed.roles import NAME, SequenceRoles, read_roles
from tokenloom.order.array_store import check_may_build
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
    """A low-level dataset of conversations: a pair with roles, in which each sequence is a conversation.

    A raw file (JSON lines, Parquet) is tokenized on first use, into `path_to_cache` or into a folder `cache` beside the
    file. The name of the output depends on the file, the tokenizer and the chat template. Thread-safe and picklable;
    unpickling opens the pair again (in object storage, the same version of the pair).

    Args:
        dataset_path: prefix or address of a pair made by `preprocess_chat`, or a local file of raw conversations.
        config: the settings; needed for raw files.
        plain_text: read a pair without roles as plain text, with loss everywhere.

    Raises:
        DatasetNotFoundError: `dataset_path` does not exist, or the pair has no roles.
        ConfigError: a raw file is given without `config` or without a Hugging Face tokenizer.
    """

    def __init__(self, dataset_path: str, config: Any = None, *, plain_text: bool = False) -> None:
        prefix = prefix_of(dataset_path)
        if os.path.isfile(dataset_path) and not IndexedDataset.exists(prefix):
            if config is None:
                hint = "tokenize it with `tokenloom preprocess-chat`, or pass `config`"
                raise ConfigError(f"`{dataset_path}` is a raw file, which needs a `config`", hint=hint)
            prefix = _tokenized(dataset_path, as_chat_config(config))
        mmap = True if config is None else bool(config.mmap_bin_files)
        storage = None if config is None else config.storage_settings
        self._open(IndexedDataset(prefix, mmap=mmap, object_storage=storage), plain_text=plain_text)

    @classmethod
    def of_pair(cls, pair: IndexedDataset, *, plain_text: bool) -> Self:
        """Returns the conversations of an open pair."""
        data = cls.__new__(cls)
        data._open(pair, plain_text=plain_text)
        return data

    def _open(self, pair: IndexedDataset, *, plain_text: bool) -> None:
        self.pair = pair
        self.path_prefix: str = pair.path_prefix
        self._read_spans = span_reader(pair, whole=True)
        is_text = plain_text and not has_column(pair, NAME)
        self.roles: SequenceRoles = SequenceRoles() if is_text else read_roles(pair)

    def __len__(self) -> int:
        return len(self.pair)

    def __getitem__(self, idx: int) -> NDArray[Any]:
        """Returns the tokens of a conversation."""
        tokens: NDArray[Any] = self.pair[idx]
        return tokens

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[num_conversations], tokens per conversation."""
        return self.pair.sequence_lengths

    def gather(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> NDArray[Any]:
        """Returns the concatenated tokens of many spans: dtype[sum(lengths)]."""
        return self._read_spans(self.pair, sequences, starts, lengths)

    def identity(self) -> dict[str, Any]:
        """Returns a dict that identifies the pair and its roles."""
        return {**dataset_identity(self.pair), "roles": self.roles.identity()}


def _tokenized(path: str, config: SFTDatasetConfig) -> str:
    """Returns the prefix of the tokenized conversations of a raw file; tokenizes the file on first use."""
    tokenizer = config.tokenizer
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        message = f"`{path}` is a raw file, which needs a Hugging Face tokenizer, got {tokenizer!r}"
        raise ConfigError(message, hint="tokenize it with `tokenloom preprocess-chat`, and pass the output prefix")
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
    if folder is None or is_remote(folder):  # pairs can only be written to local disk
        folder = os.path.join(os.path.dirname(path), "cache")
    digest = hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
    prefix = os.path.join(folder, f"{digest}-{os.path.basename(path)}")
    if _is_tokenized(prefix):
        return prefix
    check_may_build(f"`{path}`")
    os.makedirs(folder, exist_ok=True)
    bad_records = BadRecordBudget(most=None if config.skip_bad_lines else 0)
    settings = ChatSettings(chat_template=config.chat_template, schema=config.schema, bad_records=bad_records)
    with waiting_for(f"`{prefix}`, which another process writes"):
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
    """Returns the chat template; None if the tokenizer has no template, as only chat records need one."""
    try:
        return find_chat_template(tokenizer, config.chat_template).source
    except TokenizerError:
        if config.chat_template is not None:
            raise
        return None


_dtype_code = cache(DType.code_from_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The dropped conversations of a split: for each reason, a mask bool[num_conversations], True where dropped.

    All other conversations are in samples. `shares`, int64[num_conversations, 5]: see `SplitConversations.shares`.
    """

    shares: Int64s
    empty: NDArray[np.bool_]
    too_long: NDArray[np.bool_]
    untrainable: NDArray[np.bool_]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """bool[num_conversations], True for conversations that are in samples."""
        return ~(self.empty | self.too_long | self.untrainable)

    def count(self, chosen: NDArray[np.bool_]) -> Count:
        """Counts the conversations where `chosen` is True, and the tokens of these conversations."""
        return Count(conversations=int(chosen.sum()), tokens=int(self.shares[chosen, 0].sum()))


class SplitConversations:
    """The conversations of one split of a pair; computes their slots and fills samples.

    `reads_ahead` is 1 if the last token of a conversation is only a label, else 0. `name` is for messages. For a column
    that the pair lacks, the prefixes `beside` are searched; the first with this column determines the dtype and shape.
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
        """The number of conversations of the pair, in all splits."""
        return len(self.data)

    def kept(self) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Returns the conversations that are not dropped, integers[count], and the slots of each of them, int32[count].

        Warns of untrainable conversations. Raises ConfigError if the value "error" forbids long or untrainable ones.
        """
        exposure = self.exposure()
        self._report(exposure)
        kept = exposure.kept
        return self.rows.array()[kept], exposure.shares[kept, 3].astype(np.int32)

    def slots(self) -> NDArray[np.int32]:
        """Returns the number of slots of each conversation, int32[count], 0 if dropped; unlike `kept`, never warns."""
        exposure = self.exposure()
        return np.where(exposure.kept, exposure.shares[:, 3], 0).astype(np.int32)

    def exposure(self) -> Exposure:
        """Returns which conversations of the split are in samples; reads all lengths and roles."""
        shares = self.shares(self.rows.array().astype(np.int64))
        lengths, inputs, available, _, trained = shares.T
        empty = inputs < 1
        too_long = (lengths > available) & ~empty & (self.config.long_conversations == "drop")
        untrainable = (trained == 0) & ~empty & ~too_long & (self.config.untrainable_conversations == "drop")
        return Exposure(shares=shares, empty=empty, too_long=too_long, untrainable=untrainable)

    def segments(self, sequences: Int64s) -> Int64s:
        """Returns int64[count, 4], per conversation: index, and numbers of inputs, of tokens to read and of slots."""
        segments = np.empty((len(sequences), 4), dtype=np.int64)
        segments[:, 0] = sequences
        longest = self.config.sequence_length + self.reads_ahead
        available = np.minimum(self.data.sequence_lengths[sequences], longest, out=segments[:, 2])
        inputs = np.maximum(available - self.reads_ahead, 0, out=segments[:, 1])
        multiple = self.config.slot_multiple
        segments[:, 3] = -(-inputs // multiple) * multiple
        return segments

    def shares(self, sequences: Int64s) -> Int64s:
        """Counts, per conversation, tokens, inputs, tokens to read, slots and labels with loss: int64[count, 5]."""
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
        """Fills a batch; row r gets the conversations `sequences[row_offsets[r]:row_offsets[r + 1]]`.

        Slots without a token get `fill_id`. So do all slots of conversations that `denied`, bool[count], marks True.
        """
        segments, chosen = self.segments(sequences), sequences
        available = np.ascontiguousarray(segments[:, 2])
        if denied is not None and denied.any():
            segments[denied, 1:3] = 0
            chosen, available = sequences[~denied], available[~denied]
        text = self._read_spans(self.data, chosen, np.zeros_like(chosen), available)
        tokens, labels, loss, places = out["tokens"], out["labels"], out["loss_mask"], out["position_ids"]
        code, bounds, longest = _dtype_code(text.dtype), out.get("cu_seqlens"), out.get("max_seqlen")
        self.data.roles.parts.fill(
            text, code, segments, row_offsets, self.train_on, fill_id, tokens, labels, loss, places, bounds, longest
        )
        if self.columns is not None:
            self.columns.fill_slots(segments, row_offsets, out)

    def column_outputs(self, length: int) -> list[Output]:
        """Describes the column arrays of a sample of `length` tokens."""
        return [] if self.columns is None else self.columns.outputs(length)

    def check(self) -> None:
        """Raises if the `.idx` file changed since it was opened."""
        if isinstance(self.data, SFTLowLevelDataset):
            self.data.pair.check_index()

    def _report(self, exposure: Exposure) -> None:
        """Warns of conversations without tokens to train on; see `kept` for errors."""
        config = self.config
        lengths, _, available, _, trained = exposure.shares.T

        def first_of(chosen: NDArray[np.bool_]) -> str:
            first = int(np.argmax(chosen))
            return f"the first is sequence {self.rows.chosen[first]} with {lengths[first]} tokens"

        cut = (lengths > available) & ~exposure.empty
        if config.long_conversations == "error" and cut.any():
            message = f"{self.name}: {cut.sum()} conversations are longer than a sample of {config.sequence_length}"
            hint = 'raise `sequence_length`, or set `long_conversations` to "truncate" or "drop"'
            raise ConfigError(f"{message} tokens; {first_of(cut)}", hint=hint)
        useless = (trained == 0) & ~exposure.too_long
        if not useless.any():
            return
        message = f"{self.name}: {useless.sum()} of {len(useless)} conversations have no token to train on within a "
        message += f"sample of {config.sequence_length} tokens ({first_of(useless)})"
        if (policy := config.untrainable_conversations) == "error":
            raise ConfigError(message, hint='raise `sequence_length`, or set `untrainable_conversations` to "drop"')
        dropped = policy == "drop" or bool(exposure.empty[useless].all())
        warnings.warn(f"{message}; they are {'dropped' if dropped else 'kept'}", UntrainableWarning, stacklevel=2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedConversations:
    """The conversations of several pairs, numbered consecutively; see `SplitConversations`.

    Opens each pair on first use; with `plain_text`, reads pairs without roles as plain text. The index -1 - n stands
    for the denied conversation n. Thread-safe; not picklable.
    """

    pairs: JoinedPairs
    plain_text: bool
    config: SFTDatasetConfig
    reads_ahead: int
    name: str
    _opened: dict[int, SplitConversations] = field(default_factory=dict)

    def report_slots(self, documents: SourceDocuments, *, shares_samples: bool) -> None:
        """Reports the number of slots per conversation to `documents`; at most 1 slot without `shares_samples`."""

        def slots_of(number: int, pair: IndexedDataset) -> NDArray[np.int32]:
            slots = self._of_pair(number, pair).slots()
            return slots if shares_samples else np.minimum(slots, 1)

        self.pairs.connect(documents, slots_of)

    def _of_pair(self, number: int, pair: IndexedDataset | None = None) -> SplitConversations:
        """Returns the conversations of pair `number`; opens the pair on first use."""
        if (conversations := self._opened.get(number)) is None:  # threads may open a pair twice; the first result stays
            data = SFTLowLevelDataset.of_pair(pair or self.pairs.open(number), plain_text=self.plain_text)
            beside = [*(pair.prefix for pair in self.pairs.pairs), *self.pairs.beside]
            conversations = conversations_of_pair(data, self.config, reads_ahead=self.reads_ahead, beside=beside)
            conversations = self._opened.setdefault(number, conversations)
        return conversations

    def _parts(self, sequences: Int64s) -> Iterator[tuple[SplitConversations, int, Int64s]]:
        """Yields (conversations of a pair, first index of the pair, places of its conversations in `sequences`)."""
        numbers = self.pairs.numbers(sequences)
        for number in np.unique(numbers).tolist():
            yield self._of_pair(number), self.pairs.first_of(number), np.flatnonzero(numbers == number)

    def segments(self, sequences: Int64s) -> Int64s:
        """Returns the rows of `SplitConversations.segments`, int64[count, 4], with `sequences` as column 0."""
        segments = self._of_each(sequences, SplitConversations.segments, 4)
        segments[:, 0] = sequences
        return segments

    def shares(self, sequences: Int64s) -> Int64s:
        """Returns the rows of `SplitConversations.shares`, int64[count, 5]; denied conversations count too."""
        return self._of_each(sequences, SplitConversations.shares, 5)

    def _of_each(self, sequences: Int64s, find: Callable[[SplitConversations, Int64s], Int64s], width: int) -> Int64s:
        known = np.where(sequences < 0, -1 - sequences, sequences)
        found = np.empty((len(sequences), width), dtype=np.int64)
        for conversations, first, chosen in self._parts(known):
            found[chosen] = find(conversations, known[chosen] - first)
            conversations.check()
        return found

    def exposure_of(self, number: int) -> Exposure:
        conversations = self._of_pair(number)
        exposure = conversations.exposure()
        conversations.check()
        return exposure

    def fill(self, sequences: Int64s, row_offsets: Int64s, *, fill_id: int, out: Sample) -> None:
        """Fills a batch in which all conversations of a row are of one pair; see `SplitConversations.fill`."""
        denied = sequences < 0
        known = np.where(denied, -1 - sequences, sequences)
        for conversations, first, rows in self._parts(known[row_offsets[:-1]]):
            if len(rows) == len(row_offsets) - 1:
                conversations.fill(known - first, row_offsets, fill_id=fill_id, out=out, denied=denied)
            else:
                counts = np.diff(row_offsets)[rows]
                offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
                chosen = np.repeat(row_offsets[rows] - offsets[:-1], counts) + np.arange(int(offsets[-1]))
                part = {name: np.empty((len(rows), *array.shape[1:]), array.dtype) for name, array in out.items()}
                conversations.fill(known[chosen] - first, offsets, fill_id=fill_id, out=part, denied=denied[chosen])
                for name, array in part.items():
                    out[name][rows] = array
            conversations.check()

    def column_outputs(self, length: int) -> list[Output]:
        """Describes the column arrays of a sample of `length` tokens; opens the first pair."""
        return self._of_pair(0).column_outputs(length) if self.config.columns else []

    def check(self) -> None:
        """Does nothing, as the other methods check each pair after reading it."""


def conversations_of_pair(
    data: SFTLowLevelDataset, config: SFTDatasetConfig, *, reads_ahead: int, beside: Sequence[str] = ()
) -> SplitConversations:
    """Returns the conversations of all splits of a pair."""
    return SplitConversations(data, Rows.of(range(len(data))), config, reads_ahead, f"`{data.path_prefix}`", beside)
