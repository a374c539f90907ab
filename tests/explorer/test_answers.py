"""JSON for browsers."""

from __future__ import annotations

import json

import numpy as np

from tokenloom.errors import ChangedFileError, ConfigError, StorageError
from tokenloom.explorer.answers import NotThereError, encoded, error_answer


def test_numbers_that_javascript_would_round_are_texts():
    told = json.loads(encoded({"exact": 2**53, "rounded": 2**53 + 1, "negative": -(2**60), "true": True}))
    assert told == {"exact": 2**53, "rounded": "9007199254740993", "negative": "-1152921504606846976", "true": True}


def test_arrays_and_what_is_not_finite():
    values = [np.arange(2), np.float32("nan"), float("inf"), np.int64(2**60), np.bool_(1), (1.5, None), {2: "b"}]
    assert json.loads(encoded(values)) == [[0, 1], None, None, str(2**60), True, [1.5, None], {"2": "b"}]


def test_halves_of_surrogates_do_not_break_an_answer():
    assert json.loads(encoded("a\ud800b")) == r"a\ud800b"
    assert encoded({"html": "a\ud800b"}) == b'{"html":"a\\ud800b"}'


def test_errors_have_the_status_of_their_class():
    statuses = [error_answer(kind("x"))[0] for kind in (ConfigError, NotThereError, ChangedFileError, StorageError)]
    assert statuses == [400, 404, 409, 500]


def test_texts_turn_no_page_around_and_html_stays_as_it_was_drawn():
    told = json.loads(
        encoded({"file": "a\u202eb\x1b.jsonl", "facts": [("made of", "\x00")], "legend_html": "<b>\t</b>"})
    )
    assert told == {"file": r"a\u202eb\x1b.jsonl", "facts": [["made of", r"\x00"]], "legend_html": "<b>\t</b>"}
