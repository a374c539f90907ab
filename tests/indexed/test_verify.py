import struct

import numpy as np
import pytest
from tests.indexed.pairs import write_pair

from tokenloom import IndexedDatasetBuilder
from tokenloom.indexed import manifests
from tokenloom.indexed.verify import verify_dataset

CORPUS = [[[10, 11, 12], [13]], [[14, 15]], [[16]]]
# Offsets in the index: lengths at 34, pointers at 50, boundaries at 82, the end at 114.


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "corpus", CORPUS)


def damage(path, offset, layout, value):
    with open(path, "r+b") as stream:
        stream.seek(offset)
        stream.write(struct.pack(layout, value))


def test_a_sound_pair_has_no_problems(prefix):
    report = verify_dataset(prefix)
    assert report.ok
    assert (report.num_tokens, report.smallest_token, report.largest_token) == (7, 10, 16)
    assert report.problems == ()


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
    problems = verify_dataset(prefix).problems
    assert [problem.split(": expected ")[1].split()[0:2] for problem in problems] == [
        ["a", "length"],
        ["non-decreasing", "document"],
    ]


def test_tokens_outside_the_vocabulary_are_named(prefix):
    damage(f"{prefix}.bin", 4, "<i", -2)
    assert verify_dataset(prefix).ok
    report = verify_dataset(f"{prefix}.bin", vocab_size=16)
    assert report.problems == (
        f"`{prefix}.bin`: expected tokens below 16 (the vocabulary), found 16",
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
    builder = IndexedDatasetBuilder(tmp_path / "corpus.bin", dtype=np.float32)
    builder.add_document(np.array([0.5, -np.inf, 2.5], dtype=np.float32), [3])
    builder.finalize(tmp_path / "corpus.idx")
    report = verify_dataset(f"{tmp_path}/corpus")
    assert (report.smallest_token, report.largest_token) == (-np.inf, 2.5)


def test_tokens_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "_BYTES", 8)
    prefix = write_pair(tmp_path / "corpus", CORPUS)
    report = verify_dataset(prefix)
    assert (report.problems, report.smallest_token, report.largest_token) == ((), 10, 16)
