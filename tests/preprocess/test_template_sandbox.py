"""Templates render as in Jinja's own sandbox."""

from __future__ import annotations

import pytest
from tests.preprocess.talks import TWO_TURNS, parts_of

from tokenloom.inputs.parsing import UnusableLineError


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
