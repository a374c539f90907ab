"""Traced spans in lines of eighty columns."""

from __future__ import annotations

import json

from tests.run.audit.tables import small_table

from tokenloom.cli.trace_rows import print_rows


class Records:
    """Documents of a file with a long name."""

    file_names = ("data/" + "deep/" * 20 + "0007.jsonl",)

    def locate(self, source, documents):
        return (documents * 0 - source).astype("int32"), (documents + 1) * (1 - source)


def printed(capsys, rows, **options) -> list[str]:
    print_rows(rows, **options)
    return capsys.readouterr().out.splitlines()


def test_spans_stand_below_their_sample(capsys):
    rows = list(small_table().rows())
    assert printed(capsys, rows, as_json=False) == [
        "",
        "position 4, stage main, source web, pass 0",
        "    slot     document     start   length  origin",
        "       0            1         5        2  w0 row 1",
        "       2            3         0        3  denied: w1 row 1",
        "",
        "position 7, stage long, source code",
        "    slot     document     start   length  origin",
        "       0            2         0        5  c row 2",
    ]


def test_long_names_keep_their_end(capsys):
    lines = printed(capsys, list(small_table().with_origins(Records()).rows()), as_json=False)
    assert lines[3].endswith("  …deep/deep/deep/deep/deep/0007.jsonl:2")
    assert "  denied: …" in lines[4]
    assert [len(line) for line in lines[3:5]] == [80, 80]


def test_texts_cannot_drive_a_terminal(capsys):
    rows = [row | {"text": "a\x1b[31mb\n\nc", "input": None} for row in list(small_table().rows())[:1]]
    assert printed(capsys, rows, as_json=False)[4:] == ["  text | a\\x1b[31mb", "  text | ", "  text | c"]


def test_objects_hold_whole_names(capsys):
    rows = list(small_table().with_origins(Records()).rows())
    assert [json.loads(line) for line in printed(capsys, rows, as_json=True)] == rows
