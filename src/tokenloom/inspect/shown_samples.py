"""Samples as spans and tokens: what a model is fed, with its loss."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.inspect.open_pairs import OpenPair, OpenPairs
from tokenloom.inspect.shown import NO_PART, NO_SPAN, Shown, ShownSpan, SpecialTokens, TokenKind, texts_of
from tokenloom.inspect.shown_documents import part_kinds
from tokenloom.inspect.token_texts import Detokenizer
from tokenloom.run.audit.span_table import SpanTable
from tokenloom.run.audit.trace import trace_dataset, trace_megatron
from tokenloom.run.lock import RunLock

_REARRANGED = (
    "the tokens are not in the order of their documents, as fill in the middle makes them: spans are listed only"
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
    stored = lock is not None and lock.is_megatron
    table = trace_megatron(dataset, lock, [position]) if stored and lock else trace_dataset(dataset, [position])
    sample = dataset.sample(position)
    if not {"tokens", "labels", "loss_mask"} <= sample.keys():
        message = f"expected samples with `tokens`, `labels` and `loss_mask`, found {', '.join(map(repr, sample))}"
        raise ConfigError(message, hint="samples of BERT and T5 cannot be shown by token; look at their documents")
    spans, opened = _spans(table, OpenPairs() if pairs is None else pairs)
    tokens, labels = np.asarray(sample["tokens"]), np.asarray(sample["labels"])
    has_extra = any(span.slot + span.stop - span.start > len(tokens) for span in spans)
    ids = np.concatenate([tokens, labels[-1:]] if has_extra else [tokens]).astype(np.int64)
    loss = np.concatenate([[False], np.asarray(sample["loss_mask"]) > 0])[: len(ids)]
    manifest = next((pair.manifest for pair in opened if pair is not None), None)
    special = SpecialTokens.of(tokenizer, manifest)
    kinds = np.full(len(ids), TokenKind.padding, dtype=np.uint8)
    spans_of = np.full(len(ids), NO_SPAN, dtype=np.int32)
    parts = np.full(len(ids), NO_PART, dtype=np.int8)
    texts = [""] * len(ids)
    notes = []
    if _is_rearranged(ids, spans, opened):
        notes.append(_REARRANGED)
        kinds, texts = special.kinds(ids), list(texts_of(ids, tokenizer, special))
    else:
        for number, (span, pair) in enumerate(zip(spans, opened, strict=True)):
            stop = min(span.slot + span.stop - span.start, len(ids))
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
        notes=tuple(notes),
        spans=tuple(spans),
        num_tokens=len(ids),
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
                document=found["document"],
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


def _is_rearranged(ids: NDArray[np.int64], spans: list[ShownSpan], opened: list[OpenPair | None]) -> bool:
    """Whether the ids are not those of the spans; a pad id in the data is fed as another, so that a few may differ."""
    different = whole = 0
    for span, pair in zip(spans, opened, strict=True):
        if pair is not None and not span.denied:
            found = np.asarray(pair.data.get(span.row, span.start, span.stop - span.start))
            shown = ids[span.slot : span.slot + len(found)]
            different += int((shown != found[: len(shown)]).sum())
            whole += len(shown)
    return different > whole // 8


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
