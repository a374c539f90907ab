"""`tokenloom pack-report`."""

from __future__ import annotations

import json

from tests.support import write_corpus

from tokenloom import cli
from tokenloom_check import pack_report


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
