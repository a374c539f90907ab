"""Samples as spans and tokens: what a model is fed, with its loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.shortcuts import sample_of
from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.inspect.open_pairs import OpenPair, OpenPairs
from tokenloom.inspect.shown import NO_PART, NO_SPAN, Shown, ShownSpan, SpecialTokens, TokenKind, texts_of
from tokenloom.inspect.shown_documents import part_kinds
from tokenloom.inspect.token_texts import Detokenizer
from tokenloom.rendering.words import counted
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.run.audit.trace import trace_dataset, trace_megatron
from tokenloom.run.lock import RunLock

_NONE = -100
"""The label of a token without loss, of conversations."""

_REARRANGED = (
    "the tokens are not those of their documents in their order, as fill in the middle makes them; "
    "spans are only listed"
)


def shown_sample(
    dataset: Any,
    position: int,
    tokenizer: Detokenizer | None,
    *,
    pairs: OpenPairs | None = None,
    lock: RunLock | None = None,
) -> Shown:
    """Returns what stands at a position, the extra token for the last label included.

    Args:
        dataset: a run's dataset, a blend, or one of our datasets, that gives `tokens`, `labels` and `loss_mask`.
        position: the position.
        tokenizer: what decodes it; None for ids.
        pairs: where pairs are opened, so that they stay open from one call to the next.
        lock: of a run in the reference's order, whose dataset does not know it.

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
    stored = lock is not None and lock.is_megatron
    table = trace_megatron(dataset, lock, [position]) if stored and lock else trace_dataset(dataset, [position])
    spans, opened = _spans(table, OpenPairs() if pairs is None else pairs)
    fed = _fed(sample, spans, opened)
    ids, size = fed.ids, len(fed.ids)
    loss = np.concatenate([[False], np.asarray(sample["loss_mask"]) > 0])[:size]
    manifest = next((pair.manifest for pair in opened if pair is not None), None)
    special = SpecialTokens.of(tokenizer, manifest)
    kinds = np.full(size, TokenKind.padding, dtype=np.uint8)
    spans_of = np.full(size, NO_SPAN, dtype=np.int32)
    parts = np.full(size, NO_PART, dtype=np.int8)
    texts = [""] * size
    if fed.is_rearranged:
        stop = _end_of_text(ids, loss)
        kinds[:stop], texts[:stop] = special.kinds(ids[:stop]), texts_of(ids[:stop], tokenizer, special)
    else:
        for number, (span, pair) in enumerate(zip(spans, opened, strict=True)):
            stop = min(span.slot + span.stop - span.start, size)
            here = slice(span.slot, stop)
            spans_of[here] = number
            kinds[here] = TokenKind.denied if span.denied else special.kinds(ids[here])
            if not span.denied:
                texts[here] = texts_of(ids[here], tokenizer, special)
                if pair is not None:
                    parts[here] = part_kinds(pair, span.row, span.start, span.start + stop - span.slot)
    return Shown(
        heading=f"position {position:,}",
        facts=tuple(_facts(table, ids, kinds, loss)),
        notes=fed.notes,
        spans=tuple(spans),
        num_tokens=size,
        ids=ids,
        texts=tuple(texts),
        kinds=kinds,
        spans_of=spans_of,
        parts=parts,
        loss=loss,
        has_texts=tokenizer is not None,
    )


def _spans(table: SpanTable, pairs: OpenPairs) -> tuple[list[ShownSpan], list[OpenPair | None]]:
    """Returns the spans of a sample, and the pair of each; None where the data are made up."""
    spans, opened = [], []
    numbers, rows = table.pairs()
    for number, row, found in zip(numbers.tolist(), rows.tolist(), table.rows(), strict=True):
        prefix = table.pair_rows.prefixes[number]
        pair = _pair(pairs, prefix)
        place = None if pair is None else pair.place(row)
        spans.append(
            ShownSpan(
                source=found["source"],
                prefix="" if pair is None else prefix,
                document=found["document"] if place is None or table.run is not None else place.document,
                row=row,
                sequence=0 if place is None else place.sequence,
                num_sequences=1 if place is None else place.num_sequences,
                start=found["start"],
                stop=found["start"] + found["length"],
                num_tokens=None if pair is None else int(pair.data.sequence_lengths[row]),
                slot=found["slot"],
                denied=found["denied"],
                origin=None if pair is None or place is None else pair.origin(place.document),
            )
        )
        opened.append(pair)
    return spans, opened


