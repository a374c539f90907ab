"""`tokenloom contamination`: finds passages of benchmarks in tokenized data, and the first step of a run to read one.

Every n-gram of words (see `tokenloom.kernels.ngrams`) is searched in the decoded tokens. A passage never contains a
special token, and never continues in the next document.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import accumulate, islice
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.options import JsonOption, Position, Written, refuse_usage
from tokenloom.cli.output import Answer, say, table
from tokenloom.cli.run_options import NO_STEPS, BatchSizes
from tokenloom.datasets.columns import LOSS_WEIGHT
from tokenloom.errors import ConfigError, MissingTokenError, OutputBusyError, StorageError
from tokenloom.indexed import IndexedDataset, add_column, open_column, read_columns
from tokenloom.indexed.layout import idx_path, prefix_of
from tokenloom.indexed.manifests import fingerprint_of
from tokenloom.indexed.prefixes import expand_prefixes
from tokenloom.inputs import ReadLimits
from tokenloom.inputs.find import find_inputs, whole_file
from tokenloom.inputs.record_format import open_slice
from tokenloom.inputs.records import parse_block
from tokenloom.inputs.utf8_texts import utf8_texts
from tokenloom.inspect.texts import Spans, stretches
from tokenloom.kernels.ngrams import BytesTable, Int64s, NgramIndex
from tokenloom.loading.from_data import tokenizer_of_data
from tokenloom.machine import usable_processors
from tokenloom.optional import require
from tokenloom.progress import task
from tokenloom.rendering.words import counted, lines_of, name_of, printable
from tokenloom.run.audit.trace import SpanTable
from tokenloom.run.run import Run
from tokenloom.setting_types import Count
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import publish_bytes
from tokenloom.tokenizers import HuggingFaceTokenizer, TextTokenizer
from tokenloom.tokenizers.plain import ByteTokenizer
from tokenloom.tokenizers.text_tokenizer import decoded
from tokenloom.tokenizers.tiktoken_ranks import TiktokenTokenizer

_PASSAGE_END = b"\xff"
_ALL_BYTES = [bytes([value]) for value in range(256)]
_OVERLAP_TOKENS = 1 << 16  # between two parts of a long document; a longer passage across a cut is missed
_BLOCK_TOKENS = 1 << 21
_BLOCKS_PER_PART = 64
_POLL_SECONDS = 1.0
_MOST_HITS = 10_000_000
_BLOCK_BYTES = 1 << 20
_LIMITS = ReadLimits(max_record_bytes=1 << 28)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Benchmarks:
    """The items of benchmark files, an item per record. The fields of an item are searched separately."""

    names: tuple[str, ...]  # paths of the files
    files: NDArray[np.int32]  # int32[num_items], the file index of each item
    records: Int64s  # int64[num_items], the line or row of each item, from 1
    texts: Sequence[str]  # the fields of all items
    items: Int64s  # int64[num_texts], the index of the item of each text
    index: NgramIndex  # the n-grams of `texts`
    num_grams: Int64s  # int64[num_items], the number of n-grams of each item; 0 for an item that is too short


def read_benchmarks(
    paths: Sequence[str], *, fields: Sequence[str] = ("text",), words: int = 13, least_words: int = 5
) -> Benchmarks:
    """Reads benchmark files, in any format of `preprocess`, and indexes the n-grams of `words` words in `fields`.

    A field with fewer than `words` words is searched as a whole if it has at least `least_words` words, else not at
    all. In text files each line is an item.
    """
    inputs = find_inputs(paths).files
    texts: list[str] = []
    items, files, records = list[int](), list[int](), list[int]()
    for number, file in enumerate(inputs):
        with closing(open_slice(whole_file(file), block_bytes=_BLOCK_BYTES, keys=fields, limits=_LIMITS)) as reader:
            for block in reader.blocks():
                parsed = parse_block(block, fields)
                if parsed.bad_lines:
                    message = f"{parsed.bad_lines[0].place}: {parsed.bad_lines[0].reason}"
                    raise ConfigError(message, hint="pass the fields of the benchmark with --field")
                own = np.arange(parsed.num_documents)
                for column in parsed.columns:
                    ends = own + 1 if column.document_ends is None else column.document_ends
                    items += np.repeat(len(files) + own, np.diff(ends, prepend=0)).tolist()
                    texts += column.texts
                records += (block.first_record + np.delete(np.arange(parsed.num_records), parsed.skipped)).tolist()
                files += [number] * parsed.num_documents
    if empty := [file.path for number, file in enumerate(inputs) if number not in set(files)]:
        raise ConfigError(f"`{empty[0]}` has no items")
    whole = utf8_texts(texts)
    index = NgramIndex(whole.content, whole.offsets, length=words, least=least_words)
    return Benchmarks(
        names=tuple(file.path for file in inputs),
        files=np.array(files, dtype=np.int32),
        records=np.array(records, dtype=np.int64),
        texts=whole,
        items=np.array(items, dtype=np.int64),
        index=index,
        num_grams=np.bincount(items, np.diff(index.gram_offsets), minlength=len(files)).astype(np.int64),
    )


def token_bytes(tokenizer: TextTokenizer) -> BytesTable | None:
    """Returns the bytes of each token, `_PASSAGE_END` for special ones; None if these do not join to the text."""
    table = [_PASSAGE_END] * tokenizer.vocab_size
    if isinstance(tokenizer, ByteTokenizer):
        table[:256] = _ALL_BYTES
    elif isinstance(tokenizer, TiktokenTokenizer):
        for token in tokenizer.backend.token_byte_values():
            table[tokenizer.backend.encode_single_token(token)] = token
    elif isinstance(tokenizer, HuggingFaceTokenizer):
        if (json.loads(tokenizer.backend.to_str()).get("decoder") or {}).get("type") != "ByteLevel":
            return None
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the alphabet of GPT-2, a letter for each byte
        hidden = [value for value in range(256) if value not in shown]
        values = {chr(value): value for value in shown} | {chr(256 + k): value for k, value in enumerate(hidden)}
        for spelling, number in tokenizer.vocab.items():
            is_plain = all(letter in values for letter in spelling)
            table[number] = bytes(values[letter] for letter in spelling) if is_plain else spelling.encode()
        for spelling, number in tokenizer.special_tokens.items():  # some are ordinary text
            table[number] = spelling.encode()
    else:
        return None
    for number in _special_ids(tokenizer):
        table[number] = _PASSAGE_END
    return BytesTable(table)


def _special_ids(tokenizer: TextTokenizer) -> list[int]:
    """Returns the ids of tokens that end a passage."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        added = tokenizer.backend.get_added_tokens_decoder().items()
        found = [number for number, each in added if each.special]
    else:
        found = list(getattr(tokenizer, "special_tokens", {}).values())
    for role in ("eod", "bos", "pad"):
        with suppress(MissingTokenError):
            found.append(getattr(tokenizer, role))
    return found


