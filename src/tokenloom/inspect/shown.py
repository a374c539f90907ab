"""Documents and samples as a person reads them: spans and tokens with kind, text, part and loss, and lines of these.

Report and explorer draw what is found here as HTML; no drawing decides anything.
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
    PARTIAL: "a token that only begins a character",
    NEWLINE: "line break",
    TAB: "tab",
    ESCAPE: "a character without glyph",
}
"""What stands for text that cannot be seen."""

LEGEND = {
    "loss": "with loss: the model learns to predict it",
    "no-loss": "without loss: the model only reads it",
    "prompt": "prompt: what the assistant reads",
    "answer": "answer: what the assistant says",
    "eod": "end of document",
    "bos": "begin of document",
    "special": "special token",
    "padding": "padding",
    "denied": "padding for a denied document",
    "image": "image",
}
"""What styles mean, see `ShownToken.styles`."""

Kind = Literal["text", "eod", "bos", "special", "padding", "denied", "image"]
PADDING = ("padding", "denied")
"""Kinds that are drawn as their number, since all their tokens are alike."""

Special = Mapping[int, tuple[Kind, str]]
"""Kind and spelling of the ids that are more than text, see `special_tokens`."""

_BROKEN = "\ufffd"


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token, as a person looks at it.

    Attributes:
        id: its id; -1 of an image.
        text: what it adds to the text, as the data have it: hostile, until `printable` has seen it. "" if it only
            begins a character; without a tokenizer, the id and a space.
        kind: what it is: "text", or a word of `LEGEND`.
        part: "prompt", "answer" or "text"; None where the data do not tell.
        loss: whether it is a label with loss: whether the model is taught to predict it; None where that is not asked,
            as of documents.
        span: number of its span; None where no document stands.
    """

    id: int
    text: str = ""
    kind: Kind = "padding"
    part: str | None = None
    loss: bool | None = None
    span: int | None = None

    @property
    def words(self) -> str:
        """What stands for it: its text, an image in brackets, or its kind in brackets if that has no text."""
        if self.kind == "image" or not (self.text or self.kind == "text"):
            return f"[{self.text or LEGEND[self.kind]}]"
        return self.text

    @property
    def styles(self) -> tuple[str, ...]:
        """What it is drawn as: kind, part and loss, as far as they are more than text."""
        loss = {True: "loss", False: "no-loss", None: "text"}[self.loss]
        return tuple(style for style in (self.kind, self.part or "text", loss) if style != "text")

    @property
    def look(self) -> tuple[str, ...] | None:
        """What it has in common with those that are drawn with it; None of a special token, which is alone."""
        return (self.kind, *self.styles) if self.kind in ("text", *PADDING) else None

    @property
    def teaching(self) -> str:
        """Part and loss in words, such as "answer, with loss"; "" of padding, and where none is known."""
        told = () if self.kind in PADDING else ("prompt", "answer", "loss", "no-loss")
        return ", ".join(LEGEND[style].partition(":")[0] for style in self.styles if style in told)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSpan:
    """Tokens of one sequence of a document that stand together.

    Attributes:
        source: name of the source, or the prefix where there are no names.
        prefix: prefix of the pair.
        document: number of the document in its source.
        row: number of the sequence in the `.idx` file.
        sequence, num_sequences: number of the sequence in its document, and how many that has.
        start, stop: the tokens, counted from the start of the sequence.
        num_tokens: tokens of the whole sequence.
        slot: place of the first token in what is shown.
        denied: whether padding stands there instead.
        origin: the record that the document was made of, as `FILE:N` with N from 1; None if that is not known.
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
        """Returns one line that says what this is."""
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
"""Tokens that follow each other and are alike in all but ids and texts; a special one is alone."""


class ShownSection(NamedTuple):
    """What is drawn under one heading: the tokens of a span, if it has some, or what belongs to none."""

    heading: str
    span: ShownSpan | None
    runs: Sequence[TokenRun] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A document or a sample, as a person looks at it.

    Attributes:
        heading: one line that says what this is.
        facts: names and values of what is known of it.
        notes: sentences about what is unusual.
        spans: documents that stand in it, in order.
        first: number of the first token that is shown, of `num_tokens`.
        num_tokens: tokens of all of it.
        tokens: those that are shown.
    """

    heading: str
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    spans: tuple[ShownSpan, ...]
    first: int = 0
    num_tokens: int
    tokens: tuple[ShownToken, ...]

    def sections(self) -> Iterator[ShownSection]:
        """Yields the tokens under a heading each, in order; a span without tokens is a section too."""
        filled = {token.span for token in self.tokens}
        empty = deque(span for number, span in enumerate(self.spans) if number not in filled)
        slot = 0
        for number, grouped in groupby(self.tokens, key=lambda token: token.span):
            tokens = tuple(grouped)
            span = None if number is None else self.spans[number]
            while empty and empty[0].slot < slot + (len(tokens) if span is None else 1):
                yield ShownSection(empty[0].heading(), empty.popleft())
            slot += len(tokens)
            heading = f"all of them, rearranged, {len(tokens):,} tokens" if span is None else span.heading()
            if span is None and all(token.kind == "padding" for token in tokens):
                heading = ""  # padding says that itself
            alike = groupby(enumerate(tokens), key=lambda each: each[1].look or each[0])
            runs = [tuple(token for _, token in found) for _, found in alike]
            yield ShownSection(heading, span, runs)
        yield from (ShownSection(span.heading(), span) for span in empty)

    def legend(self) -> list[str]:
        """Returns the styles and signs that occur, in the order of `LEGEND` and `SIGNS`."""
        styles = {style for token in self.tokens if token.kind not in PADDING for style in token.styles}
        styles |= {token.kind for token in self.tokens}
        texts = [token.text for token in self.tokens if token.kind == "text"]
        text = "".join(texts)
        signs = {PARTIAL: "" in texts, NEWLINE: "\n" in text, TAB: "\t" in text, ESCAPE: printable(text) != text}
        return [*(style for style in LEGEND if style in styles), *(sign for sign, occurs in signs.items() if occurs)]


