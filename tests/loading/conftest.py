"""The corpus of these tests."""

import numpy as np
import pytest
from tests.support import write_corpus


@pytest.fixture
def prefix(tmp_path):
    rng = np.random.default_rng(0)
    return write_corpus(tmp_path / "corpus", [rng.integers(0, 20, size=size) for size in range(40)])
