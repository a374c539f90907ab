import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom import DType, IndexedDataset
from tokenloom.errors import ConfigError, DatasetFormatError, InputError
from tokenloom.indexed.layout import (
    HEADER_BYTES,
    MAX_IMAGE_BYTES,
    Header,
    check_image_size,
    image_to_item,
    item_to_image,
    parse_header,
)
from tokenloom.indexed.manifests import joined_crc32

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}

# Two documents of uint16 tokens: (10, 11, 12 | 13) and (14, 15).
BIN = struct.pack("<6H", 10, 11, 12, 13, 14, 15)
HEADER = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + b"\x08" + struct.pack("<QQ", 3, 3)
IDX = HEADER + struct.pack("<3i", 3, 1, 2) + struct.pack("<3q", 0, 6, 8) + struct.pack("<3q", 0, 2, 3)
MODES = b"\x00\x01\x00"


def write_pair(folder, idx=IDX, tokens=BIN):
    prefix = folder / "corpus"
    (folder / "corpus.idx").write_bytes(idx)
    (folder / "corpus.bin").write_bytes(tokens)
    return str(prefix)


def with_field(offset, layout, value):
    changed = bytearray(IDX)
    struct.pack_into(layout, changed, offset, value)
    return bytes(changed)


def message_of(folder, idx=IDX, tokens=BIN, **options):
    with pytest.raises(DatasetFormatError) as caught:
        IndexedDataset(write_pair(folder, idx, tokens), **options)
    assert caught.value.hint
    return caught.value.message.replace(f"{folder}/", "")


def test_the_literal_pair_can_be_read(tmp_path):
    dataset = IndexedDataset(write_pair(tmp_path))
    assert [tokens.tolist() for tokens in dataset[:]] == [[10, 11, 12], [13], [14, 15]]
    assert dataset.document_indices.tolist() == [0, 2, 3]
    assert dataset.dtype == np.uint16


def test_a_header_packs_to_its_literal_bytes():
    header = Header(dtype_code=8, num_sequences=3, num_boundaries=3)
    assert header.pack() == HEADER
    assert len(HEADER) == HEADER_BYTES == 34
    assert parse_header(HEADER, path="x.idx") == header
    assert header.offsets == (34, 34 + 12, 34 + 12 + 24, 34 + 12 + 24 + 24)
    assert header.idx_bytes(multimodal=False) == len(IDX)
    assert header.idx_bytes(multimodal=True) == len(IDX + MODES)


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_dtype_codes(name, code):
    scalar = getattr(np, name)
    assert DType[name].value == code
    assert DType.code_from_dtype(scalar) == DType.code_from_dtype(np.dtype(scalar)) == code
    assert DType.dtype_from_code(code) is scalar
    assert DType.size(code) == DType.size(scalar) == scalar().itemsize


def test_there_are_no_other_codes():
    assert {member.name: member.value for member in DType} == CODES
    with pytest.raises(ValueError, match="9 is not a valid DType"):
        DType.dtype_from_code(9)
    for dtype in (np.uint32, np.uint64, np.float16, np.bool_, np.complex64, "U3", None):
        with pytest.raises(ConfigError, match="`dtype`: must be one of uint8, int8, int16, int32"):
            DType.code_from_dtype(dtype)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(None, np.int32), (0, np.uint16), (65499, np.uint16), (65500, np.int32), (65536, np.int32), (10**6, np.int32)],
)
def test_the_dtype_for_a_vocabulary(vocab_size, dtype):
    assert DType.optimal_dtype(vocab_size) is dtype


@pytest.mark.parametrize(
    ("offset", "layout", "value", "expected"),
    [
        (0, "9s", b"MMIDIDY\x00\x00", r"the magic bytes b'MMIDIDX\x00\x00', found b'MMIDIDY\x00\x00'"),
        *((9, "<Q", version, f"version 1, found {version}") for version in (0, 2, 2**64 - 1)),
        *((17, "<B", code, f"a dtype code from 1 to 8, found {code}") for code in (0, 9, 255)),
    ],
)
def test_a_foreign_header_is_named(tmp_path, offset, layout, value, expected):
    assert message_of(tmp_path, with_field(offset, layout, value)) == f"`corpus.idx`: expected {expected}"


