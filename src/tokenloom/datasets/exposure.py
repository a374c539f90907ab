"""Tokenized conversations, and what samples take of each: tokens, positions, and which are left out."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
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

_LOOK_SECONDS = 0.2


class SFTLowLevelDataset:
    """Tokenized conversations: a pair and the roles beside it; each sequence is a conversation.

    Input that is not tokenized yet (JSON lines, Parquet) is tokenized once into `path_to_cache`, or into a folder
    `cache` beside it, under a name that changes with the file, the tokenizer and the template. Safe from several
    threads, and picklable (opened again from the pair, of object storage in the same version).

    Args:
        dataset_path: the prefix or address of a pair made by `preprocess_chat`; or the path of local conversations.
        config: the settings; needed for conversations that are not tokenized.
        plain_text: whether a pair without roles counts as text, which is trained everywhere.

    Raises:
        DatasetNotFoundError: there is no such file, or no roles beside the pair.
        ConfigError: conversations must be tokenized first, and the tokenizer is not one of Hugging Face.
    """

    def __init__(self, dataset_path: str, config: Any = None, *, plain_text: bool = False) -> None:
        prefix = prefix_of(dataset_path)
        if os.path.isfile(dataset_path) and not IndexedDataset.exists(prefix):
            if config is None:
                message = f"`{dataset_path}` is not tokenized yet, which needs a configuration, found none"
                raise ConfigError(message, hint="tokenize it with `tokenloom preprocess-chat`")
            prefix = _tokenized(dataset_path, as_chat_config(config))
        mmap = True if config is None else bool(config.mmap_bin_files)
        storage = None if config is None else config.storage_settings
        self._take(IndexedDataset(prefix, mmap=mmap, object_storage=storage), plain_text=plain_text)

    @classmethod
    def of_pair(cls, pair: IndexedDataset, *, plain_text: bool) -> Self:
        """Returns the conversations of a pair that is open."""
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
        """Returns what tells these conversations from others."""
        return {**dataset_identity(self.pair), "roles": self.roles.identity()}


def _tokenized(path: str, config: SFTDatasetConfig) -> str:
    """Returns the prefix of the conversations of a file, which are tokenized if they are not yet."""
    tokenizer = config.tokenizer
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        message = f"`{path}` is not tokenized yet, which needs a Hugging Face tokenizer, found {tokenizer!r}"
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
    if IndexedDataset.exists(prefix) and os.path.exists(column_path(prefix, NAME)):
        return prefix
    refuse_to_build_now(f"`{path}`")
    os.makedirs(folder, exist_ok=True)
    is_waiting = False
    with ExitStack() as stack:
        while not (IndexedDataset.exists(prefix) and os.path.exists(column_path(prefix, NAME))):
            try:
                summary = preprocess_chat(
                    path,
                    prefix,
                    tokenizer,
                    ChatSettings(
                        chat_template=config.chat_template,
                        schema=config.schema,
                        bad_records=BadRecordBudget(most=None if config.skip_bad_lines else 0),
                    ),
                    overwrite=True,
                )
            except OutputBusyError:
                if not is_waiting:
                    stack.enter_context(waiting_for(f"`{prefix}`, which another process makes"))
                is_waiting = True
                time.sleep(_LOOK_SECONDS)
                continue
            logger.info("tokenized `%s` into `%s`: %d records", path, prefix, summary.num_documents)
    return prefix


def _template_source(tokenizer: HuggingFaceTokenizer, config: SFTDatasetConfig) -> str | None:
    """Returns the text of the template, None where there is none: texts need none, and else tokenizing says so."""
    try:
        return find_chat_template(tokenizer, config.chat_template).source
    except TokenizerError:
        if config.chat_template is not None:
            raise
        return None


_dtype_code = cache(DType.code_from_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The conversations of a split, as samples take them.

    Attributes:
        shares: int64[count, 5], see `TakenConversations.shares`.
        empty, too_long, untrainable: bool[count], left out for this reason; at most one of them is true.
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
        """Which conversations the samples are made of."""
        return ~(self.empty | self.too_long | self.untrainable)

    def count(self, chosen: NDArray[np.bool_]) -> Count:
        """Returns how many conversations are chosen, and their tokens."""
        return Count(conversations=int(chosen.sum()), tokens=int(self.lengths[chosen].sum()))


class TakenConversations:
    """The conversations of a split, as the samples of a dataset take them.

    Args:
        data: the conversations and their roles, see `SFTLowLevelDataset`.
        rows: those that are exposed.
        config: the settings.
        reads_ahead: tokens of a conversation beyond its inputs: 1 where the last one is only a label.
        name: name of the dataset, for messages.
        beside: prefixes of the data beside these.
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
        """Returns those that samples are made of, and the positions that each takes: integers[count], int32[count].

        Says what is wrong with the others, or raises where a setting asks for it.
        """
        exposure = self.exposure()
        self._report(exposure)
        kept = exposure.kept
        return self.rows.array()[kept], exposure.shares[kept, 3].astype(np.int32)

    def places(self) -> NDArray[np.int32]:
        """Returns the positions that each takes, 0 for those left out: int32[count]; says nothing of these."""
        exposure = self.exposure()
        return np.where(exposure.kept, exposure.shares[:, 3], 0).astype(np.int32)

    def exposure(self) -> Exposure:
        """Returns what samples take of each conversation of the split; one pass over lengths and roles."""
        shares = self.shares(self.rows.array().astype(np.int64))
        lengths, inputs, available, _, trained = shares.T
        empty = inputs < 1
        too_long = (lengths > available) & ~empty & (self.config.long_conversations == "drop")
        untrainable = (trained == 0) & ~empty & ~too_long & (self.config.untrainable_conversations == "drop")
        return Exposure(shares=shares, empty=empty, too_long=too_long, untrainable=untrainable)

    def segments(self, sequences: Int64s) -> Int64s:
        """Returns (sequence, inputs, tokens, slots) of what a sample takes of each: int64[count, 4]."""
        segments = np.empty((len(sequences), 4), dtype=np.int64)
        segments[:, 0] = sequences
        available = np.minimum(
            self.data.sequence_lengths[sequences],
            self.config.sequence_length + self.reads_ahead,
            out=segments[:, 2],
        )
        inputs = np.maximum(available - self.reads_ahead, 0, out=segments[:, 1])
        multiple = self.config.slot_multiple
        segments[:, 3] = -(-inputs // multiple) * multiple
        return segments

    def shares(self, sequences: Int64s) -> Int64s:
        """Returns (tokens, inputs, tokens that are read, slots, labels with loss) of each: int64[count, 5]."""
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
        """Fills rows of `out`, arrays of samples: row r holds conversations [row_offsets[r], row_offsets[r + 1]).

        Positions without a token have `fill_id`, as those of the conversations that are `denied`, bool[count], have.
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
        """Makes sure that what was read of lengths is what their file held."""
        if isinstance(self.data, SFTLowLevelDataset):
            self.data.pair.check_index()

    def _report(self, exposure: Exposure) -> None:
        """Says what is wrong with conversations, or raises where a setting asks for it."""
        config = self.config
        lengths, _, available, _, trained = exposure.shares.T
        cut = (lengths > available) & ~exposure.empty
        if config.long_conversations == "error" and cut.any():
            first = int(np.argmax(cut))
            message = (
                f"{self.name}: {cut.sum()} conversations are longer than a sample of {config.sequence_length} "
                f"tokens; the first is sequence {self.rows.chosen[first]}, with {lengths[first]}"
            )
            raise ConfigError(message, hint='make samples longer, or set `long_conversations` to "truncate" or "drop"')
        useless = (trained == 0) & ~exposure.too_long
        if not useless.any():
            return
        policy = config.untrainable_conversations
        first = int(np.argmax(useless))
        message = (
            f"{self.name}: {useless.sum()} of {len(useless)} conversations have no token to train on within a "
            f"sample of {config.sequence_length}; the first is sequence {self.rows.chosen[first]}, of "
            f"{lengths[first]} tokens"
        )
        if policy == "error":
            raise ConfigError(message, hint='make samples longer, or set `untrainable_conversations` to "drop"')
        left_out = policy == "drop" or bool(exposure.empty[useless].all())
        warnings.warn(f"{message}; they are {'left out' if left_out else 'kept'}", UntrainableWarning, stacklevel=2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TakenOfPairs:
    """The conversations of several pairs, as the samples of a dataset take them; see `TakenConversations`.

    Those are numbered one after the other; the number of a conversation that is denied is -1 - its number. Safe from
    several threads. Not picklable: who holds one makes it anew.

    Attributes:
        pairs: the pairs, each of which is opened when it is first asked for.
        plain_text: whether a pair without roles counts as text, which is trained everywhere.
        config, reads_ahead, name: as of `TakenConversations`.
    """

    pairs: JoinedPairs
    plain_text: bool
    config: SFTDatasetConfig
    reads_ahead: int
    name: str
    _of_pairs: dict[int, TakenConversations] = field(default_factory=dict)

    def tell(self, documents: SourceDocuments, *, shares_samples: bool) -> None:
        """Has a kernel told what each conversation of a pair takes, when it is opened; 0 for those left out.

        That is positions where conversations share samples; else each counts as 1.
        """

        def places(number: int, pair: IndexedDataset) -> NDArray[np.int32]:
            taken = self._taken(number, pair).places()
            return taken if shares_samples else np.minimum(taken, 1)

        self.pairs.tell(documents, places)

    def _taken(self, number: int, pair: IndexedDataset | None = None) -> TakenConversations:
        """Returns those of a pair, which is opened if it is not yet; raises as `JoinedPairs.open` does."""
        if (taken := self._of_pairs.get(number)) is None:  # made by several threads at once at worst
            data = SFTLowLevelDataset.of_pair(pair or self.pairs.open(number), plain_text=self.plain_text)
            beside = [*(pair.prefix for pair in self.pairs.pairs), *self.pairs.beside]
            taken = taken_of_pair(data, self.config, reads_ahead=self.reads_ahead, beside=beside)
            taken = self._of_pairs.setdefault(number, taken)
        return taken

    def _parts(self, sequences: Int64s) -> Iterator[tuple[TakenConversations, int, Int64s]]:
        """Yields what some of these lie in, the first number of that pair, and which of them do: int64[count]."""
        numbers = self.pairs.numbers(sequences)
        for number in np.unique(numbers).tolist():
            yield self._taken(number), self.pairs.first_of(number), np.flatnonzero(numbers == number)

    def segments(self, sequences: Int64s) -> Int64s:
        """Returns what `TakenConversations.segments` does; of those that are denied, what they would take."""
        segments = self._of_each(sequences, TakenConversations.segments, 4)
        segments[:, 0] = sequences
        return segments

    def shares(self, sequences: Int64s) -> Int64s:
        """Returns what `TakenConversations.shares` does; of those that are denied, what they would take."""
        return self._of_each(sequences, TakenConversations.shares, 5)

    def _of_each(self, sequences: Int64s, find: Callable[[TakenConversations, Int64s], Int64s], width: int) -> Int64s:
        known = np.where(sequences < 0, -1 - sequences, sequences)
        found = np.empty((len(sequences), width), dtype=np.int64)
        for taken, first, chosen in self._parts(known):
            found[chosen] = find(taken, known[chosen] - first)
            taken.check()
        return found

    def exposure_of(self, number: int) -> Exposure:
        """Returns what samples take of each conversation of a pair, which is opened; a pass over lengths and roles."""
        taken = self._taken(number)
        exposure = taken.exposure()
        taken.check()
        return exposure

    def fill(self, sequences: Int64s, row_offsets: Int64s, *, fill_id: int, out: Sample) -> None:
        """Fills rows, see `TakenConversations.fill`; each of conversations of one pair, one or more."""
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
    """Returns all conversations of a pair, as samples take them."""
    rows = Rows.of(range(len(data)))
    return TakenConversations(data, rows, config, reads_ahead, f"`{data.path_prefix}`", beside)
