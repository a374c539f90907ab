"""Conversations into text, and what of it the assistant says."""

from __future__ import annotations

import json
import re
import sys

import pytest
from tests.preprocess.corpus import byte_level_json, make_tokenizer

from tokenloom.errors import ConfigError, MissingExtraError, TokenizerError
from tokenloom.inputs.parsing import UnusableLineError
from tokenloom.preprocess.chat_templates import JinjaTemplate, load_chat_template
from tokenloom.preprocess.schemas import read_record
from tokenloom.preprocess.template_limits import Meter, RenderLimits
from tokenloom.preprocess.template_sandbox import sandbox
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
    return read_record({"messages": messages}, "messages").conversations[0]


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
    return [(part.text, part.is_answer) for part in load_chat_template(tokenizer, template).render(conversation)]


def test_the_built_in_template_ends_with_the_answer(tmp_path):
    assert parts_of("chatml", TWO_TURNS, tmp_path) == [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
        ("Ho<|im_end|>", True),
        ("\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n", False),
        ("No<|im_end|>", True),
    ]
    ends_with_user = talk(("user", "Hi"), ("assistant", "Ho"), ("user", "Bye"))
    assert parts_of("chatml", ends_with_user, tmp_path)[-1] == ("\n<|im_start|>user\nBye<|im_end|>", False)


def test_a_template_is_cut_where_the_assistant_begins_and_ends(tmp_path):
    assert parts_of(CHATML, TWO_TURNS, tmp_path) == [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
        ("Ho<|im_end|>\n", True),
        ("<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n", False),
        ("No<|im_end|>\n", True),
    ]


def test_special_tokens_are_known_to_the_template(tmp_path):
    config = {"bos_token": "<|pad|>", "eos_token": "<|endoftext|>", "chat_template": INST}
    assert parts_of(None, TWO_TURNS, tmp_path, config) == [
        ("<|pad|>[INST] Hi [/INST]", False),
        (" Ho<|endoftext|>", True),
        ("[INST] More [/INST]", False),
        (" No<|endoftext|>", True),
    ]


def test_markers_say_what_is_generated(tmp_path):
    assert parts_of(MARKED, TWO_TURNS, tmp_path) == [
        ("<user>Hi<assistant>", False),
        ("Ho<end>", True),
        ("<user>More<assistant>", False),
        ("No<end>", True),
    ]
    with pytest.raises(UnusableLineError, match=r"noncharacters U\+FDD0 or U\+FDD1"):
        parts_of(MARKED, talk(("user", "\ufdd0"), ("assistant", "x")), tmp_path)


def test_a_template_that_rewrites_earlier_turns_is_refused(tmp_path):
    assert len(parts_of(FORGETFUL, talk(("user", "Hi"), ("assistant", "Ho")), tmp_path)) == 2
    with pytest.raises(UnusableLineError, match="is not stable: what it makes of the first 2 turns does not begin"):
        parts_of(FORGETFUL, TWO_TURNS, tmp_path)


def test_a_file_beside_the_tokenizer_goes_before_its_configuration(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(MARKED)
    assert parts_of(None, TWO_TURNS, tmp_path, {"chat_template": CHATML})[0][0] == "<user>Hi<assistant>"


def test_the_default_of_several_templates_is_taken(tmp_path):
    named = [{"name": "tool_use", "template": CHATML}, {"name": "default", "template": MARKED}]
    assert parts_of(None, TWO_TURNS, tmp_path, {"chat_template": named})[0][0] == "<user>Hi<assistant>"


def test_a_tokenizer_without_a_template_says_so(tmp_path):
    with pytest.raises(TokenizerError, match="has no chat template") as caught:
        parts_of(None, TWO_TURNS, tmp_path)
    assert "'chatml'" in caught.value.hint
    with pytest.raises(TokenizerError, match="cannot read chat template `nowhere`"):
        load_chat_template(make_tokenizer(byte_level_json()), "nowhere")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}", "is not a Jinja template: .* in line 1"),
        ("{% generation %}{{ x }}", "is not a Jinja template: "),
    ],
)
def test_what_is_no_template_is_refused(tmp_path, template, text):
    with pytest.raises(TokenizerError, match=text):
        parts_of(template, TWO_TURNS, tmp_path)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ raise_exception('roles must alternate') }}", "fails: roles must alternate"),
        ("{{ messages[9].content + 1 }}", "fails: list object has no element 9"),
        ("{{ messages.append(1) }}", "fails: access to attribute 'append' of 'list' object is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "fails: access to attribute '__class__' of 'str' object is unsafe"),
    ],
)
def test_a_template_that_fails_or_breaks_out_is_a_reason(tmp_path, template, text):
    with pytest.raises(UnusableLineError, match=text):
        parts_of(template, TWO_TURNS, tmp_path)


