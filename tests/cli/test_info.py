"""`tokenloom info`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.origins import add_hashes, add_origins
from tests.indexed.pairs import write_pair

from tokenloom import cli, merge_datasets

CORPUS = [[[10, 11, 12], [13]], [], [[], list(range(1500))]]


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "corpus", CORPUS)


def rows_of(text):
    """Returns the rows of all tables: first cell to the cells after it."""
    cells = [line.split("  ") for line in text.splitlines()]
    rows = [[cell.strip() for cell in row if cell.strip()] for row in cells]
    return {row[0]: row[1:] for row in rows if row}


def test_tables_show_the_statistics(capsys, prefix):
    assert cli.main(["info", prefix]) == 0
    out, err = capsys.readouterr()
    rows = rows_of(out)
    assert prefix in rows
    assert {name: rows[name] for name in ("documents", "sequences", "tokens", "bytes", "dtype", "longest")} == {
        "documents": ["3"],
        "sequences": ["4"],
        "tokens": ["sequences"],  # the heading of the histogram has the same first cell
        "bytes": ["6,016"],
        "dtype": ["int32"],
        "longest": ["1,500"],
    }
    assert rows["percentile 50"] == ["1"]
    assert rows["0 to 0"][0] == "1"
    assert rows["1,024 to 2,047"] == ["1", "█" * 30]
    assert "1,504" in out
    assert "\x1b" not in out
    assert err == ""


def test_the_command_prints_a_readable_table_to_a_pipe(prefix):
    encoding = "ascii"
    command = [sys.executable, "-m", "tokenloom", "info", prefix]
    environment = {"PYTHONIOENCODING": encoding, "COLUMNS": "20"}
    done = subprocess.run(command, capture_output=True, check=True, env=environment, encoding=encoding)
    assert prefix in done.stdout
    assert "1,024 to 2,047" in done.stdout
    assert "#" * 30 in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_a_manifest_says_what_the_data_were_made_of(capsys, tmp_path):
    prefix = write_recorded(tmp_path / "recorded", [[[10, 11]]], engine="evil \x1b[31m")
    assert cli.main(["info", prefix]) == 0
    out = capsys.readouterr().out
    rows = rows_of(out)
    assert (rows["tokenizer kind"], rows["tokenizer path"]) == (["word-level"], ["words/tokenizer.json"])
    assert rows["tokenizer sha256"] == ["ab" * 32]
    assert rows["tokenizer vocab size"] == ["100"]
    assert rows["largest token"] == ["11"]
    assert rows["tokenizer bos"] == ["none"]
    assert (rows["tokenizer eod id"], rows["tokenizer eod text"]) == (["9"], ["</s>"])
    assert rows["options append eod"] == ["True"]
    assert rows["engine"] == ["evil \\x1b[31m"]
    assert rows["input files"] == ["2"]
    assert rows["ledger read"] == rows["ledger kept"] == ["1"]
    assert rows["ledger duplicates"] == ["0"]
    assert "\x1b" not in out
    assert cli.main(["info", "--json", prefix]) == 0
    with open(f"{prefix}.manifest.json") as stream:
        assert json.loads(capsys.readouterr().out)["manifest"] == json.load(stream)


def test_origins_and_hashes_are_told_of(capsys, tmp_path, prefix):
    assert cli.main(["info", prefix]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert (rows["origins"], rows["hashes of texts"]) == (["none"], ["none"])
    add_origins(prefix)
    add_hashes(prefix)
    other = write_pair(tmp_path / "other", [[[1]]])
    output = merge_datasets([prefix, other], f"{tmp_path}/all").path_prefix
    assert cli.main(["info", prefix, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["origins"], record["hashes"]) == ({"num_input_files": 1, "num_known_documents": 3}, True)
    assert cli.main(["info", output]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert (rows["origins"], rows["hashes of texts"]) == (["of 3 documents, input files: 1"], ["none"])
    assert cli.main(["info", prefix]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert (rows["origins"], rows["hashes of texts"]) == (["of all documents, input files: 1"], ["of all documents"])


def test_a_folder_is_all_pairs_in_it(capsys, tmp_path, prefix):
    write_pair(tmp_path / "another", CORPUS)
    assert cli.main(["info", "--json", str(tmp_path)]) == 0
    found = [json.loads(line)["prefix"] for line in capsys.readouterr().out.splitlines()]
    assert found == [str(tmp_path / "another"), prefix]
    (tmp_path / "corpus" / "cache").mkdir(parents=True)  # of a sample that was shown
    assert cli.main(["info", "--json", prefix]) == 0