Sources = Mapping[str, tuple[str, ...]]
"""Pair prefixes by source name; document indices count over all pairs of a source, as in `run.lock`."""


class Passages(NamedTuple):
    """Passages found in documents: arrays int64[count], sorted by item, source, document and start.

    A passage is the tokens [start, stop) of a document in which `num_grams` consecutive n-grams of an item were found.
    The first of them has index `first_grams` among the n-grams of all texts. Document indices count within the source.
    """

    items: Int64s
    sources: Int64s
    documents: Int64s
    starts: Int64s
    stops: Int64s
    first_grams: Int64s
    num_grams: Int64s

    def longest(self) -> Int64s:
        """Returns, for each (item, document), the index of its longest passage, int64[count], in ascending order."""
        order = np.argsort(-self.num_grams, kind="stable")
        keys = np.stack([self.items, self.sources, self.documents])[:, order]
        longest: Int64s = order[np.unique(keys, axis=1, return_index=True)[1]]
        return longest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contamination:
    """The result of a search: the n-grams of benchmark items that are in the data, and their places."""

    benchmarks: Benchmarks  # the arguments of the search
    sources: Sources
    tokenizer: TextTokenizer
    coverage: NDArray[np.float64]  # float64[num_items], the share of each item's n-grams found anywhere in the data
    passages: Passages  # the places where they were found
    num_tokens: int  # number of tokens searched

    def passage(self, number: int) -> dict[str, Any]:
        """Returns the passage with index `number` as JSON values, with its text in the item and in the document."""
        index = self.benchmarks.index
        _, source, document, start, stop, first, count = (int(column[number]) for column in self.passages)
        text = int(np.searchsorted(index.gram_offsets, first, side="right")) - 1
        word, last = index.word_offsets[text : text + 2].tolist()
        gram, end = index.gram_offsets[text : text + 2].tolist()
        first_word = word + first - gram
        ranges = index.word_ranges[first_word : first_word + count + (last - word) - (end - gram)]
        name, prefixes = list(self.sources.items())[source]
        _, before, pair = next(each for each in _pairs_of({name: prefixes}) if document < each[1] + len(each[2]))
        return {
            "source": name,
            "document": document,
            "start": start,
            "length": stop - start,
            "num_consecutive": count,
            "of_item": self.benchmarks.texts[text].encode()[int(ranges[0, 0]) : int(ranges[-1, 1])].decode(),
            "of_document": decoded(pair.get(document - before, start, stop - start).tolist(), self.tokenizer),
        }


