import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed.pairs import (
    FIRST,
    INTEGER_DTYPES,
    SECOND,
    corpora,
    pair_bytes,
    read_pair,
    write_pair,
    write_two_pairs,
)
from tests.support import few_examples

from tokenloom import IndexedDataset
from tokenloom.errors import ConfigError, OutputExistsError
from tokenloom.indexed.writing.concatenate import merge_datasets


@pytest.fixture
def prefixes(tmp_path):
    return write_two_pairs(tmp_path)


def test_an_older_result_is_replaced(tmp_path, prefixes):
    write_pair(tmp_path / "all", [[[9]]])
    with pytest.raises(OutputExistsError, match=r"`.*all\.idx` exists already"):
        merge_datasets(prefixes, f"{tmp_path}/all")
    assert read_pair(f"{tmp_path}/all") == [[[9]]]
    assert read_pair(merge_datasets(prefixes, f"{tmp_path}/all", overwrite=True).path_prefix) == FIRST + SECOND


def test_nothing_to_merge_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="`prefixes`: must name at least one dataset"):
        merge_datasets([], f"{tmp_path}/all")


@pytest.mark.parametrize("name", ["a", "a.bin", "./a", "../{folder}/a"])
def test_the_output_must_not_be_an_input(tmp_path, prefixes, name):
    output = os.path.join(tmp_path, name.format(folder=tmp_path.name))
    with pytest.raises(ConfigError, match=r"`.*a` is also an input"):
        merge_datasets(prefixes, output)
    assert read_pair(prefixes[0]) == FIRST


def test_dtypes_must_agree_and_nothing_is_written(tmp_path, prefixes):
    other = write_pair(tmp_path / "c", FIRST, dtype=np.uint16)
    with pytest.raises(ConfigError) as caught:
        merge_datasets([*prefixes, other], f"{tmp_path}/all")
    assert caught.value.message == f"expected one dtype, found int32 in `{prefixes[0]}`, uint16 in `{other}`"
    assert not any(name.startswith((".all", "all")) for name in os.listdir(tmp_path))


@few_examples
@given(data=st.data(), dtype=st.sampled_from(INTEGER_DTYPES), multimodal=st.booleans())
def test_a_merge_of_splits_is_the_whole(tmp_path_factory, data, dtype, multimodal):
    folder = tmp_path_factory.mktemp("merge")
    corpus = data.draw(corpora(dtype))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(corpus)), max_size=3)))
    parts = [corpus[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(corpus)], strict=True)]
    prefixes = [
        write_pair(folder / f"part{number}", part, dtype=dtype, multimodal=multimodal)
        for number, part in enumerate(parts)
    ]
    merged = merge_datasets(prefixes, f"{folder}/merged", multimodal=multimodal)
    assert isinstance(merged, IndexedDataset)
    whole = write_pair(folder / "whole", corpus, dtype=dtype, multimodal=multimodal)
    assert pair_bytes(f"{folder}/merged") == pair_bytes(whole)
