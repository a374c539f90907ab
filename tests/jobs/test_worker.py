"""A process's share of a job: what is free first, what others hold after it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tests.jobs.numbers import NumberBook, NumberPlan

from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.sharded import Counts, work_on_shards

PLAN = NumberPlan(4)


def folder_at(path: Path, plan: NumberPlan = PLAN) -> JobFolder:
    return JobFolder(os.fspath(path / "job"), plan)


def test_a_shard_that_another_holds_comes_last_and_is_waited_for(tmp_path: Path):
    is_at_the_end = threading.Event()

    class Watched(NumberBook):
        def tell(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
            super().tell(number, counts, is_done=is_done)
            if number == 3 and is_done:
                is_at_the_end.set()

    folder, other, book = folder_at(tmp_path), folder_at(tmp_path), Watched()
    with other.joined(), folder.joined():
        with other.claimed(PLAN.shards[1], wait=False) as is_theirs:
            assert is_theirs
            thread = threading.Thread(
                target=work_on_shards, args=(PLAN, folder), kwargs={"num_workers": 1, "book": book}
            )
            thread.start()
            assert is_at_the_end.wait(60)
            PLAN.square(PLAN.shards[1], other.part_prefix(PLAN.shards[1]))
        thread.join()
        folder.remove()
    assert book.done == [0, 2, 3, 1]