def find_contamination(
    benchmarks: Benchmarks,
    sources: Sources,
    tokenizer: TextTokenizer,
    *,
    num_threads: int = 1,
    folder: str | None = None,
) -> Contamination:
    """Searches all tokens for the n-grams of benchmarks. A passage that continues in another sequence is not found.

    The hits of each part of the data are saved in `folder`, so that a killed search resumes there. All processes that
    pass the same folder share the search; each returns the whole result, once all parts are searched.
    """
    search = partial(_search, benchmarks.index, token_bytes(tokenizer), tokenizer)
    own = None if folder is None else os.path.join(folder, _key(benchmarks, sources, tokenizer))
    found, num_tokens = [np.empty((0, 6), dtype=np.int64)], 0
    with task("search", unit="tokens") as advance, ThreadPoolExecutor(num_threads) as executor:

        def search_part(blocks: Sequence[_Block]) -> Int64s:
            return np.concatenate([found[0], *executor.map(search, blocks)])

        for blocks, hits in _search_parts(sources, search_part, folder=own):
            found.append(hits)
            _check_count(sum(map(len, found)), most=_MOST_HITS)
            count = sum(int(span.lengths.sum()) for *_, span in blocks)
            num_tokens += count
            advance(count)
    hits = np.concatenate(found)
    index = benchmarks.index
    texts = np.repeat(np.arange(len(benchmarks.items)), np.diff(index.gram_offsets))
    is_found = np.isin(index.grams, hits[:, 5])
    counts = np.bincount(benchmarks.items[texts], is_found, minlength=len(benchmarks.files))
    return Contamination(
        benchmarks=benchmarks,
        sources=sources,
        tokenizer=tokenizer,
        coverage=counts / np.maximum(1, benchmarks.num_grams),
        passages=_passages(hits, index.grams, texts, benchmarks.items),
        num_tokens=num_tokens,
    )


def _check_count(count: int, *, most: int) -> None:
    if count > most:
        message = f"too many matches: {count:,}; the maximum is {most:,}"
        raise ConfigError(message, hint="use longer n-grams (--words) or fewer benchmarks")


_Block = tuple[int, int, IndexedDataset, Spans]
"""The index of a source, the index of a pair's first document in the source, the pair, and sequences of the pair."""


def _parts(sources: Sources) -> Iterator[list[_Block]]:
    """Yields the parts of the data, each a list of blocks, in an order that depends only on the data."""
    blocks = (
        (number, first, pair, span)
        for number, first, pair in _pairs_of(sources)
        for span in stretches(pair.sequence_lengths, overlap=_OVERLAP_TOKENS, at_once=_BLOCK_TOKENS)
    )
    while part := list(islice(blocks, _BLOCKS_PER_PART)):
        yield part


def _pairs_of(sources: Sources) -> Iterator[tuple[int, int, IndexedDataset]]:
    """Yields all pairs, each with the index of its source and the index of its first document in the source."""
    for number, prefixes in enumerate(sources.values()):
        first = 0
        for pair in map(IndexedDataset, prefixes):
            yield number, first, pair
            first += len(pair)


def _search_parts(
    sources: Sources, search: Callable[[list[_Block]], Int64s], *, folder: str | None
) -> Iterator[tuple[list[_Block], Int64s]]:
    """Yields each part of the data with its hits; processes with the same folder divide the search of the parts.

    A process locks byte n of the lock file while it searches part n. The lock ends when the process dies.
    """
    if folder is None:
        yield from ((blocks, search(blocks)) for blocks in _parts(sources))
        return
    os.makedirs(folder, exist_ok=True)
    done: set[int] = set()
    with open(os.path.join(folder, "lock"), "ab") as claims:
        while True:
            num_others = 0  # parts that other processes are searching
            for number, blocks in enumerate(_parts(sources)):
                path = os.path.join(folder, f"{number}.npy")
                if number in done:
                    continue
                if not os.path.exists(path):
                    try:
                        fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                    except BlockingIOError:
                        num_others += 1
                        continue
                    except OSError as error:
                        raise StorageError(f"`{folder}`: cannot lock a part: {error.strerror}") from error
                    if not os.path.exists(path):
                        content = BytesIO()
                        np.save(content, search(blocks))
                        publish_bytes(path, content.getvalue())
                    fcntl.lockf(claims, fcntl.LOCK_UN, 1, number)
                done.add(number)
                yield blocks, np.load(path)
            if not num_others:
                return
            time.sleep(_POLL_SECONDS)


