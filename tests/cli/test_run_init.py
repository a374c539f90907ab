"""`tokenloom run init`."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import run, write_run

from tokenloom.run.settings import read_run


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    write_run(tmp_path).unlink()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_blend_becomes_a_run_that_locks(folder, capsys):
    words = ("--data-path", "0.8", "data/web0", "0.2", "data/code", "--sequence-length", 16, "--samples", 50)
    status, out, err = run(capsys, "run", "init", *words)
    assert (status, out, err) == (0, "wrote run.toml: look at it, then run `tokenloom run lock run.toml`\n", "")
    text = (folder / "run.toml").read_text()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.endswith('name = "main"\nsequence_length = 16\nsamples = 50\nweights = { web0 = 0.8, code = 0.2 }\n')
    assert run(capsys, "run", "lock")[0] == 0


def test_arguments_of_megatron_are_taken_or_named(folder, capsys):
    (folder / "args.sh").write_text(
        "python pretrain_gpt.py --data-path 3 data/web0 1 data/code --seq-length 16 --train-iters 10 "
        "--global-batch-size 4 --seed 5 --split 99,1,0 --lr 1e-4 --bf16 --reset-position-ids\n"
    )
    status, _, err = run(capsys, "run", "init", "--args-file", "args.sh", "--seed", 6)
    assert status == 0
    assert err == (
        "not taken over: --split: documents are held out by source; see `--holdout`\nnot about data: --lr, --bf16\n"
    )
    settings = read_run("run.toml")
    assert (settings.seed, settings.stages[0].samples, settings.stages[0].sequence_length) == (6, 40, 16)
    assert settings.samples["reset_position_ids"] is True
    told = json.loads(run(capsys, "run", "init", "--args-file", "args.sh", "--force", "--json")[1])
    assert told["not_taken"] == [{"argument": "split", "reason": "documents are held out by source; see `--holdout`"}]
    assert told["others"] == ["lr", "bf16"]
