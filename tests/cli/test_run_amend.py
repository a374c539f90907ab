"""`tokenloom run amend`."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import RUN, lock_of, rows_of, run, write_run
from tests.run.data import write_source


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path)
    assert run(capsys, "run", "lock", path)[0] == 0
    return path


def digest(capsys, path, position) -> str:
    return json.loads(run(capsys, "run", "digest", path, "--position", position, "--json")[1])["digest"]


def test_new_weights_from_a_step_on(path, capsys):
    before = digest(capsys, path, 40)
    words = ("--at-step", 4, "--global-batch-size", 10, "--weights", "web=1,code=1", "--stage-name", "even")
    status, out, err = run(capsys, "run", "amend", path, *words)
    assert (status, err) == (0, "")
    assert path.read_text() == RUN.replace("samples = 100", "samples = 40") + (
        '\n[[stages]]\nname = "even"\nsequence_length = 16\nsamples = 60\nweights = { web = 1, code = 1 }\n'
    )
    assert "-samples = 100\n+samples = 40\n" in out
    assert ["even", "40", "60", "16", "web 50%, code 50%"] in rows_of(out)
    assert f"  unchanged: 40 positions, as they were: digest {before[:16]}\n" in out
    assert digest(capsys, path, 40) == before


def test_a_dry_run_changes_nothing(path, capsys):
    lock = path.with_suffix(".lock").read_bytes()
    told = json.loads(
        run(capsys, "run", "amend", path, "--at-position", 41, "--weights", "code=1", "--dry-run", "--json")[1]
    )
    assert (told["written"], told["position"], told["consumed"]) == (False, 41, 0)
    assert "+samples = 41" in told["diff"]
    assert path.read_text() == RUN
    assert path.with_suffix(".lock").read_bytes() == lock


def test_sources_lengths_and_sizes(path, capsys):
    write_source(str(path.parent / "data" / "books"), *[100] * 20)
    words = ("--add-source", f"books={path.parent}/data/books", "--weights", "web=1,books=1", "--sequence-length", 32)
    status, out, _ = run(capsys, "run", "amend", path, "--at-position", 50, *words, "--tokens", "1K")
    assert status == 0
    assert ["new sources", "books"] in rows_of(out)
    assert ["from 50", "50", "31", "32", "web 50%, books 50%"] in rows_of(out)
    assert [segment.sequence_length for segment in lock_of(path).segments] == [16, 32]


def test_data_grow_and_documents_are_denied(path, capsys):
    before = digest(capsys, path, 30)
    write_source(str(path.parent / "data" / "web1"), *[16] * 100)
    (path.parent / "takedown.txt").write_text("web:3\nweb:4\n")
    status, _, err = run(capsys, "run", "amend", path, "--at-position", 30, "--deny", path.parent / "takedown.txt")
    assert status == 1
    assert "expected no new pairs, found " in err
    words = ("--deny", path.parent / "takedown.txt", "--grow")
    status, out, _ = run(capsys, "run", "amend", path, "--at-position", 30, *words)
    assert status == 0
    assert ["1,600", "30"] in [row[2:] for row in rows_of(out) if row[0] == "web"]
    assert ["denied", "2"] in rows_of(out)
    assert lock_of(path).denials[0].start == 30
    assert digest(capsys, path, 30) == before


def test_what_is_refused_leaves_both_files(path, capsys):
    lock = path.with_suffix(".lock").read_bytes()
    (path.parent / "takedown.txt").write_text("web:100000\n")
    for words, message in [
        (("--at-position", 40), "expected a change"),
        (("--at-position", 101, "--weights", "web=1"), "expected a position in the run, up to 100, found 101"),
        (("--at-position", 100, "--weights", "web=1"), "expected a size for a stage behind the end of the run"),
        (("--at-position", 0, "--weights", "web=1"), "found 0, the first of stage 'main'"),
        (("--at-position", 40, "--weights", "wob=1"), "found one of 'wob'\nhint: did you mean `web`?"),
        (("--at-position", 40, "--weights", "web=1", "--add-source", "more=data/none"), "none"),
        (("--at-position", 40, "--grow"), "expected new pairs"),
        (("--at-position", 40, "--deny", path.parent / "takedown.txt"), "found `web:100000`"),
        (("--at-position", 40, "--sequence-length", 4096), "expected at least the 4096 tokens of a sample"),
        (("--at-position", 40, "--sequence-length", 3500, "--samples", 9), "found 0 in the 3040 tokens of 1 pairs"),
    ]:
        status, out, err = run(capsys, "run", "amend", path, *words)
        assert (status, out) == (1, ""), words
        assert message in err
        assert path.read_text() == RUN
        assert path.with_suffix(".lock").read_bytes() == lock


def test_a_position_before_what_was_consumed_is_refused(path, capsys):
    run(capsys, "run", "lock", path, "--consumed-samples", 60)
    status, _, err = run(capsys, "run", "amend", path, "--at-position", 40, "--weights", "web=1")
    assert status == 1
    assert "training has read the 60 positions before 60, found a change at 40" in err