def _key(benchmarks: Benchmarks, sources: Sources, tokenizer: TextTokenizer) -> str:
    """Returns a hash of everything that determines the hits: n-grams, tokenizer and index files."""
    paths = [idx_path(prefix) for prefixes in sources.values() for prefix in prefixes]
    stamps = [(os.path.getsize(path), os.stat(path).st_mtime_ns) for path in paths if not is_remote(path)]
    index = benchmarks.index
    grams = [hashlib.sha256(array.tobytes()).hexdigest() for array in (index.grams, index.gram_offsets)]
    facts = [list(benchmarks.texts), grams, paths, stamps, fingerprint_of(tokenizer), tokenizer.path]
    return hashlib.sha256(json.dumps([list(map(len, sources.values())), *facts]).encode()).hexdigest()[:32]


def _search(index: NgramIndex, table: BytesTable | None, tokenizer: TextTokenizer, block: _Block) -> Int64s:
    """Returns int64[num_hits, 6]: source, document, last word, first token, token after the last, and n-gram."""
    source, first, pair, span = block
    tokens = span.tokens_of(pair)
    ends = np.cumsum(span.lengths)
    is_end_cut = bool(span.starts[-1] + span.lengths[-1] < pair.sequence_lengths[int(span.rows[-1])])
    cut = bool(span.starts[0]), is_end_cut
    try:
        if table is None:
            hits = _search_decoded(index, np.split(tokens, ends[:-1]), tokenizer, cut)
        else:
            hits = index.search(tokens.astype(np.uint32), ends, table, cut=cut)
    except IndexError as error:
        message = f"`{pair.path_prefix}` has {error}, but `{tokenizer.path}` has {tokenizer.vocab_size:,} tokens"
        raise ConfigError(message, hint="pass the tokenizer of the data with --tokenizer") from error
    found = np.insert(hits, 0, source, axis=1)
    found[:, 1] = first + span.rows[hits[:, 0]]
    found[:, 3:5] += span.starts[hits[:, 0]][:, None]
    return found


_BYTES = BytesTable(_ALL_BYTES)


def _search_decoded(
    index: NgramIndex, rows: Sequence[NDArray[Any]], tokenizer: TextTokenizer, cut: tuple[bool, bool]
) -> Int64s:
    """Decodes documents in Python and searches the texts; finds the tokens of a hit by bisection."""
    special = _special_ids(tokenizer)

    def text_of(ids: NDArray[Any]) -> bytes:
        places = np.flatnonzero(np.isin(ids, special))
        pieces = np.split(ids, np.stack([places, places + 1], axis=1).ravel())[::2]
        return _PASSAGE_END.join(tokenizer.detokenize(piece.tolist()).encode(errors="replace") for piece in pieces)

    def token_at(ids: NDArray[Any], byte: int) -> int:
        found = bisect_right(range(len(ids)), byte, key=lambda last: len(text_of(ids[: last + 1])))
        return min(found, len(ids) - 1)

    texts = list(map(text_of, rows))
    data = np.frombuffer(b"".join(texts), dtype=np.uint8)
    hits = index.search(data.astype(np.uint32), np.array(list(accumulate(map(len, texts)))), _BYTES, cut=cut)
    for hit in hits:
        ids, start, last = rows[hit[0]], int(hit[2]), int(hit[3]) - 1
        hit[2:4] = token_at(ids, start), token_at(ids, last) + 1
    return hits


def _pairs(wanted: NDArray[Any], keys: NDArray[Any]) -> tuple[Int64s, Int64s]:
    """Returns all pairs (i, j) with `wanted[i] == keys[j]`, as an array of i, ascending, and an array of j."""
    order = np.argsort(keys, kind="stable")
    first, stop = (np.searchsorted(keys[order], wanted, side=side) for side in ("left", "right"))
    each = stop - first
    _check_count(int(each.sum()), most=10 * _MOST_HITS)
    index = np.repeat(np.arange(len(wanted)), each)
    return index, order[np.repeat(first - (np.cumsum(each) - each), each) + np.arange(len(index))]


def _passages(hits: Int64s, grams: NDArray[np.uint32], texts: Int64s, items: Int64s) -> Passages:
    """Joins hits that are consecutive both in an item and in a document into passages."""
    hit, place = _pairs(hits[:, 5], grams)
    sources, documents, words = hits[hit, :3].T
    shared = np.stack([texts[place], sources, documents, words - place])
    order = np.lexsort((words, *shared[::-1]))
    hit, place, words = hit[order], place[order], words[order]
    joins = (np.diff(shared[:, order], axis=1) == 0).all(axis=0) & (np.diff(words) == 1)
    begins = np.flatnonzero(np.concatenate([[True], ~joins])[: len(hit)])
    ends = np.append(begins[1:], len(hit))[: len(begins)] - 1
    columns = [items[texts[place[begins]]], *hits[hit[begins]][:, [0, 1, 3]].T, hits[hit[ends], 4]]
    # Blocks of a long document overlap, so a passage may be found twice.
    rows = np.unique(np.stack([*columns, place[begins], ends - begins + 1], axis=1), axis=0)
    return Passages(*rows.T)


