"""`tokenloom check-isolation`, and the report of `check_isolation` as text and JSON values."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np

from tokenloom.cli.options import Written, arguments_of, refuse
from tokenloom.cli.output import Answer
from tokenloom.cli.run_options import RunPath
from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom.run.run import Run
from tokenloom.setting_types import Count, Number
from tokenloom_check.resume_readings import load_function

QUESTIONS = {
    "gradient": "the loss of a document has no gradient at tokens of others",
    "change": "changing tokens of one document changes no output of others",
    "alone": "a document gives the same output alone and in the batch",
    "tail": "changing tokens of the padding changes no output",
    "labels": "no label is a token of another document",
}
"""The checks, and the property that each verifies."""

PADDING = -1  # document index of padding tokens

_PARAGRAPHS = {
    "gradient": "Document {document} depends on {other}: at tokens of {other}, the loss of document {document} must "
    "have gradient 0. The largest gradient, {size:.2g}, is at {where}.",
    "change": "Document {document} depends on {other}: changing {what} of {other} changes outputs of document "
    "{document} by up to {size:.2g}, most at {where}; the limit is {limit:.2g}.",
    "alone": "Document {document} depends on the batch: its outputs alone and in the batch differ by up to "
    "{size:.2g}, most at {where}; rounding explains up to {limit:.2g}.",
    "crossing": "The label of {where}, at the end of document {document}, is a token of {other} and has a loss. "
    "Mask these labels with `eod_mask_loss=True`, or shift labels in each document before packing.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationLeak:
    """The token and module where a check found the largest difference."""

    document: int  # the document that depends on something else; documents are numbered from 0 over the batch
    other: int | None  # the document it depends on; -1 for padding, None if it depends on the batch as a whole
    row: int  # row and position of the token of `document` that differs most; for a gradient, of the token of `other`
    position: int
    offset: int  # index of that token in its document
    token: int  # id of that token
    size: float  # the difference of outputs, or the norm of the gradient
    # the first executed module with equal inputs and different outputs; "" for the model itself, None if not found
    module: str | None = None
    before: str | None = None  # if the code of `module` itself leaks, the submodule whose inputs already differ

    def paragraph(self, kind: str, *, limit: float = 0.0, is_silent: bool = False) -> str:
        """Describes a leak that the check `kind` found. `is_silent`: the check `gradient` found no leak."""
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
            return f"{text} The module where the leak begins was not found."
        text += f" The leak begins in {f'`{self.module}`' if self.module else 'the model itself'}, "
        if self.before is not None:
            return f"{text}in its own code: the inputs of `{self.before}` already differ."
        return f"{text}the first module whose output differs."


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationCheck:
    """The result of one check."""

    name: str  # a key of `QUESTIONS`
    result: Literal["apart", "leak", "not run"] = "apart"
    words: str = ""  # a paragraph about the leak, or why the check was not run; "" for "apart"
    probed: int = 0  # number of documents that were probed
    largest: float | None = None  # the largest difference or gradient within the limit
    limit: float = 0.0  # differences up to this value are no leak
    leak: IsolationLeak | None = None  # the largest leak


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationReport:
    """The results of all checks. Prints as a table with a paragraph per leak."""

    model: str  # name of its class or function
    num_documents: int
    num_tokens: int  # without padding
    num_padding: int
    source: str  # where document boundaries came from: the name of an array, or `documents=`
    checks: tuple[IsolationCheck, ...]  # in the order of `QUESTIONS`
    notes: tuple[str, ...] = ()  # limits of the result, such as random numbers or unchecked outputs

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> list[str]:
        return [check.words for check in self.checks if check.result == "leak"]

    def as_json(self) -> dict[str, Any]:
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


@dataclass(frozen=True, kw_only=True)
class Options(RunPath):
    """Check that the documents of one batch depend neither on each other nor on padding in a model: by gradients, by
    changing tokens, and by running each document alone. Exits with 1 if a document depends on others, and names the
    first module whose output differs.

    MODEL names a function that returns the model: models.py:make_model or package.module:make_model. The model is
    called with the arrays of the batch that its parameters name, or else with the batch.

    Attributes:
        model: FILE.py:FUNCTION or MODULE:FUNCTION.
        call: function that takes the model and a batch of tensors by name, and returns logits or losses per token.
        position: position in the run of the first sample of the batch.
        micro_batch_size: number of samples in the batch.
        max_documents: maximum number of documents to probe.
        checks: names of checks to run (default all).
        json: print one JSON object: ok, model, num_documents, num_tokens, num_padding, source (of the boundaries),
            notes, and checks, a list of objects with name, result, words, probed, largest, limit and leak.
    """

    model: Annotated[str, Written(metavar="MODEL", is_positional=True)]
    run_path: Annotated[str, Written(metavar="RUN", is_positional=True)] = "run.toml"
    call: Annotated[str | None, Written(metavar="FUNCTION")] = None
    position: Number = 0
    micro_batch_size: Annotated[Count, Written(metavar="B")] = 2
    max_documents: Count = 16
    checks: Annotated[tuple[str, ...], Written(metavar="NAME", choices=tuple(QUESTIONS))] = tuple(QUESTIONS)


def run(options: Options) -> Answer:
    require("torch", extra="torch")
    from tokenloom_check.isolation import check_isolation

    model = load_function(options.model)()
    call = None if options.call is None else load_function(options.call)
    dataset = Run.open(options.run_path).dataset()
    positions = range(len(dataset))[options.position :][: options.micro_batch_size]
    if not positions:
        refuse(f"position {options.position} out of range: the run has {len(dataset)} samples")
    batch = dataset.batch(positions)
    if not (np.diff(batch["position_ids"]) != 1).any():
        message = "the batch has no document boundaries within its samples"
        raise ConfigError(message, hint="set `inter_document_masking = true` in [samples] of run.toml")
    arguments = arguments_of(options, check_isolation, model=model, batch=batch, call=call)
    report = check_isolation(**arguments, raises=False)
    return Answer(report.as_json(), str(report), status=0 if report.ok else 1)
