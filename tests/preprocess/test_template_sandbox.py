"""Templates render as in Jinja's own sandbox."""

from __future__ import annotations

import json

import pytest
from tests.preprocess.talks import TWO_TURNS, parts_of, talk

from tokenloom.inputs.parsing import UnusableLineError
from tokenloom.preprocess.template_limits import Meter, RenderLimits
from tokenloom.preprocess.template_sandbox import sandbox


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
