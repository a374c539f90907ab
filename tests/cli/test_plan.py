"""`tokenloom plan`."""

from __future__ import annotations

import json

import pytest
from tests.support import write_corpus

from tokenloom import BlendedMegatronDatasetConfig, cli, plan_build


@pytest.fixture
def prefixes(tmp_path):
    return [write_corpus(tmp_path / name, [[1] * 10] * count) for name, count in (("a", 10), ("b", 30))]


def run(capsys, *arguments):
    status = cli.main(["plan", "--sequence-length", "4", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_tables_show_the_plan(capsys, prefixes):
    status, out, err = run(capsys, "--data-path", 1, prefixes[0], 3, prefixes[1], "--split", "1", "--train-samples", 60)
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["train", "(weighted)"] in lines
    assert lines[3:6] == [["sequence", "length", "4"], ["train", "tokens", "400"], ["train", "samples", "60"]]
    rows = {line[0]: line[1:] for line in lines if line}
    assert rows[prefixes[0]] == ["100", "1", "25.00%", "15", "0.6", "24"]
    assert rows[prefixes[1]] == ["300", "3", "75.00%", "45", "0.6", "74"]
    assert "valid" not in out


def test_json_is_the_plan(capsys, prefixes):
    arguments = ["--data-path", 1, prefixes[0], 3, prefixes[1], "--split", "8,2,0", "--train-samples", 60]
    status, out, err = run(capsys, *arguments, "--valid-samples", 9, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    config = BlendedMegatronDatasetConfig(random_seed=0, sequence_length=4, blend=(prefixes, [1.0, 3.0]), split="8,2,0")
    plan = plan_build(config, [60, 9, None])
    assert report["surplus"] is None
    assert report["splits"][2] is None
    for found, expected in zip(report["splits"][:2], plan.splits, strict=False):
        assert (found["split"], found["num_samples"]) == (expected.split.name, expected.num_samples)
        assert [each["num_samples_owed"] for each in found["datasets"]] == [
            each.num_samples_owed for each in expected.datasets
        ]


def test_full_validation_and_a_size_for_valid_exclude_each_other(capsys, prefixes):
    words = ("--split", "8,2,0", "--full-validation", "--valid-samples", 9)
    status, _, err = run(capsys, "--data-path", *prefixes, *words)
    assert (status, err.splitlines()[0]) == (
        1,
        "error: --full-validation and a size for valid exclude each other, found 9",
    )


def test_a_dataset_that_runs_short_is_reported_with_the_remedy(capsys, tmp_path):
    # One sample is meant for each of three datasets, and each has one; the blend takes two of the first.
    prefixes = [write_corpus(tmp_path / name, [[1] * 5]) for name in "abc"]
    arguments = ["--data-path", 7, prefixes[0], 2, prefixes[1], 1, prefixes[2], "--split", "1", "--train-samples", 1]
    status, out, err = run(capsys, *arguments, "--mid-level-dataset-surplus", 0)
    assert status == 1
    assert [line.split()[-1] for line in out.splitlines() if prefixes[0] in line] == ["short"]
    assert err == (
        f"problem: train takes 2 samples from `{prefixes[0]}`, which has 1\n"
        "hint: set `--extend-short-datasets` to take further epochs, or `--mid-level-dataset-surplus "
        "1.1102230246251568e-16` or more, or lower the weight\n"
    )
    assert run(capsys, *arguments, "--mid-level-dataset-surplus", "1.1102230246251568e-16")[0] == 0
    assert run(capsys, *arguments, "--mid-level-dataset-surplus", 0, "--extend-short-datasets")[0] == 0
