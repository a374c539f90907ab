"""The sections "Example samples" and "Example documents", with boundaries, special tokens and loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tokenloom.inspect.shown import Shown
from tokenloom_look.html import Markup, element, joined
from tokenloom_look.report.document_lengths import DocumentLengths
from tokenloom_look.report.section import ReportOptions, Section
from tokenloom_look.shown_html import legend_html, shown_html
from tokenloom_look.target import Target, TargetKind

MOST_TOKENS = 600  # maximum tokens to show of a sample
_MOST_OF_DOCUMENT = 300
_MOST_DOCUMENTS = 20_000_000  # larger data is not shuffled just to show some samples


def samples_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns the first sample and random other samples, at most `num_samples_shown`; None without samples."""
    num_documents = sum(source.num_documents for source in target.sources)
    if not options.num_samples_shown or not num_documents:
        return None
    if target.run is None and target.kind is not TargetKind.blend and num_documents > _MOST_DOCUMENTS:
        words = f"Not shown: {num_documents:,} documents are too many to shuffle for a report."
        return Section(id="samples", title="Example samples", html=element("p", words))
    if target.run is None and _are_too_few(target):
        return None
    if target.samples is None:
        return None
    count = target.num_positions
    positions = _choose_positions(options.num_samples_shown, 1 << 30 if count is None else count, seed=options.seed)
    html = [_render(target.sample(position), f"Position {position:,}") for position in positions]
    words = "The first sample and random ones, as a model reads them."
    if target.run is None:
        settings = target.settings
        words += f" Shown with {settings.sequence_length:,} tokens per sample and seed {settings.seed}."
    return Section(id="samples", title="Example samples", html=joined([element("p", words), *html]))


def shown_documents_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns the first, the longest, the shortest, and `num_samples_shown` random documents."""
    if not options.num_samples_shown:
        return None
    html = []
    for source, document, words in _documents(target, options):
        html.append(_render(target.document(source, document, count=_MOST_OF_DOCUMENT), words))
    return Section(id="shown-documents", title="Example documents", html=joined(html)) if html else None


def _documents(target: Target, options: ReportOptions) -> Iterator[tuple[int, int, str]]:
    """Yields (source, index in the source, caption) of the documents to show, each document once."""
    filled = [source for source in target.sources if source.num_documents]
    if not filled:
        return
    seen = set()
    largest = max(filled, key=lambda source: source.num_tokens)
    chosen = [(filled[0].number, 0, "First document")]
    lengths = DocumentLengths(target.pairs.get(prefix).data for prefix in largest.prefixes)
    first_pair = int(target.pair_rows.first_pairs[largest.number])
    found = [("Longest document", lengths.longest), ("Shortest non-empty document", lengths.shortest)]
    chosen += [(*target.named(first_pair + place[2], place[1]), words) for words, place in found if place is not None]
    rng = np.random.default_rng([options.seed, 12])
    weights = np.array([source.num_tokens + 1 for source in filled], dtype=np.float64)
    for number in rng.choice(len(filled), options.num_samples_shown, p=weights / weights.sum()).tolist():
        chosen.append((filled[number].number, int(rng.integers(filled[number].num_documents)), "Random document"))
    for source, document, words in chosen:
        if (source, document) not in seen:
            seen.add((source, document))
            yield source, document, words


def _are_too_few(target: Target) -> bool:
    num_tokens = sum(source.num_tokens for source in target.sources)
    return num_tokens <= (target.settings.sequence_length if target.settings.window_policy == "concat" else 1)


def _choose_positions(count: int, num_positions: int, *, seed: int) -> list[int]:
    """Returns position 0 and at most `count` - 1 random positions below `num_positions`, ascending."""
    rng = np.random.default_rng([seed, 13])
    drawn = rng.integers(0, num_positions, count - 1).tolist() if num_positions else []
    return sorted({0, *drawn})[:num_positions]


def _render(shown: Shown, heading: str, *, most: int = MOST_TOKENS) -> Markup:
    begin = beginning(shown, most)
    left = shown.num_tokens - begin.first - len(begin.tokens)
    rest = [element("p", f"{left:,} more tokens are not shown.", class_="note")] if left > 0 else []
    facts = ", ".join(f"{name} {value}" for name, value in shown.facts)
    has_loss = any(token.loss is not None for token in shown.tokens)
    shown_facts = [element("p", facts, class_="note")] if has_loss else []  # facts of documents are in their headings
    body = [*shown_facts, Markup(legend_html(begin)), Markup(shown_html(begin, tokens=False, level=4)), *rest]
    return element("article", element("h3", heading), *body)


def beginning(shown: Shown, count: int) -> Shown:
    """Returns the first `count` tokens of a sample or document, with their spans."""
    if count >= len(shown.tokens):
        return shown
    spans = [span for span in shown.spans if span.slot < count]
    spans = [replace(span, stop=min(span.stop, span.start + count - span.slot)) for span in spans]
    return replace(shown, spans=tuple(spans), tokens=shown.tokens[:count])
