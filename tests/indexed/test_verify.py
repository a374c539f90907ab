import os
import struct

import numpy as np
import pytest
from tests.indexed.manifest.manifests import make_manifest, write_recorded
from tests.indexed.pairs import write_pair
from tests.support import make_dataset

from tokenloom import IndexedDatasetBuilder, build_catalogue, merge_datasets
from tokenloom.errors import ChangedFileError, DatasetFormatError
from tokenloom.indexed import manifests, verify
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import HEADER_BYTES
from tokenloom.indexed.manifests import DocumentLedger, read_manifest
from tokenloom.indexed.verify import check_sum, index_problems, verify_dataset

CORPUS = [[[10, 11, 12], [13]], [[14, 15]], [[16]]]
# Offsets in the index: lengths at 34, pointers at 50, boundaries at 82, the end at 114.


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "corpus", CORPUS)


def damage(path, offset, layout, value):
    with open(path, "r+b") as stream:
        stream.seek(offset)
        stream.write(struct.pack(layout, value))


@pytest.mark.parametrize("bytes_at_once", [manifests._BYTES, 8])
def test_a_sound_pair_has_no_problems(prefix, monkeypatch, bytes_at_once):
    monkeypatch.setattr(manifests, "_BYTES", bytes_at_once)
    report = verify_dataset(prefix)
    assert (report.ok, report.problems) == (True, ())
    assert (report.num_tokens, report.smallest_token, report.largest_token) == (7, 10, 16)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "problem"),
    [
        (34, "<i", -3, "expected a length of at least 0, found -3 for sequence 0"),
        (38, "<i", 2, "expected pointer 20 (the end of the sequence before), found 16 for sequence 2"),
        (38, "<i", 2**31 - 1, f"expected pointer {12 + 4 * (2**31 - 1)} (the end of the sequence before), found 16"),
        (50, "<q", 4, "expected pointer 0 (the end of the sequence before), found 4 for sequence 0"),
        (58, "<q", -(2**63), "expected pointer 12 (the end of the sequence before), found -9223372036854775808"),
        (66, "<q", 2**63 - 1, "expected pointer 16 (the end of the sequence before), found 9223372036854775807"),
        (90, "<q", 4, "expected non-decreasing document boundaries, found 3 for boundary 2 after 4"),
        (90, "<q", -1, "expected non-decreasing document boundaries, found -1 for boundary 1 after 0"),
        (98, "<q", 2**63 - 1, "expected non-decreasing document boundaries, found 4 for boundary 3 after 9223372"),
        (98, "<q", 1, "expected non-decreasing document boundaries, found 1 for boundary 2 after 2"),
    ],
)
def test_a_damaged_row_is_named(prefix, offset, layout, value, problem):
    damage(f"{prefix}.idx", offset, layout, value)
    report = verify_dataset(prefix)
    assert not report.ok
    assert any(found.startswith(f"`{prefix}.idx`: {problem}") for found in report.problems), report.problems


def test_boundaries_that_wrap_around_are_found(prefix):
    damage(f"{prefix}.idx", 90, "<q", 2**63 - 1)
    damage(f"{prefix}.idx", 98, "<q", -(2**63))
    (problem,) = verify_dataset(prefix).problems
    assert "found -9223372036854775808 for boundary 2 after 9223372036854775807" in problem


def test_the_first_defect_of_rows_and_of_boundaries_is_reported(prefix):
    damage(f"{prefix}.idx", 34, "<i", -1)
    damage(f"{prefix}.idx", 38, "<i", -1)
    damage(f"{prefix}.idx", 90, "<q", 9)
    first, second = verify_dataset(prefix).problems
    assert ": expected a length " in first
    assert ": expected non-decreasing document boundaries" in second


def test_tokens_outside_the_vocabulary_are_named(prefix):
    damage(f"{prefix}.bin", 4, "<i", -2)
    assert verify_dataset(prefix).ok
    report = verify_dataset(f"{prefix}.bin", vocab_size=16)
    assert report.problems == (
        f"`{prefix}.bin`: expected tokens below 16 (the vocabulary size), found 16",
        f"`{prefix}.bin`: expected tokens of at least 0, found -2",
    )


