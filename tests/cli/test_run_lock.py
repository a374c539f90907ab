"""`tokenloom run lock`."""

from __future__ import annotations

import json

import pytest
from tests.cli.runs import RUN, lock_of, rows_of, run, write_run
from tests.run.data import write_source

from tokenloom.errors import CutShortWarning
from tokenloom.run.run import Run


@pytest.fixture
def path(tmp_path):
    return write_run(tmp_path)


def test_the_first_lock_says_what_is_locked(path, capsys):
    status, out, err = run(capsys, "run", "lock", path)
    assert (status, err) == (0, "")
    assert out.startswith(f"wrote {path.with_suffix('.lock')}: 2 sources, 2 pairs, 6,400 tokens; 100 samples\n")
    assert ["main", "0", "100", "16", "web 75%, code 25%"] in rows_of(out)


def test_a_dry_run_writes_nothing(path, capsys):
    assert run(capsys, "run", "lock", path, "--dry-run")[1].startswith("would write ")
    assert not path.with_suffix(".lock").exists()


def test_nothing_changed(path, capsys):
    run(capsys, "run", "lock", path)
    assert run(capsys, "run", "lock", path)[1].splitlines()[1:] == ["  nothing changed", "  no position moved"]


def test_new_pairs_and_the_first_position_that_moves_are_shown(path, capsys):
    run(capsys, "run", "lock", path)
    before = json.loads(run(capsys, "run", "digest", path, "--position", 40, "--json")[1])["digest"]
    write_source(str(path.parent / "data" / "web1"), *[16] * 100)
    status, out, _ = run(capsys, "run", "lock", path, "--consumed-step", 4, "--global-batch-size", 10)
    assert status == 0
    assert ["web", str(path.parent / "data" / "web1"), "1,600", "40"] in rows_of(out)
    assert ["main", "0", "40", "16", "web 75%, code 25%"] in rows_of(out)
    assert f"  consumed: 40 positions, as they were: digest {before[:16]}\n" in out
    assert [pair.since for pair in lock_of(path).sources[0].pairs] == [0, 40]


def test_a_change_of_what_was_consumed_is_refused(path, capsys):
    run(capsys, "run", "lock", path)
    run(capsys, "run", "lock", path, "--consumed-samples", 40)
    lock = path.with_suffix(".lock").read_bytes()
    path.write_text(RUN.replace("web = 3", "web = 2"))
    status, out, err = run(capsys, "run", "lock", path)
    assert (status, out) == (1, "")
    assert "expected the 40 positions that were read to stay as they are, found position " in err
    assert path.with_suffix(".lock").read_bytes() == lock


def test_json_tells_what_moved(path, capsys):
    run(capsys, "run", "lock", path)
    path.write_text(RUN.replace("web = 3", "web = 2"))
    status, out, err = run(capsys, "run", "lock", path, "--json")
    assert (status, out) == (1, "")
    assert "say how far training has come" in err
    told = json.loads(run(capsys, "run", "lock", path, "--json", "--consumed-samples", 0)[1])
    assert told["written"] is True
    assert told["changes"]["new_segments"][0]["weights"] == {"web": 2, "code": 1}
    assert set(told["moved"]) == {"position", "before", "after"}
    assert told["consumed"] == 0


@pytest.mark.parametrize("is_absolute", [True, False])
def test_data_beside_the_folder_of_the_run(tmp_path, capsys, monkeypatch, is_absolute):
    write_run(tmp_path).unlink()
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "run.toml").write_text(RUN.replace("data/", "../data/"))
    monkeypatch.chdir(tmp_path)
    path = folder / "run.toml" if is_absolute else "runs/run.toml"
    assert run(capsys, "run", "lock", path)[0] == 0
    first = (folder / "run.lock").read_bytes()
    assert b'"prefix": "../data/web0"' in first
    assert str(tmp_path).encode() not in first
    monkeypatch.chdir(folder)
    for again in (path if is_absolute else "run.toml", "../runs/run.toml"):
        status, out, _ = run(capsys, "run", "lock", again)
        assert (status, "nothing changed" in out, (folder / "run.lock").read_bytes()) == (0, True, first)


def test_absolute_data_keep_their_names(tmp_path, capsys):
    path = write_run(tmp_path / "one", RUN.replace('"data/code"', f'"{tmp_path}/two/code"'))
    write_source(str(tmp_path / "two" / "code"), *[64] * 50)
    run(capsys, "run", "lock", path)
    assert f'"prefix": "{tmp_path}/two/code"' in path.with_suffix(".lock").read_text()
    assert "nothing changed" in run(capsys, "run", "lock", path)[1]


def test_a_run_that_ends_early_says_so(path, capsys):
    path.write_text(RUN.replace('code = "data/code"', 'code = { data = "data/code", max_passes = 1 }') + LONGER)
    status, out, err = run(capsys, "run", "lock", path)
    end = lock_of(path).segments[-1].start + lock_of(path).segments[-1].num_samples
    words = f"the run ends at position {end}, before its stages do: source 'code' has been read `max_passes` times"
    assert (status, err.startswith(f"warning: {words}")) == (1, True)
    with pytest.warns(CutShortWarning, match=words):
        Run.open(path)
    with pytest.warns(CutShortWarning):
        status, out, _ = run(capsys, "run", "plan", path)
    assert (status, out.endswith(f"end: position {end:,}, before the stages end\n")) == (1, True)
    path.write_text(path.read_text() + 'on_exhausted = "renormalise"\n')
    assert run(capsys, "run", "lock", path, "--consumed-samples", 0)[::2] == (0, "")
    assert run(capsys, "run", "plan", path)[0] == 0


LONGER = '[[stages]]\nname = "long"\nsequence_length = 32\nsamples = 900\nweights = { web = 1, code = 1 }\n'
