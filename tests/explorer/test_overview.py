"""What is looked at."""

from __future__ import annotations


def test_a_pair_has_documents_samples_and_a_search(ask_pair, corpora):
    found = ask_pair("target")
    assert (found["kind"], found["name"]) == ("pair", corpora.path("web_text_document"))
    assert found["views"] == ["overview", "samples", "documents", "search"]
    [source] = found["sources"]
    assert (source["num_documents"], source["number"]) == (40, 0)
    assert (found["has_positions"], found["num_positions"], found["has_steps"]) == (True, None, False)
    assert (found["compared"], found["notes"]) == (None, [])
    assert ["documents", "40"] in found["facts"]


def test_a_run_has_positions_steps_and_what_it_is_compared_with(ask_run, corpora):
    found = ask_run("target")
    assert (found["kind"], found["num_positions"], found["has_steps"]) == ("run", 60, True)
    assert [source["name"] for source in found["sources"]] == ["web", "code"]
    assert "compare" in found["views"]
    assert found["compared"] == corpora.path("other.toml")


def test_what_is_missing_is_said(ask_ids):
    found = ask_ids("target")
    assert found["notes"] == ["the data have no manifest, and no tokenizer was named: ids are shown"]
    assert found["has_texts"] is False


def test_target_takes_no_questions(ask_pair):
    assert ask_pair.error("target", path="/etc/passwd") == (400, "expected none of 'path' here")


def test_sections_are_those_of_the_report_made_one_by_one(ask_pair):
    listed = ask_pair("target")["sections"]
    assert {"id": "documents", "title": "Documents and tokens"} in listed
    found = ask_pair("section", id="documents")
    assert (found["id"], found["title"]) == ("documents", "Documents and tokens")
    assert found["html"]
    assert ask_pair("section", id="documents") == found
    assert ask_pair.error("section", id="../x") == (404, "expected the id of a section, found '../x'")
