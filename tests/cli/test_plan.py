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
    assert "train: 60 samples (weighted)" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()}
    assert rows[prefixes[0]] == ["100", "1", "25.0000%", "15", "0.6", "24", "1"]
    assert rows[prefixes[1]] == ["300", "3", "75.0000%", "45", "0.6", "74", "1"]
    assert rows["total"] == ["400", "60", "98"]
    assert out.splitlines()[-1] == "2 datasets, 400 tokens; 60 samples of 4 tokens, 240 in all"
    assert "valid" not in out


def test_json_is_the_plan(capsys, prefixes):
    arguments = ["--data-path", 1, prefixes[0], 3, prefixes[1], "--split", "8,2,0", "--sizes", "60,9,none"]
    with pytest.raises(SystemExit):
        run(capsys, *arguments[:-1], "60,x,1")
    capsys.readouterr()
    status, out, err = run(capsys, *arguments[:-1], "60,9,1", "--json")
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


def test_entries_come_from_files_too(capsys, tmp_path, prefixes):
    (tmp_path / "args").write_text(f"1 {prefixes[0]}\n3 {prefixes[1]}\n")
    (tmp_path / "split.json").write_text(json.dumps({"train": [f"{tmp_path}/*"], "valid": [prefixes[0]]}))
    status, out, _ = run(capsys, "--data-args-path", tmp_path / "args", "--sizes", "9,9,9", "--split", "1")
    assert (status, "train: 10 samples (weighted)" in out) == (0, True)
    with pytest.warns(UserWarning, match="are in train and in valid"):
        status, out, _ = run(capsys, "--per-split-data-args-path", tmp_path / "split.json")
    assert status == 0
    assert "train: 98 samples (proportional)" in out
    assert "valid: 24 samples (single)" in out


def test_a_build_that_would_fail_is_reported(capsys, tmp_path, prefixes):
    empty = write_corpus(tmp_path / "empty", [[1]])
    status, out, err = run(capsys, "--data-path", *prefixes, empty, "--split", "1")
    assert status == 1
    assert [line.split()[-1] for line in out.splitlines() if empty in line] == ["short"]
    assert err == (
        f"problem: `{empty}` has no sample for train\n"
        "hint: it holds too few tokens for one sample: leave it out, or shorten the samples\n"
    )


def test_samples_longer_than_the_data_are_a_problem(capsys, prefixes):
    arguments = ["--data-path", prefixes[0], "--split", "1", "--sequence-length", 5000]
    status, out, err = run(capsys, *arguments)
    assert (status, "train: 0 samples (single)" in out) == (1, True)
    hint = "it holds too few tokens for one sample: shorten the samples, or give the split more data, or none"
    assert err == f"problem: `{prefixes[0]}` has no sample for train\nhint: {hint}\n"
    status, out, told = run(capsys, *arguments, "--json")
    assert (status, told) == (1, err)
    split = json.loads(out)["splits"][0]
    assert (split["num_samples"], split["num_tokens"]) == (0, 100)
    assert split["problems"] == [
        {
            "split": "train",
            "dataset": 0,
            "name": prefixes[0],
            "owed": 0,
            "available": 0,
            "surplus": None,
            "remedy": hint,
        }
    ]


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


def test_sizes_are_given_once(capsys, prefixes):
    status, out, err = run(capsys, "--data-path", prefixes[0], "--sizes", "1,1,1", "--test-samples", 3)
    assert (status, out) == (1, "")
    assert err == (
        "error: --sizes and the samples of single splits exclude each other, found both\n"
        "more: tokenloom explain ConfigError\n"
    )
    status, _, err = run(capsys, "--data-path", prefixes[0], "--sizes", "1,1")
    assert status == 1
    assert err == "error: expected 3 sizes (train, valid, test), found 2\nmore: tokenloom explain ConfigError\n"


def test_a_missing_prefix_is_reported(capsys, tmp_path, prefixes):
    status, out, err = run(capsys, "--data-path", *prefixes, f"{tmp_path}/absent")
    assert (status, out) == (1, "")
    assert f"'{tmp_path}/absent' in the blend: no file `{tmp_path}/absent.idx` and `{tmp_path}/absent.bin`" in err


def test_packs_are_reported(capsys, prefixes):
    arguments = ["--data-path", *prefixes, "--split", "1", "--window-policy", "best_fit"]
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    _, packing = out.split("train: an epoch, packed by best fit")
    rows = {line.split()[0]: line.split()[1:] for line in packing.splitlines() if line.split()}
    # Ten tokens in samples of 4 and the extra one: 5, 5 again (one of them repeated), and 2 that go two to a pack.
    assert rows[prefixes[0]] == ["25", "96.0000%", "1.20", "5", "10", "of", "10"]
    assert rows[prefixes[1]] == ["75", "96.0000%", "1.20", "15", "30", "of", "30"]
    assert "100 samples (proportional)" in out
    status, out, _ = run(capsys, *arguments, "--json")
    assert json.loads(out)["splits"][0]["datasets"][0]["packing"]["fill"] == 0.96


def test_a_blend_in_step_with_the_ranks_is_warned_of(capsys, prefixes):
    arguments = ["--data-path", 1, prefixes[0], 1, prefixes[1], "--split", "1", "--train-samples", 1000]
    arguments += ["--extend-short-datasets"]
    status, _, err = run(capsys, *arguments, "--micro-batch-size", 1, "--data-parallel-size", 4)
    assert status == 0
    assert f"warning: train: `{prefixes[0]}` is 50.0% of the blend, but 0.0% of what rank 1 of 4 reads" in err
    assert "hint: use `BalancedSampler`" in err
    status, out, _ = run(capsys, *arguments, "--micro-batch-size", 1, "--data-parallel-size", 4, "--json")
    assert json.loads(out)["resonance"][0]["most"] == 1.0
    assert run(capsys, *arguments, "--micro-batch-size", 2, "--data-parallel-size", 4)[2] == ""
    assert run(capsys, *arguments, "--micro-batch-size", 2)[0] != 0
