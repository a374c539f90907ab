"""`tokenloom catalogue`, and what `merge` shares with it."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import rows_of
from tests.indexed.pairs import FIRST, SECOND, read_pair, write_two_pairs

from tokenloom import cli


@pytest.fixture
def folder(tmp_path):
    write_two_pairs(tmp_path / "parts")
    return f"{tmp_path}/parts"


@pytest.mark.parametrize(
    ("command", "way"),
    [("catalogue", "prefixes"), ("catalogue", "folder"), ("merge", "glob"), ("merge", "--input"), ("merge", "--list")],
)
def test_datasets_are_named_in_any_way(tmp_path, folder, command, way):
    (tmp_path / "list.txt").write_text(f"# two pairs\n{folder}/a\n\n{folder}/b.idx\n")
    named = {
        "prefixes": [f"{folder}/a", f"{folder}/b.bin"],
        "glob": [f"{folder}/*"],
        "folder": [folder],
        "--input": ["--input", folder],
        "--list": ["--list", f"{tmp_path}/list.txt"],
    }
    assert cli.main([command, *named[way], "--output-prefix", f"{tmp_path}/all"]) == 0
    assert read_pair(f"{tmp_path}/all") == FIRST + SECOND
    assert (tmp_path / "all.catalogue").exists() == (command == "catalogue")


def test_a_catalogue_is_taken_by_other_commands(capsys, tmp_path, folder):
    output = f"{tmp_path}/all"
    assert cli.main(["catalogue", folder, "--output-prefix", output]) == 0
    capsys.readouterr()
    assert cli.main(["info", output, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["num_documents"], facts["num_tokens"], facts["num_bytes"]) == (4, 6, 24)
    assert cli.main(["verify", output]) == 0
    assert capsys.readouterr().out == f"{output}: ok, 6 tokens from 1 to 6\n"
    assert cli.main(["show", output, "--document", "3"]) == 0
    assert "5" in capsys.readouterr().out
    (tmp_path / "parts/b.bin").unlink()
    assert cli.main(["verify", output]) == 1
    assert capsys.readouterr().out == f"{output}: cannot open `{folder}/b.bin`: No such file or directory\n"


def test_a_merge_into_pairs_of_a_size_prints_each(capsys, tmp_path, folder):
    output = f"{tmp_path}/all"
    command = ["merge", folder, "--output-prefix", output, "--part-bytes", "16B", "--verify"]
    with pytest.raises(SystemExit):
        cli.main(command)
    assert "expected a number of bytes such as 500MB or 10GiB, found '16B'" in capsys.readouterr().err
    assert cli.main([*command[:-2], "16", "--verify"]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert [f"{output}_00000", "3", "3", "4", "16", "int32"] in rows
    assert [f"{output}_00001", "1", "2", "2", "8", "int32"] in rows
    assert ["verified", "True"] in rows
