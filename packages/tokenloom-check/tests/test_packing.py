"""Reports on packing, and `tokenloom pack-report`."""

import dataclasses
import json

import numpy as np
import pytest
from tests.support import write_corpus

from tokenloom import ConfigError, PolynomialCost, cli, scheduler_map
from tokenloom.packing.pack_plan import plan_of
from tokenloom_check import pack_report
from tokenloom_check.packing import rank_costs


def test_a_literal_report():
    report = pack_report([3, 8, 3, 2, 8, 1, 4, 3], max_seqlen_per_dp_cp_rank=8, dp_size=2)
    assert report.lengths.tolist() == [8, 8, 4, 3, 3, 3, 2, 1]
    assert (report.num_ranks, report.max_tokens, report.num_tokens) == (2, 8, 32)
    assert (report.least_microbatches, report.least_imbalance, report.least_relative_time) == (2, 1.0, 1.0)
    padded, in_order, balanced = report.rows
    work = 64 + 64 + 16 + 9 + 9 + 9 + 4 + 1
    values = ("padded", None, 4, 0.5, 32, (1.0,) * 4, 8 * 64 / work)
    assert tuple(dataclasses.asdict(padded).values()) == values
    # In order: 3 | 8 | 3 2 | 8 | 1 4 3, and the last is moved off the last.
    assert (in_order.num_microbatches, in_order.fill, in_order.num_padding_tokens) == (3, 32 / 48, 0)
    assert in_order.step_imbalance == pytest.approx((64 / 36.5, 64 / 38.5, 17 / 13))
    assert in_order.relative_time == pytest.approx((64 + 64 + 17) * 2 / work)
    assert (balanced.num_microbatches, balanced.fill) == (2, 1.0)
    assert balanced.step_imbalance == pytest.approx((1.0, 26 / 24))
    assert balanced.worst_imbalance == pytest.approx(26 / 24)


def test_padding_for_context_parallelism_counts():
    report = pack_report([5, 6, 7, 9], max_seqlen_per_dp_cp_rank=8, cp_size=2, dp_size=1)
    assert [row.num_padding_tokens for row in report.rows] == [4 * 16 - 27, 3 + 2 + 1 + 3, 3 + 2 + 1 + 3]
    assert [row.num_microbatches for row in report.rows] == [4, 3, 3]


def test_a_policy_that_fails_is_a_row():
    report = pack_report([1] * 7, max_seqlen_per_dp_cp_rank=16, dp_size=8)
    assert [row.refused is None for row in report.rows] == [True, False, False]
    assert "sub-samples can move" in report.rows[1].refused
    assert report.rows[1].worst_imbalance == 0.0


def test_long_samples_need_hybrid_groups():
    report = pack_report([60, *[8] * 40], max_seqlen_per_dp_cp_rank=8, dp_size=8, schedulers=sorted(scheduler_map))
    refused = {row.scheduler: row.refused for row in report.rows}
    assert (refused.pop("hybrid_cost_balanced"), refused.pop("default_dynamic_cp")) == (None, None)
    assert refused.pop("padded") == "the longest sub-sample has 60 tokens, but a pack holds 8"
    assert all(text.startswith("sub-sample 0 has 60 tokens; a pack has at most 8") for text in refused.values())


def test_costs_of_groups_are_shared():
    plan = plan_of(np.array([0, 1, 2, 1]), np.array([[0, 0, 1, 2]]), np.array([[2, 2, 1, 1]]))
    costs = rank_costs(plan, np.array([8, 2, 5, 3]), PolynomialCost())
    assert costs.tolist() == [[32.0, 32.0, 13.0, 25.0]]


def test_invalid_names_and_lengths_are_errors():
    with pytest.raises(ConfigError, match=r"unknown scheduler 'best'\nhint: choose from cost_balanced, "):
        pack_report([1], max_seqlen_per_dp_cp_rank=8, dp_size=1, schedulers=["best"])
    with pytest.raises(ConfigError, match="sub-sample 1 has 9 tokens; a pack has at most 8"):
        pack_report([1, 9], max_seqlen_per_dp_cp_rank=8, dp_size=1)


def run(capsys, *arguments):
    status = cli.main(["pack-report", *map(str, arguments)])
    return status, *capsys.readouterr()


def rows_of(out):
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()}


def test_lengths_of_an_index(capsys, tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1] * length for length in (3, 8, 3, 0, 2, 8, 1, 4, 3)])
    status, out, err = run(capsys, prefix, "--max-seqlen-per-dp-cp-rank", 8, "--dp-size", 2)
    assert (status, err) == (0, "")
    rows = rows_of(out)
    assert (rows["sub-samples"], rows["tokens"], rows["ranks"]) == (["8"], ["32"], ["2"])
    assert rows["padded"] == ["4", "50.00%", "32", "1.000", "2.909"]
    assert rows["dp_balanced"] == ["3", "66.67%", "0", "1.753", "1.648"]
    assert rows["cost_balanced"] == ["2", "100.00%", "0", "1.083", "1.023"]
    assert rows["lower"] == ["bound", "2", "1.000", "1.000"]


def test_json_and_a_drawn_batch(capsys, tmp_path):
    lengths = [3, 8, 3, 2, 8, 1, 4, 3]
    sizes = ("--max-seqlen-per-dp-cp-rank", 8, "--dp-size", 2, "--json")
    prefix = write_corpus(tmp_path / "corpus", [[1] * length for length in lengths])
    expected = pack_report(lengths, max_seqlen_per_dp_cp_rank=8, dp_size=2)
    status, out, _ = run(capsys, prefix, *sizes)
    found = json.loads(out)
    assert (status, found["num_subsamples"], found["num_tokens"]) == (0, 8, 32)
    assert found["length_percentiles"][::4] == [[0, 1], [50, 3], [100, 8]]
    assert found["rows"][0]["imbalance_percentiles"][-1] == [100, expected.rows[0].worst_imbalance]
    assert "step_imbalance" not in out
    assert [row["relative_time"] for row in found["rows"]] == [row.relative_time for row in expected.rows]
    assert json.loads(run(capsys, prefix, *sizes, "--global-batch-size", 4)[1])["num_subsamples"] == 4