def passages_read(passages: Passages, spans: SpanTable) -> tuple[Int64s, Int64s]:
    """Returns all pairs of a passage and a sample that reads it: passage indices and positions, int64[count] each.

    Denied spans are ignored.
    """
    kept = spans.take(np.flatnonzero(~spans.denied))
    keys = kept.sources.astype(np.int64) << 44 | kept.documents
    passage, span = _pairs(passages.sources << 44 | passages.documents, keys)
    begins, ends = kept.starts[span], kept.starts[span] + kept.lengths[span]
    touches = (begins < passages.stops[passage]) & (passages.starts[passage] < ends)
    return passage[touches], kept.positions[span[touches]]


def check_no_other_weights(sources: Sources) -> None:
    """Raises ConfigError if a pair already has a column `loss_weight` whose rows are not one weight per label."""
    for *_, pair in _pairs_of(sources):
        there = read_columns(pair).get(LOSS_WEIGHT)
        if there is not None and (there.kind, there.of, len(there.shape)) != ("token", "label", 1):
            message = f"expected a number per label in column `{LOSS_WEIGHT}` of `{pair.path_prefix}`, "
            message += f"found shape {[*there.shape]}, a row per {there.kind}, of {there.of}s"
            raise ConfigError(message, hint=f"remove it: `tokenloom column remove {pair.path_prefix} {LOSS_WEIGHT}`")


def write_masks(found: Contamination) -> int:
    """Sets the loss weights of passages to 0, in the column `loss_weight` of each pair.

    Returns the number of masked tokens. Other tokens keep their weights. If processes share the search, one of them
    writes the column of a pair.
    """
    passages, num_masked = found.passages, 0
    made_by = f"tokenloom contamination {_key(found.benchmarks, found.sources, found.tokenizer)}"
    for number, first, pair in _pairs_of(found.sources):
        rows = passages.documents - first
        own = (passages.sources == number) & (rows >= 0) & (rows < len(pair))
        begins = pair.first_tokens(rows[own])
        order = np.argsort(passages.starts[own] + begins)
        starts = (passages.starts[own] + begins)[order]
        stops = np.maximum.accumulate((passages.stops[own] + begins)[order])
        before = np.concatenate([starts[:1], stops])[:-1]
        num_masked += int((stops - np.maximum(starts, before)).sum())
        while (there := read_columns(pair).get(LOSS_WEIGHT)) is None or there.made_by != made_by:
            padding, dtype = (0.0, "uint8") if there is None else (there.padding, there.dtype)
            options: dict[str, Any] = {"dtype": dtype, "padding": padding, "of": "label", "made_by": made_by}
            try:
                add_column(pair.path_prefix, LOSS_WEIGHT, _masked(pair, starts, stops), overwrite=True, **options)
            except OutputBusyError:
                time.sleep(_POLL_SECONDS)
    return num_masked


def _masked(pair: IndexedDataset, starts: Int64s, stops: Int64s) -> Iterator[NDArray[Any]]:
    """Yields blocks of the weights of all tokens: 0 in the ranges [start, stop), which ascend, else as before, or 1."""
    column = open_column(pair, LOSS_WEIGHT)
    for first in range(0, pair.num_tokens, _BLOCK_TOKENS):
        last = min(first + _BLOCK_TOKENS, pair.num_tokens)
        weights = np.ones(last - first, dtype=np.uint8) if column is None else column.data[first:last].copy()
        some = slice(np.searchsorted(stops, first, side="right"), np.searchsorted(starts, last))
        for start, stop in zip(starts[some].tolist(), stops[some].tolist(), strict=True):
            weights[max(0, start - first) : stop - first] = 0
        yield weights


_MOST_SHOWN = 10
_IN_RUN = "contamination of a run"
_COLUMNS = {
    **dict.fromkeys(("benchmark", "source", "of_item", "of_document"), "string"),
    **dict.fromkeys(("record", "num_ngrams", "num_positions", "first_position", "first_step"), "int64"),
    **dict.fromkeys(("document", "start", "length", "num_consecutive"), "int64"),
    "coverage": "float64",
}
"""The columns of `--output`: Arrow type by name."""


