"""Searches all documents of a run for texts, and reads records of input files again.

A search reads a few million tokens at a time, so memory is bounded. The first and last tokens of a text depend on the
text around it. So a search compares only ids from the middle of the text (`StableIds`), then decodes each match to
check the rest of the text. Whole documents are found by the hashes of their texts in `PREFIX.hashes.npy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, MissingObjectError
from tokenloom.indexed.columns import open_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import OriginFile
from tokenloom.inputs import STDIN, ReadLimits
from tokenloom.inputs.find import inspect_input, whole_file
from tokenloom.inputs.record_format import open_slice
from tokenloom.inputs.records import Texts, data_of, records_of
from tokenloom.inputs.streams import size_and_version
from tokenloom.numbers import quoted
from tokenloom.preprocess.selection import hash_documents
from tokenloom.run.audit.trace import PairRows, SpanTable
from tokenloom.run.lock import RunLock
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.settings import ObjectStorageSettings

_MOST_FOUND = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A match: index of the source, index of the document in the source, and range of tokens in the document."""

    source: int
    document: int
    start: int
    length: int


def find_ids(lock: RunLock, ids: Sequence[int], *, object_storage: ObjectStorageSettings | None = None) -> list[Match]:
    """Returns all matches of the consecutive ids `ids` in all documents, including held-out and denied documents.

    Reads all tokens: about 1 ns per token if the data is in memory. More than 100,000 matches raise `ConfigError`.
    """
    places = (place for *place, _ in _found(lock, ids, object_storage))
    return [Match(source=source, document=document, start=start, length=len(ids)) for source, document, start in places]


def find_text(
    lock: RunLock, text: str, tokenizer: Any, *, object_storage: ObjectStorageSettings | None = None
) -> list[Match]:
    """Returns the matches of a text in all documents; may miss matches in data tokenized with BPE dropout."""
    stable = StableIds.of(text, tokenizer)
    found = set()
    for source, document, start, (pair, row) in _found(lock, stable.ids, object_storage):
        if (place := stable.place_in(pair, row, start, tokenizer)) is not None:
            found.add(Match(source=source, document=document, start=place[0], length=place[1] - place[0]))
    return sorted(found, key=lambda match: (match.source, match.document, match.start))


def _found(
    lock: RunLock, ids: Sequence[int], object_storage: ObjectStorageSettings | None
) -> Iterator[tuple[int, int, int, tuple[IndexedDataset, int]]]:
    """Yields (source, document, start token in the document, (open pair, row in the pair)) for each match of `ids`."""
    num_found = 0
    for source, first, prefix in _pairs(lock):
        pair = IndexedDataset(prefix, object_storage=object_storage)
        for stretch in places_of_ids(pair, ids):
            num_found += len(stretch.rows)
            if num_found > _MOST_FOUND:
                raise ConfigError(f"found more than {_MOST_FOUND:,} matches", hint="search for a longer text")
            for row, start in zip(stretch.rows.tolist(), stretch.starts.tolist(), strict=True):
                yield source, first + row, start, (pair, row)


def _pairs(lock: RunLock) -> Iterator[tuple[int, int, str]]:
    """Yields (index of the source, index of the pair's first document in the source, prefix) for each pair."""
    rows = PairRows.of_lock(lock)
    for pair, (first, prefix) in enumerate(zip(rows.first_documents.tolist(), rows.prefixes, strict=True)):
        yield rows.source_of(pair), first, prefix


_CHUNK_HASHES = 1 << 22


def find_whole_texts(
    lock: RunLock, texts: Sequence[str], *, object_storage: ObjectStorageSettings | None = None
) -> tuple[list[tuple[int, int]], list[str]]:
    """Returns [(source, document)] of documents equal to one of `texts`, and the prefixes of pairs without hashes."""
    wanted = hash_documents([Texts(texts=list(dict.fromkeys(texts)))], len(set(texts)))
    found, missing, pairs = [], [], list(_pairs(lock))
    for source, first, prefix in pairs:
        opened = IndexedDataset(prefix, object_storage=object_storage)
        hashes = open_column(opened, "hashes")
        if hashes is None:
            missing.append(prefix)
            continue
        hashes.verify()
        for at in range(0, len(hashes.data), _CHUNK_HASHES):
            rows = hashes.data[at : at + _CHUNK_HASHES]
            some = np.flatnonzero(np.isin(rows[:, 0], wanted[:, 0]))
            same = (rows[some][:, None, :] == wanted[None, :, :]).all(axis=2).any(axis=1)
            for entry in (at + some[same]).tolist():
                begin, end = opened.document_indices[entry : entry + 2].tolist()
                found += [(source, first + row) for row in range(begin, end)]
    if len(missing) == len(pairs):
        hint = "tokenize with `tokenloom preprocess --document-hashes`, or search for a part of the text (`--tokens`)"
        raise ConfigError(f"none of {len(pairs)} pairs has document hashes", hint=hint)
    return found, missing


