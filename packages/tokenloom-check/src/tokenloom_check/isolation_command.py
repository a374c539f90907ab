"""`tokenloom check-isolation`: checks that documents in a batch of a run do not depend on each other in a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from tokenloom.cli.options import Written, refuse
from tokenloom.cli.output import Answer
from tokenloom.cli.run_options import RunPath
from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom.run.run import Run
from tokenloom.setting_types import Count, Number
from tokenloom_check.isolation_report import QUESTIONS
from tokenloom_check.resume_readings import load_function


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
    report = check_isolation(
        model, batch, call=call, checks=options.checks, max_documents=options.max_documents, raises=False
    )
    return Answer(report.as_json(), str(report), status=0 if report.ok else 1)