def test_json_is_not_escaped_for_html(tmp_path):
    template = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    parts = parts_of(template, talk(("user", "<é>"), ("assistant", "&")), tmp_path)
    assert "".join(text for text, _ in parts).startswith('{"role": "user", "content": "<é>"}')


def test_jinja_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match="`jinja2` is not installed") as caught:
        parts_of(MARKED, TWO_TURNS, tmp_path)
    assert caught.value.hint == "run `pip install tokenloom[chat]`"
    assert len(parts_of("chatml", TWO_TURNS, tmp_path)) == 4


FLOOD = "it makes a value of more than 1000000 bytes"
STEPS = "it takes more than 20000 steps"
DOUBLING = "{% set n = namespace(x=SEED) %}{% for i in range(100) %}{% set n.x = STEP %}{% endfor %}{{ n.x }}"


def doubling(seed, step):
    return DOUBLING.replace("SEED", seed).replace("STEP", step)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for i in range(10**12) %}x{% endfor %}", "OverflowError: Range too big"),
        ("{% for i in range(99999) %}{% endfor %}", STEPS),
        ("{% for i in range(99999) if false %}{% endfor %}", STEPS),
        ("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}", STEPS),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{% set s = 'a' * 900000 %}{% for i in range(999) %}{% if 'b' in s %}{% endif %}{% endfor %}", STEPS),
        ("{% set s = 'a' * 900000 %}{% for i in range(999) %}{% if s.count('b') %}{% endif %}{% endfor %}", STEPS),
        ("{{ 'a' * 10**10 }}", FLOOD),
        ("{{ 'a'*10000000000 }}", FLOOD),
        ("{{ ([0] * 10**9) | length }}", FLOOD),
        ("{{ 10**(10**8) }}", "it makes an integer of more than 8192 bits"),
        (doubling("10", "n.x * n.x"), "it makes an integer of more than 8192 bits"),
        (doubling("'a'", "n.x + n.x"), FLOOD),
        (doubling("'a'", "n.x ~ n.x"), FLOOD),
        (doubling("[1]", "n.x + n.x"), FLOOD),
        (doubling("'a'", "[n.x, n.x]"), FLOOD),
        (doubling("'a'", "{'k': n.x, 'l': n.x}"), FLOOD),
        (doubling("'a'", "namespace(k=n.x, l=n.x)"), FLOOD),
        ("{{ 'a' | center(10000000000) }}", FLOOD),
        ("{{ 'a'.center(10**10) }}", FLOOD),
        ("{{ '%10000000000d' % 1 }}", FLOOD),
        ("{{ '%*d' % (10000000000, 1) }}", FLOOD),
        ("{{ '%10000000000d' | format(1) }}", FLOOD),
        ("{{ '{:{}}'.format(1, 10000000000) }}", FLOOD),
        ("{{ '{a:{b}}'.format_map({'a': 1, 'b': 10000000000}) }}", FLOOD),
        ("{{ ('a' * 10000).replace('', 'b' * 10000) }}", FLOOD),
        ("{{ ('a' * 10000) | replace('a', 'b' * 10000) }}", FLOOD),
        ("{{ ('b' * 10000).join('a' * 10000) }}", FLOOD),
        ("{{ range(999) | map('string') | join('b' * 10000) }}", FLOOD),
        ("{{ ('\\t' * 10000).expandtabs(10000) }}", FLOOD),
        ("{{ ('a' * 10000).translate({97: 'b' * 10000}) }}", FLOOD),
        ("{{ ('\\n' * 10000) | indent(10000, blank=true) }}", FLOOD),
        ("{{ ('a' * 10000) | wordwrap(1, true, 'x' * 10000) }}", FLOOD),
        ("{{ messages | tojson(indent=1000000) }}", FLOOD),
        ("{{ ('a ' * 100000).split() | length }}", FLOOD),
        ("{{ (5).to_bytes(10000000000, 'big') | length }}", FLOOD),
        ("{{ 1.5 | round(100000000) }}", "it rounds to more than 1000 digits"),
        ("{{ [1] | batch(10000000000, 0) | list }}", FLOOD),
        ("{{ [1] | slice(10000000000) | list }}", FLOOD),
        ("{% set s = 'a' * 900000 %}{{ s }}{{ s }}", FLOOD),
        ("{% set s = 'a' * 900000 %}{% set x %}{{ s }}{{ s }}{% endset %}", FLOOD),
        ("{% for x in range(99) | map('center', 200000) %}{% endfor %}", "more than 16 times 1000000 bytes in all"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{{ 2.0 ** 100000 }}", "OverflowError: "),
        ("{{ {[1]: 2} }}", "TypeError: unhashable type"),
        ("{{ 1 is divisibleby(0) }}", "ZeroDivisionError: "),
        ("{{ 'a'.encode().decode('utf-16') }}", "UnicodeDecodeError: "),
        ("{{ messages[0].update({'content': 'else'}) }}", "access to attribute 'update' of 'dict' object is unsafe"),
        ("{{ self.x() }}{% block x %}{{ self.x() }}{% endblock %}", "RecursionError"),
    ],
)
def test_a_template_that_floods_loops_or_fails_is_a_reason(template, text):
    limits = RenderLimits(max_rendered_bytes=1_000_000, max_render_steps=20_000)
    loaded = JinjaTemplate("it", template, make_tokenizer(byte_level_json()), limits=limits)
    with pytest.raises(UnusableLineError, match=re.escape(text)):
        loaded.render(TWO_TURNS)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages | map(attribute='content') | map('trim') | select | join('\n') }}",
        "{% set n = namespace(t='') %}{% for m in messages %}{% set n.t = n.t ~ m.role + ': ' + m['content'][1:] %}"
        "{% endfor %}{{ n.t | replace('user', 'human') | upper }}{{ '%-5s|%d' % ('a', 3) }}{{ '{0:>4}'.format('b') }}",
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }} {{ m | tojson(indent=2) }}"
        "{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}{{ messages[::-1] | length }}{{ (1, 2) }}",
        "{% macro say(m, n=2) %}{{ m.content * n }}{{ caller() if caller }}{% endmacro %}"
        "{% for m in messages %}{% call say(m) %}!{% endcall %}{% endfor %}{{ messages | groupby('role') | length }}",
        "{{ '<<' }}{% filter upper %}{% for k, v in messages[0] | items %}{{ k }}={{ v }};{% endfor %}{% endfilter %}"
        "{{ range(3) | list }}{{ [1, [2]] | string }}{{ messages | tojson == 1 or 'x' in ['x'] }}{{ 7 // 2 ** 2 % 5 }}",
    ],
)
def test_templates_render_as_in_jinjas_own_sandbox(template):
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    own = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    own.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    messages = list(talk(("user", "Grüße"), ("assistant", "b")).messages)
    expected = own.from_string(template).render(messages=messages, add_generation_prompt=False)
    environment = sandbox()
    with environment.metered(Meter(RenderLimits())):
        assert environment.from_string(template).render(messages=messages, add_generation_prompt=False) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}{% endfor %}",
        "{% set x %}{% generation %}answer{% endgeneration %}{% endset %}{{ x[:3] }}",
        "{% set x %}{% generation %}answer{% endgeneration %}{% endset %}{{ x[3:] }}",
    ],
)
def test_markers_that_do_not_pair_are_a_reason(tmp_path, template):
    with pytest.raises(UnusableLineError, match="marks what is generated inside of what is, or without an end"):
        parts_of(template, TWO_TURNS, tmp_path)


def test_lone_surrogates_of_a_template_count_as_question_marks(tmp_path):
    assert parts_of("{{ '\\ud800!' }}", TWO_TURNS, tmp_path) == [("?!", False)]


@pytest.mark.parametrize("template", ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{{ 'a' | nothing }}"])
def test_what_the_compiler_cannot_take_is_refused(tmp_path, template):
    with pytest.raises(TokenizerError, match="is not a Jinja template: "):
        parts_of(template, TWO_TURNS, tmp_path)


def test_limits_are_above_nothing():
    with pytest.raises(ConfigError, match="expected max_render_steps of at least 1, got 0"):
        RenderLimits(max_render_steps=0)
