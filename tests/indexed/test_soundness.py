import os
import struct

import numpy as np
import pytest
from tests.indexed.manifest.manifests import make_manifest, write_recorded
from tests.indexed.pairs import write_pair
from tests.support import make_dataset

from tokenloom import IndexedDatasetBuilder, build_catalogue, merge_datasets
from tokenloom.errors import ChangedFileError, DatasetFormatError
from tokenloom.indexed import verify
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import DocumentLedger, read_manifest
from tokenloom.indexed.verify import check_sum, index_problems, verify_dataset

HEADER_BYTES = 34


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
    with open(f"{prefix}.idx", "r+b") as stream:
        data = bytearray(stream.read())
        number = struct.unpack_from("<Q", data, 18)[0]
        lengths = np.frombuffer(data, np.int32, number, HEADER_BYTES)
        starts = np.frombuffer(data, np.int64, number, HEADER_BYTES + 4 * number)
        changed, moved = lengths.copy(), starts.copy()
        changed[first] += count
        changed[second] -= count
        if pointers:
            moved[first + 1 : second + 1] += count * 2
        data[HEADER_BYTES : HEADER_BYTES + 12 * number] = changed.tobytes() + moved.tobytes()
        stream.seek(0)
        stream.write(data)


def flip(path, offset):
    with open(path, "r+b") as stream:
        stream.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = stream.read(1)[0]
        stream.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        stream.write(bytes([byte ^ 1]))


def consumers(tmp_path):
    output = f"{tmp_path}/output"

    def add(prefix):
        with IndexedDatasetBuilder(f"{output}.bin", dtype=np.uint16) as builder:
            builder.add_index(prefix)

    return {
        "windows": lambda prefix: make_dataset(prefix, path_to_cache=f"{tmp_path}/cache"),
        "packs": lambda prefix: make_dataset(prefix, path_to_cache=f"{tmp_path}/cache", window_policy="best_fit"),
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
    assert caught.value.message == (
        f"`{plain}.idx`: expected pointer {start + 6} (the end of the sequence before), found {start} for sequence 1101"
    )
    assert caught.value.hint == f"run `tokenloom verify {plain}`"
    assert not [name for name in os.listdir(tmp_path) if "output" in name]


@pytest.mark.parametrize("consumer", LIBRARY)
def test_an_index_that_is_another_than_its_manifest_says_is_refused(tmp_path, recorded, consumer):
    expected = read_manifest(recorded).pair.index
    move_tokens(recorded, 1100, 1150, 3, pointers=True)
    with pytest.raises(DatasetFormatError) as caught:
        consumers(tmp_path)[consumer](recorded)
    assert caught.value.message.startswith(
        f"`{recorded}.idx`: expected {expected.num_bytes} bytes with CRC-32 {expected.crc32:08x}, as the manifest "
        f"says, found {expected.num_bytes} with "
    )
    assert not [name for name in os.listdir(tmp_path) if "output" in name]


@pytest.mark.parametrize("length", [2**31 - 1, 0, -1, -(2**31)])
def test_one_damaged_length_is_named_by_a_warm_start_too(tmp_path, plain, length):
    make = consumers(tmp_path)["windows"]
    make(plain)
    with open(f"{plain}.idx", "r+b") as stream:
        stream.seek(HEADER_BYTES + 4 * 700)
        stream.write(struct.pack("<i", length))
    with pytest.raises(DatasetFormatError, match=r"plain\.idx`: expected .* for sequence 70[01]\n"):
        make(plain)


def test_sums_are_those_of_what_lies_between(plain):
    dataset = IndexedDataset(plain)
    lengths = dataset.sequence_lengths
    check_sum(dataset, range(10, 900), int(lengths[10:900].sum()))
    with pytest.raises(DatasetFormatError, match="tokens for sequences 10 to 900, found"):
        check_sum(dataset, range(10, 900), int(lengths[10:900].sum()) + 1)


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
    with open(f"{tmp_path}/all.idx", "r+b") as stream:
        stream.seek(HEADER_BYTES + 12 * 20 + 8 * 10)  # the document with which the second begins
        stream.write(struct.pack("<q", 9))
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
