"""Keys that lead into objects."""

from __future__ import annotations

from pathlib import Path

from tests.inputs.corpora import (
    bad,
    documents,
    json_lines,
    parse_file,
)


def test_keys_lead_into_objects_unless_they_hold_the_dot_themselves(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    records = [
        {"meta": {"text": "inner", "a.b": {"c": "x"}}},
        {"meta": {"text": "inner"}, "meta.text": "literal"},
        {"meta": "no object"},
        {"meta": None},
    ]
    path.write_bytes(json_lines(records))
    parsed = parse_file(path, ["meta.text"])
    assert documents(parsed) == [["inner"], ["literal"]]
    assert bad(parsed) == [(3, "no key 'meta.text'; found 'meta'"), (4, "no key 'meta.text'; found 'meta'")]
    assert documents(parse_file(path, ["meta.text", "meta"])) == []
    path.write_bytes(json_lines([{"meta": {"text": "a"}, "id": "1"}] * 3))
    parsed = parse_file(path, ["meta.text", "id"])
    assert [documents(parsed, number) for number in (0, 1)] == [[["a"]] * 3, [["1"]] * 3]
