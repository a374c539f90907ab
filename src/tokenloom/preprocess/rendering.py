"""Blocks of lines or rows into texts made of parts."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.errors import ConfigError
from tokenloom.indexed.roles import PartKind
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.left_out import LeftOut, left_out_of
from tokenloom.inputs.records import BadLine, UnusableLineError, bad_line, records_of
from tokenloom.preprocess.chat_templates import ChatTemplate
from tokenloom.preprocess.schemas import Record, Schema, detect_schema, read_record


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

    def texts(self, block: Block | None) -> list[str]:
        """Returns the texts of a block; bad lines are left to the run itself."""
        return [] if block is None else [sequence.text for sequence in self(block).sequences]

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
