"""The table of spans: columns, rows and what is added to them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.audit.tables import small_table

from tokenloom.loading.batch_sizes import BatchSizeSchedule
from tokenloom.loading.topology import Topology

FIRST = {
    "position": 4, "step": None, "rank": None, "micro_batch": None, "source": "web", "pass": 0, "document": 1,
    "start": 5, "length": 2, "file": None, "record": None, "slot": 0, "denied": False, "stage": "main", "walk": 0,
    "window": 3, "pair": "w0", "row": 1, "run": "abc",
}  # fmt: skip


class Records:
    """Every document of `web` is a line of one file."""

    file_names = ("crawl.jsonl",)

    def locate(self, source, documents):
        known = np.full(len(documents), source == 0)
        return np.where(known, 0, -1).astype(np.int32), np.where(known, documents + 1, 0)


def test_rows_have_what_is_known_by_name():
    rows = list(small_table().rows())
    assert rows[0] == FIRST
    changed = {"document": 3, "pair": "w1", "row": 1, "denied": True, "slot": 2, "start": 0, "length": 3}
    assert rows[1] == FIRST | changed
    assert rows[2]["pass"] is None
    assert rows[2]["walk"] is None
    assert (rows[2]["stage"], rows[2]["pair"], rows[2]["row"]) == ("long", "c", 2)


def test_rows_without_a_run():
    row = next(small_table(stage_names=(), run=None, segments=np.zeros(3, dtype=np.int32)).rows())
    assert (row["stage"], row["run"]) == (None, None)


def test_origins_are_added():
    rows = list(small_table().with_origins(Records()).rows())
    assert [(row["file"], row["record"]) for row in rows] == [("crawl.jsonl", 2), ("crawl.jsonl", 4), (None, None)]


def test_steps_and_ranks_are_added():
    sizes = BatchSizeSchedule.constant(4)
    table = small_table().with_steps(Topology(batch_sizes=sizes))
    assert [row["step"] for row in table.rows()] == [1, 1, 1]
    assert table.ranks is None
    rows = list(small_table().with_steps(Topology(batch_sizes=sizes, micro_batch_size=1, data_parallel_size=2)).rows())
    assert [(row["step"], row["rank"], row["micro_batch"]) for row in rows] == [(1, 0, 0), (1, 0, 0), (1, 1, 1)]


def test_rows_are_taken():
    table = small_table().with_origins(Records())
    assert list(table.take(np.array([2, 0])).rows()) == [list(table.rows())[row] for row in (2, 0)]
    assert len(table.take(table.denied)) == 1


def test_arrow_has_the_same():
    pytest.importorskip("pyarrow")
    table = small_table().with_origins(Records())
    assert table.to_arrow().to_pylist() == list(table.rows())
    empty = table.take(np.zeros(3, dtype=np.bool_)).to_arrow()
    assert (empty.num_rows, empty.schema) == (0, table.to_arrow().schema)
