"""Reports of resumed loaders: a table of 80 columns, and what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.testing.letters import reading

from tokenloom.testing.resume import ResumeSettings
from tokenloom.testing.resume_report import ResumeCase, ResumeReport
from tokenloom.testing.resume_streams import Differences, compare

SAME = Differences(num_samples=1_000_000)


def case(differences=SAME, **other):
    return ResumeCase(**{"kind": "resumed", "kills": (3,), "world_sizes": (2, 4), "differences": differences, **other})


def report(*cases, **other):
    return ResumeReport(name="loaders.py:make", settings=ResumeSettings(seed=7), cases=cases, **other)


def test_a_table_has_a_line_per_case():
    shown = str(report(case(), case(kind="read again", kills=(), world_sizes=(1,))))
    assert shown == (
        "loaders.py:make\n"
        "2 cases, 0 failed; 24 batches, order batch, seed 7\n"
        "\n"
        "case              ranks   killed    repeated     missing     unknown   reordered\n"
        "resumed             2:4        3           0           0           0           0\n"
        "read again            1        -           0           0           0           0"
    )


def test_what_is_wrong_follows_the_table():
    wrong = case(compare(reading("a|b c|d"), reading("a|b b|x")), remark="it went on at batch 1 instead of 3")
    failed = case(error="rank 1 raised OSError", detail="\n".join(f"line {k}" for k in range(9)), world_sizes=(1, 1))
    shown = str(report(wrong, replace(wrong, kills=(5,)), failed, left_out=("['step']",)))
    assert shown.split("\n\n")[2:] == [
        "resumed, world size 2:4, killed after 3:\n"
        "    of 4 samples, 1 repeated, 2 missing, 1 unknown\n"
        "    it went on at batch 1 instead of 3\n"
        "    first repeated: in batch 1, rank 0, of batch 0 of the unbroken reading\n"
        "    b",
        "resumed, world size 1:1, killed after 3:\n"
        "    rank 1 raised OSError\n" + "\n".join(f"    line {k}" for k in range(3, 9)),
        "1 more failed, most of them alike",
        "not compared, since without a row per sample: ['step']",
    ]
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_json_has_all_of_it():
    wrong = case(compare(reading("a|b c|d"), reading("a|b")))
    found = json.loads(json.dumps(report(case(), wrong).as_json()))
    assert (found["name"], found["ok"], found["seed"], len(found["cases"])) == ("loaders.py:make", False, 7, 2)
    assert [one["ok"] for one in found["cases"]] == [True, False]
    assert found["cases"][1]["first"] == {
        "kind": "missing", "batch": 1, "rank": 0, "expected_batch": 1, "fingerprint": "c", "sample": "c"
    }  # fmt: skip
