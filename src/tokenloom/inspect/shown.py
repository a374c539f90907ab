"""What a token is shown as: documents and samples as spans and tokens, with kind, text, part and loss, and their words.

Terminal, report and explorer draw what is found here, and decide nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from typing import Any, Literal, NamedTuple

from tokenloom.indexed.manifests import Manifest, optional_attribute, optional_number
from tokenloom.rendering.words import printable
from tokenloom.tokenizers.text_tokenizer import TextTokenizer, decoded

PARTIAL, NEWLINE, TAB, ESCAPE, SPACE = "▏", "↵", "→", r"\x1b", "·"
SIGNS = {
    PARTIAL: "a token that only begins a character",
    NEWLINE: "line break",
    TAB: "tab",
    ESCAPE: "a character without glyph",
    SPACE: "space",
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
            yield ShownSection(heading, span, [*_runs(tokens)])
        yield from (ShownSection(span.heading(), span) for span in empty)

    def legend(self) -> list[str]:
        """Returns the styles and signs that occur, in the order of `LEGEND` and `SIGNS`."""
        styles = {style for token in self.tokens if token.kind not in PADDING for style in token.styles}
        styles |= {token.kind for token in self.tokens}
        texts = [token.text for token in self.tokens if token.kind == "text"]
        text = "".join(texts)
        signs = {PARTIAL: "" in texts, NEWLINE: "\n" in text, TAB: "\t" in text, ESCAPE: printable(text) != text}
        return [*(style for style in LEGEND if style in styles), *(sign for sign, occurs in signs.items() if occurs)]


def _runs(tokens: Sequence[ShownToken]) -> Iterator[TokenRun]:
    looks = [(*token.styles, None if token.kind in ("text", *PADDING) else slot) for slot, token in enumerate(tokens)]
    for _, alike in groupby(zip(looks, tokens, strict=True), key=lambda pair: pair[0]):
        yield tuple(token for _, token in alike)


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
    """Returns tokens that follow each other in one document; special ones have their spelling as text.

    Raises:
        ConfigError: the tokenizer cannot decode them.
    """
    tokens = []
    texts = [f"{number} " for number in ids] if tokenizer is None else token_texts(ids, tokenizer)
    for number, text, part in zip(ids, texts, parts, strict=False):
        kind, spelled = special.get(number, ("text", ""))
        tokens.append(ShownToken(number, spelled or text, kind, part, span=span))
    return tokens


def token_texts(ids: Sequence[int], tokenizer: TextTokenizer) -> list[str]:
    r"""Returns what each token adds to the text, as it stands after the tokens before it.

    A character that takes several tokens is the text of the last of them; the others add "". What no tokens complete
    is shown as the tokenizer decodes broken bytes, as `\ufffd`.

    Args:
        ids: tokens that follow each other in one document.
        tokenizer: the tokenizer that made them.

    Raises:
        ConfigError: the tokenizer cannot decode them.
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
