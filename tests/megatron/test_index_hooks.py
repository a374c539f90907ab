"""Index arrays that replaced functions build."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import make_dataset, write_corpus

from tokenloom.errors import IndexCacheError
from tokenloom.megatron.core.datasets import gpt_dataset, helpers
from tokenloom.megatron.index_hooks import IndexFunctions, hooked_arrays
from tokenloom.order.arrays import NotBuiltError, nothing_is_built

FUNCTIONS = IndexFunctions(
    documents=gpt_dataset._build_document_index,
    windows=helpers.build_sample_idx,
    shuffle=gpt_dataset._build_shuffle_index,
)
NAMES = ("document_index", "sample_index", "shuffle_index")


@pytest.mark.parametrize("num_samples", [None, 30, 44])
@pytest.mark.parametrize("extra", [True, False])
def test_the_functions_here_build_what_kernels_build(tmp_path, rng, num_samples, extra):
    documents = [rng.integers(0, 50, size=int(size)) for size in rng.integers(1, 30, size=6)]
    prefix = write_corpus(tmp_path / "corpus", documents)
    settings = {"in_memory": True, "num_samples": num_samples, "add_extra_token_to_sequence": extra}
    dataset = make_dataset(prefix, **settings)
    for _ in range(2):  # built, then read
        for name, array in zip(NAMES, hooked_arrays(dataset, FUNCTIONS, str(tmp_path / "cache")), strict=True):
            expected = getattr(dataset, name)
            assert array.dtype == expected.dtype
            assert np.array_equal(array, expected)


def test_nothing_is_built_while_ranks_look_for_what_is_there(tmp_path):
    dataset = make_dataset(write_corpus(tmp_path / "corpus", [[1] * 30]), in_memory=True)
    with nothing_is_built(), pytest.raises(NotBuiltError):
        hooked_arrays(dataset, FUNCTIONS, str(tmp_path / "cache"))
    hooked_arrays(dataset, FUNCTIONS, str(tmp_path / "cache"))
    with nothing_is_built():
        hooked_arrays(dataset, FUNCTIONS, str(tmp_path / "cache"))


def test_a_damaged_file_is_named(tmp_path):
    dataset = make_dataset(write_corpus(tmp_path / "corpus", [[1] * 30]), in_memory=True)
    hooked_arrays(dataset, FUNCTIONS, str(tmp_path / "cache"))
    (file,) = (tmp_path / "cache").glob("*sample_index.npy")
    file.write_bytes(b"no array")
    with pytest.raises(IndexCacheError, match=r"sample_index.npy` cannot be read"):
        hooked_arrays(dataset, FUNCTIONS, str(tmp_path / "cache"))
