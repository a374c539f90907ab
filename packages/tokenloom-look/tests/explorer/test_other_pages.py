"""What a page of another site can do in a browser whose user has the explorer open: nothing reaches a view."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from explorer_requests import Asker, serving

pytestmark = pytest.mark.slow

SECRET = "the text of a document"

ATTACK = """<!doctype html><html lang=en><title>another site</title><body><script>
const target = "TARGET";
const outcome = (promise) => promise.then(async (answer) => answer.type + " " + await answer.text(), () => "refused");
const loaded = (tag, attribute, path) => new Promise((resolve) => {
  const made = document.createElement(tag);
  made.onload = () => resolve("loaded");
  made.onerror = () => resolve("refused");
  made[attribute] = target + path;
  document.body.append(made);
});
window.attack = async () => ({
  fetch: await outcome(fetch(target + "/api/secret")),
  "with cookies": await outcome(fetch(target + "/api/secret", {credentials: "include"})),
  "without reading": await outcome(fetch(target + "/api/secret", {mode: "no-cors", credentials: "include"})),
  post: await outcome(fetch(target + "/api/secret", {method: "POST", mode: "no-cors", credentials: "include"})),
  script: await loaded("script", "src", "/api/secret"),
  image: await loaded("img", "src", "/api/secret"),
});
window.frame = () => loaded("iframe", "src", "/");
</script>"""


@pytest.fixture
def calls() -> list[str]:
    """What views were asked."""
    return []


@pytest.fixture
def ask(calls) -> Iterator[Asker]:
    def view(_) -> dict[str, str]:
        calls.append("secret")
        return {"text": SECRET}

    with serving({"secret": view}) as asker:
        yield asker


@pytest.fixture
def requests() -> list[str]:
    """What the other site was sent."""
    return []


@pytest.fixture
def other_site(ask, requests) -> Iterator[int]:
    """The port of a site on this machine, which is as near to the explorer as another site can be."""

    class Site(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(f"{self.path}\n{self.headers}")
            body = ATTACK.replace("TARGET", f"http://127.0.0.1:{ask.server.port}").encode()
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_request_of_another_site_reaches_a_view(pages, ask, other_site, calls, host):
    pages.expect_complaint("")  # the browser complains of each attempt
    page = pages.open(ask.server.url)
    own = "fetch('/api/secret', {headers: {Authorization: 'Bearer ' + localStorage.getItem('token')}})"
    assert page.evaluate(f"{own}.then((answer) => answer.json())") == {"text": SECRET}
    calls.clear()
    other = page.context.new_page()
    other.goto(f"http://{host}:{other_site}/")
    results = other.evaluate("attack()")
    assert results == dict.fromkeys(results, "refused")
    assert len(results) == 6
    other.evaluate("frame()")
    assert not any(SECRET in frame.content() for frame in other.frames)
    assert calls == []
    assert page.evaluate(f"{own}.then((answer) => answer.status)") == 200


def test_another_server_of_this_machine_is_not_sent_the_token(pages, ask, other_site, requests):
    pages.expect_complaint("")
    page = pages.open(ask.server.url)
    assert page.evaluate("location.search") == ""
    other = page.context.new_page()
    other.goto(f"http://127.0.0.1:{other_site}/")
    assert other.evaluate("[document.cookie, localStorage.length]") == ["", 0]
    assert requests
    assert not any(ask.server.access.token in each for each in requests)
