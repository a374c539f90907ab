"""`tokenloom verify`."""

from __future__ import annotations

import json
import os
import struct

import pytest
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.pairs import write_pair

from tokenloom import cli


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "corpus", [[[10, 11, 12], [13]], [[14]]])


def damage_length(prefix):
    with open(f"{prefix}.idx", "r+b") as stream:
        stream.seek(34)
        stream.write(struct.pack("<i", -5))


def test_a_sound_dataset_is_one_line(capsys, tmp_path, prefix):
    empty = write_pair(tmp_path / "empty", [])
    assert cli.main(["verify", prefix, empty]) == 0
    out, err = capsys.readouterr()
    assert out == f"{prefix}: ok, 5 tokens from 10 to 14\n{empty}: ok, no tokens\n"
    assert err == ""


def test_each_problem_is_a_line_that_names_file_and_field(capsys, prefix):
    damage_length(prefix)
    assert cli.main(["verify", prefix, "--vocab-size", "14"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{prefix}: `{prefix}.idx`: expected a length from 0 on, found -5 for sequence 0",
        f"{prefix}: `{prefix}.bin`: expected tokens below 14 (the vocabulary), found 14",
    ]


def test_datasets_after_a_broken_one_are_still_checked(capsys, tmp_path, prefix):
    broken = write_pair(tmp_path / "broken", [[[1, 2]]])
    os.truncate(f"{broken}.bin", 4)
    assert cli.main(["verify", broken, f"{tmp_path}/absent", prefix]) == 1
    out = capsys.readouterr().out
    assert f"{broken}: `{broken}.bin`: expected 8 bytes (the end of sequence 0 in `{broken}.idx`), found 4\n" in out
    assert f"{tmp_path}/absent: no file `{tmp_path}/absent.idx`" in out
    assert out.endswith(f"{prefix}: ok, 5 tokens from 10 to 14\n")


def test_json_has_the_problems_of_each(capsys, tmp_path, prefix):
    assert cli.main(["verify", prefix, f"{tmp_path}/absent", "--vocab-size", "14", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    outside = f"`{prefix}.bin`: expected tokens below 14 (the vocabulary), found 14"
    assert [(each["prefix"], each["ok"], each["num_tokens"]) for each in told["datasets"]] == [
        (prefix, False, 5),
        (f"{tmp_path}/absent", False, 0),
    ]
    assert told["datasets"][0]["problems"] == [outside]
    assert told["datasets"][1]["problems"][0].startswith(f"no file `{tmp_path}/absent.idx`")
    assert told["ok"] is False


def test_a_manifest_is_compared(capsys, tmp_path):
    prefix = write_recorded(tmp_path / "recorded", [[[10, 11]]])
    assert cli.main(["verify", prefix]) == 0
    assert capsys.readouterr().out == f"{prefix}: ok, 2 tokens from 10 to 11, as the manifest says\n"
    with open(f"{prefix}.bin", "r+b") as stream:
        stream.write(b"\x09")
    assert cli.main(["verify", prefix]) == 1
    assert f"{prefix}: `{prefix}.bin`: expected 4 bytes with CRC-32 " in capsys.readouterr().out