def padding_words(run: TokenRun) -> str:
    """Returns padding as its number, such as "[padding x 12]"."""
    name = "padding" if run[0].kind == "padding" else "denied: padding"
    return f"[{name} x {len(run):,}]"


def special_tokens(tokenizer: Any, manifest: Manifest | None = None) -> Special:
    """Returns the ids that are more than text, of any tokenizer; without one, those that the manifest names."""
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
    """Returns tokens that follow each other in one document; special ones have their spelling as text."""
    texts = [f"{number} " for number in ids] if tokenizer is None else token_texts(ids, tokenizer)
    known = [special.get(number, ("text", "")) for number in ids]
    return [
        ShownToken(number, spelled or text, kind, part, span=span)
        for number, text, part, (kind, spelled) in zip(ids, texts, parts, known, strict=False)
    ]


def token_texts(ids: Sequence[int], tokenizer: TextTokenizer) -> list[str]:
    r"""Returns what each token adds to the text, as it stands after the tokens before it.

    A character that takes several tokens is the text of the last of them; the others add "". What no tokens complete
    is shown as the tokenizer decodes broken bytes, as `\ufffd`. A tokenizer that cannot decode them is a `ConfigError`.
    """
    texts = [""] * len(ids)
    begin = complete = 0  # each is decoded behind the tokens since the last but one that completed a text
    before = ""
    for stop in range(1, len(ids) + 1):
        text = decoded(ids[begin:stop], tokenizer)
        if len(text) > len(before) and (stop == len(ids) or not text.endswith(_BROKEN)):
            texts[stop - 1] = text[len(before) :]
            begin, complete = complete, stop
            before = decoded(ids[begin:complete], tokenizer)
    return texts


_CONTEXT = 8  # tokens before and after a window, decoded with it: a character may begin or end there
_NO_LABEL = -100  # the label of a token without loss, of conversations
_REARRANGED = "the tokens are not those of their documents in their order, as fill in the middle makes them"


