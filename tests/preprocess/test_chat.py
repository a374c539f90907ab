import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import EOD, byte_level_json, make_tokenizer

from tokenloom.errors import MissingExtraError, TokenizerError
from tokenloom.inputs.records import UnusableLineError
from tokenloom.preprocess.chat import SpanEncoder
from tokenloom.preprocess.chat_templates import find_chat_template
from tokenloom.preprocess.schemas import detect_schema, read_record
from tokenloom.tokenizers.engines import choose_engine
from tokenloom.tokenizers.load import load_tokenizer

CHATML = (
    "{% for message in messages %}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
MARKED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<end>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
FORGETFUL = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and not loop.last %}(short)"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def talk(*turns):
    messages = [{"role": role, "content": content} for role, content in turns]
    return read_record({"messages": messages}, "messages")[0]


TWO_TURNS = talk(("user", "Hi"), ("assistant", "Ho"), ("user", "More"), ("assistant", "No"))


def parts_of(template, conversation, tmp_path, config=None):
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    if template is not None and template != "chatml":
        path = tmp_path / "template.jinja"
        path.write_text(template)
        template = str(path)
    parts = find_chat_template(tokenizer, template).compiled().render(conversation)
    return [(part.text, part.is_answer) for part in parts]


def test_the_built_in_template_ends_with_the_answer(tmp_path):
    assert parts_of("chatml", TWO_TURNS, tmp_path) == [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
        ("Ho<|im_end|>", True),
        ("\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n", False),
        ("No<|im_end|>", True),
    ]
    ends_with_user = talk(("user", "Hi"), ("assistant", "Ho"), ("user", "Bye"))
    assert parts_of("chatml", ends_with_user, tmp_path)[-1] == ("\n<|im_start|>user\nBye<|im_end|>", False)


USER_TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n".format


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, (USER_TURN("Hi"), "Ho<|im_end|>\n", USER_TURN("More"), "No<|im_end|>\n")),
        (None, ("<|pad|>[INST] Hi [/INST]", f" Ho{EOD}", "[INST] More [/INST]", f" No{EOD}")),
        (MARKED, ("<user>Hi<assistant>", "Ho<end>", "<user>More<assistant>", "No<end>")),
    ],
)
def test_a_template_is_cut_where_the_assistant_begins_and_ends(tmp_path, template, expected):
    config = {"bos_token": "<|pad|>", "eos_token": EOD, "chat_template": INST}
    found = parts_of(template, TWO_TURNS, tmp_path, config)
    assert found == [(text, bool(number % 2)) for number, text in enumerate(expected)]


def test_a_template_that_rewrites_earlier_turns_or_is_missing_is_refused(tmp_path):
    assert len(parts_of(FORGETFUL, talk(("user", "Hi"), ("assistant", "Ho")), tmp_path)) == 2
    with pytest.raises(UnusableLineError, match=r"U\+FDD0 or U\+FDD1"):
        parts_of(MARKED, talk(("user", "\ufdd0"), ("assistant", "x")), tmp_path)
    with pytest.raises(TokenizerError, match="has no chat template") as caught:
        parts_of(None, TWO_TURNS, tmp_path)
    assert "'chatml'" in caught.value.hint
    with pytest.raises(TokenizerError, match="cannot read chat template `nowhere`"):
        find_chat_template(make_tokenizer(byte_level_json()), "nowhere")


def test_jinja_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match="`jinja2` is not installed") as caught:
        parts_of(MARKED, TWO_TURNS, tmp_path)
    assert caught.value.hint == "run `pip install 'tokenloom[chat]'`"
    assert len(parts_of("chatml", TWO_TURNS, tmp_path)) == 4


NESTED = "{% for m in messages %}{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}{% endfor %}"
CUT = "{% set x %}{% generation %}answer{% endgeneration %}{% endset %}"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (FORGETFUL, "cannot locate answers: the text of the first 2 turns is not a"),
        (NESTED, "has nested or incomplete `generation` blocks"),
        (CUT + "{{ x[:3] }}", "has nested or incomplete `generation` blocks"),
        (CUT + "{{ x[3:] }}", "has nested or incomplete `generation` blocks"),
        ("{{ raise_exception('roles must alternate') }}", "failed: roles must alternate"),
        ("{{ messages[9].content + 1 }}", "failed: list object has no element 9"),
        ("{{ messages.append(1) }}", "failed: access to attribute 'append' of 'list' object is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "failed: access to attribute '__class__' of 'str' object is unsafe"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "failed: RecursionError"),
        ("{{ 1 / 0 }}", "failed: ZeroDivisionError"),
        ("{{ messages | random }}", "is not a Jinja template: No filter named 'random'"),
        ("{% for m in messages %}", "is not a Jinja template: .* in line 1"),
        ("{% generation %}{{ x }}", "is not a Jinja template: "),
    ],
)
def test_a_template_that_fails_or_breaks_out_is_a_reason(tmp_path, template, text):
    with pytest.raises((UnusableLineError, TokenizerError), match=text):
        parts_of(template, TWO_TURNS, tmp_path)


SYSTEM, USER, ASSISTANT, TOOL = ({"role": role, "content": role[0]} for role in ("system", "user", "assistant", "tool"))


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


PARTS = st.lists(st.lists(st.text(st.sampled_from("ab é👍\n\t1한"), max_size=8) | st.just(EOD), max_size=5), max_size=4)


@pytest.fixture(scope="module")
def encoders(tokenizer):
    choices = {name: choose_engine(name, tokenizer, []) for name in ("gigatoken", "tokenizers")}
    return {name: SpanEncoder(tokenizer, choice, num_workers=1) for name, choice in choices.items()}


@given(texts=PARTS)
def test_both_ways_agree_and_every_part_is_what_ends_in_it(texts, tokenizer, encoders):
    slow, fast = encoders["tokenizers"].encode(texts, number=1), encoders["gigatoken"].encode(texts, number=1)
    for name in ("tokens", "lengths", "part_stops"):
        assert getattr(slow, name).tolist() == getattr(fast, name).tolist()
    assert slow.lengths.tolist() == [len(tokenizer.tokenize("".join(parts))) for parts in texts]
    stops = slow.part_stops.tolist()
    for parts, length in zip(texts, slow.lengths.tolist(), strict=True):
        mine, stops = stops[: len(parts)], stops[len(parts) :]
        assert mine == sorted(mine)
        assert mine[-1:] == [length] * bool(parts)


def test_a_token_ends_where_its_last_byte_is(tokenizer, encoders):
    for encoder in encoders.values():
        encoded = encoder.encode([["a", " b", "", "é"], [], ["", ""]], number=1)
        assert encoded.lengths.tolist() == [len(tokenizer.tokenize("a bé")), 0, 0]
        assert encoded.part_stops.tolist()[4:] == [0, 0]
        assert encoded.part_stops.tolist()[:2] == [1, len(tokenizer.tokenize("a b"))]


def test_a_tokenizer_that_normalises_is_asked_for_offsets():
    data = json.loads(byte_level_json())
    data["normalizer"] = {"type": "NFC"}
    tokenizer = make_tokenizer(json.dumps(data))
    choices = (choose_engine(name, tokenizer, []) for name in ("auto", "tokenizers"))
    fast, slow = (SpanEncoder(tokenizer, choice, num_workers=1) for choice in choices)
    texts = [["e\u0301x", "o\u0302"], ["plain", " text"]]
    found, expected = fast.encode(texts, number=1), slow.encode(texts, number=1)
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.part_stops.tolist() == expected.part_stops.tolist()
