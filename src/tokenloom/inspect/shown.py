"""Decodes documents and samples into `Shown` objects (spans and tokens), and formats such an object as lines.

The report and the explorer of `tokenloom-look` convert a `Shown` to HTML.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import groupby, repeat
from typing import Any, Literal, NamedTuple

import numpy as np

from tokenloom.datasets.shortcuts import sample_of
from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.indexed.columns import has_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import IMAGE_MODE, item_to_image
from tokenloom.indexed.manifests import Manifest, manifest_of, optional_attribute, optional_number
from tokenloom.indexed.origins import Origins, read_origins
from tokenloom.indexed.roles import NAME, PartKind, SequenceRoles, read_roles
from tokenloom.rendering.words import Piece, cell_width, counted, lines_of, printable
from tokenloom.run.audit.trace import SpanTable, trace_dataset
from tokenloom.run.run import Run
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.text_tokenizer import TextTokenizer, decoded

PARTIAL, NEWLINE, TAB, ESCAPE = "▏", "↵", "→", r"\x1b"
SIGNS = {
    PARTIAL: "a token that ends within a character",
    NEWLINE: "line break",
    TAB: "tab",
    ESCAPE: "an invisible character",
}
"""{symbol: meaning} of the symbols that are displayed for invisible text."""

LEGEND = {
    "loss": "with loss: the model learns to predict it",
    "no-loss": "without loss: the model only reads it",
    "prompt": "prompt: input of the assistant",
    "answer": "answer: output of the assistant",
    "eod": "end of document",
    "bos": "beginning of document",
    "special": "special token",
    "padding": "padding",
    "denied": "padding for a denied document",
    "image": "image",
}
"""{style: meaning} of the styles of tokens, see `ShownToken.styles`."""

Kind = Literal["text", "eod", "bos", "special", "padding", "denied", "image"]
PADDING = ("padding", "denied")
"""The kinds of padding tokens; consecutive padding tokens are displayed as a count."""

Special = Mapping[int, tuple[Kind, str]]
"""{id: (kind, text)} of special tokens, see `special_tokens`."""

_BROKEN = "\ufffd"


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token for display.

    Attributes:
        id: the token's id; -1 for an image.
        text: the text that the token adds to the text of the tokens before it; "" if the token ends within a character.
            Without a tokenizer, the id, then a space. May contain control characters: pass the text to `printable`.
        kind: "text", or a key of `LEGEND`.
        part: "prompt", "answer" or "text" in a conversation; else None.
        loss: whether the token has loss as a label; None if a document is displayed instead of a sample.
        span: index in `Shown.spans` of the token's span; None for a token outside all spans.
    """

    id: int
    text: str = ""
    kind: Kind = "padding"
    part: str | None = None
    loss: bool | None = None
    span: int | None = None

    @property
    def words(self) -> str:
        """The text, in brackets for an image. If the text is empty and the kind is not "text": the kind in brackets."""
        if self.kind == "image" or not (self.text or self.kind == "text"):
            return f"[{self.text or LEGEND[self.kind]}]"
        return self.text

    @property
    def styles(self) -> tuple[str, ...]:
        """The keys of `LEGEND` for the kind, part and loss; a value None or "text" has no key."""
        loss = {True: "loss", False: "no-loss", None: "text"}[self.loss]
        return tuple(style for style in (self.kind, self.part or "text", loss) if style != "text")

    @property
    def look(self) -> tuple[str, ...] | None:
        """A key: consecutive tokens with equal keys are displayed together, and each token with the key None alone."""
        return (self.kind, *self.styles) if self.kind in ("text", *PADDING) else None

    @property
    def teaching(self) -> str:
        """The part and the loss in words, such as "answer, with loss"; "" for padding and for tokens with neither."""
        named = () if self.kind in PADDING else ("prompt", "answer", "loss", "no-loss")
        return ", ".join(LEGEND[style].partition(":")[0] for style in self.styles if style in named)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSpan:
    """Consecutive tokens of one sequence of a document.

    Attributes:
        source: name of the source in a run; outside runs, the prefix of the pair.
        prefix: prefix of the pair.
        document: index of the document in its source.
        row: index of the sequence in the `.idx` file.
        sequence, num_sequences: index of the sequence in the document, and number of sequences in the document.
        start, stop: half-open range of the tokens in the sequence.
        num_tokens: length of the whole sequence.
        slot: index in `Shown.tokens` of the span's first token.
        denied: whether the tokens are replaced by padding.
        origin: input record of the document as "FILE:N", with N counted from 1; None if unknown.
    """

    source: str
    prefix: str
    document: int
    row: int
    sequence: int = 0
    num_sequences: int = 1
    start: int
    stop: int
    num_tokens: int
    slot: int
    denied: bool = False
    origin: str | None = None

    def heading(self) -> str:
        """Returns a one-line description, such as "document 5 of web, all 12 tokens"."""
        count, whole = self.stop - self.start, f" of {self.num_tokens:,}"
        if count == self.num_tokens:
            tokens = {0: "empty", 1: "its only token"}.get(count, f"all {count:,} tokens")
        elif count > 1:
            tokens = f"tokens {self.start:,} to {self.stop - 1:,}{whole}"
        else:
            tokens = f"token {self.start:,}{whole}" if count else f"no token{whole}"
        sequence = f", sequence {self.sequence} of {self.num_sequences}" if self.num_sequences > 1 else ""
        denied = ", denied: padding" if self.denied else ""
        return f"document {self.document:,} of {self.source}{sequence}, {tokens}{denied}"