TOKENS_AT_ONCE = 1 << 22
_CHUNK_ROWS = 1 << 16
_NEIGHBORS = (" ", "\n", "a", "E", "1", ".", '"', "_", "é", "中")
"""Characters that are put before and after a text, to find which tokens of the text they change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StableIds:
    """The stable ids of a text: the token ids that do not depend on the surrounding text.

    Attributes:
        text: the whole text.
        ids: the stable ids.
        before, behind: maximum number of tokens of the text before the stable ids, and after the stable ids.
    """

    text: str
    ids: tuple[int, ...]
    before: int
    behind: int

    @classmethod
    def of(cls, text: str, tokenizer: Any) -> StableIds:
        """Finds the stable ids of `text`; raises `ConfigError` if there are none."""
        alone = [int(each) for each in tokenizer.tokenize(text)]
        first, last = 0, len(alone)
        for neighbor in _NEIGHBORS:
            before = [int(each) for each in tokenizer.tokenize(neighbor + text)]
            behind = [int(each) for each in tokenizer.tokenize(text + neighbor)]
            first = max(first, len(alone) - _common(alone[::-1], before[::-1]))
            last = min(last, _common(alone, behind))
        first, last = min(first + 1, len(alone)), last - 1  # margin for neighbors that are not in `_NEIGHBORS`
        if first >= last:
            message = f"all tokens of {quoted(text)} depend on the surrounding text"
            raise ConfigError(message, hint="pass more of the text, or search for its ids")
        # A text has at most as many tokens as bytes.
        num_before, num_behind = (len(tokenizer.detokenize(each).encode()) for each in (alone[:first], alone[last:]))
        return cls(text=text, ids=tuple(alone[first:last]), before=num_before + 1, behind=num_behind + 1)

    def place_in(self, pair: IndexedDataset, row: int, start: int, tokenizer: Any) -> tuple[int, int] | None:
        """Returns (begin, end) of a minimal token range around `start` that contains the text; None if none exists."""
        first = max(0, start - self.before)
        last = min(int(pair.sequence_lengths[row]), start + len(self.ids) + self.behind)
        tokens = pair.get(row, offset=first, length=last - first)
        tokens = (tokens[0] if pair.multimodal else tokens).tolist()
        at = start - first

        def contains(begin: int, end: int) -> bool:
            return self.text in tokenizer.detokenize(tokens[begin:end])

        if not contains(0, len(tokens)):
            return None
        for begin in range(at, -1, -1):
            end = next((end for end in range(at + len(self.ids), len(tokens) + 1) if contains(begin, end)), None)
            if end is not None and not contains(begin + 1, end) and not contains(begin, end - 1):
                return first + begin, first + end
        return None


def places_of_ids(
    pair: IndexedDataset, ids: Sequence[int], *, row: int = 0, start: int = 0, at_once: int = TOKENS_AT_ONCE
) -> Iterator[Spans]:
    """Searches for consecutive `ids`, from token `start` of sequence `row` on; yields the matches of each chunk."""
    limits = np.iinfo(pair.dtype) if pair.dtype.kind in "iu" else None
    if limits is None or not limits.min <= min(ids) <= max(ids) <= limits.max:
        return  # the dtype cannot hold these ids
    wanted = np.array(ids, dtype=pair.dtype)
    for span in stretches(pair.sequence_lengths, overlap=len(wanted) - 1, row=row, start=start, at_once=at_once):
        tokens = span.tokens_of(pair)
        candidates = np.flatnonzero(tokens[: max(0, len(tokens) - len(wanted) + 1)] == wanted[0])
        for place in range(1, len(wanted)):
            candidates = candidates[tokens[candidates + place] == wanted[place]]
        ends = np.cumsum(span.lengths)
        pieces = np.searchsorted(ends, candidates, side="right")
        inside = candidates + len(wanted) <= ends[pieces]
        pieces, candidates = pieces[inside], candidates[inside]
        starts = span.starts[pieces] + candidates - (ends[pieces] - span.lengths[pieces])
        lengths = np.full(len(pieces), len(wanted), dtype=np.int64)
        yield replace(span, rows=span.rows[pieces], starts=starts, lengths=lengths)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Token ranges of a pair: consecutive sequences, a part of one sequence, or the matches found in a chunk.

    Attributes:
        rows, starts, lengths: int64[num_spans]; range i is `[starts[i], starts[i] + lengths[i])` in sequence `rows[i]`.
        next_row, next_start: the next chunk begins at token `next_start` of sequence `next_row`.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    next_row: int
    next_start: int

    def tokens_of(self, pair: IndexedDataset) -> NDArray[Any]:
        """Returns the concatenated tokens of all ranges; uses one read if the file is not memory-mapped."""
        is_whole = len(self.rows) > 1 and not self.starts[0]
        if is_whole and (is_remote(pair.path_prefix) or not pair.mmap):
            found = pair[int(self.rows[0]) : int(self.rows[-1]) + 1]
            tokens: NDArray[Any] = np.concatenate(found[0] if pair.multimodal else found)
            return tokens
        return pair.gather(self.rows, self.starts, self.lengths)


def stretches(
    lengths: NDArray[np.int32], *, overlap: int, row: int = 0, start: int = 0, at_once: int = TOKENS_AT_ONCE
) -> Iterator[Spans]:
    """Divides sequences of these lengths into chunks of about `at_once` tokens, from token `start` of sequence `row`.

    A sequence longer than a chunk is cut into parts; each part repeats the last `overlap` tokens of the previous part.
    """
    size = at_once + overlap
    while row < len(lengths):
        own = lengths[row : row + _CHUNK_ROWS].astype(np.int64)
        if start or own[0] > size:  # a part of one sequence
            rows, starts = np.array([row], dtype=np.int64), np.array([start], dtype=np.int64)
            taken = np.minimum(own[:1] - start, size)
            is_last = start + taken[0] == own[0]
            row, start = (row + 1, 0) if is_last else (row, start + at_once)
        else:
            count = max(1, int(np.searchsorted(np.cumsum(own), size, side="right")))
            rows, starts, taken = np.arange(row, row + count), np.zeros(count, dtype=np.int64), own[:count]
            row += count
        yield Spans(rows=rows, starts=starts, lengths=taken, next_row=row, next_start=start)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the common prefix of two lists of ids."""
    return len(list(takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False))))


