"""The explorer: access to its server, queries, searches, views of pairs, runs and jobs, and the command."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from explorers import HOSTILE, Asker, Explored, Reply, make_explored, serving, state_of
from tests.corpus.shard_reports import write_report
from tests.inspect.greedy import Greedy
from tests.support import write_corpus, write_sentences

from tokenloom import cli
from tokenloom.errors import ConfigError, UnavailableError
from tokenloom.loading.losses import JsonLinesWriter, LossRecorder
from tokenloom.run.run import Run
from tokenloom_look.explorer.access import Access
from tokenloom_look.explorer.application import views_of
from tokenloom_look.explorer.queries import NotThereError, Query
from tokenloom_look.explorer.searches import search
from tokenloom_look.explorer.server import LocalServer
from tokenloom_look.explorer.session import Session
from tokenloom_look.explorer.watching import watch
from tokenloom_look.target import Target, open_target


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Explored:
    web = [f"def page_{number}(text): return text.strip() + {number}\n" * 3 for number in range(40)]
    web[3] = HOSTILE
    web[5] = ""
    code = [f"class Code{number}:\n    value = {number}\n" * 4 for number in range(20)]
    return make_explored(tmp_path_factory.mktemp("explored"), web=web, code=code, length=32, samples=60)


@pytest.fixture(scope="module")
def ask_pair(corpora: Explored) -> Iterator[Asker]:
    with serving(views_of(corpora.session("web_text_document"))) as asker:
        yield asker


@pytest.fixture(scope="module")
def ask_run(corpora: Explored) -> Iterator[Asker]:
    with serving(views_of(corpora.run(consumed=24))) as asker:
        yield asker


@pytest.fixture(scope="module")
def ask_ids(corpora: Explored) -> Iterator[Asker]:
    with serving(views_of(corpora.session("ids"))) as asker:
        yield asker


def scope(*hosts: bytes) -> dict[str, Any]:
    headers = [(b"host", host) for host in hosts]
    return {"type": "http", "path": "/", "query_string": b"", "method": "GET", "headers": headers}


def access(**settings: Any) -> Access:
    return Access.at(**{"names": ["localhost"], "is_loopback": True, "is_everywhere": False, **settings})


def token_in(reply: Reply) -> str:
    return reply.body.partition(b'name="token" content="')[2].partition(b'"')[0].decode()


def test_the_token_reaches_the_page_and_no_cookie(ask):
    reply = ask.send(f"/?token={ask.server.access.token}", token=None)
    assert (reply.status, token_in(reply)) == (200, ask.server.access.token)
    assert "set-cookie" not in reply.headers
    for path in ("/", "/?token=wrong", "/?token=", f"/explorer.js?token={ask.server.access.token}"):
        reply = ask.send(path, token=None)
        assert (reply.status, token_in(reply)) == (200, "")
        assert ask.server.access.token.encode() not in reply.body


@pytest.mark.parametrize("path", ["/api/told", "/api/none", "/api/told?token=wrong"])
def test_requests_without_the_token_are_refused(ask, path):
    reply = ask.send(path, token=None)
    hint = "open the address that `tokenloom explore` printed"
    assert (reply.status, reply.json()) == (403, {"error": "the request has no valid token", "hint": hint})


def test_a_wrong_or_misplaced_token_is_refused(ask):
    token = ask.server.access.token
    headers = [{"Cookie": token}]  # browsers send cookies to other ports, too
    for header in (token, f"Basic {token}", f"bearer{token}", "Bearer", f"Bearer {token[:-1]}", f"Bearer {token}a"):
        headers.append({"Authorization": header})
    assert {ask.send("/api/told", token=None, headers=each).status for each in headers} == {403}
    assert ask.send("/api/told", token="é".encode().decode("latin-1")).status == 403
    assert ask.send(f"/api/told?token={token}", token=None).status == 403  # only the page takes it from an address
    assert token_in(ask.send(f"/?token={token}&token={token}", token=None)) == ""


def test_a_ticket_opens_the_page_once(ask):
    path = ask.server.url_for_once().partition(str(ask.server.port))[2]
    assert ask.server.access.token not in path
    assert token_in(ask.send(path, token=None)) == ask.server.access.token
    assert token_in(ask.send(path, token=None)) == ""


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "x@localhost", "10.0.0.7"])
def test_foreign_host_names_are_refused(ask, host):
    reply = ask.send("/api/told", headers={"Host": host})
    assert (reply.status, b"corpus" in reply.body) in [(421, False), (400, False)]  # h11 answers 400 to invalid hosts
    assert access().refusal(scope(host.encode())).status == 421


def test_any_port_is_allowed_and_any_address_if_the_server_listens_everywhere():
    assert {access().refusal(scope(host)) for host in (b"LOCALHOST:9000", b"[::1]:9000")} == {None}
    everywhere = access(names=["node7"], is_loopback=False, is_everywhere=True)
    assert {everywhere.refusal(scope(host)) for host in (b"node7:1", b"10.0.0.7:8000", b"[fe80::1]:1")} == {None}
    assert everywhere.refusal(scope(b"evil.example")).status == 421
    one_address = access(names=["10.0.0.7"], is_loopback=False)
    for hosts in ([b"localhost:8000"], [b"10.0.0.7", b"10.0.0.7"], []):
        assert one_address.refusal(scope(*hosts)).status == 421


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}]
)
def test_other_sites_are_refused_even_with_the_token(ask, headers):
    for path in ("/api/told", f"/?token={ask.server.access.token}"):
        reply = ask.send(path, headers=headers)
        assert (reply.status, reply.json()["error"]) == (403, "requests from other sites are not allowed")
    own = {"Origin": f"http://127.0.0.1:{ask.server.port}", "Sec-Fetch-Site": "same-origin"}
    assert ask.send("/api/told", headers=own).status == 200
    assert ask.send("/api/told", headers={"Sec-Fetch-Site": "none"}).status == 200


def test_methods_that_write_are_refused(ask):
    reply = ask.send("/api/told", method="POST")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
    assert reply.json()["error"] == "the method must be GET or HEAD, got POST"


@pytest.mark.parametrize(("path", "token"), [("/", ""), ("/api/told", ""), ("/api/told", None)])
def test_every_answer_has_security_headers(ask, path, token):
    headers = ask.send(path, token=token).headers
    assert headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    names = ("x-content-type-options", "referrer-policy", "cache-control", "cross-origin-resource-policy")
    assert [headers[name] for name in names] == ["nosniff", "no-referrer", "no-store", "same-origin"]
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


def test_a_server_listens_on_loopback_by_default_and_a_used_port_is_an_error():
    server = LocalServer({})
    assert server.is_loopback
    assert server.url == f"http://127.0.0.1:{server.port}/?token={server.access.token}"
    assert len(server.access.token) == 43
    with pytest.raises(ConfigError, match=rf"cannot listen on `127.0.0.1`, port {server.port}: Address already in use"):
        LocalServer({}, port=server.port)
    server.close()


def echo(query: Query) -> object:
    found = {"text": query.text("text"), "number": query.number("number", 2**60)}
    query.check_read()
    return found


def fails(query: Query) -> object:
    kind = query.text("kind")
    if kind == "bug":
        raise ZeroDivisionError
    classes = {"config": ConfigError, "there": NotThereError, "store": UnavailableError}
    message = "http://me:word@host/key was refused"
    raise classes[kind](message, hint="look elsewhere")


@pytest.fixture(scope="module")
def ask() -> Iterator[Asker]:
    with serving({"told": lambda query: {"secret": "corpus"}, "echo": echo, "fails": fails}) as asker:
        yield asker


def test_an_answer_is_json_that_a_browser_reads_exactly(ask):
    reply = ask.send("/api/echo?text=%E4%B8%AD%3Cb%3E")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json() == {"text": "中<b>", "number": "1152921504606846976"}
    assert ask("echo", text="", number=7) == {"text": "", "number": 7}


@pytest.mark.parametrize(("kind", "status"), [("config", 400), ("there", 404), ("store", 503)])
def test_error_responses_have_no_secrets(ask, kind, status):
    reply = ask.send(f"/api/fails?kind={kind}")
    assert reply.status == status
    assert reply.json() == {"error": "http://…@host/key was refused", "hint": "look elsewhere"}


def test_an_unexpected_error_is_logged_and_the_server_continues(ask, caplog):
    reply = ask.send("/api/fails?kind=bug")
    assert (reply.status, reply.json()["error"]) == (500, "the explorer failed")
    assert "nosniff" in reply.headers.values()
    assert ask("echo", text="a")["text"] == "a"
    assert "ZeroDivisionError" in caplog.text
    assert ask.server.access.token not in caplog.text


WRONG_QUERIES = """
text=a&text=b text text=%ff text=a&other=1 text=a&number=-1 text=a&number=1e3 text=a&number=
text=a&number=99999999999999999999999 text=a&number=%EF%BC%91
"""


@pytest.mark.parametrize("query", ["", *WRONG_QUERIES.split(), "&".join(f"name{number}=1" for number in range(99))])
def test_invalid_queries_are_errors(ask, query):
    assert ask.send(f"/api/echo?{query}").status == 400


PATHS = r"/api/ /api/echo/ /API/echo /api/../page/index.html /..%2f..%2fetc%2fpasswd /page/index.html //explorer.js /%"


@pytest.mark.parametrize("path", PATHS.split())
def test_unknown_paths_are_not_found(ask, path):
    reply = ask.send(path)
    assert (reply.status, reply.json()["error"]) == (404, "unknown path")


def session_of(*prefixes: str, tokenizer=None) -> Session:
    target = open_target(prefixes)
    sources = target.sources
    settings = {"kind": target.kind, "name": target.name, "sources": sources, "blend": target.blend}
    return Session(target=Target(**settings, tokenizer=tokenizer))


def found_all(session: Session, *, seconds: float = 0, **asked: str) -> list[tuple[int, int, int, int]]:
    """Returns all matches, following cursors; a request without time runs one stage."""
    matches, cursor, before = [], "", 0
    while cursor is not None:
        answer = search(session, Query({**asked, "cursor": cursor}), seconds=seconds)
        assert before <= (before := answer["searched_tokens"])
        matches += answer["matches"]
        cursor = answer["cursor"]
    assert answer["searched_tokens"] == answer["total_tokens"]
    return [(match["source"], match["document"], match["start"], match["length"]) for match in matches]


def test_ids_are_found_in_all_pairs_and_sequences(tmp_path):
    one = write_sentences(tmp_path / "a", [[[1, 2], [3, 1, 2]], [[2, 1]], [], [[9, 9, 1, 2]]])
    other = write_corpus(tmp_path / "b", [[1, 2, 1, 2]])
    session = session_of(one, other)
    assert found_all(session, ids="1 2") == [(0, 0, 0, 2), (0, 0, 3, 2), (0, 3, 2, 2), (1, 0, 0, 2), (1, 0, 2, 2)]
    assert found_all(session, ids="1,2", source="1") == [(1, 0, 0, 2), (1, 0, 2, 2)]
    assert found_all(session, ids="2 3") == []  # not over the end of a sequence
    assert found_all(session, ids="70000") == []


def asked_on(ask, **asked: object) -> dict[str, Any]:
    """Returns the last answer of a server with all matches, following cursors like the page."""
    matches, answer = [], {"cursor": ""}
    while answer["cursor"] is not None:
        answer = ask("search", **asked, cursor=answer["cursor"])
        matches += answer["matches"]
    return answer | {"matches": matches}


TEXTS = ["the cat sat on the mat", "breathe cats sat", "nothing", "ha ha ha", "", "x" * 3000 + " cat" + "a" * 60]


@pytest.mark.parametrize("text", ["the cat sat on the mat", " cat", "ha", "é"])
def test_texts_are_found_across_token_boundaries(tmp_path, text):
    tokenizer = Greedy()
    session = session_of(write_corpus(tmp_path / "a", map(tokenizer.tokenize, TEXTS)), tokenizer=tokenizer)
    found = found_all(session, text=text)
    counts = {number: whole.count(text) for number, whole in enumerate(TEXTS) if text in whole}
    assert {match[1] for match in found} == counts.keys()
    for _, document, start, length in found:
        tokens = tokenizer.tokenize(TEXTS[document])[start : start + length]
        assert text in tokenizer.detokenize(tokens)
        assert text not in tokenizer.detokenize(tokens[1:])
    per_document = [sum(match[1] == number for match in found) for number in counts]
    assert per_document == list(counts.values())


def test_search_results_have_method_and_context(ask_pair):
    found = asked_on(ask_pair, text="alert(1)")
    [match] = found["matches"]
    assert match["document"] == 3
    assert "<script" not in match["context_html"]
    assert "alert(1)" in re.search("<mark>(.*)</mark>", match["context_html"])[1]
    assert (found["cursor"], found["searched_tokens"]) == (None, found["total_tokens"])
    assert asked_on(ask_pair, text="strip() + 17\n")["matches"][0]["document"] == 17
    methods = [ask_pair("search", text=text)["method"] for text in ("a", "return text.strip() + 17")]
    assert sorted(methods) == ["text by decoding", "text by ids"]


@pytest.mark.parametrize("asked", [{}, {"text": "a", "ids": "1"}, {"ids": "one"}, {"ids": "1", "cursor": "9.0.0.0"}])
def test_invalid_searches_are_errors(ask_pair, asked):
    assert ask_pair.error("search", **asked)[0] == 400


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
    assert ask_ids("search", ids="2 3", cursor="")["matches"][0]["context_html"] == "1 <mark>2 3</mark> "
    assert ask_ids.error("search", text="a") == (400, "searching for text needs a tokenizer")


def test_positions_name_their_documents_and_spans(ask_run, corpora):
    page = ask_run("positions", first=8, count=3)
    assert (page["total"], [row["position"] for row in page["rows"]]) == (60, [8, 9, 10])
    run = Run.open(corpora.path("run.toml"))
    for row in page["rows"]:
        place = run.place(row["position"])
        assert (row["source"], row["stage"], row["pass"]) == (place.source, "main", place.pass_number)
        assert (row["window"], row["step"]) == (place.window, 1)
        assert row["num_spans"] == len(run.trace([row["position"]]))
        assert row["preview"] != ""
    found, table = ask_run("position", position=9), run.trace([9])
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


@pytest.mark.parametrize(
    ("value", "view", "parameters"),
    [
        ("59", "samples", {"position": 59}),
        ("position 7", "samples", {"position": 7}),
        ("Step:3", "samples", {"position": 24}),
        ("web:0", "documents", {"source": 0, "document": 0}),
        ("code.jsonl:3", "documents", {"source": 1, "document": 2}),
    ],
)
def test_jumps_parse_what_the_user_typed(ask_run, value, view, parameters):
    found = ask_run("jump", value=value)
    assert (found["view"], found["parameters"], found.get("num_documents", 1)) == (view, parameters, 1)


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


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return write_corpus(tmp_path / "web", [[1, 2, 3], [4]])


def test_the_server_runs_until_it_is_stopped(prefix):
    command = [sys.executable, "-m", "tokenloom", "explore", prefix, "--host", "0.0.0.0"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    process = subprocess.Popen(
        command, **streams, env=environment, preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL) and None
    )
    try:
        address = process.stdout.readline().strip()
        host, _, token = address.partition("/?token=")
        assert (host.startswith("http://"), len(token)) == (True, 43)
        address = f"http://127.0.0.1:{host.rpartition(':')[2]}/?token={token}"
        assert urlopen(address, timeout=300).status == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, out, err.splitlines()[-1]) == (143, "", "stopped by SIGTERM")
    assert err.startswith("warning: other machines can reach 0.0.0.0, and the connection is not encrypted: ")


def test_wrong_targets_and_ports_are_errors(prefix, capsys):
    assert cli.main(["explore", f"{prefix}-missing"]) == 1
    assert f"no dataset, run or job at `{prefix}-missing`" in capsys.readouterr().err
    assert cli.main(["explore", prefix, "--port", "70000", "--no-browser"]) == 1
    assert "the port must be in [0, 65535], got 70000" in capsys.readouterr().err