TokenRun = tuple[ShownToken, ...]
"""Consecutive tokens that are displayed together."""


class ShownSection(NamedTuple):
    """The tokens under one heading: the tokens of a span, or consecutive tokens outside all spans."""

    heading: str
    span: ShownSpan | None
    runs: Sequence[TokenRun] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A document or a sample for display.

    Attributes:
        heading: a one-line description.
        facts: (name, value) pairs of strings, such as ("made from", "FILE:N") for the input record of the document.
        notes: sentences that say how the tokens differ from the data.
        spans: the spans of documents, in the order of the tokens.
        first: index of `tokens[0]` in the document or sample.
        num_tokens: length of the whole document or sample.
        tokens: the tokens to display.
    """

    heading: str
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    spans: tuple[ShownSpan, ...]
    first: int = 0
    num_tokens: int
    tokens: tuple[ShownToken, ...]

    def sections(self) -> Iterator[ShownSection]:
        """Yields a section for each span, even an empty span, and for consecutive tokens outside all spans."""
        filled = {token.span for token in self.tokens}
        empty = deque(span for number, span in enumerate(self.spans) if number not in filled)
        slot = 0
        for number, grouped in groupby(self.tokens, key=lambda token: token.span):
            tokens = tuple(grouped)
            span = None if number is None else self.spans[number]
            while empty and empty[0].slot < slot + (len(tokens) if span is None else 1):
                yield ShownSection(empty[0].heading(), empty.popleft())
            slot += len(tokens)
            heading = f"all documents, rearranged, {len(tokens):,} tokens" if span is None else span.heading()
            if span is None and all(token.kind == "padding" for token in tokens):
                heading = ""
            alike = groupby(enumerate(tokens), key=lambda each: each[1].look or each[0])
            runs = [tuple(token for _, token in found) for _, found in alike]
            yield ShownSection(heading, span, runs)
        yield from (ShownSection(span.heading(), span) for span in empty)

    def legend(self) -> list[str]:
        """Returns the keys of `LEGEND` and `SIGNS` that the displayed tokens use."""
        styles = {style for token in self.tokens if token.kind not in PADDING for style in token.styles}
        styles |= {token.kind for token in self.tokens}
        texts = [token.text for token in self.tokens if token.kind == "text"]
        text = "".join(texts)
        signs = {PARTIAL: "" in texts, NEWLINE: "\n" in text, TAB: "\t" in text, ESCAPE: printable(text) != text}
        return [*(style for style in LEGEND if style in styles), *(sign for sign, occurs in signs.items() if occurs)]


def padding_words(run: TokenRun) -> str:
    """Formats padding tokens as their count, such as "[padding x 12]"."""
    name = "padding" if run[0].kind == "padding" else "denied: padding"
    return f"[{name} x {len(run):,}]"


def special_tokens(tokenizer: Any, manifest: Manifest | None = None) -> Special:
    """Returns {id: (kind, text)} of the special tokens that the tokenizer or the manifest defines."""
    spelled = optional_attribute(tokenizer, "special_tokens")
    texts = {int(number): str(text) for text, number in spelled.items()} if isinstance(spelled, Mapping) else {}
    special: dict[int, tuple[Kind, str]] = {number: ("special", text) for number, text in texts.items()}
    kinds: tuple[Kind, ...] = ("bos", "eod")
    for kind in kinds:
        number = optional_number(tokenizer, kind)
        recorded = None if manifest is None else getattr(manifest.tokenizer, kind)
        if recorded is not None and number in (None, recorded.id):
            number = recorded.id
            texts.setdefault(number, recorded.text or "")
        if number is not None:
            special[number] = kind, texts.get(number, "")
    return special


def tokens_of(
    ids: Sequence[int],
    tokenizer: TextTokenizer | None,
    special: Special,
    *,
    parts: Iterable[str | None] = repeat(None),
    span: int | None = None,
) -> list[ShownToken]:
    """Decodes consecutive tokens of one document."""
    texts = [f"{number} " for number in ids] if tokenizer is None else token_texts(ids, tokenizer)
    known = [special.get(number, ("text", "")) for number in ids]
    return [
        ShownToken(number, spelled or text, kind, part, span=span)
        for number, text, part, (kind, spelled) in zip(ids, texts, parts, known, strict=False)
    ]


def token_texts(ids: Sequence[int], tokenizer: TextTokenizer) -> list[str]:
    r"""Returns the text that each token adds to the text of the tokens before it.

    If a character has several tokens, the last token adds the character, and the other tokens add "". An incomplete
    character at the end of `ids` becomes `\ufffd`. Raises `ConfigError` if the tokenizer cannot decode the ids.
    """
    texts = [""] * len(ids)
    begin = complete = 0  # ends of the last two tokens that completed a character; `begin` is where decoding starts
    before = ""
    for stop in range(1, len(ids) + 1):
        text = decoded(ids[begin:stop], tokenizer)
        if len(text) > len(before) and (stop == len(ids) or not text.endswith(_BROKEN)):
            texts[stop - 1] = text[len(before) :]
            begin, complete = complete, stop
            before = decoded(ids[begin:complete], tokenizer)
    return texts


_CONTEXT = 8  # tokens decoded before and after a range, for the first and last characters of the range
_NO_LABEL = -100  # label of tokens without loss, in conversations
_REARRANGED = "the tokens are not in the order of their documents, for example because of fill in the middle"


class OpenPair:
    """An open pair, and the other files of this pair, which are opened on first use. Thread-safe.

    Attributes:
        prefix: path of the pair, without suffix.
        data: the tokens.
    """

    def __init__(self, prefix: str, *, object_storage: ObjectStorageSettings | None = None) -> None:
        self.prefix = prefix
        data = IndexedDataset(prefix, mmap=False, object_storage=object_storage)
        if data.index.has_modes:
            data = IndexedDataset(prefix, multimodal=True, mmap=False, object_storage=object_storage)
        self.data = data

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest; None if the pair has none."""
        return manifest_of(self.data)

    @cached_property
    def origins(self) -> Origins | None:
        """The input records of the documents; None if unknown."""
        return read_origins(self.data)

    @cached_property
    def roles(self) -> SequenceRoles | None:
        """The prompts and answers of a conversation dataset; None for other datasets."""
        return read_roles(self.data) if has_column(self.data, NAME) else None

    def document_of(self, row: int) -> int:
        """Returns the index of the document that contains sequence `row`."""
        return bisect_right(self.data.document_indices, row) - 1  # NumPy's `searchsorted` would copy unaligned arrays

    def rows_of(self, document: int) -> range:
        """Returns the range of `.idx` rows that are the sequences of a document."""
        return range(*(int(row) for row in self.data.document_indices[document : document + 2]))

    def origin(self, document: int) -> str | None:
        """Returns the input record of a document as "FILE:N", with N counted from 1; None if unknown."""
        if self.origins is None:
            return None
        files, records = self.origins.locate(np.array([document], dtype=np.int64))
        return None if files[0] < 0 else f"{self.origins.files[int(files[0])].path}:{int(records[0])}"

    def is_image(self, row: int) -> bool:
        """Returns whether a sequence is an image."""
        return self.data.multimodal and int(self.data.sequence_modes[row]) == IMAGE_MODE

    def ids(self, row: int, start: int, stop: int) -> list[int]:
        """Returns the ids of tokens [start, stop) of a sequence."""
        found = self.data.get(row, start, stop - start)
        ids: list[int] = (found[0] if self.data.multimodal else found).tolist()
        return ids

    def parts(self, row: int, start: int, stop: int) -> Sequence[str | None]:
        """Returns "prompt", "answer" or "text" for each token in [start, stop) of a sequence; None without roles."""
        if self.roles is None:
            return [None] * (stop - start)
        return [PartKind(kind).name for first, last, kind in self.roles.of(row) for _ in range(first, last)][start:stop]


