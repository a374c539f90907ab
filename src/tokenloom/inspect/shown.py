"""What a token is shown as: documents and samples as spans and tokens, with kinds, texts, parts and loss.

Terminal, report and explorer draw what is found here, and decide nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.indexed.manifest.contents import Manifest
from tokenloom.indexed.manifest.tokenizer_identity import optional_attribute, optional_number
from tokenloom.indexed.roles import PartKind
from tokenloom.inspect.token_texts import Detokenizer, token_texts

NO_PART = -1
"""In `Shown.parts`: the data do not tell prompts from answers."""

NO_SPAN = -1
"""In `Shown.spans_of`: no document stands there."""


class TokenKind(IntEnum):
    """What a token is, apart from its text."""

    text = 0
    """Text of a document."""
    eod = 1
    """The end of a document."""
    bos = 2
    """The begin of a document."""
    special = 3
    """Another special token of the tokenizer."""
    padding = 4
    """What fills a sample where no document stands."""
    denied = 5
    """Padding in the place of a document that is denied."""
    image = 6
    """An image, whatever its bytes are."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The ids that are more than text.

    Attributes:
        eod, bos: ids that end and begin documents; None if they are not known.
        names: the spelling of each special token, by id.
    """

    eod: int | None = None
    bos: int | None = None
    names: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Any, manifest: Manifest | None = None) -> SpecialTokens:
        """Returns those of a tokenizer; of what the manifest says where there is no tokenizer."""
        spelled = optional_attribute(tokenizer, "special_tokens")
        names = {int(number): str(text) for text, number in spelled.items()} if isinstance(spelled, Mapping) else {}
        eod, bos = optional_number(tokenizer, "eod"), optional_number(tokenizer, "bos")
        if manifest is not None:
            made_by = manifest.tokenizer
            for token in (made_by.eod, made_by.bos):
                if token is not None and token.text is not None:
                    names.setdefault(token.id, token.text)
            eod = eod if eod is not None or made_by.eod is None else made_by.eod.id
            bos = bos if bos is not None or made_by.bos is None else made_by.bos.id
        return cls(eod=eod, bos=bos, names=names)

    def kinds(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns the kind of each id of a document: uint8[num_tokens], see `TokenKind`."""
        kinds = np.full(len(ids), TokenKind.text, dtype=np.uint8)
        if self.names:
            kinds[np.isin(ids, list(self.names))] = TokenKind.special
        for number, kind in ((self.bos, TokenKind.bos), (self.eod, TokenKind.eod)):
            if number is not None:
                kinds[ids == number] = kind
        return kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSpan:
    """Tokens of one sequence of a document that stand together.

    Attributes:
        source: name of the source, or the prefix where there are no names.
        prefix: prefix of the pair; "" for data that are made up.
        document: number of the document in its source.
        row: number of the sequence in the `.idx` file.
        sequence, num_sequences: number of the sequence in its document, and how many that has.
        start, stop: the tokens, counted from the start of the sequence.
        num_tokens: tokens of the whole sequence; None if that is not known.
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
    num_tokens: int | None
    slot: int
    denied: bool = False
    origin: str | None = None

    def heading(self) -> str:
        """Returns one line that says what this is."""
        name = f"document {self.document:,} of {self.source}"
        if self.num_sequences > 1:
            name += f", sequence {self.sequence} of {self.num_sequences}"
        whole = "" if self.num_tokens is None else f" of {self.num_tokens:,}"
        if self.num_tokens is not None and (self.start, self.stop) == (0, self.num_tokens):
            name += {0: ", empty", 1: ", its only token"}.get(self.num_tokens, f", all {self.num_tokens:,} tokens")
        elif self.stop - self.start > 1:
            name += f", tokens {self.start:,} to {self.stop - 1:,}{whole}"
        else:
            name += f", token {self.start:,}{whole}" if self.start < self.stop else f", no token{whole}"
        return f"{name}, denied: padding" if self.denied else name


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRun:
    """Tokens that follow each other and are alike in all but their texts.

    Attributes:
        start, stop: the first, and one past the last.
        span: number of the span; `NO_SPAN` for none.
        kind: what they are.
        part: prompt, answer or text; None where the data do not tell.
        loss: whether they are labels with loss; None where that is not asked, as of documents.
    """

    start: int
    stop: int
    span: int
    kind: TokenKind
    part: PartKind | None
    loss: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSection:
    """What is drawn under one heading: the tokens of a span, or what belongs to none.

    Attributes:
        span: the span; None for padding behind all documents, and for tokens that are in another order than theirs.
        runs: its tokens; none of an empty document, nor of a span that is only listed.
    """

    span: ShownSpan | None
    runs: tuple[TokenRun, ...]

    def heading(self) -> str:
        """Returns one line that says what this is; "" for padding, which says that itself."""
        if self.span is not None:
            return self.span.heading()
        if all(run.kind == TokenKind.padding for run in self.runs):
            return ""
        return f"all of them, rearranged, {sum(run.stop - run.start for run in self.runs):,} tokens"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shown:
    """A document or a sample, as a person looks at it: all arrays have one row per token.

    Attributes:
        heading: one line that says what this is.
        facts: names and values of what is known of it.
        notes: sentences about what is unusual.
        spans: documents that stand in it, in order.
        first: number of the first token that is shown, of `num_tokens`.
        num_tokens: tokens of all of it.
        ids: int64[count]; -1 for images.
        texts: what each token adds to the text, as the data have it: hostile, until `printable` has seen it. "" for a
            token that only begins a character; without a tokenizer, the id in words.
        kinds: uint8[count], see `TokenKind`.
        spans_of: int32[count], number of the span; `NO_SPAN` where there is none.
        parts: int8[count], see `PartKind`; `NO_PART` where the data do not tell.
        loss: bool[count], whether the token is a label with loss: whether the model is taught to predict it. None where
            that is not asked, as of documents.
        has_texts: whether a tokenizer made the texts.
    """

    heading: str
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    spans: tuple[ShownSpan, ...]
    first: int = 0
    num_tokens: int
    ids: NDArray[np.int64]
    texts: tuple[str, ...]
    kinds: NDArray[np.uint8]
    spans_of: NDArray[np.int32]
    parts: NDArray[np.int8]
    loss: NDArray[np.bool_] | None = None
    has_texts: bool = True

    def __post_init__(self) -> None:
        """Checks that all rows are there.

        Raises:
            ConfigError: an array has another length.
        """
        lengths = {len(self.ids), len(self.texts), len(self.kinds), len(self.spans_of), len(self.parts)}
        lengths |= set() if self.loss is None else {len(self.loss)}
        if len(lengths) != 1:
            message = f"expected as many texts, kinds, spans, parts and losses as ids, found {sorted(lengths)}"
            raise ConfigError(message)

    def as_json(self) -> dict[str, Any]:
        """Returns all of it as JSON has it: kinds and parts by their names, None where there is no span or part."""
        return {
            "heading": self.heading,
            "facts": dict(self.facts),
            "notes": list(self.notes),
            "spans": [asdict(span) for span in self.spans],
            "first": self.first,
            "num_tokens": self.num_tokens,
            "ids": self.ids.tolist(),
            "texts": list(self.texts),
            "kinds": [TokenKind(kind).name for kind in self.kinds.tolist()],
            "spans_of": [None if span == NO_SPAN else span for span in self.spans_of.tolist()],
            "parts": [None if part == NO_PART else PartKind(part).name for part in self.parts.tolist()],
            "loss": None if self.loss is None else self.loss.tolist(),
        }

    def __len__(self) -> int:
        """The number of tokens that are shown."""
        return len(self.ids)

    def runs(self) -> Iterator[TokenRun]:
        """Yields the tokens as runs; special tokens are runs of their own, padding is one."""
        if not len(self):
            return
        loss = np.zeros(len(self), dtype=np.int8) if self.loss is None else self.loss.astype(np.int8)
        rows = np.stack(
            [self.spans_of, self.kinds.astype(np.int32), self.parts.astype(np.int32), loss.astype(np.int32)]
        )
        alone = np.isin(self.kinds, (TokenKind.eod, TokenKind.bos, TokenKind.special, TokenKind.image))
        begins = np.any(rows[:, 1:] != rows[:, :-1], axis=0) | alone[1:]
        edges = [0, *(np.flatnonzero(begins) + 1).tolist(), len(self)]
        for start, stop in pairwise(edges):
            span, kind, part, trained = rows[:, start].tolist()
            yield TokenRun(
                start=start,
                stop=stop,
                span=span,
                kind=TokenKind(kind),
                part=None if part == NO_PART else PartKind(part),
                loss=None if self.loss is None else bool(trained),
            )

    def sections(self) -> Iterator[ShownSection]:
        """Yields the tokens under a heading each, in order; a span without tokens is a section too."""
        filled = set(np.unique(self.spans_of).tolist())
        empty = deque(number for number in range(len(self.spans)) if number not in filled)
        for number, grouped in groupby(self.runs(), key=lambda run: run.span):
            runs = tuple(grouped)
            while empty and (empty[0] < number if number != NO_SPAN else self.spans[empty[0]].slot < runs[-1].stop):
                yield ShownSection(span=self.spans[empty.popleft()], runs=())
            yield ShownSection(span=None if number == NO_SPAN else self.spans[number], runs=runs)
        for number in empty:
            yield ShownSection(span=self.spans[number], runs=())


def texts_of(ids: NDArray[np.int64], tokenizer: Detokenizer | None, special: SpecialTokens) -> tuple[str, ...]:
    """Returns the text of each token of a document; special tokens by their spelling.

    Args:
        ids: int64[num_tokens], tokens that follow each other in one document.
        tokenizer: None for the ids in words.
        special: the spellings.

    Raises:
        ConfigError: the tokenizer cannot decode them.
    """
    numbers = ids.tolist()
    if tokenizer is None:
        return tuple(special.names.get(number, str(number)) for number in numbers)
    texts = token_texts(numbers, tokenizer)
    return tuple(special.names.get(number, text) for number, text in zip(numbers, texts, strict=True))
