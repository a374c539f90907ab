"""megatron-core 0.15.3, the last release with RETRO, which is asked in a process of its own, once for all rounds."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.peer.retro_side import PEER


def require_peer():
    """Skips what needs the peer where it is not installed."""
    if not PEER.is_dir():
        pytest.skip(f"megatron-core 0.15.3 is not in `{PEER}`; `make build/megatron-core-0.15.3/.installed` brings it")


def printed_seed():
    """Returns the seed of all rounds of a module, as the fixture `seed` does for a test."""
    wanted = os.environ.get("TOKENLOOM_TEST_SEED", "0")
    seed = secrets.randbelow(2**31) if wanted == "fresh" else int(wanted)
    print(f"TOKENLOOM_TEST_SEED={seed}")
    return seed


def answers_of_peer(action, rounds, folder):
    """Returns the arrays of `retro_side.py` for the cases of rounds; its action is "read" or "build"."""
    cases, output = folder / "cases.json", folder / "found.npz"
    cases.write_text(json.dumps([each.case() for each in rounds]))
    program = str(Path(__file__).with_name("retro_side.py"))
    command = [sys.executable, "-W", "ignore", program, action, str(cases), str(output)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(PEER)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return np.load(output)
