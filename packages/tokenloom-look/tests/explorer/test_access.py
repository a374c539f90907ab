"""Access control: token, host name, origin and method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from explorer_requests import Asker, Reply, serving

from tokenloom.errors import ConfigError
from tokenloom_look.explorer.access import Access
from tokenloom_look.explorer.server import LocalServer


@pytest.fixture(scope="module")
def ask() -> Iterator[Asker]:
    with serving({"told": lambda query: {"secret": "corpus"}}) as asker:
        yield asker


def scope(host: bytes = b"localhost:8000") -> dict[str, Any]:
    headers = [(b"host", host)]
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
    assert access().refusal(scope(host=host.encode())).status == 421


def test_any_port_is_allowed_and_any_address_if_the_server_listens_everywhere():
    assert access().refusal(scope(host=b"LOCALHOST:9000")) is None
    assert access().refusal(scope(host=b"[::1]:9000")) is None
    everywhere = access(names=["node7"], is_loopback=False, is_everywhere=True)
    assert {everywhere.refusal(scope(host=host)) for host in (b"node7:1", b"10.0.0.7:8000", b"[fe80::1]:1")} == {None}
    assert everywhere.refusal(scope(host=b"evil.example")).status == 421
    one_address = access(names=["10.0.0.7"], is_loopback=False)
    assert one_address.refusal(scope(host=b"localhost:8000")).status == 421
    assert one_address.refusal({**scope(), "headers": [(b"host", b"10.0.0.7"), (b"host", b"10.0.0.7")]}).status == 421
    assert one_address.refusal({**scope(), "headers": []}).status == 421


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
