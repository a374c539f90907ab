"""`tokenloom retro verify`."""

from __future__ import annotations

import json

import pytest
from tests.cli.retro_projects import built
from tests.cli.runs import run

pytest.importorskip("faiss")
pytest.importorskip("wordllama")


@pytest.fixture
def project(tmp_path, capsys):
    return built(capsys, tmp_path)


def test_a_project_is_what_was_made_until_a_file_changes(project, capsys):
    head = f"{project}: ok: all files, and"
    assert run(capsys, "retro", "verify", project) == (
        0,
        f"{head} some blocks that were made again, are what they were\n",
        "",
    )
    assert run(capsys, "retro", "verify", project, "--task-validate", 1)[1].startswith(f"{head} all blocks")
    [path] = project.glob("query/train_*/*.hdf5")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    status, out, err = run(capsys, "retro", "verify", project)
    assert (status, err) == (1, "")
    first, last = out.splitlines()
    assert str(path) in first
    assert last == f"{project}: 1 problem"
    status, out, _ = run(capsys, "retro", "verify", project, "--json")
    assert status == 1
    told = json.loads(out)
    assert (told["project"], told["ok"], len(told["problems"])) == (str(project), False, 1)


def test_another_embedder_makes_something_else(project, capsys):
    status, out, _ = run(capsys, "retro", "verify", project, "--embedder", "wordllama:128")
    assert status == 1
    assert "wordllama" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--task-validate", 0], "expected a fraction above 0 and at most 1, found 0"),
        (["--task-validate", 1.5], "expected a fraction above 0 and at most 1, found 1.5"),
    ],
)
def test_a_share_that_is_none_is_refused(more, message, project, capsys):
    status, out, err = run(capsys, "retro", "verify", project, *more)
    assert (status, out) == (1, "")
    assert message in err
