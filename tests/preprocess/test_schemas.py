from __future__ import annotations

import pytest

from tokenloom.inputs.records import UnusableLineError
from tokenloom.preprocess.schemas import detect_schema, read_record

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
ASSISTANT = {"role": "assistant", "content": "a"}
TOOL = {"role": "tool", "content": "t"}


def roles_of(messages):
    record = read_record({"messages": messages}, "messages")
    return [[message["role"] for message in talk] for talk in record]


@pytest.mark.parametrize(
    ("columns", "schema"),
    [
        (["messages", "text", "conversations"], "messages"),
        (["id", "conversations"], "sharegpt"),
        (["instruction", "input", "output"], "alpaca"),
        (["instruction", "context", "response", "category"], "alpaca"),
        (["question", "answer", "text"], "alpaca"),
        (["prompt", "text"], "text"),
    ],
)
def test_columns_tell_the_schema(columns, schema):
    assert detect_schema(columns) == schema


def test_a_system_turn_opens_a_conversation():
    assert roles_of([USER, ASSISTANT]) == [["user", "assistant"]]
    pair = ["user", "assistant"]
    for opening in (SYSTEM, {"role": "developer", "content": "d"}):
        turns = [opening, USER, ASSISTANT, USER, ASSISTANT, opening, USER, ASSISTANT]
        assert roles_of(turns) == [[opening["role"], *pair, *pair], [opening["role"], *pair]]


BAD_MESSAGES = [
    ([], "the conversation under 'messages' is empty"),
    (None, "expected an array under 'messages', found null"),
    (["hello"], "message 1: expected an object, found a string"),
    ([USER, {"role": "narrator", "content": "x"}], "message 2: `role` must be one of system, .* got 'narrator'"),
    ([USER, {"role": ["user"], "content": "x"}], r"message 2: `role` must be one of .* got \['user'\]"),
    ([USER, {"role": "assistant", "content": 7}], r"message 2 \(assistant\): expected a string as content, "),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "parts of type 'text', found 'image_url' at part 1"),
    ([{"role": "user", "content": "a\ud83d"}], r"message 1 \(user\) is not valid Unicode: lone surrogate U\+D83D"),
    ([ASSISTANT, USER], "message 1: no user turn before the assistant turn"),
    ([SYSTEM, ASSISTANT], "message 2: no user turn before the assistant turn"),
    ([SYSTEM, SYSTEM, USER, ASSISTANT], "message 1: the conversation has no assistant turn to train on"),
    ([USER, ASSISTANT, SYSTEM, USER], "messages 3 to 4: the conversation has no assistant turn"),
]


def test_a_tool_call_needs_no_content_nulls_are_absent_keys_and_parts_are_joined():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    record = read_record({"messages": [{"role": "user", "content": parts}, ASSISTANT]}, "messages")
    assert record[0][0]["content"] == "one\ntwo"
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}], "name": None}
    record = read_record({"messages": [USER, call, TOOL, ASSISTANT]}, "messages")
    assert record[0][1] == {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}


def test_other_schemas_become_turns_or_text():
    turns = [{"from": "system", "value": "s"}, {"from": "Human", "value": "u"}, {"from": "gpt", "value": "a"}]
    assert read_record({"conversations": turns}, "sharegpt") == [[SYSTEM, USER, ASSISTANT]]
    for record, user in (
        ({"instruction": "u", "input": "1 2", "output": "a"}, {**USER, "content": "u\n\n1 2"}),
        ({"instruction": "u", "input": "", "output": "a"}, USER),
        ({"instruction": "u", "context": None, "response": "a"}, USER),
    ):
        assert read_record(record, "alpaca") == [[user, ASSISTANT]]
    assert read_record({"text": "abc"}, "text") == "abc"


@pytest.mark.parametrize(
    ("record", "schema", "reason"),
    [
        *(({"messages": messages}, "messages", reason) for messages, reason in BAD_MESSAGES),
        ({"conversations": [{"from": "narrator"}]}, "sharegpt", "message 1: `from` must be one of .* got 'narrator'"),
        ({"conversations": [{"from": "human"}]}, "sharegpt", r"message 1 \(human\): expected a string as content"),
        ({"messages": []}, "sharegpt", "no key 'conversations'; found 'messages'"),
        ({"instruction": "Hi", "output": None}, "alpaca", "no text under 'output' or 'response'"),
        ({"instruction": 5, "output": "x"}, "alpaca", "expected a string under 'instruction', found a number"),
        ({"text": ""}, "text", "the text is empty"),
        ({"text": None}, "text", "no text under 'text'; found 'text'"),
        ([], "text", "expected an object, found an array"),
    ],
)
def test_what_is_no_record_of_a_schema_is_named(record, schema, reason):
    with pytest.raises(UnusableLineError, match=reason):
        read_record(record, schema)