class OpenPairs:
    """A cache of the 64 open pairs that were used last; `get` opens a pair by its prefix. Thread-safe."""

    def __init__(self, *, object_storage: ObjectStorageSettings | None = None) -> None:
        self.get: Callable[[str], OpenPair] = lru_cache(64)(partial(OpenPair, object_storage=object_storage))


def shown_document(
    pair: OpenPair, document: int, tokenizer: TextTokenizer | None, *, first: int = 0, count: int | None = None
) -> Shown:
    """Decodes `count` tokens of a document (default: all), from token `first` on; reads few other tokens.

    A negative `document` counts from the end. An image counts as one token. Without a tokenizer, a token's text is its
    id. Raises `IndexError` if the document does not exist.
    """
    if not -pair.data.num_documents <= document < pair.data.num_documents:
        raise IndexError(f"document {document} out of range: `{pair.prefix}` has {pair.data.num_documents} documents")
    document %= pair.data.num_documents
    origin, special = pair.origin(document), special_tokens(tokenizer, pair.manifest)
    spans: list[ShownSpan] = []
    tokens: list[ShownToken] = []
    num_tokens, rows = 0, pair.rows_of(document)
    for row in rows:
        length = 1 if pair.is_image(row) else int(pair.data.sequence_lengths[row])
        start = max(first - num_tokens, 0)
        stop = length if count is None else min(first + count - num_tokens, length)
        num_tokens += length
        if start > stop or (start == stop and length):
            continue
        named = {"source": pair.prefix, "document": document, "num_tokens": length}
        span = _span_of(pair, row, start, stop, slot=len(tokens), **named)
        tokens += _tokens_in(pair, span, tokenizer, special, len(spans))
        spans.append(span)
    facts = [("tokens", f"{num_tokens:,}"), *([("sequences", f"{len(rows):,}")] if len(rows) != 1 else [])]
    facts += [("made from", origin)] if origin is not None else []
    made: dict[str, Any] = {
        "facts": tuple(facts),
        "spans": tuple(spans),
        "num_tokens": num_tokens,
        "tokens": tuple(tokens),
    }
    return Shown(heading=f"document {document:,} of {pair.prefix}", first=first, **made)


