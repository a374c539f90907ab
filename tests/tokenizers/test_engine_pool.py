"""Engines that are replaced when memory is short."""

from __future__ import annotations

import numpy as np
from tests.preprocess.corpus import (
    byte_level_json,
    make_tokenizer,
)

from tokenloom.tokenizers import engine_pool
from tokenloom.tokenizers.engine_pool import EnginePool
from tokenloom.tokenizers.engines import (
    EngineChoice,
    ReferenceEngine,
)
from tokenloom.tokenizers.text_tokenizer import TextTokenizer


def recorded_choice(tokenizer: TextTokenizer) -> tuple[EngineChoice, list[ReferenceEngine]]:
    """Returns a choice, and the engines that it has made so far."""
    created: list[ReferenceEngine] = []

    def create() -> ReferenceEngine:
        created.append(ReferenceEngine(tokenizer))
        return created[-1]

    return EngineChoice(name="x", reason="", bytes_per_text_byte=1, create=create, must_agree=False), created


def test_engine_that_has_read_much_is_replaced_when_memory_is_short():
    tokenizer = make_tokenizer(byte_level_json())
    choice, created = recorded_choice(tokenizer)
    for budget, expected in ((1, 4), (1 << 50, 1)):
        created.clear()
        pool = EnginePool(tokenizer, choice, num_workers=1, memory_budget_bytes=budget, renewal_bytes=250)
        for _ in range(10):
            pool.encode(["x" * 86], num_bytes=100, number=0)
        assert len(created) == expected


def test_memory_that_was_there_before_the_engines_is_not_theirs():
    tokenizer = make_tokenizer(byte_level_json())
    choice, created = recorded_choice(tokenizer)
    engine_pool._return_freed_memory()  # what earlier tests have freed would go in the middle of this one
    before = np.ones(512 << 20, dtype=np.uint8)
    pool = EnginePool(tokenizer, choice, num_workers=1, renewal_bytes=0)
    for _ in range(5):
        pool.encode(["text"], num_bytes=4, number=0)
    assert len(created) == 1
    meanwhile = np.ones(256 << 20, dtype=np.uint8)
    for _ in range(5):
        pool.encode(["text"], num_bytes=4, number=0)
    assert len(created) == 5  # the first of these five goes on with the one that is there
    assert before[-1] == meanwhile[-1]
