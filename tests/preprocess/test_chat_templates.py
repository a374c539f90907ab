from __future__ import annotations

import json
import sys

import pytest
from tests.preprocess.corpus import EOD, byte_level_json, make_tokenizer

from tokenloom.errors import MissingExtraError, TokenizerError
from tokenloom.inputs.records import UnusableLineError
from tokenloom.preprocess.chat_templates import find_chat_template
from tokenloom.preprocess.schemas import read_record
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
    return [
        (part.text, part.is_answer) for part in find_chat_template(tokenizer, template).compiled().render(conversation)
    ]


def test_the_built_in_template_ends_with_the_answer(tmp_path):
    assert parts_of("chatml", TWO_TURNS, tmp_path) == [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
        ("Ho<|im_end|>", True),
        ("\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n", False),
        ("No<|im_end|>", True),
    ]
    ends_with_user = talk(("user", "Hi"), ("assistant", "Ho"), ("user", "Bye"))
    assert parts_of("chatml", ends_with_user, tmp_path)[-1] == ("\n<|im_start|>user\nBye<|im_end|>", False)


USER = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n".format


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, (USER("Hi"), "Ho<|im_end|>\n", USER("More"), "No<|im_end|>\n")),
        (None, ("<|pad|>[INST] Hi [/INST]", f" Ho{EOD}", "[INST] More [/INST]", f" No{EOD}")),
        (MARKED, ("<user>Hi<assistant>", "Ho<end>", "<user>More<assistant>", "No<end>")),
    ],
)
def test_a_template_is_cut_where_the_assistant_begins_and_ends(tmp_path, template, expected):
    config = {"bos_token": "<|pad|>", "eos_token": EOD, "chat_template": INST}
    found = parts_of(template, TWO_TURNS, tmp_path, config)
    assert found == [(text, bool(number % 2)) for number, text in enumerate(expected)]


def test_a_template_that_rewrites_earlier_turns_is_refused_where_it_does(tmp_path):
    assert len(parts_of(FORGETFUL, talk(("user", "Hi"), ("assistant", "Ho")), tmp_path)) == 2
    with pytest.raises(UnusableLineError, match=r"U\+FDD0 or U\+FDD1"):
        parts_of(MARKED, talk(("user", "\ufdd0"), ("assistant", "x")), tmp_path)


def test_a_tokenizer_without_a_template_says_so(tmp_path):
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
        (NESTED, "has nested or cut `generation` blocks"),
        (CUT + "{{ x[:3] }}", "has nested or cut `generation` blocks"),
        (CUT + "{{ x[3:] }}", "has nested or cut `generation` blocks"),
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