def test_a_bin_file_of_half_tokens_is_named(tmp_path):
    prefix = write_pair(tmp_path / "corpus", [[[1]]])
    damage(f"{prefix}.idx", 38, "<q", 2)
    with open(f"{prefix}.bin", "ab") as stream:
        stream.write(b"\0\0")
    assert verify_dataset(prefix).problems == (
        f"`{prefix}.idx`: expected pointer 0 (the end of the sequence before), found 2 for sequence 0",
        f"`{prefix}.bin`: expected a whole number of int32 tokens, found 6 bytes",
    )


def test_float_tokens_are_not_rounded(tmp_path):
    report = verify_dataset(write_pair(tmp_path / "corpus", [[[0.5, -np.inf, 2.5]]], dtype=np.float32))
    assert (report.smallest_token, report.largest_token) == (-np.inf, 2.5)


@pytest.fixture
def documents(seed):
    rng = np.random.default_rng(seed)
    return [[rng.integers(1, 60, rng.integers(5, 40)).tolist()] for _ in range(1200)]


@pytest.fixture
def recorded(tmp_path, documents):
    return write_recorded(tmp_path / "recorded", documents)


@pytest.fixture
def plain(tmp_path, documents):
    return write_pair(tmp_path / "plain", documents, dtype=np.uint16)


def move_tokens(prefix, first, second, count, *, pointers):
    """Makes one length larger and a later one smaller; with pointers to match, nothing in the index tells."""
    number = len(IndexedDataset(prefix))
    lengths = np.memmap(f"{prefix}.idx", np.int32, "r+", HEADER_BYTES, number)
    lengths[first] += count
    lengths[second] -= count
    if pointers:
        starts = np.memmap(f"{prefix}.idx", np.int64, "r+", HEADER_BYTES + 4 * number, number)
        starts[first + 1 : second + 1] += count * 2


