import json

import pytest
from tests.inputs.corpora import bad, documents

from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.records import parse_block, parse_carefully
from tokenloom.inputs.utf8_texts import Utf8Texts

ODD = [
    r'{"text": "\ud800 alone"}',
    '{"text": ["one", "two"]}',
    '{"text": "twice", "text": "last"}',
    '{"text": "number", "x": NaN}',
    '{"text": 17}',
    '{"t\\u0065xt": "key"}',
    "",
    "no JSON",
    '{"text": "deep", "x": ' + "[" * 80 + "]" * 80 + "}",
]


def block(lines):
    return JsonLineBlock(path="lines", first_record=11, data="\n".join(lines).encode())


@pytest.mark.parametrize("odd", ODD)
def test_an_unusual_line_is_read_as_alone_and_leaves_its_neighbours_alone(odd):
    lines = [json.dumps({"text": f"é {number}" * 100}) for number in range(20)]
    lines[7] = odd
    parsed, careful = parse_block(block(lines), ["text"]), parse_carefully(block(lines), ["text"])
    assert isinstance(parsed.columns[0].texts, Utf8Texts)
    assert documents([parsed]) == documents([careful])
    assert bad([parsed]) == bad([careful])
    assert (parsed.num_blank_lines, parsed.skipped.tolist()) == (careful.num_blank_lines, careful.skipped.tolist())
