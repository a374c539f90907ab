"""Ids of a fast engine, compared with those of the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.preprocess.corpus import (
    byte_level_json,
    make_tokenizer,
)
from tests.tokenizers.engines import TEXTS

from tokenloom.errors import TokenizerError
from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.preprocess.blocks import BlockTokenizer
from tokenloom.tokenizers.engine_checks import recheck, require_equal
from tokenloom.tokenizers.engines import (
    EngineChoice,
    ReferenceEngine,
)
from tokenloom.tokenizers.text_tokenizer import Encoded


class ForgetfulEngine:
    """Right, except for texts with a certain word, of which it loses the last token."""

    name = "forgetful"

    def __init__(self, truth: ReferenceEngine) -> None:
        self._truth = truth

    def encode(self, texts: Sequence[str]) -> Encoded:
        rows = [self._truth.encode([text]).tokens for text in texts]
        rows = [row[:-1] if "forget" in text else row for row, text in zip(rows, texts, strict=True)]
        return Encoded(
            np.concatenate([np.empty(0, dtype=np.uint32), *rows]), np.array([len(row) for row in rows], dtype=np.int64)
        )


def test_mismatch_names_text_and_tokens():
    truth = ReferenceEngine(make_tokenizer(byte_level_json()))
    engine = ForgetfulEngine(truth)
    require_equal(engine, truth, TEXTS)
    with pytest.raises(
        TokenizerError, match=r"different ids for 'forget it': expected \[\d+\] from token \d+ on, found \[\]"
    ):
        require_equal(engine, truth, [*TEXTS, "forget it", "more"])


@pytest.mark.parametrize("choice", range(3))
def test_recheck_compares_the_text_chosen(choice: int):
    truth = ReferenceEngine(make_tokenizer(byte_level_json()))
    engine = ForgetfulEngine(truth)
    texts = ["good", "forget", "forget " + "x" * 2000]
    encoded = engine.encode(texts)
    if choice == 0:
        recheck(engine, truth, texts, encoded, choice=3)
        return
    with pytest.raises(TokenizerError, match="different ids for 'forget"):
        recheck(engine, truth, texts, encoded, choice=choice + 3)


def test_block_with_a_mismatch_is_an_error():
    tokenizer = make_tokenizer(byte_level_json())
    engine = ForgetfulEngine(ReferenceEngine(tokenizer))
    choice = EngineChoice(name="x", reason="", bytes_per_text_byte=1, create=lambda: engine, must_agree=True)
    tokenize = BlockTokenizer(tokenizer, choice, keys=["text"], dtype=np.dtype(np.uint16), num_workers=1)
    assert tokenize([JsonLineBlock(path="lines", data=b'{"text": "fine"}\n', first_record=1)]).num_documents == 1
    with pytest.raises(TokenizerError, match="different ids for 'forget'"):
        tokenize([JsonLineBlock(path="lines", data=b'{"text": "forget"}\n', first_record=2)])