_BLOCK_BYTES = 4 << 20
_LIMITS = ReadLimits(max_record_bytes=1 << 30)
_TEXT_FORMATS = {"line": "text-lines", "file": "text-files"}
"""{unit of a record: input format} for files of undetected format; JSON lines in such a file are read as text."""


def input_problem(file: OriginFile) -> str | None:
    """Returns the reason why an input file cannot be read again (missing, changed, standard input); else None."""
    if file.path == STDIN:
        return "the input came from standard input and cannot be read again"
    try:
        num_bytes, version = size_and_version(file.path)
    except (FileNotFoundError, MissingObjectError):
        return f"`{file.path}` no longer exists"
    if num_bytes != file.num_bytes:
        return f"`{file.path}` has {num_bytes:,} bytes; it had {file.num_bytes:,} when it was tokenized"
    if file.version and version and version != file.version:
        return f"`{file.path}` was replaced or modified since it was tokenized"
    return None


def read_records(file: OriginFile, numbers: Iterable[int]) -> dict[int, str]:
    """Returns {number: record} for the given record numbers, from 1: a line unchanged, a table row as JSON."""
    wanted, found, done = set(numbers), dict[int, str](), 0
    inspected = inspect_input(file.path, default_format=_TEXT_FORMATS.get(file.unit))
    with closing(open_slice(whole_file(inspected), block_bytes=_BLOCK_BYTES, limits=_LIMITS)) as reader:
        for block in reader.blocks():
            first, done = done + 1, reader.num_rows
            if not wanted.isdisjoint(range(first, done + 1)):
                records = (record for record in records_of(block) if record.number in wanted)
                found |= {record.number: data_of(record).decode("utf-8", "replace") for record in records}
            if done >= max(wanted, default=0):
                break
    return found


def span_tokens(table: SpanTable, *, object_storage: ObjectStorageSettings | None = None) -> list[NDArray[Any]]:
    """Returns the tokens of each span, in the dtype of the span's pair; the array of a denied span is empty."""
    found: list[NDArray[Any]] = [np.empty(0, dtype=np.int64)] * len(table)
    pairs, rows = table.pairs()
    for pair in np.unique(pairs[~table.denied]).tolist():
        opened = IndexedDataset(table.pair_rows.prefixes[pair], object_storage=object_storage)
        chosen = np.flatnonzero(~table.denied & (pairs == pair))
        tokens = opened.gather(rows[chosen], table.starts[chosen], table.lengths[chosen])
        for number, part in zip(chosen.tolist(), np.split(tokens, np.cumsum(table.lengths[chosen])[:-1]), strict=True):
            found[number] = part
    return found
