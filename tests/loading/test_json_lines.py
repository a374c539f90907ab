"""What a training loop writes of itself, as lines of a file."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from tokenloom.errors import ConfigError
from tokenloom.loading.losses import JsonLinesWriter
from tokenloom.loading.thread_loader import ThreadLoader


def test_a_call_is_a_line_of_strict_json(tmp_path):
    loader = ThreadLoader([{"x": 1}] * 3, [[0], [1], [2]])
    assert len(list(loader)) == 3
    write = JsonLinesWriter(tmp_path / "file")
    write(step=np.int64(1), loss=torch.tensor(2.5), wait=loader.wait)
    write(unix_seconds=7.5, step=2, loss={"web": math.nan, 3: np.float32(0.5)}, note="<text>", is_last=True, rate=None)
    first, second = (
        json.loads(line, parse_constant=lambda constant: 1 / 0) for line in (tmp_path / "file").read_text().splitlines()
    )
    assert (first["step"], first["loss"], first["wait"]["num_batches"]) == (1, 2.5, 3)
    assert first["unix_seconds"] > 1.7e9
    assert second == {
        "unix_seconds": 7.5,
        "step": 2,
        "loss": {"web": "nan", "3": 0.5},
        "note": "<text>",
        "is_last": True,
        "rate": None,
    }


def test_what_is_no_number_writes_nothing(tmp_path):
    write = JsonLinesWriter(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"cannot write `loss\['web'\]`: .* got ndarray"):
        write(step=1, loss={"web": np.zeros(2)})
    assert not (tmp_path / "file").exists()
