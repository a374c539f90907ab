"""A job or a training loop, seen from outside, and a file that grows."""

from __future__ import annotations

import json

import pytest
from explorer_requests import serving, state_of
from tests.corpus.shard_reports import write_report
from tests.support import write_corpus

from tokenloom.loading.losses import JsonLinesWriter
from tokenloom_look.explorer.application import views_of
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.explorer.queries import Query
from tokenloom_look.explorer.watching import watch
from tokenloom_look.target import TargetKind, open_target


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "corpus.job"
    folder.mkdir()
    described = {"settings": {}, "inputs": "x", "files": ["a", "b"], "num_shards": 4}
    (folder / "job.json").write_text(json.dumps(described))
    return folder


def test_a_job_is_watched_until_its_folder_is_gone(job):
    write_report(job, 0, written=1000, num_documents=9, num_tokens=500)
    target = open_target([str(job)])
    assert target.kind is TargetKind.job
    looking = Looking(target=target)
    before = state_of(job)
    with serving(views_of(looking)) as ask:
        assert ask("target")["views"] == ["overview", "watch"]
        found = ask("watch")
        assert found["progress"] == {"done": 1, "total": 4, "unit": "shards"}
        assert found["words"] == "1 of 4 shards are done, nobody works on it."
        assert '<th scope="row">tokens so far</th><td>500</td>' in found["html"]
        assert (found["charts"], found["is_over"]) == ([], False)
        assert state_of(job) == before
        write_report(job, 1, written=1001, num_documents=9, num_tokens=700)
        write_report(job, 2, written=1002, num_documents=9, num_tokens=1)
        found = ask("watch")
        assert found["words"] == "3 of 4 shards are done, nobody works on it."
        assert '<th scope="row">tokens so far</th><td>1,201</td>' in found["html"]
        for path in job.iterdir():
            path.unlink()
        job.rmdir()
        found = ask("watch")
        assert (found["words"], found["is_over"]) == (f"The job is done: its folder `{job}` is gone.", True)


def test_a_training_loop_is_followed_through_the_file_that_it_writes(tmp_path):
    prefix, path = write_corpus(tmp_path / "web", [[1, 2, 3]]), tmp_path / "train.jsonl"
    looking = Looking(target=open_target([prefix]), followed=str(path))
    assert watch(looking, Query({}))["words"] == f"`{path}` is not there yet."
    write = JsonLinesWriter(path)
    for step, loss in ((10, 2.5), (20, float("nan")), (30, 1.5)):
        write(step=step, consumed_samples=step * 8, loss={"web": loss, "<code>": 1.0})
    with serving(views_of(looking)) as ask:
        assert "watch" in ask("target")["views"]
        found = ask("watch")
    assert found["words"] == f"`{path}` has 3 lines."
    assert ["step", "30"] in found["facts"]
    assert ["samples that were consumed", "240"] in found["facts"]
    consumed, losses = found["charts"]
    assert consumed["title"] == "consumed_samples"
    assert (losses["title"], losses["x"]["values"]) == ("loss", [10, 20, 30])
    series = {each["name"]: each["values"] for each in losses["series"]}
    assert series == {"<code>": [1, 1, 1], "web": [2.5, None, 1.5]}
    assert "<code>" not in found["html"]
