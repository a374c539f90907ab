"""`tokenloom.megatron.training.datasets.varlen_dataset`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.megatron.training.datasets.conversations import (
    EOD,
    IGNORED,
    PAD,
    ROLES,
    config_of,
    dataset_of,
    lists,
    turns,
    write_lines,
)

from tokenloom.datasets.splits import Split
from tokenloom.megatron.training.datasets.varlen_dataset import (
    MockVarlenDataset,
    VarlenDataset,
    VarlenLowLevelDataset,
    _select_converter,
)

RECORDS = {
    "openai-messages": (
        {"messages": [{"role": "user", "content": "a", "name": "x"}, {"role": "assistant", "content": None}]},
        turns(system="", user="a", assistant=""),
    ),
    "sharegpt": (
        {"conversations": [{"from": "system", "value": "s"}, {"from": "Human", "value": "a"}, {"from": "odd"}]},
        [*turns(system="s", user="a"), *turns(user="")],
    ),
    "alpaca": (
        {"instruction": "", "query": "do", "input": "this", "answer": "b"},
        turns(system="", user="do\n\nthis", assistant="b"),
    ),
    "pretrain-text": ({"text": "abc", "url": "x"}, "abc"),
}


@pytest.mark.parametrize("schema", RECORDS)
def test_schemas(tmp_path, schema):
    record, expected = RECORDS[schema]
    low_level = VarlenLowLevelDataset(write_lines(tmp_path / "lines.jsonl", [record]))
    assert (low_level.schema_name, len(low_level), low_level[0]) == (schema, 1, expected)


def test_invalid_records():
    for record in ({"messages": [{"content": [1]}]}, {"text": 5}, {"prompt": ["a"], "output": "b"}):
        convert, _ = _select_converter([*record])
        with pytest.raises(ValueError, match="must be a string"):
            convert(record)
    with pytest.raises(ValueError, match="cannot infer schema from the columns a, b"):
        _select_converter(["b", "a"])
    assert _select_converter(["text", "instruction", "output"])[1] == "alpaca"


def make(lines, **settings):
    config = config_of(sequence_length=8, blend=(["lines"], None), split="1,0,0", **settings)
    return dataset_of(VarlenDataset, lines, config)


def make_mock(**settings):
    config = config_of(sequence_length=8, **settings)
    low_level = MockVarlenDataset.build_low_level_dataset(None, config)
    return MockVarlenDataset(low_level, None, np.arange(20, dtype=np.int32), None, Split.train, config)


def test_texts_are_padded_for_context_parallelism():
    dataset = make(["abc", "", "a", "abcdefghijkl"], context_parallel_size=2)
    a, b, c = map(ord, "abc")
    assert lists(dataset[0]) == {
        "tokens": [a, b, c, EOD],
        "labels": [b, c, EOD, PAD],
        "loss_mask": [1, 1, 1, 0],
        "position_ids": [0, 1, 2, 3],
        "original_seq_len": [3],
        "padded_seq_len": [4],
    }
    lengths = [(int(s["original_seq_len"]), int(s["padded_seq_len"])) for s in map(dataset.__getitem__, range(4))]
    assert lengths == [(3, 4), (1, 4), (1, 4), (8, 8)]
    assert dataset[3]["labels"].tolist() == [*map(ord, "bcdefgh"), EOD]
    assert lists(make(["abc"], hybrid_context_parallel=True, data_parallel_size=3)[0])["padded_seq_len"] == [6]


def test_prompts_have_no_loss():
    sample = make([turns(user="a", assistant="b")])[0]
    assert sample["labels"].tolist() == [IGNORED, IGNORED, ROLES["assistant"], ord("b"), EOD]
    assert sample["loss_mask"].tolist() == [0, 0, 1, 1, 1]

    sample = make(["abc"], varlen_sbhd_validation=True)[0]
    assert [*sample] == ["tokens", "labels", "loss_mask", "position_ids"]
    assert sample["tokens"].tolist() == [*map(ord, "abc"), EOD, PAD, PAD, PAD, PAD]
    assert sample["loss_mask"].tolist() == [1] * 3 + [0] * 5


def test_mock_texts():
    dataset = make_mock()
    lengths = [int(dataset[k]["original_seq_len"]) for k in range(20)]
    assert lengths == (dataset.dataset.sequence_lengths[:20] - 1).tolist()
    assert dataset[0]["tokens"].tolist() == [*range(1, lengths[0] + 1)]
    with pytest.raises(AssertionError, match="`varlen_sbhd_validation`: must be False for mock data"):
        make_mock(varlen_sbhd_validation=True)[0]