def _span_of(pair: OpenPair, row: int, start: int, stop: int, *, slot: int, **others: Any) -> ShownSpan:
    document = pair.document_of(row)
    rows, num_tokens = pair.rows_of(document), int(pair.data.sequence_lengths[row])
    known: dict[str, Any] = {"document": document, "sequence": row - rows.start, "num_sequences": len(rows)}
    known |= {"num_tokens": num_tokens, "origin": pair.origin(document), "prefix": pair.prefix, "row": row}
    return ShownSpan(start=start, stop=stop, slot=slot, **known | others)


def _tokens_in(
    pair: OpenPair, span: ShownSpan, tokenizer: TextTokenizer | None, special: Special, number: int
) -> list[ShownToken]:
    """Returns the tokens of a span, decoded together with up to `_CONTEXT` tokens before and after the span."""
    if pair.is_image(span.row):
        item = pair.data[span.row][0]
        try:
            text = f"image of {len(item_to_image(item)):,} bytes"
        except DatasetFormatError:  # another writer may use this mode for other data
            text = f"{counted(len(item), 'token')} of mode {IMAGE_MODE}, not an image"
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
    """Decodes the sample at a position: the sample's inputs, then the last label.

    Args:
        dataset: a dataset, a blend or the dataset of a run; the samples must have `tokens`, `labels` and `loss_mask`.
        position: the position; a negative position counts from the end.
        tokenizer: decodes the tokens; if None, the text of a token is its id.
        pairs: cache of open pairs, to be shared by several calls.
        run: the run of the dataset; None for the held-out samples of a run, and for datasets outside of runs.

    Raises:
        IndexError: the position does not exist.
        ConfigError: the samples lack `tokens`, `labels` or `loss_mask`.
    """
    sample = sample_of(dataset, position)
    if missing := {"tokens", "labels", "loss_mask"} - sample.keys():
        message = f"cannot show samples that lack {', '.join(map(repr, sorted(missing)))}"
        raise ConfigError(message, hint="show documents instead, for example for BERT and T5")
    position += len(dataset) if position < 0 else 0
    table = trace_dataset(dataset, [position]) if run is None else run.trace([position])
    spans, opened = _spans(table, OpenPairs() if pairs is None else pairs)
    ids, notes = _ids_and_notes(sample, spans, opened)
    loss = [False, *(np.asarray(sample["loss_mask"]) > 0).tolist()]
    special = special_tokens(tokenizer, opened[0].manifest if opened else None)
    tokens = [ShownToken(number) for number in ids]
    if _REARRANGED in notes:  # tokens without loss at the end that equal the last token are padding
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
    spans, opened = [], []
    numbers, rows = table.pairs()
    for number, row, found in zip(numbers.tolist(), rows.tolist(), table.rows(), strict=True):
        pair = pairs.get(table.pair_rows.prefixes[number])
        start, stop = found["start"], found["start"] + found["length"]
        named = {"source": found["source"], "denied": found["denied"]}
        if table.run is not None:
            named["document"] = found["document"]
        spans.append(_span_of(pair, row, start, stop, slot=found["slot"], **named))
        opened.append(pair)
    return spans, opened


