"""Whether the documents of a batch are apart in a model, for people and programs."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tokenloom.rendering.card import HasFacts

QUESTIONS = {
    "gradient": "the loss of a document has no gradient at tokens of others",
    "change": "other tokens in a document change nothing in others",
    "alone": "a document alone gives what it gives in the batch",
    "tail": "other tokens in the padding change nothing",
    "labels": "no label crosses the end of a document",
}
"""The checks, and what each of them finds where documents are apart."""

_WIDTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationLeak:
    """The largest difference that a check found.

    Attributes:
        document: the one that must not, but does depend on something else; numbered from 0 over the batch.
        other: the document that it depends on; -1 for padding, None if it depends on the batch as a whole.
        row, position: the token of `document` that differs most or, of a gradient, the token that leaks most.
        offset: position in its document of that token.
        token: its id.
        size: the difference of outputs, or the norm of the gradient.
        module: the first module, as it runs, whose output differs though its inputs do not; "" for the model itself,
            None where none was found.
        before: the module that is handed what differs, where the difference arises in `module` between calls.
    """

    document: int
    other: int | None
    size: float
    row: int | None = None
    position: int | None = None
    offset: int | None = None
    token: int | None = None
    module: str | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationCheck:
    """What one check found.

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
    result: Literal["apart", "leak", "not run"]
    words: str = ""
    probed: int = 0
    largest: float | None = None
    limit: float | None = None
    leak: IsolationLeak | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationReport(HasFacts):
    """What all checks found. Printed, it is a table, and each leak in a paragraph below it.

    Attributes:
        model: name of its class or function.
        num_documents, num_tokens, num_padding: of the batch; tokens without padding.
        source: what told documents apart: an array of the batch, or `documents=`.
        checks: in the order of `QUESTIONS`.
        notes: what else is to be known: dropout that is on, kernels that are not repeatable, what could not be seen.
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

    def facts(self) -> dict[str, Any]:
        """Returns what is known; see `HasFacts`."""
        return {
            "problems": self.problems, "model": self.model, "documents": self.num_documents, "tokens": self.num_tokens,
            "padding": self.num_padding, "documents told apart by": self.source,
            "checks": [
                {"check": check.name, "result": check.result, "documents": check.probed,
                 "largest difference": check.largest, "limit": check.limit} for check in self.checks
            ],
            "notes": [{"note": note} for note in self.notes],
        }  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Returns plain values: all attributes by name, and `ok`."""
        return {"ok": self.ok} | asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.model}: {self.num_documents} documents of {self.num_tokens:,} tokens, {self.num_padding:,} padding "
            f"(by {self.source})",
            "",
        ]
        for check in self.checks:
            found = "" if check.largest is None else f"  largest {check.largest:.2g}, limit {check.limit or 0:.2g}"
            lines.append(f"{check.name:<9} {check.result:<8} {QUESTIONS[check.name]}")
            lines += [f"{'':<18} {found.strip()}"] if found and check.result == "apart" else []
        texts = self.problems
        texts += [f"{check.name} not run: {check.words}" for check in self.checks if check.result == "not run"]
        texts += [f"note: {note}" for note in self.notes]
        for text in texts:
            lines += ["", textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)]
        return "\n".join(lines)


def leak_words(check: str, leak: IsolationLeak, *, limit: float | None, is_silent: bool) -> str:
    """Returns a paragraph on a leak of a check; `is_silent` says that there is no gradient between documents."""
    where = f"at token {leak.position} of row {leak.row} (token {leak.offset} of its document, id {leak.token})"
    where = "in its loss" if leak.position is None else where
    document, size, limit = f"Document {leak.document}", f"{leak.size:.2g}", limit or 0
    other = "padding" if leak.other == -1 else f"document {leak.other}"
    if check == "gradient":
        text = f"{document} depends on {other}: its loss has a gradient there, where it must be exactly 0. The token "
        text += f"that leaks most is {where[3:]}, with a gradient of {size}."
    elif check == "alone":
        text = f"{document} alone gives something else than in the batch: outputs differ by up to {size}, most "
        text += f"{where}; up to {limit:.2g} would be rounding."
    else:
        text = f"{document} depends on {other}: other {'labels' if check == 'labels' else 'tokens'} there change its "
        text += f"output by up to {size}, most {where}; up to {limit:.2g} would be none."
    if is_silent and check == "change":
        text += " No gradient flows between them: it is a label, a place in a capacity, or another choice that crosses."
    if leak.module is None:
        return f"{text} No module could be named."
    name = f"`{leak.module}`" if leak.module else "the model itself"
    if leak.before is not None:
        return f"{text} It begins in {name}, in its own code: what it hands to `{leak.before}` differs already."
    return f"{text} It begins in {name}, the first module whose output differs."