@dataclass(frozen=True, kw_only=True)
class Options(JsonOption, BatchSizes):
    """Search benchmarks in tokenized data: all their n-grams of words, and short items as a whole. Case, punctuation,
    white space and Unicode form are ignored; Chinese, Japanese, Thai, Lao, Khmer and Burmese use n-grams of characters.
    With --run, also report which past and future positions and steps read a passage. Exits with 1 if a passage was
    found or for an error, else with 0.

    Attributes:
        benchmarks: benchmark files with an item per record: JSON lines, Parquet, CSV, or text with an item per line.
        data: prefixes of pairs, globs or folders.
        run_path: run.toml of a run, whose sources are searched.
        fields: text field of the items (default text); repeat the option for more fields.
        words: words of an n-gram, 8 to 50.
        least_words: search fields with fewer words than an n-gram as a whole, if they have at least N.
        tokenizer: tokenizer.json or its folder (default: the tokenizer of the data).
        threads: number of threads (default: one per processor).
        parts: save the results of each part of the data in FOLDER. A killed search resumes there, and all processes
            with the same arguments share the search, on one machine or several.
        save_interval: steps between checkpoints, to report the last checkpoint before any benchmark text was read.
        until_position: ignore samples from position N on.
        path_to_cache: folder of the index cache of a run with order = "megatron".
        deny: write the documents with passages to FILE, for `documents` of a [[denied]] table and `tokenloom deny`.
        mask: write a column `loss_weight` for all searched data: 0 for tokens of passages, 1 for others. An existing
            column keeps its other weights. A run uses the column if `columns` of [samples] names it.
        output: write a row per item and document to FILE.parquet.
        json: print one JSON object: words, num_tokens, num_masked (with --mask), and three lists of objects.
            `benchmarks`: benchmark, items, too_short, found, coverage, documents, and with --run num_read, num_seen,
            first_position, first_step, clean_checkpoint. `sources`: source, items, documents. `items`: benchmark,
            record, coverage, num_ngrams, with --run num_positions, first_position, first_step, and `passages`, a list
            with the longest passage in each document.
    """

    benchmarks: Annotated[tuple[str, ...], Written(metavar="BENCHMARK", is_positional=True)] = ()
    data: Annotated[tuple[str, ...], Written(metavar="PREFIX")] = ()
    run_path: Annotated[str | None, Written(names=("--run",), metavar="RUN")] = None
    fields: Annotated[tuple[str, ...], Written(names=("--field",), metavar="NAME", is_repeated=True)] = ()
    words: Count = 13
    least_words: Count = 5
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None
    threads: Count | None = None
    parts: Annotated[str | None, Written(metavar="FOLDER")] = None
    save_interval: Annotated[Count | None, Written(group=_IN_RUN)] = None
    until_position: Annotated[Position | None, Written(group=_IN_RUN)] = None
    path_to_cache: Annotated[str | None, Written(metavar="FOLDER", group=_IN_RUN)] = None
    deny: Annotated[str | None, Written(metavar="FILE", group=_IN_RUN)] = None
    mask: bool = False
    output: Annotated[str | None, Written(metavar="FILE")] = None

    def __post_init__(self) -> None:
        if bool(self.data) == (self.run_path is not None):
            refuse_usage("give either --data or --run")
        if not 8 <= self.words <= 50:
            refuse_usage(f"--words must be in [8, 50], got {self.words}")
        if self.run_path is None and (self.deny is not None or self.save_interval is not None):
            refuse_usage("--deny and --save-interval need --run")
        if self.save_interval is not None and not self.has_batch_sizes:
            refuse_usage(NO_STEPS)
        if self.output is not None and not self.output.endswith(".parquet"):
            refuse_usage(f"--output must end in .parquet, got {self.output!r}")