def _pair(pairs: OpenPairs, prefix: str) -> OpenPair | None:
    """Returns the pair that a sample was read from; None where it was made up, and its name leads to nothing."""
    try:
        return pairs.get(prefix)
    except DatasetNotFoundError:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Fed:
    """What a model is fed.

    Attributes:
        ids: int64[num_tokens], the extra token for the last label included.
        is_rearranged: whether they are not those of the spans.
        notes: what is unusual.
    """

    ids: NDArray[np.int64]
    is_rearranged: bool = False
    notes: tuple[str, ...] = ()


def _fed(sample: Mapping[str, Any], spans: Sequence[ShownSpan], opened: Sequence[OpenPair | None]) -> _Fed:
    """Returns what a model is fed, compared with the data."""
    tokens, labels = (np.asarray(sample[name]).astype(np.int64) for name in ("tokens", "labels"))
    has_extra = any(span.slot + span.stop - span.start > len(tokens) for span in spans)
    ids = np.concatenate([tokens, labels[-1:]]) if has_extra else tokens
    differing: list[tuple[int, int]] = []
    for span, pair in zip(spans, opened, strict=True):
        if pair is None or span.denied or span.start == span.stop:
            continue
        found = np.asarray(pair.data.get(span.row, span.start, span.stop - span.start)).astype(np.int64)
        last = span.slot + len(found) - 1
        is_label_only = 0 < last < len(ids) and ids[last] != found[-1] and labels[last - 1] in (found[-1], _NONE)
        if is_label_only:  # of samples without the last token of a conversation
            ids[last] = found[-1]
        here = ids[span.slot : span.slot + len(found)]
        wrong = here != found[: len(here)]
        differing += zip(found[: len(here)][wrong].tolist(), here[wrong].tolist(), strict=True)
    if not differing:
        return _Fed(ids)
    kinds = Counter(differing)
    (was, fed), count = kinds.most_common(1)[0]
    if len(kinds) > 1 or fed != 0:
        return _Fed(ids, is_rearranged=True, notes=(_REARRANGED,))
    return _Fed(
        ids, notes=(f"the pad id, {was}, stands in the data {counted(count, 'time')}: it is fed as 0, without loss",)
    )


def _end_of_text(ids: NDArray[np.int64], loss: NDArray[np.bool_]) -> int:
    """Returns where the padding begins at the end of ids that no span explains: equal ones, without loss."""
    is_padding = (ids == ids[-1]) & ~loss
    stop = len(ids) - int(np.argmin(is_padding[::-1])) if not is_padding.all() else 0
    return stop if len(ids) - stop > 1 else len(ids)


def _facts(
    table: SpanTable, ids: NDArray[np.int64], kinds: NDArray[np.uint8], loss: NDArray[np.bool_]
) -> list[tuple[str, str]]:
    row = next(table.rows(), None)
    facts = []
    if row is not None:
        facts.append(("source", row["source"]))
        facts += [(name, f"{row[name]:,}") for name in ("pass", "window") if row[name] is not None]
        facts += [] if row["stage"] is None else [("stage", str(row["stage"]))]
    padding = int(np.isin(kinds, (TokenKind.padding, TokenKind.denied)).sum())
    return [*facts, ("tokens", f"{len(ids):,}"), ("with loss", f"{int(loss.sum()):,}"), ("padding", f"{padding:,}")]
