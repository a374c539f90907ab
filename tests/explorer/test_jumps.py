"""From what is typed to where it is."""

from __future__ import annotations

import pytest


def samples(position):
    return {"view": "samples", "parameters": {"position": position}}


def documents(source, document):
    return {"view": "documents", "parameters": {"source": source, "document": document}}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("59", samples(59)),
        (" 5_9 ", samples(59)),
        ("position 7", samples(7)),
        ("step 3", samples(24)),
        ("Step:3", samples(24)),
        ("code:19", documents(1, 19)),
        ("web:0", documents(0, 0)),
        ("code.jsonl:3", documents(1, 2) | {"num_documents": 1}),
    ],
)
def test_what_is_meant_is_told_from_how_it_is_written(ask_run, value, found):
    assert ask_run("jump", value=value) == found


@pytest.mark.parametrize(
    ("what", "value", "found"),
    [("position", "1,000", None), ("step", "7", samples(56)), ("document", "code:1", documents(1, 1))],
)
def test_what_is_meant_can_be_said(ask_run, what, value, found):
    if found is None:
        assert ask_run.error("jump", what=what, value=value) == (404, "expected a position in [0, 60), found 1000")
    else:
        assert ask_run("jump", what=what, value=value) == found


def test_records_are_found_by_the_file_they_were_read_from(ask_pair, corpora):
    assert ask_pair("jump", what="record", value=f"{corpora.path('web.jsonl')}:1") == documents(0, 0) | {
        "num_documents": 1
    }
    assert ask_pair("jump", value="web_text_document:39") == documents(0, 39)  # by the last part of the prefix
    assert ask_pair("jump", what="document", value="39") == documents(0, 39)


@pytest.mark.parametrize(
    ("value", "status", "message"),
    [
        ("8", 200, ""),
        ("60", 404, "expected a position in [0, 60), found 60"),
        ("step 8", 404, "expected a position in [0, 60), found 64"),
        ("web:39", 404, "expected a document of web in [0, 39), found 39"),
        ("wbe:4", 400, "expected a document of a source of this run, found 'wbe:4'"),
        ("web.jsonl:99", 400, "web.jsonl"),
        ("/etc/passwd:1", 400, "/etc/passwd"),
        ("", 400, "expected a document such as"),
        ("-1", 400, "expected a document such as"),
        ("9" * 30, 400, "does not fit 64 bits"),
        ("nan", 400, "expected a document such as"),
        ("x" * 5000, 400, "expected a document such as"),
    ],
)
def test_what_is_not_there_is_said_in_words(ask_run, value, status, message):
    if status == 200:
        assert ask_run("jump", value=value) == samples(8)
    else:
        found, said = ask_run.error("jump", value=value)
        assert (found, message in said) == (status, True), said


def test_steps_need_batch_sizes_and_kinds_are_known(ask_pair):
    assert ask_pair.error("jump", value="step 1") == (400, "expected batch sizes to find a step, found none")
    assert ask_pair.error("jump", what="token", value="1")[0] == 400