def run(options: Options) -> Answer:
    opened = None if options.run_path is None else Run.open(options.run_path, path_to_cache=options.path_to_cache)
    fields, least_words = options.fields or ("text",), min(options.least_words, options.words)
    benchmarks = read_benchmarks(options.benchmarks, fields=fields, words=options.words, least_words=least_words)
    if opened is None:
        sources: Sources = {prefix: (prefix,) for prefix in map(prefix_of, expand_prefixes(options.data))}
    else:
        sources = {source.name: tuple(pair.prefix for pair in source.pairs) for source in opened.lock.sources}
    if opened is not None and options.tokenizer is None and opened.lock.tokenizer is not None:
        tokenizer = opened.tokenizer.loaded
    else:
        tokenizer = tokenizer_of_data(options.tokenizer, [prefix for pairs in sources.values() for prefix in pairs])
    stop = None if opened is None else options.position_of(options.until_position, opened.lock)
    if opened is not None and stop is None and opened.num_samples is None:
        raise ConfigError(f"`{opened.path}`: the last stage has no end", hint="pass --until-position or --until-step")
    if options.mask:
        check_no_other_weights(sources)
    if cut := [pair.path_prefix for *_, pair in _pairs_of(sources) if pair.num_documents != len(pair)]:
        what = f"{counted(len(cut), 'pair')} with documents of several sequences, such as `{cut[0]}`"
        say(f"{what}: passages across two sequences are not found")
    num_threads = options.threads or usable_processors()
    found = find_contamination(benchmarks, sources, tokenizer, num_threads=num_threads, folder=options.parts)
    rows = _Rows(found, opened, options, stop)
    num_masked = write_masks(found) if options.mask else None
    if options.deny is not None:
        publish_bytes(options.deny, "".join(f"{name}\n" for name in rows.document_names()).encode())
    if options.output is not None:
        arrow, parquet = require("pyarrow", extra="parquet"), require("pyarrow.parquet", extra="parquet")
        values = [item | passage for item in rows.items() for passage in item.pop("passages")]
        schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in _COLUMNS.items()])
        parquet.write_table(arrow.Table.from_pylist(values, schema=schema), sink := arrow.BufferOutputStream())
        publish_bytes(options.output, sink.getvalue().to_pybytes())
    record: dict[str, Any] | None = None
    if options.json:
        record = {"words": options.words, "num_tokens": found.num_tokens}
        record |= {} if num_masked is None else {"num_masked": num_masked}
        record |= {"benchmarks": list(rows.benchmarks()), "sources": list(rows.sources()), "items": list(rows.items())}
    return Answer(record, _lines(rows, num_masked), status=1 if len(rows.found_items) else 0)


class _Rows:
    """The results as rows of JSON values, by benchmark, source and item, with the positions that read them."""

    def __init__(self, found: Contamination, opened: Run | None, options: Options, stop: int | None) -> None:
        self.found, self.options, self.stop, self.is_run = found, options, stop, opened is not None
        passages = found.passages
        items = np.unique(passages.items)
        self.found_items: Int64s = items[np.argsort(-found.coverage[items], kind="stable")]
        self._longest = passages.longest()
        self._documents = np.unique(np.stack([passages.sources, passages.documents]), axis=1)
        self._read: Int64s = np.empty((2, 0), dtype=np.int64)  # items, and positions that read them
        if opened is not None:
            self._consumed, self._sizes = opened.lock.consumed, options.batch_sizes(opened.lock)
            sources, documents = self._documents
            by_source = {source: documents[sources == source] for source in np.unique(sources).tolist()}
            which, positions = passages_read(passages, opened.occurrences(by_source, stop=stop))
            self._read = np.unique(np.stack([passages.items[which], positions]), axis=1)

    def document_names(self) -> list[str]:
        names = list(self.found.sources)
        return [f"{names[source]}:{document}" for source, document in self._documents.T.tolist()]

    def _first_read(self, positions: Int64s) -> dict[str, Any]:
        first = int(positions.min()) if len(positions) else None
        step = None if first is None or self._sizes is None else self._sizes.step_of_position(first)
        return {"first_position": first, "first_step": step}

    def benchmarks(self) -> Iterator[dict[str, Any]]:
        benchmarks, passages = self.found.benchmarks, self.found.passages
        for number, name in enumerate(benchmarks.names):
            of_file = benchmarks.files == number
            items, rows = self.found_items[of_file[self.found_items]], np.flatnonzero(of_file[passages.items])
            num_grams = benchmarks.num_grams[of_file]
            row: dict[str, Any] = {
                "benchmark": name,
                "items": len(num_grams),
                "too_short": int((num_grams == 0).sum()),
                "found": len(items),
                "coverage": float((self.found.coverage[of_file] * num_grams).sum() / max(1, int(num_grams.sum()))),
                "documents": len(np.unique(np.stack([passages.sources[rows], passages.documents[rows]]), axis=1).T),
            }
            if self.is_run:
                seen = self._read[0, self._read[1] < self._consumed]
                row["num_read"] = int(np.isin(items, self._read[0]).sum())
                row["num_seen"] = int(np.isin(items, seen).sum()) if self._consumed else None
                row |= self._first_read(self._read[1, np.isin(self._read[0], items)])
                step, interval = row["first_step"], self.options.save_interval
                row["clean_checkpoint"] = None if step is None or interval is None else step // interval * interval
            yield row

    def sources(self) -> Iterator[dict[str, Any]]:
        passages = self.found.passages
        for number, name in enumerate(self.found.sources):
            rows = np.flatnonzero(passages.sources == number)
            counts = [len(np.unique(each[rows])) for each in (passages.items, passages.documents)]
            yield {"source": name, "items": counts[0], "documents": counts[1]}

    def items(self) -> Iterator[dict[str, Any]]:
        """Yields items, highest coverage first, with `passages`: the longest one of each document, longest first."""
        benchmarks, passages = self.found.benchmarks, self.found.passages
        for item in self.found_items.tolist():
            row = {
                "benchmark": benchmarks.names[int(benchmarks.files[item])],
                "record": int(benchmarks.records[item]),
                "coverage": float(self.found.coverage[item]),
                "num_ngrams": int(benchmarks.num_grams[item]),
            }
            if self.is_run:
                positions = self._read[1, slice(*np.searchsorted(self._read[0], [item, item + 1]))]
                row |= {"num_positions": len(positions), **self._first_read(positions)}
            own = self._longest[slice(*np.searchsorted(passages.items[self._longest], [item, item + 1]))]
            longest_first = own[np.argsort(-passages.num_grams[own], kind="stable")]
            yield row | {"passages": [self.found.passage(each) for each in longest_first.tolist()]}


