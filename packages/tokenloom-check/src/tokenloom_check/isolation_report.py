"""The result of `check_isolation`: as text, and as plain values for JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal

QUESTIONS = {
    "gradient": "the loss of a document has no gradient at tokens of others",
    "change": "changing tokens of one document changes no output of others",
    "alone": "a document gives the same output alone and in the batch",
    "tail": "changing tokens of the padding changes no output",
    "labels": "no label is a token of another document",
}
"""The checks, and the property that each verifies."""

PADDING = -1
"""Document index of padding tokens."""

_PARAGRAPHS = {
    "gradient": "Document {document} depends on {other}: the gradient of its loss there must be exactly 0. "
    "The largest gradient, {size:.2g}, is at {where}.",
    "change": "Document {document} depends on {other}: changing {what} there changes its output by up to {size:.2g}, "
    "most at {where}; the limit is {limit:.2g}.",
    "alone": "Document {document} depends on the batch: its outputs alone and in the batch differ by up to "
    "{size:.2g}, most at {where}; rounding explains up to {limit:.2g}.",
    "crossing": "The label of {where}, at the end of document {document}, is a token of {other} and has a loss. "
    "Mask these labels with `eod_mask_loss=True`, or shift labels in each document before packing.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationLeak:
    """The largest difference that a check found.

    Attributes:
        document: the document that depends on something else; documents are numbered from 0 over the batch.
        other: the document it depends on; -1 for padding, None if it depends on the batch as a whole.
        row, position: the token of `document` with the largest difference; for a gradient, the token of `other`.
        offset, token: position of that token in its document, and its id.
        size: the difference of outputs, or the norm of the gradient.
        module: the first executed module with equal inputs but different outputs; "" for the model itself, None if no
            module was found.
        before: the submodule whose inputs already differ, if the difference arises in the code of `module` itself.
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
        """Describes the leak. `is_silent`: there is no gradient between documents."""
        words = {
            "where": f"token {self.position} of row {self.row} (token {self.offset} of its document, id {self.token})",
            "other": "padding" if self.other == PADDING else f"document {self.other}",
            "what": "labels" if kind == "labels" else "tokens",
        }
        text = _PARAGRAPHS.get(kind, _PARAGRAPHS["change"]).format(**asdict(self) | words, limit=limit)
        if is_silent and kind == "change":
            text += " No gradient flows between them: a discrete choice, such as expert capacity or a label, leaks."
        if kind == "crossing":
            return text
        if self.module is None:
            return f"{text} The module where it begins was not found."
        text += f" It begins in {f'`{self.module}`' if self.module else 'the model itself'}, "
        if self.before is not None:
            return f"{text}in its own code: the inputs of `{self.before}` already differ."
        return f"{text}the first module whose output differs."


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationCheck:
    """The result of one check.

    Attributes:
        name: a key of `QUESTIONS`.
        result: "apart", "leak" or "not run".
        words: a paragraph about the leak, or why the check was not run; "" for "apart".
        probed: number of documents that were probed.
        largest: the largest difference or gradient within the limit.
        limit: differences up to this value are no leak.
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
    """The results of all checks. Prints as a table with a paragraph per leak.

    Attributes:
        model: name of its class or function.
        num_documents, num_tokens, num_padding: counts over the batch; `num_tokens` excludes padding.
        source: where document boundaries came from: the name of an array, or `documents=`.
        checks: in the order of `QUESTIONS`.
        notes: limits of the result, such as random numbers, non-deterministic kernels or unchecked outputs.
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
        return not self.problems

    @property
    def problems(self) -> list[str]:
        return [check.words for check in self.checks if check.result == "leak"]

    def as_json(self) -> dict[str, Any]:
        """Returns all attributes by name, and `ok`, as plain values."""
        return {"ok": self.ok} | asdict(self)

    def __str__(self) -> str:
        counts = f"{self.num_documents} documents of {self.num_tokens:,} tokens, {self.num_padding:,} padding"
        lines = [f"{self.model}: {counts} (from {self.source})", ""]
        for check in self.checks:
            lines.append(f"{check.name:<9} {check.result:<8} {QUESTIONS[check.name]}")
            if check.result == "apart" and check.largest is not None:
                lines.append(f"{'':<18} largest {check.largest:.2g}, limit {check.limit:.2g}")
        skipped = [f"{check.name} not run: {check.words}" for check in self.checks if check.result == "not run"]
        for text in self.problems + skipped + [f"note: {note}" for note in self.notes]:
            lines += ["", textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)]
        return "\n".join(lines)