@pytest.mark.parametrize("count", [0, 2, 4, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("field", ["sequences", "document boundaries"])
def test_wrong_counts_do_not_fit_the_idx_file(tmp_path, field, count):
    sequences, boundaries = (count, 3) if field == "sequences" else (3, count)
    found = message_of(tmp_path, with_field(18 if field == "sequences" else 26, "<Q", count))
    num_bytes = 34 + 12 * sequences + 8 * boundaries
    counts = f"{sequences} sequences and {boundaries} document boundaries"
    assert found == f"`corpus.idx`: expected {num_bytes} bytes for {counts}, found 94"


@pytest.mark.parametrize(("row", "value"), [(0, 1), (0, -1), (2, 2), (2, 4), (2, -(2**63)), (2, 2**63 - 1)])
def test_boundaries_that_do_not_cover_the_sequences_are_caught(tmp_path, row, value):
    first, last = (value, 3) if row == 0 else (0, value)
    expected = f"`corpus.idx`: expected document boundaries from 0 to 3 (the sequence count), found {first} to {last}"
    assert message_of(tmp_path, with_field(70 + 8 * row, "<q", value)) == expected


@pytest.mark.parametrize(
    ("offset", "layout", "value", "end"),
    [
        *((17, "<B", code, 8 + 2 * DType.size(code)) for code in (1, 4, 5)),
        (42, "<i", 3, 14),
        (42, "<i", -1, 6),
        (42, "<i", 2**31 - 1, 8 + 2 * (2**31 - 1)),
        (62, "<q", 0, 4),
        (62, "<q", -8, -4),
        (62, "<q", 2**63 - 1, 2**63 - 1 + 4),
    ],
)
def test_a_token_width_or_last_sequence_that_does_not_fit_the_bin_file_is_caught(tmp_path, offset, layout, value, end):
    found = message_of(tmp_path, with_field(offset, layout, value))
    assert found == f"`corpus.bin`: expected {end} bytes (the end of sequence 2 in `corpus.idx`), found 12"


# One sequence and six boundaries need as many bytes as three of each.
BY_CHANCE = IDX[:18] + struct.pack("<QQ", 1, 6) + IDX[34:]
NOTHING = HEADER[:18] + struct.pack("<QQq", 0, 1, 0)


@pytest.mark.parametrize(
    ("idx", "tokens", "expected"),
    [
        (BY_CHANCE, BIN, "`corpus.idx`: expected document boundaries from 0 to 1 (the sequence count), found "),
        (HEADER[:18] + struct.pack("<QQ", 0, 0), b"", "`corpus.idx`: expected at least one document boundary"),
        (NOTHING, b"\x01\x00", "`corpus.bin`: expected 0 bytes (`corpus.idx` has no sequences), found 2"),
        (IDX + b"\x00", BIN, "`corpus.idx`: expected 94 bytes for 3 sequences and 3 document boundaries, found 95"),
        (IDX, BIN + b"\x00", "`corpus.bin`: expected 12 bytes (the end of sequence 2 in `corpus.idx`), found 13"),
    ],
)
def test_files_that_contradict_each_other_are_caught(tmp_path, idx, tokens, expected):
    assert message_of(tmp_path, idx, tokens).startswith(expected)


@pytest.mark.parametrize("modes", [b"", MODES])
def test_an_idx_file_cut_at_any_byte_is_caught(tmp_path, modes):
    whole = IDX + modes
    for length in range(len(whole)):
        expected = f"{len(whole)} bytes for 3 sequences and 3 document boundaries, found {length}"
        if length < HEADER_BYTES:
            expected = f"a header of 34 bytes, found a file of {length} bytes"
        found = message_of(tmp_path, whole[:length], multimodal=bool(modes))
        assert found == f"`corpus.idx`: expected {expected}"


@pytest.mark.parametrize("mmap", [True, False])
def test_a_bin_file_cut_at_any_byte_is_caught(tmp_path, mmap):
    for length in range(len(BIN)):
        found = message_of(tmp_path, tokens=BIN[:length], mmap=mmap)
        assert found == f"`corpus.bin`: expected 12 bytes (the end of sequence 2 in `corpus.idx`), found {length}"


def test_modes_are_ignored_by_text_readers_and_missed_by_multimodal_ones(tmp_path):
    assert len(IndexedDataset(write_pair(tmp_path, IDX + MODES))) == 3
    with pytest.raises(DatasetFormatError) as caught:
        IndexedDataset(write_pair(tmp_path), multimodal=True)
    assert caught.value.message.endswith("expected 97 bytes for 3 sequences and 3 document boundaries, found 94")
    assert caught.value.hint == "open it with `multimodal=False`: the file has no sequence modes"


@pytest.mark.parametrize("mmap", [True, False])
def test_any_damaged_byte_is_an_error_or_stays_inside_the_files(tmp_path, mmap):
    """Opening is O(1), so damage in the middle of an array may pass; reading must then still not leave the files."""
    for byte in range(len(IDX)):
        for flipped in (IDX[byte] ^ 0xFF, IDX[byte] ^ 0x80, IDX[byte] ^ 0x01):
            prefix = write_pair(tmp_path, IDX[:byte] + bytes([flipped]) + IDX[byte + 1 :])
            try:
                dataset = IndexedDataset(prefix, mmap=mmap)
            except DatasetFormatError:
                continue
            for row in range(len(dataset)):
                try:
                    assert len(dataset[row]) == dataset.sequence_lengths[row]
                except (IndexError, OSError) as error:
                    assert "corpus" in str(error)  # noqa: PT017 - one of several outcomes
            try:
                assert dataset.statistics().num_tokens == dataset.sequence_lengths.sum()
            except DatasetFormatError as error:  # who reads all lengths compares them
                assert "corpus.idx`: expected lengths" in str(error)  # noqa: PT017


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_checksums_of_parts_give_that_of_the_whole(parts):
    checksum = 0
    for part in parts:
        checksum = joined_crc32(checksum, zlib.crc32(part), len(part))
    assert checksum == zlib.crc32(b"".join(parts))


def test_checksums_of_parts_join_beyond_four_gigabytes():
    doubled = {1 << 20: zlib.crc32(bytes(1 << 20))}
    for power in range(20, 33):
        doubled[1 << power + 1] = joined_crc32(doubled[1 << power], doubled[1 << power], 1 << power)
    one_by_one = 0
    for _ in range(32):
        one_by_one = joined_crc32(one_by_one, doubled[1 << 28], 1 << 28)
    assert doubled[1 << 33] == one_by_one


# --- the bytes of an image as a sequence ---


def test_the_first_element_counts_the_padding():
    assert image_to_item(b"\x01\x02\x03\x04").tolist() == [0, 0x04030201]
    assert image_to_item(b"\x01\x02\x03\x04\xff").tolist() == [3, 0x04030201, 0xFF]
    assert image_to_item(b"\xff\xff\xff\xff").tolist() == [0, -1]


@given(st.binary(min_size=1, max_size=40))
def test_an_image_comes_back(data):
    item = image_to_item(data)
    assert item.dtype == np.int32
    assert len(item) == 1 + -(-len(data) // 4)
    assert item_to_image(item) == data


def test_an_image_that_int32_cannot_count_is_refused():
    check_image_size(MAX_IMAGE_BYTES)
    assert 1 + MAX_IMAGE_BYTES // 4 == 2**31 - 1
    for size in (MAX_IMAGE_BYTES + 1, 0):
        with pytest.raises(InputError) as caught:
            check_image_size(size)
        assert str(caught.value) == f"image: must have 1 to 8589934584 bytes, got {size}"
