"""`tokenloom run stream`."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import run, write_run


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    return path


def test_stream_reads_from_a_position(path, capsys):
    pytest.importorskip("torch")
    status, out, err = run(capsys, "run", "stream", path, "--position", 40, "--micro-batch-size", 4, "--batches", 3)
    assert (status, err) == (0, "")
    assert out.startswith("3 batches of 4 samples from position 40 on: 192 tokens in ")
    assert "tokens/s; waited " in out
    told = json.loads(run(capsys, "run", "stream", path, "--holdout", "--micro-batch-size", 2, "--json")[1])
    assert told["num_samples"] == 8
    assert told["num_tokens"] == 8 * 16
    status, _, err = run(capsys, "run", "stream", path, "--position", 97)
    assert status == 1
    assert "expected a batch of 8 samples from position 97 on, found 3 samples there" in err