def flip(path, offset):
    with open(path, "r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))


def consumers(tmp_path):
    output, cache = f"{tmp_path}/output", f"{tmp_path}/cache"

    def add(prefix):
        with IndexedDatasetBuilder(f"{output}.bin", dtype=np.uint16) as builder:
            builder.add_index(prefix)

    return {
        "windows": lambda prefix: make_dataset(prefix, path_to_cache=cache),
        "packs": lambda prefix: make_dataset(prefix, path_to_cache=cache, window_policy="best_fit"),
        "merge": lambda prefix: merge_datasets([prefix], output),
        "catalogue": lambda prefix: build_catalogue([prefix], output),
        "add_index": add,
    }


LIBRARY = ["windows", "packs", "merge", "catalogue", "add_index"]


@pytest.mark.parametrize("consumer", LIBRARY)
def test_lengths_that_pointers_contradict_are_named(tmp_path, plain, consumer):
    move_tokens(plain, 1100, 1150, 3, pointers=False)
    with pytest.raises(DatasetFormatError) as caught:
        consumers(tmp_path)[consumer](plain)
    start = int(IndexedDataset(plain).index.sequence_pointers[1101])
    expected = f"expected pointer {start + 6} (the end of the sequence before), found {start} for sequence 1101"
    assert caught.value.message == f"`{plain}.idx`: {expected}"
    assert caught.value.hint == f"run `tokenloom verify {plain}`"
    assert not [name for name in os.listdir(tmp_path) if "output" in name]


@pytest.mark.parametrize("consumer", LIBRARY)
def test_an_index_that_is_another_than_its_manifest_says_is_refused(tmp_path, recorded, consumer):
    size, crc32 = read_manifest(recorded).pair.index.num_bytes, read_manifest(recorded).pair.index.crc32
    move_tokens(recorded, 1100, 1150, 3, pointers=True)
    expected = f"expected {size} bytes with CRC-32 {crc32:08x}, as the manifest says, found {size} bytes with CRC-32 "
    with pytest.raises(DatasetFormatError, match=f"`{recorded}.idx`: {expected}"):
        consumers(tmp_path)[consumer](recorded)
    assert not [name for name in os.listdir(tmp_path) if "output" in name]


@pytest.mark.parametrize("length", [2**31 - 1, 0, -1, -(2**31)])
def test_one_damaged_length_is_named_by_a_warm_start_too(tmp_path, plain, length):
    make = consumers(tmp_path)["windows"]
    make(plain)
    damage(f"{plain}.idx", HEADER_BYTES + 4 * 700, "<i", length)
    with pytest.raises(DatasetFormatError, match=r"plain\.idx`: expected .* for sequence 70[01]\n"):
        make(plain)


def test_sums_are_those_of_what_lies_between(plain):
    dataset = IndexedDataset(plain)
    expected = int(dataset.sequence_lengths[10:900].sum())
    check_sum(dataset, range(10, 900), expected)
    with pytest.raises(DatasetFormatError, match=r"tokens in sequences \[10, 900\), found"):
        check_sum(dataset, range(10, 900), expected + 1)


def test_an_index_that_is_lost_is_not_sound(tmp_path):
    dataset = IndexedDataset(write_pair(tmp_path / "empty", [[[]]] * 3))
    assert list(index_problems(dataset)) == []
    os.truncate(f"{tmp_path}/empty.idx", HEADER_BYTES)  # zeros are read from here on: sequences without tokens
    with pytest.raises(ChangedFileError, match=r"empty\.idx` was truncated while it was mapped"):
        list(index_problems(dataset))


def test_of_an_index_that_is_lost_meanwhile_no_damage_is_told(plain, monkeypatch):
    move_tokens(plain, 1100, 1150, 3, pointers=False)
    dataset = IndexedDataset(plain)
    first_fall = verify.first_fall

    def lose(boundaries):
        os.truncate(f"{plain}.idx", HEADER_BYTES)
        return first_fall(boundaries)

    monkeypatch.setattr(verify, "first_fall", lose)
    with pytest.raises(ChangedFileError, match=r"plain\.idx` was truncated while it was mapped"):
        list(index_problems(dataset))


def test_pairs_of_a_catalogue_own_their_documents(tmp_path, documents):
    prefixes = [write_pair(tmp_path / name, documents[:10], dtype=np.uint16) for name in "ab"]
    catalogue = build_catalogue(prefixes, f"{tmp_path}/all")
    assert list(index_problems(catalogue)) == []
    damage(f"{tmp_path}/all.idx", HEADER_BYTES + 12 * 20 + 8 * 10, "<q", 9)  # the document with which the second begins
    expected = f"expected document 10, the first of `{tmp_path}/b.bin`, to begin with sequence 10, found 9"
    assert list(index_problems(IndexedDataset(f"{tmp_path}/all"))) == [f"`{tmp_path}/all.idx`: {expected}"]


# --- what new manifests say ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["merge", "catalogue"])
def test_tokens_that_were_not_read_are_said_to_be_inherited(tmp_path, recorded, way):
    flip(f"{recorded}.bin", 1000)
    consumers(tmp_path)[way](recorded)
    assert read_manifest(f"{tmp_path}/output").pair.copied_tokens == "inherited"
    assert "as the manifest says, found" in verify_dataset(f"{tmp_path}/output").problems[0]


@pytest.mark.parametrize("make", [merge_datasets, build_catalogue])
def test_verifying_compares_tokens_with_the_manifest_before_it_writes(tmp_path, recorded, make):
    make([recorded], f"{tmp_path}/good", verify=True)
    assert read_manifest(f"{tmp_path}/good").pair.copied_tokens == "compared"
    flip(f"{recorded}.bin", 1000)
    with pytest.raises(DatasetFormatError, match=r"recorded\.bin`: expected \d+ bytes with CRC-32 .* as the manifest"):
        make([recorded], f"{tmp_path}/output", verify=True)
    assert not [name for name in os.listdir(tmp_path) if "output" in name]


@pytest.mark.parametrize(("input_name", "said"), [("recorded", "inherited"), ("plain", "unverified")])
def test_a_builder_that_copies_says_so(tmp_path, request, input_name, said):
    prefix = request.getfixturevalue(input_name)
    ledger = DocumentLedger(num_read=1200, num_kept=1200)
    with IndexedDatasetBuilder(f"{tmp_path}/new.bin", dtype=np.uint16, checksums=True) as builder:
        builder.add_index(prefix)
        builder.finalize(f"{tmp_path}/new.idx", manifest=lambda pair: make_manifest(pair=pair, ledger=ledger))
    assert read_manifest(f"{tmp_path}/new").pair.copied_tokens == said
    assert verify_dataset(f"{tmp_path}/new").ok
    merge_datasets([f"{tmp_path}/new"], f"{tmp_path}/again", verify=True)  # unverified for good
    assert read_manifest(f"{tmp_path}/again").pair.copied_tokens == ("compared" if said == "inherited" else said)
