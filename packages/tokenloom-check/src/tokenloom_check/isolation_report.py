"""Whether the documents of a batch are apart in a model, for people and programs."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal

QUESTIONS = {
    "gradient": "the loss of a document has no gradient at tokens of others",
    "change": "other tokens in a document change nothing in others",
    "alone": "a document alone gives what it gives in the batch",
    "tail": "other tokens in the padding change nothing",
    "labels": "no label crosses the end of a document",
}
"""The checks, and the property that each verifies."""

PADDING = -1
"""The document of tokens that are padding."""

_PARAGRAPHS = {
    "gradient": "Document {document} depends on {other}: its loss has a gradient there, where it must be exactly 0. "
    "The token that leaks most is {where}, with a gradient of {size:.2g}.",
    "change": "Document {document} depends on {other}: other {what} there change its output by up to {size:.2g}, "
    "most at {where}; up to {limit:.2g} would be none.",
    "alone": "Document {document} alone gives something else than in the batch: outputs differ by up to {size:.2g}, "
    "most at {where}; up to {limit:.2g} would be rounding.",
    "crossing": "The label of {where}, at the end of document {document}, is a token of {other}, and has a loss. "
    "Mask all such labels, as `eod_mask_loss=True` does, or shift labels in each document before packing.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationLeak:
    """The largest difference that a check found.

    Attributes:
        document: the one that must not, but does depend on something else; numbered from 0 over the batch.
        other: the document that it depends on; -1 for padding, None if it depends on the batch as a whole.
        row, position: the token of `document` that differs most or, of a gradient, the token that leaks most.
        offset, token: position in its document of that token, and its id.
        size: the difference of outputs, or the norm of the gradient.
        module: the first module, as it runs, whose output differs though its inputs do not; "" for the model itself,
            None where none was found.
        before: the module that is handed what differs, where the difference arises in `module` between calls.
    """

    document: int
    other: int | None
    row: int
    position: int
    offset: int
    token: int
    size: float
    module: str | None = None
    before: str | None = None

    def paragraph(self, kind: str, *, limit: float = 0.0, is_silent: bool = False) -> str:
        """Describes it; `is_silent` says that there is no gradient between documents."""
        words = {
            "where": f"token {self.position} of row {self.row} (token {self.offset} of its document, id {self.token})",
            "other": "padding" if self.other == PADDING else f"document {self.other}",
            "what": "labels" if kind == "labels" else "tokens",
        }
        text = _PARAGRAPHS.get(kind, _PARAGRAPHS["change"]).format(**asdict(self) | words, limit=limit)
        if is_silent and kind == "change":
            text += " No gradient flows between them: a label, a place in a capacity, or another choice crosses."
        if kind == "crossing":
            return text
        if self.module is None:
            return f"{text} No module could be named."
        text += f" It begins in {f'`{self.module}`' if self.module else 'the model itself'}, "
        if self.before is not None:
            return f"{text}in its own code: what it hands to `{self.before}` differs already."
        return f"{text}the first module whose output differs."


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationCheck:
    """The result of one check.

    Attributes:
        name: a key of `QUESTIONS`.
        result: "apart"; "leak"; or "not run", with the reason in `words`.
        words: a paragraph on the leak, or why the check was not run; "" where documents are apart.
        probed: how many documents were looked at.
        largest: the largest difference, or gradient, that is none of a leak.
        limit: up to which differences are none.
        leak: the largest leak.
    """

    name: str
    result: Literal["apart", "leak", "not run"] = "apart"
    words: str = ""
    probed: int = 0
    largest: float | None = None
    limit: float = 0.0
    leak: IsolationLeak | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationReport:
    """The results of all checks. Prints as a table, with a paragraph for each leak.

    Attributes:
        model: name of its class or function.
        num_documents, num_tokens, num_padding: of the batch; tokens without padding.
        source: what told documents apart: an array of the batch, or `documents=`.
        checks: in the order of `QUESTIONS`.
        notes: what else is to be known: random numbers, kernels that are not repeatable, what could not be seen.
    """

    model: str
    num_documents: int
    num_tokens: int
    num_padding: int
    source: str
    checks: tuple[IsolationCheck, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no check found a leak."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """A paragraph for each leak."""
        return [check.words for check in self.checks if check.result == "leak"]

    def as_json(self) -> dict[str, Any]:
        """Returns plain values: all attributes by name, and `ok`."""
        return {"ok": self.ok} | asdict(self)

    def __str__(self) -> str:
        counts = f"{self.num_documents} documents of {self.num_tokens:,} tokens, {self.num_padding:,} padding"
        lines = [f"{self.model}: {counts} (by {self.source})", ""]
        for check in self.checks:
            lines.append(f"{check.name:<9} {check.result:<8} {QUESTIONS[check.name]}")
            if check.result == "apart" and check.largest is not None:
                lines.append(f"{'':<18} largest {check.largest:.2g}, limit {check.limit:.2g}")
        skipped = [f"{check.name} not run: {check.words}" for check in self.checks if check.result == "not run"]
        for text in self.problems + skipped + [f"note: {note}" for note in self.notes]:
            lines += ["", textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)]
        return "\n".join(lines)
