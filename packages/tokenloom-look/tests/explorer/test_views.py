"""The views of the explorer on a pair, a run, a job and a training loop."""

from __future__ import annotations

import html
import json
import math
import re
import shutil

import numpy as np
import pytest
from explorer_requests import serving, state_of
from tests.corpus.shard_reports import write_report
from tests.support import write_corpus

from tokenloom.loading.losses import JsonLinesWriter, LossRecorder
from tokenloom.run.run import Run
from tokenloom_look.explorer.application import views_of
from tokenloom_look.explorer.queries import Query
from tokenloom_look.explorer.session import Session
from tokenloom_look.explorer.watching import watch
from tokenloom_look.target import open_target


def test_views_write_nothing(corpora):
    before = state_of(corpora.folder)
    with serving(views_of(corpora.session("run.toml"))) as ask:
        for name in ("documents", "positions"):
            ask(name, count=3)
            ask(name[:-1], **{name[:-1]: 2})
        ask("search", text="return")
        ask("section", id="stages")
        ask("occurrences", document=1)
    assert state_of(corpora.folder) == before


def test_a_pair_has_documents_and_a_run_has_positions(ask_pair, ask_run, corpora):
    found = ask_pair("target")
    assert (found["kind"], found["name"]) == ("pair", corpora.path("web_text_document"))
    assert found["views"] == ["overview", "samples", "documents", "search"]
    assert (found["has_positions"], found["num_positions"], found["has_steps"]) == (True, None, False)
    assert ["documents", "40"] in found["facts"]
    run = ask_run("target")
    assert (run["kind"], run["num_positions"], run["has_steps"]) == ("run", 60, True)
    assert [source["name"] for source in run["sources"]] == ["web", "code"]


def test_sections_of_the_report_are_loaded_one_by_one(ask_pair):
    listed = ask_pair("target")["sections"]
    assert {"id": "documents", "title": "Documents and tokens"} in listed
    found = ask_pair("section", id="documents")
    assert (found["id"], found["title"]) == ("documents", "Documents and tokens")
    assert found["html"]
    assert ask_pair("section", id="documents") == found
    assert ask_pair.error("section", id="../x") == (404, "no section '../x'")


def test_hostile_text_is_escaped(ask_pair):
    preview = ask_pair("documents", first=3, count=1)["rows"][0]["preview"]
    assert preview.startswith("<script>alert(1)</script>\\x1b[31m \\u202e txt.exe &amp; café 中文")
    drawn = ask_pair("document", document=3)
    assert "<script" not in drawn["html"]
    assert "\x1b" not in drawn["html"]
    assert "\u202e" not in drawn["html"]
    text = html.unescape(re.sub("<[^>]*>", "", drawn["html"]))
    assert "<script>alert(1)</script>" in text.replace("\n", "")


def test_tokens_of_a_document_join_to_its_text(ask_pair):
    whole = ask_pair("document", document=0)
    parts = [ask_pair("document", document=0, first=first, count=10) for first in range(0, whole["num_tokens"], 10)]
    ids = [number for part in parts for number in re.findall("data-id=([0-9]+)", part["html"])]
    assert ids == re.findall("data-id=([0-9]+)", whole["html"])
    assert (len(ids), parts[0]["count"]) == (whole["num_tokens"], 10)
    assert whole["heading"].startswith("document 0 of ")
    assert ask_pair("document", document=0, first=2**62)["count"] == 0


def test_missing_documents_are_errors(ask_pair, corpora):
    message = f"document 40 out of range: {corpora.path('web_text_document')} has 40 documents"
    assert ask_pair.error("document", document=40) == (404, message)
    assert ask_pair.error("document", document=0, source=1) == (404, "source 1 out of range: the target has 1 sources")
    assert ask_pair.error("document") == (400, "the query needs `document`")


def test_without_a_tokenizer_ids_are_shown(ask_ids):
    rows = ask_ids("documents")["rows"]
    assert [row["preview"] for row in rows[:2]] == ["1 2 3", ""]
    assert [row["num_tokens"] for row in rows] == [3, 0, 100]
    assert [row["file"] for row in rows] == [None] * 3
    assert ask_ids("document", document=1)["num_tokens"] == 0


def test_samples_name_their_documents(ask_run, corpora):
    page = ask_run("positions", first=8, count=3)
    assert (page["total"], [row["position"] for row in page["rows"]]) == (60, [8, 9, 10])
    run = Run.open(corpora.path("run.toml"))
    for row in page["rows"]:
        place = run.place(row["position"])
        assert (row["source"], row["stage"], row["pass"]) == (place.source, "main", place.pass_number)
        assert (row["window"], row["step"]) == (place.window, 1)
        assert row["num_spans"] == len(run.trace([row["position"]]))
        assert row["preview"] != ""


def test_a_position_is_drawn_with_its_spans(ask_run, corpora):
    found = ask_run("position", position=9)
    table = Run.open(corpora.path("run.toml")).trace([9])
    assert found["num_tokens"] == 33
    assert ["step", "1"] in found["facts"]
    columns = (table.sources.tolist(), table.documents.tolist(), table.starts.tolist())
    places = [(span["source"], span["document"], span["start"]) for span in found["spans"]]
    assert places == list(zip(*columns, strict=True))
    assert found["html"].count("data-id=") == 33


