"""Parses records into conversations, by schema.

There are four schemas: `messages` (a list of objects with `role` and `content`), `sharegpt` (`conversations`, a list of
objects with `from` and `value`), `alpaca` (an instruction, an optional input and an output, under the column names of
Alpaca, Dolly and similar datasets) and `text`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal, get_args

from tokenloom.errors import ConfigError
from tokenloom.inputs.records import checked_text, kind_of, refuse_record

Schema = Literal["messages", "sharegpt", "alpaca", "text"]
SCHEMAS: tuple[Schema, ...] = get_args(Schema)

ROLES = ("system", "developer", "user", "assistant", "tool")
_OPENING = ("system", "developer")
_SPEAKERS = {
    **{role: role for role in ROLES},
    "human": "user",
    **dict.fromkeys(("gpt", "model", "chatgpt", "bing", "bard"), "assistant"),
    **dict.fromkeys(("function", "observation"), "tool"),
}
_INSTRUCTIONS = ("instruction", "prompt", "query", "question")
_INPUTS = ("input", "context")
_OUTPUTS = ("output", "response", "completion", "answer")

Message = dict[str, Any]
"""A turn of a conversation: `role`, `content` and any other keys of the turn."""

Conversation = list[Message]


def detect_schema(columns: Iterable[str]) -> Schema:
    """Returns the first schema that fits the columns, in the order messages, sharegpt, alpaca, text.

    Example:
        >>> detect_schema(["instruction", "context", "response", "category"])
        'alpaca'
    """
    found = set(columns)
    if "messages" in found:
        return "messages"
    if "conversations" in found:
        return "sharegpt"
    if found.intersection(_INSTRUCTIONS) and found.intersection(_OUTPUTS):
        return "alpaca"
    if "text" in found:
        return "text"
    message = f"none of the schemas {', '.join(SCHEMAS)} fits the columns {', '.join(sorted(found)) or '(none)'}"
    raise ConfigError(message, hint="rename the columns, or set `schema`")


def read_record(record: Any, schema: Schema) -> list[Conversation] | str:
    """Returns the conversations of a record; for the schema `text`, the text of the record."""
    if type(record) is not dict:
        refuse_record(f"expected an object, found {kind_of(record)}")
    if schema == "text":
        text = _text(record, ("text",))
        if not text:
            refuse_record("the text is empty")
        return text
    if schema == "alpaca":
        instruction, output = _text(record, _INSTRUCTIONS), _text(record, _OUTPUTS)
        extra = _text(record, _INPUTS, required=False)
        messages = [
            {"role": "user", "content": f"{instruction}\n\n{extra}" if extra else instruction},
            {"role": "assistant", "content": output},
        ]
    elif schema == "sharegpt":
        messages = [_sharegpt(turn, number) for number, turn in _turns(record, "conversations")]
    else:
        messages = [_message(turn, number) for number, turn in _turns(record, "messages")]
    # A system or developer turn starts a new conversation.
    starts = [at for at, message in enumerate(messages) if not at or message["role"] in _OPENING]
    groups = [messages[start:stop] for start, stop in pairwise([*starts, len(messages)])]
    for start, group in zip(starts, groups, strict=True):
        _check(group, start + 1)
    return groups


def _check(messages: list[Message], first: int) -> None:
    """Rejects a conversation without answer, or with at most an opening turn before it; message 0 is number `first`."""
    roles = [message["role"] for message in messages]
    if roles[0] == "assistant" or (roles[0] in _OPENING and roles[1:2] == ["assistant"]):
        refuse_record(f"message {first + roles.index('assistant')}: no user turn before the assistant turn")
    if "assistant" not in roles:
        last = first + len(roles) - 1
        where = f"message {first}" if last == first else f"messages {first} to {last}"
        refuse_record(f"{where}: the conversation has no assistant turn to train on")


def _turns(record: Mapping[str, Any], column: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if column not in record:
        found = ", ".join(repr(name) for name in list(record)[:8]) or "none"
        refuse_record(f"no key {column!r}; found {found}")
    turns = record[column]
    if type(turns) is not list:
        refuse_record(f"expected an array under {column!r}, found {kind_of(turns)}")
    if not turns:
        refuse_record(f"the conversation under {column!r} is empty")
    for number, turn in enumerate(turns, 1):
        if type(turn) is not dict:
            refuse_record(f"message {number}: expected an object, found {kind_of(turn)}")
        yield number, turn


def _message(turn: Mapping[str, Any], number: int) -> Message:
    role = turn.get("role")
    if role not in ROLES:
        refuse_record(f"message {number}: `role` must be one of {', '.join(ROLES)}, got {role!r}")
    # A null means an absent key: Parquet stores every key in every row.
    rest = {key: value for key, value in turn.items() if value is not None and key != "content"}
    calls = bool(rest.get("tool_calls"))
    return {**rest, "content": _content(turn.get("content"), f"message {number} ({role})", may_be_null=calls)}


def _sharegpt(turn: Mapping[str, Any], number: int) -> Message:
    speaker = turn.get("from")
    if type(speaker) is not str or speaker.lower() not in _SPEAKERS:
        refuse_record(f"message {number}: `from` must be one of {', '.join(_SPEAKERS)}, got {speaker!r}")
    content = _content(turn.get("value"), f"message {number} ({speaker})", may_be_null=False)
    return {"role": _SPEAKERS[speaker.lower()], "content": content}


def _content(content: Any, where: str, *, may_be_null: bool) -> str | None:
    """Returns the text of a turn; joins a list of text parts with newlines; returns None for null if `may_be_null`."""
    if type(content) is str:
        return checked_text(content, where)
    if content is None and may_be_null:
        return None
    if type(content) is not list:
        refuse_record(f"{where}: expected a string as content, found {kind_of(content)}")
    texts = []
    for number, part in enumerate(content, 1):
        if type(part) is not dict or part.get("type") != "text" or type(part.get("text")) is not str:
            found = repr(part.get("type")) if type(part) is dict else kind_of(part)
            refuse_record(f"{where}: expected parts of type 'text', found {found} at part {number}")
        texts.append(checked_text(part["text"], where))
    return "\n".join(texts)


def _text(record: Mapping[str, Any], columns: tuple[str, ...], *, required: bool = True) -> str:
    """Returns the first nonempty text among `columns`, else ""; if `required`, rejects a record without a text."""
    present = [column for column in columns if record.get(column) not in (None, "")]
    if not present:
        if required and not any(record.get(column) == "" for column in columns):
            found = ", ".join(map(repr, record)) or "none"
            refuse_record(f"no text under {' or '.join(map(repr, columns))}; found {found}")
        return ""
    value = record[present[0]]
    if type(value) is not str:
        refuse_record(f"expected a string under {present[0]!r}, found {kind_of(value)}")
    return checked_text(value, repr(present[0]))