def _ids_and_notes(
    sample: Mapping[str, Any], spans: Sequence[ShownSpan], opened: Sequence[OpenPair]
) -> tuple[list[int], tuple[str, ...]]:
    """Returns the ids that a model reads and the last label; and notes on how these ids differ from the data."""
    ids, labels = (np.asarray(sample[name]).tolist() for name in ("tokens", "labels"))
    if any(span.slot + span.stop - span.start > len(ids) for span in spans):
        ids.append(labels[-1])
    differing: Counter[tuple[int, int]] = Counter()
    for span, pair in zip(spans, opened, strict=True):
        found = [] if span.denied else pair.ids(span.row, span.start, span.stop)
        last = span.slot + len(found) - 1
        if found and 0 < last < len(ids) and ids[last] != found[-1] and labels[last - 1] in (found[-1], _NO_LABEL):
            ids[last] = found[-1]  # the last token of a conversation can be a label without being an input
        here = ids[span.slot : last + 1]
        differing.update((stored, read) for stored, read in zip(found, here, strict=False) if stored != read)
    if not differing:
        return ids, ()
    [((stored, read), count)] = differing.most_common(1)
    if len(differing) > 1 or read != 0:
        return ids, (_REARRANGED,)
    return ids, (f"the data contains the pad id {stored} ({counted(count, 'time')}), read as id 0 without loss",)


_STYLES = {
    "no-loss": "dim",
    "prompt": "cyan",
    "answer": "bold green",
    "eod": "reverse yellow",
    "bos": "reverse cyan",
    "special": "bold yellow",
    "padding": "dim",
    "denied": "red",
    "image": "bold blue",
}
"""The look of each style in rich's syntax; the styles differ even on a terminal without color."""

_SIGN = "magenta"

_MARKS = {"eod": "EOD", "bos": "BOS", "special": ""}
"""{kind: word before a special token} for output without color."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Formatting options of `shown_lines`.

    Attributes:
        width: maximum columns per line.
        colour: use terminal colors and styles instead of marks in brackets.
        ids: print the id after each token.
        most_tokens: maximum tokens per section, half from the beginning and half from the end; None for all.
    """

    width: int = 80
    colour: bool = False
    ids: bool = False
    most_tokens: int | None = None


