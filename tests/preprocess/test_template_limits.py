"""Templates that flood or loop."""

from __future__ import annotations

import re

import pytest
from tests.preprocess.corpus import byte_level_json, make_tokenizer
from tests.preprocess.talks import TWO_TURNS

from tokenloom.errors import ConfigError
from tokenloom.inputs.parsing import UnusableLineError
from tokenloom.preprocess.chat_templates import JinjaTemplate
from tokenloom.preprocess.template_limits import RenderLimits

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


def test_limits_are_above_nothing():
    with pytest.raises(ConfigError, match="expected max_render_steps of at least 1, got 0"):
        RenderLimits(max_render_steps=0)
