"""What stands at positions."""

from __future__ import annotations

import numpy as np

from tokenloom.run.run import Run


def test_a_page_of_samples_says_where_they_are_from(ask_run, corpora):
    page = ask_run("positions", first=8, count=3)
    assert (page["total"], [row["position"] for row in page["rows"]]) == (60, [8, 9, 10])
    run = Run.open(corpora.path("run.toml"))
    for row in page["rows"]:
        place = run.place(row["position"])
        assert (row["source"], row["stage"], row["pass"]) == (place.source, "main", place.pass_number)
        assert (row["window"], row["step"]) == (place.window, 1)
        assert row["num_spans"] == len(run.trace([row["position"]]))
        assert row["preview"] != ""


def test_pages_end_where_positions_end(ask_run, ask_pair):
    assert len(ask_run("positions", first=55, count=50)["rows"]) == 5
    assert ask_run("positions", first=2**62)["rows"] == []
    assert ask_pair("positions", count=1)["rows"][0]["step"] is None


def test_a_position_is_drawn_with_its_spans(ask_run, corpora):
    found = ask_run("position", position=9)
    table = Run.open(corpora.path("run.toml")).trace([9])
    assert found["num_tokens"] == 33
    assert ["step", "1"] in found["facts"]
    assert [(span["source"], span["document"], span["start"]) for span in found["spans"]] == [
        (int(source), document, start)
        for source, document, start in zip(table.sources, table.documents.tolist(), table.starts.tolist(), strict=True)
    ]
    assert found["html"].count("data-id=") == 33


def test_positions_that_are_not_there_are_refused(ask_run):
    assert ask_run.error("position", position=60) == (404, "expected a position in [0, 60), found 60")
    assert ask_run.error("position", position="1e3")[0] == 400


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


def test_only_documents_of_runs_are_followed(ask_pair):
    status, message = ask_pair.error("occurrences", document=7)
    assert (status, message.startswith("expected a run, found the pair")) == (400, True)


def test_a_run_without_end_is_paged_and_followed_up_to_a_position(corpora, tmp_path):
    from tests.explorer.conftest import RUN

    from tokenloom.explorer.looking import Looking
    from tokenloom.explorer.positions import occurrences, positions
    from tokenloom.explorer.queries import Query
    from tokenloom.inspect.target import open_target

    path = corpora.folder / "endless.toml"
    path.write_text(RUN.replace("samples = 60\n", ""))
    Run.open(path)
    looking = Looking(target=open_target([str(path)]))
    page = positions(looking, Query({"first": str(10**6), "count": "2"}))
    assert (page["total"], [row["position"] for row in page["rows"]]) == (None, [10**6, 10**6 + 1])
    found = occurrences(looking, Query({"document": "7", "stop": "1000"}))
    assert (found["stop"], found["has_end"]) == (1000, False)
    assert found["total"] >= 10
