"""Values of a request."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import ConfigError
from tokenloom.explorer.queries import Query


def test_values_by_name():
    query = Query.parse(b"text=a+b&first=10&count=7&empty=")
    assert (query.text("text"), query.page(default=50, most=5), query.number("other", 3)) == ("a b", (10, 5), 3)
    assert (query.optional_text("empty"), query.optional_text("absent")) == (None, None)
    query.check_read()


def test_nothing_is_a_query_too():
    query = Query.parse(b"")
    assert query.page(default=50, most=200) == (0, 50)
    with pytest.raises(ConfigError, match="expected `text` in the query, found none"):
        query.text("text")
    with pytest.raises(ConfigError, match="expected `position` in the query, found none"):
        query.number("position")


def test_numbers_have_a_range():
    query = Query.parse(b"document=5&negative=-1&float=1.5&nan=NaN&huge=" + b"9" * 400)
    with pytest.raises(ConfigError, match=r"expected `document` in \[0, 5\), found 5"):
        query.number("document", below=5)
    for name, wrong in (("negative", "is less than 0"), ("float", "is no whole number"), ("nan", "is no whole number")):
        with pytest.raises(ConfigError, match=wrong):
            query.number(name)
    with pytest.raises(ConfigError, match="does not fit 64 bits"):
        query.number("huge")


def test_what_nobody_reads_is_refused():
    query = Query.parse(b"text=a&frist=3")
    query.text("text")
    with pytest.raises(ConfigError, match="expected none of 'frist' here"):
        query.check_read()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_query_or_refused(query):
    with suppress(ConfigError):
        assert isinstance(Query.parse(query).text("text", ""), str)
