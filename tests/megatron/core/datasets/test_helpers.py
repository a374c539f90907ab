"""`tokenloom.megatron.core.datasets.helpers`."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets import helpers, helpers_cpp


def test_the_dtype_is_chosen_by_the_longest():
    sizes, documents = np.array([3, 4, 1], dtype=np.int32), np.array([0, 1, 2], dtype=np.int32)
    index = helpers.build_sample_idx(sizes, documents, 3, 1, 8)
    assert index.tolist() == [[0, 0], [1, 0], [1, 3]]
    assert index.dtype == np.int32
    index = helpers.build_sample_idx(sizes.astype(np.int64) * 2**30, documents, 2**30, 1, 2**33, True, False)
    assert index.dtype == np.int64


def test_a_row_outside_of_the_stream_is_refused():
    sizes = np.array([5, 0], dtype=np.int32)
    with pytest.raises(ConfigError, match=r"expected rows in \[0, 5\], found -1 to 4"):
        helpers.build_sample_idx(sizes, np.array([0, 1], dtype=np.int32), 2, 1, 6, drop_last_partial_sequence=False)


@pytest.mark.peer
def test_what_the_reference_names_is_there():
    theirs = pytest.importorskip("megatron.core.datasets.helpers")
    public = [name for name in dir(theirs) if not name.startswith("_") and name != "numpy"]
    assert {getattr(helpers, name).__module__ for name in public} == {helpers.__name__, helpers_cpp.__name__}
    with pytest.raises(AssertionError):
        theirs.build_sample_idx(np.array([5, 0], np.int32), np.array([0, 1], np.int32), 2, 1, 6, False)
