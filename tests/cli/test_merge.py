"""`tokenloom merge`."""

from __future__ import annotations

import os
import re

import pytest
from tests.cli.runs import rows_of
from tests.indexed.origins import add_origins
from tests.indexed.pairs import FIRST, SECOND, read_pair, write_pair, write_two_pairs

from tokenloom import IndexedDataset, cli


@pytest.fixture
def folder(tmp_path):
    write_two_pairs(tmp_path / "parts")
    return f"{tmp_path}/parts"


def test_datasets_are_joined_in_the_order_given(capsys, tmp_path, folder):
    output = f"{tmp_path}/all"
    assert cli.main(["merge", f"{folder}/b.bin", f"{folder}/a", "--output-prefix", output]) == 0
    assert read_pair(output) == SECOND + FIRST
    out, err = capsys.readouterr()
    rows = rows_of(out)
    assert re.fullmatch(r"merged, \d+ MB/s", rows[1][0])
    assert ["input bytes", "24"] in rows
    assert [output, "4", "5", "6", "24", "int32"] in rows
    assert err == ""


def test_modes_are_joined(tmp_path):
    prefix = write_pair(tmp_path / "modes", FIRST, multimodal=True)
    assert cli.main(["merge", prefix, prefix, "--multimodal", "--output-prefix", f"{tmp_path}/all"]) == 0
    assert IndexedDataset(f"{tmp_path}/all", multimodal=True).sequence_modes.tolist() == [0, 1, 0, 1]


def test_a_damaged_input_is_named_and_nothing_is_written(capsys, tmp_path, folder):
    os.truncate(f"{folder}/b.bin", 4)
    assert cli.main(["merge", "--input", folder, "--output-prefix", f"{tmp_path}/all"]) == 1
    err = capsys.readouterr().err
    assert f"error: `{folder}/b.bin`: expected 12 bytes" in err
    assert "found 4" in err
    assert os.listdir(tmp_path) == ["parts"]


@pytest.mark.parametrize("command", ["merge", "catalogue"])
def test_it_is_said_of_how_many_documents_the_origin_is_known(capsys, caplog, tmp_path, folder, command):
    add_origins(f"{folder}/a")
    output = f"{tmp_path}/all"
    assert cli.main([command, "--input", folder, "--output-prefix", output, "--json"]) == 0
    assert '"num_known_origins": 2, ' in capsys.readouterr().out
    assert f"`{folder}/b` has no column `origins`: of its documents it says nothing in the result" in caplog.text
    add_origins(f"{folder}/b")
    assert cli.main([command, "--input", folder, "--output-prefix", output, "--overwrite", "--json"]) == 0
    assert '"num_known_origins": 4, ' in capsys.readouterr().out
