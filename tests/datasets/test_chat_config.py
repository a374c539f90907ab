"""Settings of datasets of conversations."""

from __future__ import annotations

import pytest
from tests.datasets.conversations import (
    FIRST,
    make_sft,
    write_conversations,
)
from tests.support import StandInTokenizer

from tokenloom.datasets.chat_config import SFTDatasetConfig
from tokenloom.errors import (
    ConfigError,
)


@pytest.mark.parametrize(
    ("changes", "multiple"),
    [
        ({}, 1),
        ({"context_parallel_size": 1}, 1),
        ({"context_parallel_size": 2}, 4),
        ({"context_parallel_size": 2, "sequence_parallel_size": 2}, 8),
        ({"context_parallel_size": 2, "hybrid_context_parallel": True, "data_parallel_size": 2}, 8),
        ({"sequence_parallel_size": 4}, 4),
    ],
)
def test_the_multiple_follows_from_the_parallel_sizes(changes, multiple):
    config = SFTDatasetConfig(random_seed=1, sequence_length=8, tokenizer=StandInTokenizer(), **changes)
    assert config.slot_multiple == multiple


def test_a_length_that_is_no_multiple_is_refused(tmp_path):
    prefix = write_conversations(tmp_path / "chat", [FIRST])
    with pytest.raises(ConfigError, match="multiple of 4, which context and sequence parallelism ask of every"):
        make_sft(prefix, sequence_length=10, context_parallel_size=2)
