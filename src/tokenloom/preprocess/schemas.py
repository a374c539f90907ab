"""Records into conversations: their columns, the roles of turns, and where one conversation ends.

Four schemas: `messages` (a list of role and content), `sharegpt` (`conversations`: a list of from and value), `alpaca`
(an instruction, maybe some input, and an output, under the names that Alpaca, Dolly and their kin use) and `text`.
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
"""A turn: `role`, `content` and the other keys of the record."""

Conversation = list[Message]


def detect_schema(columns: Iterable[str]) -> Schema:
    """Returns the schema of some columns; the most explicit one where several fit.

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
    message = f"no schema out of {', '.join(SCHEMAS)} has the columns {', '.join(sorted(found)) or '(none)'}"
    raise ConfigError(message, hint="rename the columns, or name the schema")


def read_record(record: Any, schema: Schema) -> list[Conversation] | str:
    """Returns the conversations of a record, or its text. A system turn opens a new conversation."""
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
    starts = [at for at, message in enumerate(messages) if not at or message["role"] in _OPENING]
    groups = [messages[start:stop] for start, stop in pairwise([*starts, len(messages)])]
    for start, group in zip(starts, groups, strict=True):
        _check(group, start + 1)
    return groups


def _check(messages: list[Message], first: int) -> None:
    """Refuses messages that are no conversation; `first` is the number of the first one in the record."""
    roles = [message["role"] for message in messages]
    if roles[0] == "assistant" or (roles[0] in _OPENING and roles[1:2] == ["assistant"]):
        refuse_record(f"message {first + roles.index('assistant')}: no user turn before the assistant's")
    if "assistant" not in roles:
        last = first + len(roles) - 1
        where = f"message {first}" if last == first else f"messages {first} to {last}"
        refuse_record(f"{where}: a conversation without an assistant turn has nothing to train")


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
        refuse_record(f"message {number}: expected a role out of {', '.join(ROLES)}, found {role!r}")
    # A null stands for an absent key: Parquet has every key in every row.
    rest = {key: value for key, value in turn.items() if value is not None and key != "content"}
    calls = bool(rest.get("tool_calls"))
    return {**rest, "content": _content(turn.get("content"), f"message {number} ({role})", may_be_null=calls)}


def _sharegpt(turn: Mapping[str, Any], number: int) -> Message:
    speaker = turn.get("from")
    if type(speaker) is not str or speaker.lower() not in _SPEAKERS:
        refuse_record(f"message {number}: expected a speaker out of {', '.join(_SPEAKERS)}, found {speaker!r}")
    content = _content(turn.get("value"), f"message {number} ({speaker})", may_be_null=False)
    return {"role": _SPEAKERS[speaker.lower()], "content": content}


def _content(content: Any, where: str, *, may_be_null: bool) -> str | None:
    """Returns the text of a turn; parts of text are joined by newlines."""
    if type(content) is str:
        return checked_text(content, where)
    if content is None and may_be_null:
        return None
    if type(content) is not list:
        refuse_record(f"{where}: expected text as content, found {kind_of(content)}")
    texts = []
    for number, part in enumerate(content, 1):
        if type(part) is not dict or part.get("type") != "text" or type(part.get("text")) is not str:
            found = repr(part.get("type")) if type(part) is dict else kind_of(part)
            refuse_record(f"{where}: expected parts of type 'text', found {found} as part {number}")
        texts.append(checked_text(part["text"], where))
    return "\n".join(texts)


def _text(record: Mapping[str, Any], columns: tuple[str, ...], *, required: bool = True) -> str:
    """Returns the first text that is not empty under one of the columns."""
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