class OpenPair:
    """A pair, and what lies beside it, opened when it is first asked for. Safe from several threads.

    Attributes:
        prefix: path of the pair without suffix, as it was named.
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
        """What the pair was made of; None if nobody wrote that down."""
        return manifest_of(self.data)

    @cached_property
    def origins(self) -> Origins | None:
        """Which records its documents were made of; None if that is not known."""
        return read_origins(self.data)

    @cached_property
    def roles(self) -> SequenceRoles | None:
        """Which of its tokens are prompts and answers; None for plain text."""
        return read_roles(self.data) if has_column(self.data, NAME) else None

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
    """Returns a document, or some tokens of it; reads no others. Without a tokenizer, ids.

    Args:
        pair: the pair.
        document: number of the document in the pair; negative ones count from the end.
        tokenizer: what decodes it.
        first, count: which tokens, all of them by default; those of an image count as one.

    Raises:
        IndexError: there is no such document.
    """
    if not -pair.data.num_documents <= document < pair.data.num_documents:
        message = f"document {document} of `{pair.prefix}` was asked for, but it has {pair.data.num_documents}"
        raise IndexError(message)
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
    facts += [("made of", origin)] if origin is not None else []
    return Shown(
        heading=f"document {document:,} of {pair.prefix}",
        facts=tuple(facts),
        spans=tuple(spans),
        first=first,
        num_tokens=num_tokens,
        tokens=tuple(tokens),
    )


def _span_of(pair: OpenPair, row: int, start: int, stop: int, *, slot: int, **others: Any) -> ShownSpan:
    """Returns tokens of a row of a pair."""
    document = pair.document_of(row)
    rows = pair.rows_of(document)
    known = {
        "document": document,
        "sequence": row - rows.start,
        "num_sequences": len(rows),
        "num_tokens": int(pair.data.sequence_lengths[row]),
        "origin": pair.origin(document),
    }
    return ShownSpan(prefix=pair.prefix, row=row, start=start, stop=stop, slot=slot, **known | others)


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
    """Returns what stands at a position, the extra token for the last label included. Without a tokenizer, ids.

    Args:
        dataset: a run's dataset, a blend, or one of our datasets, that gives `tokens`, `labels` and `loss_mask`.
        position: the position.
        tokenizer: what decodes it.
        pairs: where pairs are opened, so that they stay open from one call to the next.
        run: the run of a dataset that does not know it; what is held out does.

    Raises:
        IndexError: there is no such position.
        ConfigError: the samples are of another kind.
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
        start, stop = found["start"], found["start"] + found["length"]
        named = {"source": found["source"], "denied": found["denied"]}
        if table.run is not None:
            named["document"] = found["document"]
        spans.append(_span_of(pair, row, start, stop, slot=found["slot"], **named))
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
"""Faint, reversed and bold tell apart what colours do, to every eye."""

_SIGN = "magenta"

_MARKS = {"eod": "EOD", "bos": "BOS", "special": ""}
"""What special tokens are called where no colour tells them from text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How lines are drawn.

    Attributes:
        width: columns of a line.
        colour: whether to use colours and styles; else marks in brackets say the same.
        ids: whether to write the id of each token behind it.
        most_tokens: tokens of a section to show, from its begin and its end; None for all.
    """

    width: int = 80
    colour: bool = False
    ids: bool = False
    most_tokens: int | None = None


def shown_lines(shown: Shown, look: Look) -> Iterator[str]:
    """Yields lines, without line breaks: headings with tokens below them, and the marks that occur.

    Texts of data cannot drive a terminal, whatever they hold.
    """
    for pieces in _pieces(shown, look):
        yield from filter(None, lines_of(pieces, look.width, colour=look.colour))


def _pieces(shown: Shown, look: Look) -> Iterator[Sequence[Piece]]:
    """Yields what begins a line each."""
    origin, sections, said = None, list(shown.sections()), ""
    if len(sections) != 1 or any(token.loss is not None for token in shown.tokens):  # else its section says it
        yield [(printable(shown.heading, keep=""), "bold")]
        yield [(printable(", ".join(f"{name} {value}" for name, value in shown.facts), keep=""), "")]
        origin = dict(shown.facts).get("made of")
    for note in shown.notes:
        yield [(printable(f"note: {note}", keep=""), "")]
    for section in sections:
        if heading := printable(section.heading, keep=""):
            yield [(f"── {heading} {'─' * (look.width - cell_width(heading) - 4)}", "bold")]
        if section.span is not None and section.span.origin not in (None, origin):
            origin = section.span.origin
            yield [(printable(f"made of {origin}", keep=""), "dim")]
        said = yield from _section_pieces(section.runs, look, said)
    legend: list[Piece] = []
    for each in shown.legend():
        if each in ("padding", "denied", "image"):  # which is said by what stands there
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


def _section_pieces(runs: Iterable[TokenRun], look: Look, said: str) -> Generator[Sequence[Piece], None, str]:
    """Yields what begins a line each: tokens that follow each other, with marks where part or loss changes, and no
    colour says it; `said` is what was marked last, and is returned."""
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
        if not look.colour and token.teaching not in ("", said):
            said = token.teaching
            line.append((f"[{said}]", ""))
            if token.part is not None:  # a part of a conversation begins a line
                yield from (line[:-1], line[-1:])
                line = []
        line += _token_pieces(token, unit, look)
        line += [(f"⟨{token.id}⟩", "dim")] if look.ids and token.id >= 0 else ()
    yield line
    return said


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
