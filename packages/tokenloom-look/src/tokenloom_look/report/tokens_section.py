"""The section "Tokens": tokens per byte, most frequent tokens and document ends, measured on a random sample.

The sample consists of token ranges that start at random places of all data; data with images is skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.inspect.shown import Special, special_tokens
from tokenloom.tokenizers.text_tokenizer import decoded
from tokenloom_look.html import Cell, Markup, element, facts, joined, table
from tokenloom_look.report.section import ReportOptions, Section, share
from tokenloom_look.target import Target

NUM_STRETCHES = 128
STRETCH_TOKENS = 1024
_NUM_ENDS = 128  # number of documents whose last token is checked
_MOST_TOKENS = 15
_MUCH_OF_ONE_TOKEN = 0.2
_MUCH_OF_ONE_BYTE = 0.5  # for small vocabularies, where spaces are a fifth of most texts
_MANY_TOKENS_PER_BYTE = 0.6  # subword vocabularies need 0.2 to 0.35 for their own languages, 0.5 for other scripts
_LARGE_VOCABULARY = 5000
_FEW_ENDS = 0.99


def tokens_section(target: Target, options: ReportOptions) -> Section | None:
    """Returns statistics of a random sample of tokens; None without tokens."""
    sample = sample_tokens(target, seed=options.seed)
    if not sample.num_tokens:
        return None
    html = [element("div", _facts(sample), _frequent(sample, target), class_="side-by-side")]
    if sample.undecodable is not None:
        html.append(element("p", f"Some stretches could not be decoded: {sample.undecodable}", class_="note"))
    return Section(id="tokens", title="Tokens", html=joined(html), findings=list(_findings(sample, target)))


def _facts(sample: TokenSample) -> Markup:
    eod = sample.eod
    pairs: list[tuple[str, Cell]] = [
        ("tokens in the sample", f"{sample.num_tokens:,}, in random stretches of the data"),
        ("distinct tokens", len(sample.counts)),
    ]
    if (per_byte := sample.tokens_per_byte) is not None:
        pairs.append(("tokens per byte of text", f"{per_byte:.3f}"))
        pairs.append(("bytes of text per token", f"{1 / per_byte:.2f}"))
    if eod is not None:
        pairs.append(("share of EOD", share(sample.counts[eod], sample.num_tokens)))
        ends = f"{share(sample.num_ends_with_eod, sample.num_ends)} of {sample.num_ends:,} documents in the sample"
        pairs.append(("end with EOD", ends if sample.num_ends else None))
    note = "Measured on a random sample, which depends on the seed."
    return element("div", facts(pairs), element("p", note, class_="note"))


def _frequent(sample: TokenSample, target: Target) -> Markup:
    rows: list[list[Cell]] = []
    for token, count in sorted(sample.counts.items(), key=lambda each: (-each[1], each[0]))[:_MOST_TOKENS]:
        text = _text(token, sample, target)
        rows.append([None if text is None else element("code", text), f"{token}", share(count, sample.num_tokens)])
    if target.tokenizer is None:
        return table(["id", "share"], [row[1:] for row in rows], caption="Most frequent tokens")
    return table(["token", "id", "share"], rows, caption="Most frequent tokens")


def _text(token: int, sample: TokenSample, target: Target) -> str | None:
    """Returns the spelling of a token, with quotes to show spaces; None if the spelling is unknown."""
    if token in sample.special and sample.special[token][1]:
        return sample.special[token][1]
    if target.tokenizer is None:
        return None
    try:
        return repr(decoded([token], target.tokenizer))
    except ValueError:
        return None


def _findings(sample: TokenSample, target: Target) -> Iterator[str]:
    ends, with_eod = sample.num_ends, sample.num_ends_with_eod
    if ends and with_eod < _FEW_ENDS * ends:
        some = f"Only {share(with_eod, ends)}" if with_eod else "None"
        yield f"{some} of {ends:,} documents in the sample end with EOD."
    vocabulary = max(sample.counts) + 1
    much = _MUCH_OF_ONE_TOKEN if vocabulary > _LARGE_VOCABULARY else _MUCH_OF_ONE_BYTE
    token, count = sample.counts.most_common(1)[0]
    if count > much * sample.num_tokens and len(sample.counts) > 1:
        text = _text(token, sample, target)
        name = f"Token {token}" if text is None else f"Token {token}, {text},"
        yield f"{name} is {share(count, sample.num_tokens)} of all tokens in the sample."
    per_byte = sample.tokens_per_byte
    if per_byte is not None and per_byte > _MANY_TOKENS_PER_BYTE and vocabulary > _LARGE_VOCABULARY:
        yield f"Texts need {per_byte:.2f} tokens per byte: the tokenizer may not suit their language."


@dataclass(slots=True, kw_only=True)
class TokenSample:
    """Statistics of random token ranges; `texts` has (number of bytes, number of tokens) of each decoded range."""

    num_tokens: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    num_ends: int = 0
    num_ends_with_eod: int = 0
    texts: list[tuple[int, int]] = field(default_factory=list)
    special: Special = field(default_factory=dict)
    undecodable: str | None = None

    @property
    def eod(self) -> int | None:
        return next((number for number, (kind, _) in self.special.items() if kind == "eod"), None)

    @property
    def tokens_per_byte(self) -> float | None:
        """Returns tokens per byte of text; None without decoded text."""
        num_bytes = sum(each[0] for each in self.texts)
        return sum(each[1] for each in self.texts) / num_bytes if num_bytes else None


def sample_tokens(
    target: Target, *, seed: int, num_stretches: int = NUM_STRETCHES, stretch_tokens: int = STRETCH_TOKENS
) -> TokenSample:
    """Measures `num_stretches` ranges of at most `stretch_tokens` tokens at places that `seed` chooses at random."""
    rng = np.random.default_rng([seed, 11])
    prefixes = [prefix for source in target.sources for prefix in source.prefixes]
    sizes = np.array([target.pairs.get(prefix).data.num_tokens for prefix in prefixes], dtype=np.int64)
    found = TokenSample()
    if not sizes.sum():
        return found
    drawn = np.sort(rng.integers(0, sizes.sum(), num_stretches))
    stops = np.cumsum(sizes)
    numbers = np.searchsorted(stops, drawn, side="right")
    ends = np.bincount(numbers, minlength=len(prefixes)) * _NUM_ENDS // num_stretches
    for number in np.unique(numbers).tolist():
        pair = target.pairs.get(prefixes[number])
        if pair.data.dtype.kind not in "iu" or pair.data.multimodal:
            continue
        found.special = special_tokens(target.tokenizer, pair.manifest)
        places = drawn[numbers == number] - (stops[number] - sizes[number])
        _add_stretches(found, pair.data, places, stretch_tokens, target)
        _add_ends(found, pair.data, rng.integers(0, max(1, pair.data.num_documents), ends[number]))
    return found


def _add_stretches(
    found: TokenSample, data: IndexedDataset, places: NDArray[np.int64], stretch_tokens: int, target: Target
) -> None:
    for stretch in _read(data, places, stretch_tokens):
        found.num_tokens += len(stretch)
        values, times = np.unique(stretch, return_counts=True)
        found.counts.update(dict(zip(values.tolist(), times.tolist(), strict=True)))
        if target.tokenizer is None:
            continue
        spoken = stretch[~np.isin(stretch, [*found.special])].tolist()
        try:
            text = decoded(spoken, target.tokenizer)
        except ConfigError as error:
            found.undecodable = error.message
            continue
        found.texts.append((len(text.encode("utf-8", "replace")), len(spoken)))


def _read(data: IndexedDataset, places: NDArray[np.int64], stretch_tokens: int) -> Iterator[NDArray[np.int64]]:
    """Yields up to `stretch_tokens` tokens from each place on, past document ends, but not past the end of a file."""
    itemsize = data.dtype.itemsize
    starts, stops = np.array([0], np.int64), np.array([data.num_tokens * itemsize], np.int64)
    if data.catalogue is not None:  # the pairs of a catalogue start at rounded offsets
        starts = np.array([section.start for section in data.catalogue.sections], dtype=np.int64)
        stops = starts + np.array([section.num_bytes for section in data.catalogue.sections], dtype=np.int64)
    before = np.cumsum(stops - starts) - (stops - starts)
    parts = np.searchsorted(before, places * itemsize, side="right") - 1
    offsets = starts[parts] + places * itemsize - before[parts]
    sizes = np.minimum(stops[parts] - offsets, stretch_tokens * itemsize)
    for stretch in data.byte_source.read_many(offsets.tolist(), sizes.tolist()):
        yield stretch.view(data.dtype).astype(np.int64)
    data.check_tokens(0, 0)


def _add_ends(found: TokenSample, data: IndexedDataset, documents: NDArray[np.int64]) -> None:
    """Counts how many of `documents` end with EOD; empty documents are skipped."""
    eod = found.eod
    if eod is None or not data.num_documents:
        return
    documents = np.unique(documents)
    bounds = np.stack([data.document_indices[documents], data.document_indices[documents + 1]])
    rows = (bounds[1] - 1)[bounds[1] > bounds[0]]
    lengths = data.sequence_lengths[rows].astype(np.int64)
    rows, lengths = rows[lengths > 0].astype(np.int64), lengths[lengths > 0]
    last = data.gather(rows, lengths - 1, np.ones(len(rows), dtype=np.int64))
    found.num_ends += len(last)
    found.num_ends_with_eod += int(np.count_nonzero(last == eod))
