"""`tokenloom info`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.origins import add_hashes, add_origins
from tests.indexed.pairs import write_pair

from tokenloom import IndexedDataset, cli, merge_datasets

CORPUS = [[[10, 11, 12], [13]], [], [[], list(range(1500))]]


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "corpus", CORPUS)


def rows_of(text):
    """Returns the rows of all tables: first cell to the cells after it."""
    cells = [line.split("  ") for line in text.splitlines()]
    rows = [[cell.strip() for cell in row if cell.strip()] for row in cells]
    return {row[0]: row[1:] for row in rows if row}


def test_json_is_the_statistics(capsys, tmp_path, prefix):
    other = write_pair(tmp_path / "other", [])
    assert cli.main(["info", "--json", prefix, other]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line, name in zip(lines, (prefix, other), strict=True):
        statistics = IndexedDataset(name).statistics()
        expected = {
            "prefix": name,
            **dataclasses.asdict(statistics),
            "origins": None,
            "hashes": False,
            "manifest": None,
        }
        assert json.loads(line) == json.loads(json.dumps(expected))


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


def test_an_empty_dataset_has_no_histogram(capsys, tmp_path):
    assert cli.main(["info", write_pair(tmp_path / "empty", [])]) == 0
    out = capsys.readouterr().out
    assert rows_of(out)["documents"] == ["0"]
    assert "percentile" not in out
    assert "█" not in out


def test_a_path_is_shown_as_it_is(capsys, tmp_path):
    folder = tmp_path / "[bold]" / ("x" * 120) / ":smile: ["
    folder.mkdir(parents=True)
    prefix = write_pair(folder / "red]", CORPUS)
    assert cli.main(["info", prefix]) == 0
    assert prefix in capsys.readouterr().out


def test_modes_are_wanted_only_when_asked_for(capsys, tmp_path, prefix):
    assert cli.main(["info", "--multimodal", prefix]) == 1
    assert "open it without `--multimodal`" in capsys.readouterr().err
    assert cli.main(["info", "--multimodal", write_pair(tmp_path / "modes", CORPUS, multimodal=True)]) == 0


def test_a_missing_prefix_is_reported(capsys, tmp_path):
    assert cli.main(["info", f"{tmp_path}/absent"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"error: no file `{tmp_path}/absent.idx` and `{tmp_path}/absent.bin`\n"
        "hint: a prefix is the path without `.bin` or `.idx`\n"
        "more: tokenloom explain DatasetNotFoundError\n"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_command_prints_a_readable_table_to_a_pipe(prefix, encoding):
    command = [sys.executable, "-m", "tokenloom.cli", "info", prefix]
    environment = {"PYTHONIOENCODING": encoding, "COLUMNS": "20"}
    done = subprocess.run(command, capture_output=True, check=True, env=environment, encoding=encoding)
    assert prefix in done.stdout
    assert "1,024 to 2,047" in done.stdout
    assert ("█" if encoding == "utf-8" else "#") * 30 in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_a_manifest_says_what_the_data_were_made_of(capsys, tmp_path):
    prefix = write_recorded(tmp_path / "recorded", [[[10, 11]]], engine="evil \x1b[31m")
    assert cli.main(["info", prefix]) == 0
    out = capsys.readouterr().out
    rows = rows_of(out)
    assert rows["tokenizer"] == ["word-level words/tokenizer.json"]
    assert rows["sha256"] == ["ab" * 32]
    assert rows["vocabulary"] == ["100"]
    assert rows["largest token"] == ["11"]
    assert rows["before each document"] == ["nothing"]
    assert rows["after each document"] == ["9 '</s>'"]
    assert rows["append_eod"] == ["true"]
    assert rows["engine"] == ["evil \\x1b[31m"]
    assert rows["input files"] == ["2"]
    assert rows["documents read"] == rows["documents kept"] == ["1"]
    assert rows["documents duplicates"] == ["0"]
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
