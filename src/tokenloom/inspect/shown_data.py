"""Documents and samples of data as spans and tokens: what lies in a pair, and what a model is fed, with its loss."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from tokenloom.datasets.shortcuts import sample_of
from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.images import IMAGE_MODE, item_to_image
from tokenloom.indexed.manifests import Manifest, manifest_of
from tokenloom.indexed.origins import Origins, read_origins
from tokenloom.indexed.roles import PartKind, SequenceRoles, has_roles, read_roles
from tokenloom.inspect.shown import PADDING, Shown, ShownSpan, ShownToken, Special, special_tokens, tokens_of
from tokenloom.rendering.words import counted
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.run.audit.trace import trace_dataset
from tokenloom.run.run import Run
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_CONTEXT = 8
"""Tokens before and after a window that are decoded with it: a character may begin or end there."""

_NO_LABEL = -100
"""The label of a token without loss, of conversations."""

_REARRANGED = "the tokens are not those of their documents in their order, as fill in the middle makes them"


class OpenPair:
    """A pair, and what lies beside it, opened when it is first asked for. Safe from several threads.

    Args:
        prefix: path of the pair without suffix.
        object_storage: how to read what lies in object storage.

    Attributes:
        prefix: as it was named.
        data: the tokens.

    Raises:
        DatasetNotFoundError, DatasetFormatError: there is no such pair, or it is none; so also when what lies beside it
            is asked for.
    """

    def __init__(self, prefix: str, *, object_storage: ObjectStorageSettings | None = None) -> None:
        self.prefix = prefix
        self._object_storage = object_storage
        data = IndexedDataset(prefix, mmap=False, object_storage=object_storage)
        if data.index.has_modes:
            data = IndexedDataset(prefix, multimodal=True, mmap=False, object_storage=object_storage)
        self.data = data

    @cached_property
    def manifest(self) -> Manifest | None:
        """What the pair was made of; None if nobody wrote that down."""
        return manifest_of(self.data)

    @cached_property
    def origins(self) -> Origins | None:
        """Which records its documents were made of; None if that is not known."""
        return read_origins(self.prefix, object_storage=self._object_storage)

    @cached_property
    def roles(self) -> SequenceRoles | None:
        """Which of its tokens are prompts and answers; None for plain text."""
        return read_roles(self.data) if has_roles(self.data) else None

    def document_of(self, row: int) -> int:
        """Returns which document a row of the index belongs to; the last of them, where some have no sequences."""
        return bisect_right(self.data.document_indices, row) - 1  # NumPy copies arrays that lie at odd addresses first

    def rows_of(self, document: int) -> range:
        """Returns the rows of the index that a document has."""
        return range(*(int(row) for row in self.data.document_indices[document : document + 2]))

    def origin(self, document: int) -> str | None:
        """Returns the record that a document was made of, as `FILE:N` with N from 1; None if that is not known."""
        if self.origins is None:
            return None
        files, records = self.origins.locate(np.array([document], dtype=np.int64))
        return None if files[0] < 0 else f"{self.origins.files[int(files[0])].path}:{int(records[0])}"

    def is_image(self, row: int) -> bool:
        """Whether a sequence is an image."""
        return self.data.multimodal and int(self.data.sequence_modes[row]) == IMAGE_MODE

    def ids(self, row: int, start: int, stop: int) -> list[int]:
        """Returns tokens of a sequence."""
        found = self.data.get(row, start, stop - start)
        ids: list[int] = (found[0] if self.data.multimodal else found).tolist()
        return ids

    def parts(self, row: int, start: int, stop: int) -> Sequence[str | None]:
        """Returns whether tokens of a sequence are "prompt", "answer" or "text"; None each where that is not known."""
        if self.roles is None:
            return [None] * (stop - start)
        return [PartKind(kind).name for first, last, kind in self.roles.of(row) for _ in range(first, last)][start:stop]


class OpenPairs:
    """Pairs by prefix, by `get`; the 64 that were asked for last stay open. Safe from several threads."""

    def __init__(self, *, object_storage: ObjectStorageSettings | None = None) -> None:
        self.get: Callable[[str], OpenPair] = lru_cache(64)(partial(OpenPair, object_storage=object_storage))


def shown_document(
    pair: OpenPair, document: int, tokenizer: TextTokenizer | None, *, first: int = 0, count: int | None = None
) -> Shown:
    """Returns a document, or some tokens of it; reads no others.

    Args:
        pair: the pair.
        document: number of the document in the pair; negative ones count from the end.
        tokenizer: what decodes it; None for ids.
        first: the first token to show; of an image, all count as one.
        count: how many; None for the rest.

    Raises:
        IndexError: there is no such document.
        ConfigError: the tokenizer cannot decode it.
    """
    if not -pair.data.num_documents <= document < pair.data.num_documents:
        message = f"document {document} of `{pair.prefix}` was asked for, but it has {pair.data.num_documents}"
        raise IndexError(message)
    document %= pair.data.num_documents
    origin, special = pair.origin(document), special_tokens(tokenizer, pair.manifest)
    spans: list[ShownSpan] = []
    tokens: list[ShownToken] = []
    num_tokens, rows = 0, pair.rows_of(document)
    for sequence, row in enumerate(rows):
        length = 1 if pair.is_image(row) else int(pair.data.sequence_lengths[row])
        start = max(first - num_tokens, 0)
        stop = length if count is None else min(first + count - num_tokens, length)
        num_tokens += length
        if start > stop or (start == stop and length):
            continue
        span = ShownSpan(
            source=pair.prefix,
            prefix=pair.prefix,
            document=document,
            row=row,
            sequence=sequence,
            num_sequences=len(rows),
            start=start,
            stop=stop,
            num_tokens=length,
            slot=len(tokens),
            origin=origin,
        )
        tokens += _tokens_in(pair, span, tokenizer, special, len(spans))
        spans.append(span)
    facts = [("tokens", f"{num_tokens:,}")]
    facts += [("sequences", f"{len(rows):,}")] if len(rows) != 1 else []
    facts += [("made of", origin)] if origin is not None else []
    return Shown(
        heading=f"document {document:,} of {pair.prefix}",
        facts=tuple(facts),
        spans=tuple(spans),
        first=first,
        num_tokens=num_tokens,
        tokens=tuple(tokens),
    )


def _tokens_in(
    pair: OpenPair, span: ShownSpan, tokenizer: TextTokenizer | None, special: Special, number: int
) -> list[ShownToken]:
    """Returns the tokens of a span, decoded with what stands around them."""
    if pair.is_image(span.row):
        item = pair.data[span.row][0]
        try:
            text = f"image of {len(item_to_image(item)):,} bytes"
        except DatasetFormatError:  # what a mode means is up to whoever wrote the data
            text = f"{counted(len(item), 'token')} of mode {IMAGE_MODE}, no image"
        return [ShownToken(-1, text, "image", span=number)]
    begin, end = max(span.start - _CONTEXT, 0), min(span.stop + _CONTEXT, int(pair.data.sequence_lengths[span.row]))
    ids, parts = pair.ids(span.row, begin, end), pair.parts(span.row, begin, end)
    return tokens_of(ids, tokenizer, special, parts=parts, span=number)[span.start - begin : span.stop - begin]


def shown_sample(
    dataset: Any,
    position: int,
    tokenizer: TextTokenizer | None,
    *,
    pairs: OpenPairs | None = None,
    run: Run | None = None,
) -> Shown:
    """Returns what stands at a position, the extra token for the last label included.

    Args:
        dataset: a run's dataset, a blend, or one of our datasets, that gives `tokens`, `labels` and `loss_mask`.
        position: the position.
        tokenizer: what decodes it; None for ids.
        pairs: where pairs are opened, so that they stay open from one call to the next.
        run: the run of a dataset that does not know it; what is held out does.

    Raises:
        IndexError: there is no such position.
        ConfigError: the samples are of another kind, or the tokenizer cannot decode them.
        DatasetFormatError, DatasetNotFoundError: the data are not what they were.
    """
    sample = sample_of(dataset, position)
    if not {"tokens", "labels", "loss_mask"} <= sample.keys():
        message = f"expected samples with `tokens`, `labels` and `loss_mask`, found {', '.join(map(repr, sample))}"
        raise ConfigError(message, hint="samples of BERT and T5 cannot be shown by token; look at their documents")
    position += len(dataset) if position < 0 else 0
    table = trace_dataset(dataset, [position]) if run is None else run.trace([position])
    spans, opened = _spans(table, OpenPairs() if pairs is None else pairs)
    ids, notes = _fed(sample, spans, opened)
    loss = [False, *(np.asarray(sample["loss_mask"]) > 0).tolist()]
    special = special_tokens(tokenizer, opened[0].manifest if opened else None)
    tokens = [ShownToken(number) for number in ids]
    if _REARRANGED in notes:  # then the last tokens that are equal and have no loss are padding
        stop = 1 + max((slot for slot, each in enumerate(ids) if each != ids[-1] or loss[slot]), default=-1)
        tokens[:stop] = tokens_of(ids[:stop], tokenizer, special)
        opened = []
    for number, (span, pair) in enumerate(zip(spans, opened, strict=False)):
        here = slice(span.slot, span.slot + span.stop - span.start)
        if span.denied:
            tokens[here] = [replace(token, kind="denied", span=number) for token in tokens[here]]
        else:
            parts = pair.parts(span.row, span.start, span.stop)
            tokens[here] = tokens_of(ids[here], tokenizer, special, parts=parts, span=number)
    tokens = [replace(token, loss=trained) for token, trained in zip(tokens, loss, strict=False)]
    row = next(table.rows(), {})
    facts = [(name, row[name]) for name in ("source", "pass", "window", "stage") if row.get(name) is not None]
    facts += [("tokens", len(tokens)), ("with loss", sum(token.loss is True for token in tokens))]
    facts += [("padding", sum(token.kind in PADDING for token in tokens))]
    return Shown(
        heading=f"position {position:,}",
        facts=tuple((name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in facts),
        notes=notes,
        spans=tuple(spans),
        num_tokens=len(tokens),
        tokens=tuple(tokens),
    )


def _spans(table: SpanTable, pairs: OpenPairs) -> tuple[list[ShownSpan], list[OpenPair]]:
    """Returns the spans of a sample, and the pair of each."""
    spans, opened = [], []
    numbers, rows = table.pairs()
    for number, row, found in zip(numbers.tolist(), rows.tolist(), table.rows(), strict=True):
        pair = pairs.get(table.pair_rows.prefixes[number])
        document = pair.document_of(row)
        spans.append(
            ShownSpan(
                source=found["source"],
                prefix=pair.prefix,
                document=document if table.run is None else found["document"],
                row=row,
                sequence=row - pair.rows_of(document).start,
                num_sequences=len(pair.rows_of(document)),
                start=found["start"],
                stop=found["start"] + found["length"],
                num_tokens=int(pair.data.sequence_lengths[row]),
                slot=found["slot"],
                denied=found["denied"],
                origin=pair.origin(document),
            )
        )
        opened.append(pair)
    return spans, opened


def _fed(
    sample: Mapping[str, Any], spans: Sequence[ShownSpan], opened: Sequence[OpenPair]
) -> tuple[list[int], tuple[str, ...]]:
    """Returns what a model is fed, the extra token for the last label included, and how it differs from the data."""
    ids, labels = (np.asarray(sample[name]).tolist() for name in ("tokens", "labels"))
    if any(span.slot + span.stop - span.start > len(ids) for span in spans):
        ids.append(labels[-1])
    differing: Counter[tuple[int, int]] = Counter()
    for span, pair in zip(spans, opened, strict=True):
        found = [] if span.denied else pair.ids(span.row, span.start, span.stop)
        last = span.slot + len(found) - 1
        if found and 0 < last < len(ids) and ids[last] != found[-1] and labels[last - 1] in (found[-1], _NO_LABEL):
            ids[last] = found[-1]  # the last token of a conversation, which may be a label only
        here = ids[span.slot : last + 1]
        differing.update((was, fed) for was, fed in zip(found, here, strict=False) if was != fed)
    if not differing:
        return ids, ()
    [((was, fed), count)] = differing.most_common(1)
    if len(differing) > 1 or fed != 0:
        return ids, (_REARRANGED,)
    return ids, (f"the pad id, {was}, stands in the data {counted(count, 'time')}: it is fed as 0, without loss",)