def shown_lines(shown: Shown, look: Look) -> Iterator[str]:
    """Yields the lines with the headings, the tokens and the legend; control characters are escaped."""
    for pieces in _pieces(shown, look):
        yield from filter(None, lines_of(pieces, look.width, colour=look.colour))


def _pieces(shown: Shown, look: Look) -> Iterator[Sequence[Piece]]:
    """Yields each line as pieces."""
    origin, sections, mark = None, list(shown.sections()), ""
    if len(sections) != 1 or any(token.loss is not None for token in shown.tokens):
        yield [(printable(shown.heading, keep=""), "bold")]
        yield [(printable(", ".join(f"{name} {value}" for name, value in shown.facts), keep=""), "")]
        origin = dict(shown.facts).get("made from")
    for note in shown.notes:
        yield [(printable(f"note: {note}", keep=""), "")]
    for section in sections:
        if heading := printable(section.heading, keep=""):
            yield [(f"── {heading} {'─' * (look.width - cell_width(heading) - 4)}", "bold")]
        if section.span is not None and section.span.origin not in (None, origin):
            origin = section.span.origin
            yield [(printable(f"made from {origin}", keep=""), "dim")]
        mark = yield from _section_pieces(section.runs, look, mark)
    legend: list[Piece] = []
    for each in shown.legend():
        if each in ("padding", "denied", "image"):  # printed as words
            continue
        name, _, meaning = (LEGEND | SIGNS)[each].partition(": ")
        legend.append(("; " if legend else "legend: ", "" if legend else "dim"))
        if each in SIGNS:
            legend += [(each, _SIGN), (f" {name}", "")]
        elif look.colour:
            legend += [(name, _STYLES.get(each, "")), (f": {meaning}" if meaning else "", "")]
        else:
            legend.append((f"[{_MARKS.get(each, name) or '...'}] {meaning or name}", ""))
    yield legend


def _section_pieces(runs: Iterable[TokenRun], look: Look, mark: str) -> Generator[Sequence[Piece], None, str]:
    """Yields each line as pieces; without color, marks each change of the part or the loss. Returns the last mark."""
    units = [unit for run in runs for unit in ([run] if run[0].kind in PADDING else zip(run, strict=True))]
    most = len(units) if look.most_tokens is None else look.most_tokens
    if num_hidden := max(len(units) - most, 0):
        units[most // 2 : most // 2 + num_hidden] = [()]
    line: list[Piece] = []
    for unit in units:
        if not unit:
            yield from (line, [(f"[{num_hidden:,} more tokens]", "dim")])
            line = []
            continue
        token = unit[0]
        if not look.colour and token.teaching not in ("", mark):
            mark = token.teaching
            line.append((f"[{mark}]", ""))
            if token.part is not None:  # each part of a conversation starts on a new line
                yield from (line[:-1], line[-1:])
                line = []
        line += _token_pieces(token, unit, look)
        line += [(f"⟨{token.id}⟩", "dim")] if look.ids and token.id >= 0 else ()
    yield line
    return mark


def _token_pieces(token: ShownToken, run: TokenRun, look: Look) -> Iterator[Piece]:
    style = " ".join(_STYLES[each] for each in token.styles if each in _STYLES)
    if token.kind in PADDING:
        yield padding_words(run), _STYLES[token.kind]
    elif token.kind in _MARKS and not look.colour:
        name = _MARKS[token.kind] or ("" if token.text else "special")
        yield printable(f"[{' '.join(filter(None, (name, token.text)))}]", keep=""), ""
    elif token.kind != "text":
        yield printable(token.words, keep=""), style
    elif not token.text:
        yield PARTIAL, _SIGN
    else:
        signs = {"\n": NEWLINE, "\t": TAB} if look.ids else {"\n": f"{NEWLINE}\n", "\t": f"{TAB}   "}
        drawn = [(char, signs.get(char, printable(char, keep=""))) for char in token.text]
        for is_sign, found in groupby(drawn, key=lambda pair: pair[0] != pair[1]):
            yield "".join(sign for _, sign in found), _SIGN if is_sign else style
