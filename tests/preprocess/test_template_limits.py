"""Templates that flood or loop."""

from __future__ import annotations

import re

import pytest
from tests.preprocess.talks import TWO_TURNS

from tokenloom.inputs.parsing import UnusableLineError
from tokenloom.preprocess.chat_templates import JinjaTemplate, TemplateSource
from tokenloom.preprocess.template_limits import RenderLimits

FLOOD = "it makes a value of more than 1000000 bytes"
STEPS = "it takes more than 20000 steps"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for i in range(99999) %}{% endfor %}", STEPS),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ 'a' * 10**10 }}", FLOOD),
        ("{{ 10**(10**8) }}", "it makes an integer of more than 8192 bits"),
        ("{{ 'a'.center(10**10) }}", FLOOD),
        ("{{ messages | tojson(indent=1000000) }}", FLOOD),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_template_that_floods_loops_or_fails_is_a_reason(template, text):
    limits = RenderLimits(max_rendered_bytes=1_000_000, max_render_steps=20_000)
    loaded = JinjaTemplate(TemplateSource(name="it", source=template), limits=limits)
    with pytest.raises(UnusableLineError, match=re.escape(text)):
        loaded.render(TWO_TURNS)
