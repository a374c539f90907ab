"""What sections about runs share."""

from __future__ import annotations

import numpy as np
from tests.run.small_runs import lock, segment, source

from tokenloom.report.options import ReportOptions
from tokenloom.report.run_pieces import axis_of, horizon_of, largest_rows, layers, marks_of, others, stepped, with_steps
from tokenloom.run.run import Run


def run_of(*stages, count: int = 2) -> Run:
    return Run("run.toml", lock([source(f"s{number}", 10) for number in range(count)], stages))


def test_a_run_is_looked_at_to_its_end_or_for_a_pass_of_its_last_stage():
    assert horizon_of(run_of(segment(0, 7, [1, 1]))).position == 7
    found = horizon_of(run_of(segment(0, 7, [1, 1]), segment(7, None, [1, 1])))
    assert found.position == 27
    assert found.note.endswith("up to 27.")


def test_marks_are_on_the_axis():
    history = run_of(segment(0, 8, [1, 1]), segment(8, 8, [1, 1], stage="late")).history()
    assert [(mark.x, mark.label) for mark in marks_of(history)] == [(8, "late")]
    history = with_steps(history, ReportOptions(global_batch_size=4))
    assert axis_of(history)[0] == "step"
    assert [(mark.x, mark.label) for mark in marks_of(history)] == [(2, "late")]


def test_layers_add_up_with_the_others():
    history = run_of(segment(0, 60, list(range(1, 16))), count=15).history([0, 60])
    found = layers(history, history.shares)
    assert len(found) == 12
    assert found[-1].name == "4 others"
    np.testing.assert_allclose(sum(np.array(each.values) for each in found), 1)


def test_steps_have_corners():
    xs, values = stepped(np.array([0, 5, 9]), np.array([1, 2]))
    assert xs.tolist() == [0, 5, 5, 9]
    assert values.tolist() == [1, 1, 2, 2]


def test_rows_beyond_the_most_are_one():
    rows = largest_rows([3, 9, 1, 4], float, lambda row: [f"r{row}", row], lambda rest: [sum(rest)], most=2)
    assert rows == [["r9", 9], ["r4", 4], ["2 others", 4]]
    assert others(1) == "1 other"
