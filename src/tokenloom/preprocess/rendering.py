"""Blocks of lines or rows into texts made of parts."""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import ConfigError, StuckRecordError, WorkerError
from tokenloom.indexed.roles import PartKind
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.left_out import LeftOut, left_out_of
from tokenloom.inputs.records import BadLine, UnusableLineError, bad_line, records_of
from tokenloom.jobs.processes import error_of, errors_told
from tokenloom.preprocess.chat_templates import ChatTemplate, TemplateSource
from tokenloom.preprocess.refusals import singles
from tokenloom.preprocess.schemas import Record, Schema, detect_schema, read_record

_MOST_SECONDS = 1e6  # as much as a poll can wait


def schema_of(block: Block | None) -> Schema:
    """Returns the schema of the first record that has one; `messages` where there is no record at all."""
    failure: ConfigError | None = None
    for record in () if block is None else records_of(block):
        if type(record.value) is dict:
            try:
                return detect_schema(record.value)
            except ConfigError as error:
                failure = failure or error
    if failure is not None:
        raise failure
    return "messages"


@dataclass(frozen=True, slots=True)
class Rendered:
    """One sequence as text: its parts, and what kind each is."""

    parts: list[str]
    kinds: list[int]

    @property
    def text(self) -> str:
        """All parts."""
        return "".join(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedBlock:
    """The sequences of a block as text; `owners` names the document of each, `left_out` the records that gave none."""

    sequences: list[Rendered]
    owners: list[int]
    num_documents: int
    num_blank_lines: int
    bad_lines: list[BadLine]
    left_out: LeftOut


class Renderer:
    """Turns blocks of lines into texts; safe from several threads.

    Args:
        template: template of conversations; None for the schema `text`, which needs none.
        schema: schema of the records.
    """

    def __init__(self, template: ChatTemplate | None, *, schema: Schema) -> None:
        self._template = template
        self._schema = schema

    def __call__(self, block: Block) -> RenderedBlock:
        """Returns the texts of a block; lines without any are listed, not raised."""
        sequences: list[Rendered] = []
        owners: list[int] = []
        bad_lines: list[BadLine] = []
        left_out: list[int] = []
        num_blank_lines = num_documents = 0
        for number, record in enumerate(records_of(block)):
            if record.is_blank:
                num_blank_lines += 1
                left_out.append(number)
                continue
            try:
                if isinstance(record.value, UnusableLineError):
                    raise record.value
                found = self._sequences(read_record(record.value, self._schema))
            except UnusableLineError as error:
                bad_lines.append(bad_line(block, record, str(error)))
                left_out.append(number)
                continue
            owners += [num_documents] * len(found)
            sequences += found
            num_documents += 1
        return RenderedBlock(
            sequences=sequences,
            owners=owners,
            num_documents=num_documents,
            num_blank_lines=num_blank_lines,
            bad_lines=bad_lines,
            left_out=left_out_of(left_out),
        )

    def _sequences(self, record: Record) -> list[Rendered]:
        if record.text is not None:
            return [Rendered([record.text], [PartKind.text])]
        assert self._template is not None  # there is one for every schema but `text`
        rendered = [self._template.render(conversation) for conversation in record.conversations]
        if not all(rendered):
            which = f"conversation {rendered.index([]) + 1}" if len(rendered) > 1 else "the conversation"
            reason = f"{self._template.name} makes nothing of {which}: no text at all"
            raise UnusableLineError(reason)
        return [
            Rendered(
                [part.text for part in parts],
                [PartKind.answer if part.is_answer else PartKind.prompt for part in parts],
            )
            for parts in rendered
        ]


def first_texts(
    block: Block | None,
    template: TemplateSource | None,
    *,
    schema: Schema,
    timeout_seconds: float,
) -> list[str]:
    """Returns the texts of the first block of an input; bad records are left to the run itself.

    A template from elsewhere is compiled, and renders, in a process of its own, which ends with the time: the records
    that it was done with by then are returned.

    Args:
        block: the block; None if there is none.
        template: template of conversations; None for the schema `text`.
        schema: schema of the records.
        timeout_seconds: time for the block.

    Raises:
        StuckRecordError: the template was done with no record by then.
        WorkerError: the process died of the first record.
        TokenizerError: the template is not Jinja.
        MissingExtraError: it is in Jinja, and `jinja2` is not installed.
    """
    if template is None or template.is_built_in:
        render = Renderer(None if template is None else template.compiled(), schema=schema)
        return [] if block is None else [sequence.text for sequence in render(block).sequences]
    command = [sys.executable, "-c", "from tokenloom.preprocess.rendering import main; main()"]
    order = pickle.dumps((block, template, schema, timeout_seconds))
    is_late = False
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        try:
            process.stdout.read(1)  # to start is no work of the template's
            told, _ = process.communicate(order, timeout=min(timeout_seconds, _MOST_SECONDS))
        except subprocess.TimeoutExpired:
            is_late = True
            process.kill()
            told, _ = process.communicate()
        finally:
            process.kill()
    news = [json.loads(line) for line in told.splitlines(keepends=True) if line.endswith(b"\n")]
    if news and "error" in news[-1]:
        raise error_of(news[-1]["error"])
    texts = [text for each in news for text in each["texts"]]
    if is_late and not texts:
        message = f"{template.name} takes longer than {timeout_seconds:g} seconds for the first record{_of(block)}"
        raise StuckRecordError(message, hint="correct the template, or raise `record_timeout_seconds`")
    if process.returncode and not texts:
        message = f"{template.name} ended its process ({process.returncode}) at the first record{_of(block)}"
        raise WorkerError(message, hint="correct the template")
    return texts


def _of(block: Block | None) -> str:
    return "" if block is None else f" of `{block.path}`"


def main() -> None:
    """What the process does: renders the records of a block, and tells the texts of each on its standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too, which ends us
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever is printed must not be taken for news
    out.write("\n")
    block, template, schema, timeout_seconds = pickle.load(sys.stdin.buffer)
    most = math.ceil(min(timeout_seconds, _MOST_SECONDS) + time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))  # so that it ends without its parent too

    def send(news: dict[str, Any]) -> None:
        print(json.dumps(news), file=out)

    with errors_told(send):
        render = Renderer(template.compiled(), schema=schema)
        for single in () if block is None else singles([block]):
            send({"texts": [sequence.text for sequence in render(single[0]).sequences]})
