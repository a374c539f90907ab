"""Tokens of spans, read from their pairs."""

from __future__ import annotations

import numpy as np
from tests.run.audit.tables import small_table
from tests.support import write_corpus

from tokenloom.run.audit import span_tokens as module
from tokenloom.run.audit.pair_rows import PairRows
from tokenloom.run.audit.span_tokens import span_tokens


def test_tokens_are_those_of_the_pairs(tmp_path, monkeypatch):
    web = [write_corpus(tmp_path / name, [[10 * k + n for n in range(8)] for k in range(4)]) for name in "ab"]
    code = write_corpus(tmp_path / "c", [[90 + n for n in range(8)]] * 3)
    pair_rows = PairRows.of([[(web[0], 2), (web[1], 4)], [(code, 3)]])
    table = small_table(pair_rows=pair_rows)
    assert [tokens.tolist() for tokens in span_tokens(table)] == [[15, 16], [], [90, 91, 92, 93, 94]]
    read = small_table(pair_rows=pair_rows, denied=np.zeros(3, dtype=np.bool_))
    assert span_tokens(read)[1].tolist() == [10, 11, 12]
    assert span_tokens(read)[0].dtype == np.uint16
    expected = [tokens.tolist() for tokens in span_tokens(read)]
    monkeypatch.setattr(module, "_TOKENS_AT_ONCE", 1)
    assert [tokens.tolist() for tokens in span_tokens(read)] == expected
