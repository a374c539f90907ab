"""`tokenloom pack-report`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.support import write_corpus

from tokenloom import cli, pack_report


def run(capsys, *arguments):
    status = cli.main(["pack-report", *map(str, arguments)])
    return status, *capsys.readouterr()


def rows_of(out):
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()}


def test_lengths_of_an_index(capsys, tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1] * length for length in (3, 8, 3, 0, 2, 8, 1, 4, 3)])
    status, out, err = run(capsys, prefix, "--max-tokens", 8, "--dp", 2)
    assert (status, err) == (0, "")
    assert "8 sub-samples of 32 tokens on 2 ranks, packs of at most 8" in out
    rows = rows_of(out)
    assert rows["padded"] == ["4", "50.00%", "32", "1.000", "1.000", "2.909"]
    assert rows["dp_balanced"] == ["3", "66.67%", "0", "1.753", "1.753", "1.648"]
    assert rows["cost_balanced"] == ["2", "100.00%", "0", "1.083", "1.083", "1.023"]
    assert rows["no"] == ["plan", "is", "below", "2", "1.000", "forced:", "0", "1.000"]


def test_lengths_of_files_as_json(capsys, tmp_path):
    (tmp_path / "lengths.txt").write_text("3\n8\n3\n2\n8\n1\n4\n3\n")
    np.save(tmp_path / "lengths.npy", np.array([3, 8, 3, 2, 8, 1, 4, 3], dtype=np.int32))
    expected = pack_report([3, 8, 3, 2, 8, 1, 4, 3], max_seqlen_per_dp_cp_rank=8, dp_size=2)
    for name in ("lengths.txt", "lengths.npy"):
        status, out, _ = run(capsys, "--lengths", tmp_path / name, "--max-tokens", 8, "--dp", 2, "--json")
        found = json.loads(out)
        assert (status, found["num_subsamples"], found["num_tokens"]) == (0, 8, 32)
        assert found["length_percentiles"] == [
            [0, 1],
            [1, 1],
            [10, 1],
            [25, 2],
            [50, 3],
            [75, 4],
            [90, 8],
            [99, 8],
            [100, 8],
        ]
        assert found["rows"][0]["imbalance_percentiles"][-1] == [100, expected.rows[0].worst_imbalance]
        assert "step_imbalance" not in out
        assert [row["relative_time"] for row in found["rows"]] == [row.relative_time for row in expected.rows]


@pytest.mark.parametrize("distribution", ["lognormal", "bimodal"])
def test_drawn_lengths_show_what_balance_gains(capsys, tmp_path, distribution):
    pytest.importorskip("matplotlib")
    arguments = ["--distribution", distribution, "--max-tokens", 4096, "--dp", 4, "--cp", 2, "--vp-group", 2]
    plot = tmp_path / "plot.png"
    status, out, _ = run(
        capsys, *arguments, "--scheduler", "dp_balanced", "--scheduler", "hybrid_cost_balanced", "--plot", plot
    )
    rows = rows_of(out)
    assert status == 0
    assert "512 sub-samples" in out
    assert float(rows["hybrid_cost_balanced"][-1]) < float(rows["dp_balanced"][-1])
    assert int(rows["dp_balanced"][0]) % 2 == 0
    assert plot.stat().st_size > 10_000
    assert run(capsys, *arguments)[1] == run(capsys, *arguments)[1]


def test_a_global_batch_is_drawn(capsys, tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1] * length for length in range(1, 21)])
    arguments = [prefix, "--max-tokens", 32, "--dp", 2, "--json", "--global-batch-size"]
    drawn = [json.loads(run(capsys, *arguments, 10, "--seed", seed)[1]) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0]["num_subsamples"] == 10
    status, _, err = run(capsys, *arguments, 21)
    assert (status, err) == (
        1,
        "error: expected a global batch of at most 20 sequences, as many as have tokens, found 21\n"
        "more: tokenloom explain ConfigError\n",
    )


def test_what_is_too_long_is_named_or_cut(capsys, tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1] * 5, [1] * 40, [1] * 6])
    status, out, err = run(capsys, prefix, "--max-tokens", 8, "--dp", 1)
    assert (status, out) == (1, "")
    assert err.startswith("error: sub-sample 1 has 40 tokens, but a pack holds 8 (1 ranks of 8)\n")
    status, out, _ = run(capsys, prefix, "--max-tokens", 8, "--dp", 1, "--cut")
    assert (status, "3 sub-samples of 19 tokens" in out) == (0, True)
    assert "cut 1 of 3 sequences, those of more than 8 tokens: 32 of 51 tokens are left out\n" in out
    found = json.loads(run(capsys, prefix, "--max-tokens", 8, "--dp", 1, "--cut", "--json")[1])
    assert (found["num_cut_sequences"], found["num_cut_tokens"]) == (1, 32)


def test_files_that_hold_no_lengths_are_named(capsys, tmp_path):
    (tmp_path / "words.txt").write_text("some words\n")
    for name, message in (("words.txt", "expected one length a line in"), ("absent.txt", "cannot read")):
        status, _, err = run(capsys, "--lengths", tmp_path / name, "--max-tokens", 8, "--dp", 1)
        assert (status, f"error: {message} `{tmp_path / name}`" in err) == (1, True)


def test_exactly_one_source_is_taken(capsys):
    for arguments in ((), ("--distribution", "lognormal", "--lengths", "x")):
        with pytest.raises(SystemExit) as caught:
            run(capsys, *arguments, "--max-tokens", 8, "--dp", 1)
        assert caught.value.code == 2
        capsys.readouterr()
