"""`tokenloom run commit`."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.cli.runs import RUN, lock_of, run, write_run

from tokenloom.run.audit.commitment import commit


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    return path


def test_the_root_of_a_run(path, capsys, tmp_path):
    root = commit(lock_of(path)).root
    status, out, err = run(capsys, "run", "commit", path)
    assert (status, err) == (0, "")
    written = path.with_name("run.commitment.json")
    assert out.splitlines()[0] == f"{root}  {written}"
    told = json.loads(written.read_text())
    assert (told["root"], [(pair["source"], pair["number"]) for pair in told["pairs"]]) == (
        root,
        [("web", 0), ("code", 0)],
    )
    found = json.loads(run(capsys, "run", "commit", path.with_name("run.lock"), "-o", tmp_path / "c.json", "--json")[1])
    assert (found["path"], found["root"], found["num_pairs"]) == (str(tmp_path / "c.json"), root, 2)


def test_it_stays_where_data_move_and_stages_get_other_names(path, capsys, tmp_path):
    root = commit(lock_of(path)).root
    moved = tmp_path / "moved"
    shutil.move(tmp_path / "data", moved / "data")
    (moved / "run.toml").write_text(RUN.replace('name = "main"', 'name = "first"'))
    assert run(capsys, "run", "lock", moved / "run.toml")[0] == 0
    assert run(capsys, "run", "commit", moved / "run.toml")[1].startswith(root)
    (moved / "run.toml").write_text(RUN.replace("web = 3", "web = 4"))
    assert run(capsys, "run", "lock", moved / "run.toml", "--consumed-samples", 0)[0] == 0
    assert not run(capsys, "run", "commit", moved / "run.toml")[1].startswith(root)


def test_changed_data_are_refused(path, capsys):
    data = path.parent / "data" / "code.bin"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    status, _, err = run(capsys, "run", "commit", path)
    assert status == 1
    assert "code.bin` changed after it was locked" in err
    assert not path.with_name("run.commitment.json").exists()