def _lines(rows: _Rows, num_masked: int | None) -> Iterator[str]:
    benchmarks, options = list(rows.benchmarks()), rows.options
    cells = []
    for row in benchmarks:
        counts = [row[name] for name in ("items", "too_short", "found")]
        cells.append((os.path.basename(row["benchmark"]), *counts, f"{row['coverage']:.2%}", row["documents"]))
    yield from table(("benchmark", "items", "too short", "found", "n-grams", "documents"), cells)
    yield f"{rows.found.num_tokens:,} tokens searched for n-grams of {options.words} words"
    for source in rows.sources():
        if source["documents"]:
            found = f"{counted(source['items'], 'item')} in {counted(source['documents'], 'document')}"
            yield f"  {name_of(source['source'], width=40)}: {found}"
    if rows.is_run:
        yield ""
        for row in benchmarks:
            yield from _lines_of_run(row, "" if rows.stop is None else f" before position {rows.stop:,}")
    for item in islice(rows.items(), _MOST_SHOWN):
        yield from _lines_of_item(item)
    if len(rows.found_items) > _MOST_SHOWN:
        yield f"\n… and {counted(len(rows.found_items) - _MOST_SHOWN, 'item')} more; --json prints all"
    if num_masked is not None:
        yield f'\n{counted(num_masked, "token")} masked: `columns = ["loss_weight"]` in [samples] applies it'
    if options.deny is not None:
        yield f"\n{options.deny}: {counted(len(rows.document_names()), 'document')} to deny"


def _place(row: dict[str, Any]) -> str:
    return f"position {row['first_position']:,}" if row["first_step"] is None else f"step {row['first_step']:,}"


def _lines_of_run(row: dict[str, Any], until: str) -> Iterator[str]:
    """Yields lines about the part of a benchmark that a run reads."""
    name = name_of(os.path.basename(row["benchmark"]), width=30)
    if row["too_short"] == row["items"]:
        yield f"{name}: not searched, all items are too short"
    elif row["first_position"] is None:
        yield f"{name}: clean, no step reads any passage{until}"
    else:
        seen = "" if row["num_seen"] is None else f", {row['num_seen']:,} by now"
        yield f"{name}: clean up to {_place(row)}; {counted(row['num_read'], 'item')} read from there on{until}{seen}"
        if (checkpoint := row["clean_checkpoint"]) is not None:
            yield f"  last clean checkpoint: {f'step {checkpoint:,}' if checkpoint else 'none'}"


def _lines_of_item(item: dict[str, Any]) -> Iterator[str]:
    """Yields lines with the coverage of an item, and its longest passage as text of the item and of the document."""
    passages = item["passages"]
    found = f"{item['coverage']:.0%} of {counted(item['num_ngrams'], 'n-gram')}, {counted(len(passages), 'document')}"
    yield f"\n{name_of(os.path.basename(item['benchmark']), width=30)}:{item['record']}  {found}"
    number = str(passages[0]["document"])
    label = f"{name_of(passages[0]['source'], width=max(4, 19 - len(number)))}:{number}"
    for heading, text in (("item", passages[0]["of_item"]), (label, passages[0]["of_document"])):
        first, *others = lines_of(printable(" ".join(text.split()), keep=""), 54)
        yield f"  {heading:<20} {first}{' …' if others else ''}"
    if item.get("first_position") is not None:
        yield f"  first read at {_place(item)}, by {counted(item['num_positions'], 'position')} in all"
