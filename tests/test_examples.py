"""Examples that readers start by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import random_documents, write_corpus

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_packed_training_runs_on_two_processes_and_sees_the_same_packs_in_both_modes(tmp_path, rng):
    documents = random_documents(rng, count=60, longest=300, vocab_size=1000)
    prefix = write_corpus(tmp_path / "data", documents)
    outputs = []
    for more in ([], ["--exchange"]):
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            str(EXAMPLES / "train_packed.py"), "--data", prefix, "--steps", "2", "--global-batch-size", "16",
            "--vocab-size", "1000", *more,
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    lines = outputs[0].splitlines()
    assert len(lines) == 2
    expected = sum(min(len(document) - 1, 256) for document in [d for d in documents if len(d) > 1][:16])
    assert re.fullmatch(rf"step 0: \d+ microbatches, {expected} tokens, loss \d+\.\d+", lines[0])