def test_recorded_losses_are_shown(corpora, tmp_path):
    run = Run.open(corpora.path("run.toml"))
    with LossRecorder(tmp_path) as recorder:
        recorder.append(range(60), [{7: 40.0, 8: 120.0, 9: math.nan}.get(position, 33.0) for position in range(60)])
    asked = views_of(corpora.session("run.toml", losses=str(tmp_path)))
    rows = asked["positions"](Query({"first": "5", "count": "6"}))["rows"]
    assert [row["loss"] for row in rows] == ["1", "1", "1.212", "3.636", "nan", "1"]
    assert [row["loss_level"] for row in rows] == [0, 0, 0, 2, 2, 0]
    [first, *_] = asked["position"](Query({"position": "8"}))["spans"]
    assert (first["loss"], first["loss_level"]) == ("3.636", 2)
    [span] = [row for row in run.trace([8]).rows() if row["slot"] == 0]
    words = {"source": str(["web", "code"].index(span["source"])), "document": str(span["document"])}
    read = {row["position"]: row.get("loss") for row in asked["occurrences"](Query(words))["rows"]}
    assert read[8] == "3.636"
    assert asked["target"](Query({}))["has_losses"]
    assert not views_of(corpora.session("run.toml"))["target"](Query({}))["has_losses"]


def test_a_document_is_followed_to_all_its_positions(ask_run, corpora):
    table = Run.open(corpora.path("run.toml")).occurrences({0: [7]})
    found = ask_run("occurrences", source=0, document=7)
    assert (found["total"], found["stop"], found["has_end"]) == (len(table), 60, True)
    assert [row["position"] for row in found["rows"]] == table.positions.tolist()
    assert [row["step"] for row in found["rows"]] == (table.positions // 8).tolist()
    assert [row["seen"] for row in found["rows"]] == (table.positions < 24).tolist()
    assert np.all(np.diff(table.positions) >= 0)
    first = ask_run("occurrences", source=0, document=7, first=1, count=1)["rows"]
    assert first == found["rows"][1:2]


def sample_at(position):
    return {"view": "samples", "parameters": {"position": position}}


def document_at(source, document):
    return {"view": "documents", "parameters": {"source": source, "document": document}}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("59", sample_at(59)),
        ("position 7", sample_at(7)),
        ("Step:3", sample_at(24)),
        ("web:0", document_at(0, 0)),
        ("code.jsonl:3", document_at(1, 2) | {"num_documents": 1}),
    ],
)
def test_jumps_parse_what_the_user_typed(ask_run, value, found):
    assert ask_run("jump", value=value) == found


@pytest.mark.parametrize(
    ("value", "status", "message"),
    [
        ("60", 404, "position 60 out of range: the target has 60 positions"),
        ("step 8", 404, "position 64 out of range: the target has 60 positions"),
        ("web:39", 404, "document 39 out of range: web has 39 documents"),
        ("wbe:4", 400, "'wbe:4': the run has no source 'wbe'"),
        ("web.jsonl:99", 400, "web.jsonl"),
    ],
)
def test_jumps_to_nothing_are_errors(ask_run, value, status, message):
    found, text = ask_run.error("jump", value=value)
    assert (found, message in text) == (status, True), text


def test_a_job_is_watched_until_its_folder_is_gone(tmp_path):
    job = tmp_path / "corpus.job"
    job.mkdir()
    described = {"settings": {}, "inputs": "x", "files": ["a", "b"], "num_shards": 4}
    (job / "job.json").write_text(json.dumps(described))
    write_report(job, 0, written=1000, num_documents=9, num_tokens=500)
    before = state_of(job)
    with serving(views_of(Session(target=open_target([str(job)])))) as ask:
        assert ask("target")["views"] == ["overview", "watch"]
        found = ask("watch")
        assert found["progress"] == {"done": 1, "total": 4, "unit": "shards"}
        assert found["words"] == "1 of 4 shards are done, no process is running."
        assert '<th scope="row">tokens so far</th><td>500</td>' in found["html"]
        assert (found["charts"], found["is_over"]) == ([], False)
        assert state_of(job) == before
        write_report(job, 1, written=1001, num_documents=9, num_tokens=700)
        assert ask("watch")["words"] == "2 of 4 shards are done, no process is running."
        shutil.rmtree(job)
        found = ask("watch")
        assert (found["words"], found["is_over"]) == (f"The job is done: its folder `{job}` was removed.", True)


def test_statistics_of_a_training_loop_are_watched(tmp_path):
    prefix, path = write_corpus(tmp_path / "web", [[1, 2, 3]]), tmp_path / "train.jsonl"
    session = Session(target=open_target([prefix]), followed=str(path))
    assert watch(session, Query({}))["words"] == f"`{path}` does not exist yet."
    write = JsonLinesWriter(path)
    for step, loss in ((10, 2.5), (20, float("nan")), (30, 1.5)):
        write(step=step, consumed_samples=step * 8, loss={"web": loss, "<code>": 1.0})
    with serving(views_of(session)) as ask:
        assert "watch" in ask("target")["views"]
        found = ask("watch")
    assert found["words"] == f"`{path}` has 3 lines."
    assert ["step", "30"] in found["facts"]
    assert ["consumed samples", "240"] in found["facts"]
    consumed, losses = found["charts"]
    assert consumed["title"] == "consumed_samples"
    assert (losses["title"], losses["x"]["values"]) == ("loss", [10, 20, 30])
    series = {each["name"]: each["values"] for each in losses["series"]}
    assert series == {"<code>": [1, 1, 1], "web": [2.5, None, 1.5]}
    assert "<code>" not in found["html"]
