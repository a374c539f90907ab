"""Several pairs into one."""

from __future__ import annotations

import os
import struct

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
from tokenloom.errors import ConfigError, DatasetFormatError, OutputExistsError
from tokenloom.indexed.writing.concatenate import merge_datasets


@pytest.fixture
def prefixes(tmp_path):
    return write_two_pairs(tmp_path)


def test_documents_keep_their_order(tmp_path, prefixes):
    merged = merge_datasets(prefixes, f"{tmp_path}/all")
    assert merged.path_prefix == f"{tmp_path}/all"
    assert read_pair(merged.path_prefix) == FIRST + SECOND
    assert read_pair(merge_datasets(prefixes[::-1], f"{tmp_path}/back").path_prefix) == SECOND + FIRST


def test_either_file_may_name_a_pair(tmp_path, prefixes):
    merged = merge_datasets([f"{prefixes[0]}.bin", f"{prefixes[1]}.idx"], f"{tmp_path}/all.bin")
    assert merged.path_prefix == f"{tmp_path}/all"


def test_an_older_result_is_replaced(tmp_path, prefixes):
    write_pair(tmp_path / "all", [[[9]]])
    with pytest.raises(OutputExistsError, match=r"`.*all\.idx` exists, and was not made by this very job"):
        merge_datasets(prefixes, f"{tmp_path}/all")
    assert read_pair(f"{tmp_path}/all") == [[[9]]]
    assert read_pair(merge_datasets(prefixes, f"{tmp_path}/all", overwrite=True).path_prefix) == FIRST + SECOND


def test_nothing_to_merge_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected at least one dataset to merge, got none"):
        merge_datasets([], f"{tmp_path}/all")


@pytest.mark.parametrize("name", ["a", "a.bin", "./a", "../{folder}/a"])
def test_the_output_must_not_be_an_input(tmp_path, prefixes, name):
    output = os.path.join(tmp_path, name.format(folder=tmp_path.name))
    with pytest.raises(ConfigError, match=r"the output `.*a` is also an input"):
        merge_datasets(prefixes, output)
    assert read_pair(prefixes[0]) == FIRST


def test_dtypes_must_agree_and_nothing_is_written(tmp_path, prefixes):
    other = write_pair(tmp_path / "c", FIRST, dtype=np.uint16)
    with pytest.raises(ConfigError) as caught:
        merge_datasets([*prefixes, other], f"{tmp_path}/all")
    assert caught.value.message == f"`{other}` holds uint16 tokens, but `{prefixes[0]}` holds int32"
    assert not any(name.startswith((".all", "all")) for name in os.listdir(tmp_path))


def test_a_damaged_row_stops_the_merge_and_leaves_no_output(tmp_path, prefixes):
    with open(f"{prefixes[1]}.idx", "r+b") as stream:
        stream.seek(34)
        stream.write(struct.pack("<i", 7))
    with pytest.raises(DatasetFormatError) as caught:
        merge_datasets(prefixes, f"{tmp_path}/all")
    assert caught.value.message == (
        f"`{prefixes[1]}.idx`: expected pointer 28 (the end of the sequence before), found 4 for sequence 1"
    )
    assert caught.value.hint == f"run `tokenloom verify {prefixes[1]}`"
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


def sizes_of(datasets):
    return [dataset.bin_reader.num_bytes for dataset in datasets]


def test_pairs_of_a_wanted_size_are_cut_between_documents(tmp_path, prefixes):
    pairs = merge_datasets(prefixes, f"{tmp_path}/all", part_bytes=16)
    assert [pair.path_prefix for pair in pairs] == [f"{tmp_path}/all_00000", f"{tmp_path}/all_00001"]
    assert [read_pair(pair.path_prefix) for pair in pairs] == [[*FIRST, SECOND[0]], [SECOND[1]]]
    assert sizes_of(pairs) == [16, 8]


@pytest.mark.parametrize("name", ["all_00000", "all_00001"])
def test_no_pair_may_be_an_input(tmp_path, name):
    prefix = write_pair(tmp_path / name, FIRST + SECOND)
    with pytest.raises(ConfigError, match=rf"the output `.*{name}` is also an input"):
        merge_datasets([prefix], f"{tmp_path}/all", part_bytes=12)
    assert sorted(os.listdir(tmp_path)) == [f"{name}.bin", f"{name}.idx"]


def test_pairs_of_an_earlier_merge_do_not_stay_among_the_new_ones(tmp_path, prefixes):
    merge_datasets(prefixes, f"{tmp_path}/all", part_bytes=1)
    with pytest.raises(ConfigError) as caught:
        merge_datasets(prefixes, f"{tmp_path}/all", part_bytes=16)
    assert caught.value.message == f"`{tmp_path}/all_00002.bin` would stay among the 2 new pairs"
    assert caught.value.hint == "it is left from an earlier merge; remove it, or choose another output prefix"
    assert len(merge_datasets(prefixes, f"{tmp_path}/all", part_bytes=2)) == 4


def test_pairs_of_no_bytes_are_refused(tmp_path, prefixes):
    with pytest.raises(ConfigError, match="expected pairs of at least one byte, got part_bytes=0"):
        merge_datasets(prefixes, f"{tmp_path}/all", part_bytes=0)


@few_examples  # each makes many files durable
@given(data=st.data(), part_bytes=st.integers(1, 60))
def test_the_pairs_in_order_are_the_single_merge(tmp_path_factory, data, part_bytes):
    folder = tmp_path_factory.mktemp("parts")
    drawn = [data.draw(corpora(np.uint16)) for _ in range(3)]
    prefixes = [write_pair(folder / f"{number}", corpus, dtype=np.uint16) for number, corpus in enumerate(drawn)]
    pairs = merge_datasets(prefixes, f"{folder}/part", part_bytes=part_bytes)
    for pair in pairs:
        sizes = [2 * sum(map(len, document)) for document in read_pair(pair.path_prefix)]
        assert sum(sizes) <= part_bytes or len([size for size in sizes if size]) == 1
    merge_datasets(prefixes, f"{folder}/single")
    merge_datasets([pair.path_prefix for pair in pairs], f"{folder}/again")
    assert pair_bytes(f"{folder}/again") == pair_bytes(f"{folder}/single")
