"""Access control of the explorer: token, host name, origin, and read-only methods.

A page of another site can send requests to this machine. The page can also read the answers if a host name of that site
resolves to 127.0.0.1. So requests for data need the token, and all requests need our host name and origin. The token is
not a cookie, since browsers send the cookies of a host to all servers on that host.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LONGEST_QUERY = 8192
"""Maximum bytes of a query string; enough for a percent-encoded search text."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error response to a refused request."""

    status: int
    error: str
    hint: str = "open the address that `tokenloom explore` printed"


@dataclass(slots=True)
class Access:
    """The access rules of a server: the token, and the host names that requests may use.

    `any_address` also allows every IP address as host name: a hostile site can redirect only names, no IP address.
    """

    names: frozenset[str]
    any_address: bool = False
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _tickets: list[str] = field(default_factory=list, repr=False)

    @classmethod
    def at(cls, *, names: Iterable[str], is_loopback: bool, is_everywhere: bool) -> Access:
        own = _LOOPBACK_NAMES if is_loopback or is_everywhere else ()
        return cls(names=frozenset(name.lower() for name in (*names, *own)), any_address=is_everywhere)

    def ticket(self) -> str:
        """Returns a ticket, a token that opens the page only once: safe in command lines, which other users can see."""
        self._tickets.append(secrets.token_urlsafe(32))
        return self._tickets[-1]

    def refusal(self, scope: Scope) -> Refusal | None:
        """Checks a request, except for the token; returns the refusal, or None if the request may proceed."""
        headers = scope["headers"]
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or not self._is_named(hosts[0]):
            return Refusal(421, "the `Host` header does not name this server")
        if scope["method"] not in ("GET", "HEAD"):
            return Refusal(405, f"the method must be GET or HEAD, got {scope['method']}", hint="use GET")
        if len(scope["query_string"]) > LONGEST_QUERY:
            return Refusal(414, f"the query must have at most {LONGEST_QUERY} bytes", hint="search for a shorter text")
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in _values(headers, b"origin")):
            return Refusal(403, "requests from other sites are not allowed")
        if any(site not in ("same-origin", "none") for site in _values(headers, b"sec-fetch-site")):
            hint = "paste the address into the address bar"
            return Refusal(403, "requests from other sites are not allowed", hint=hint)
        return None

    def _is_named(self, host: str) -> bool:
        """Returns whether a `Host` header has one of our names; the port is ignored, since tunnels change ports."""
        try:
            parts = urlsplit(f"//{host}")
            name, _ = parts.hostname or "", parts.port
        except ValueError:
            return False
        if parts.path or parts.query or parts.fragment or parts.username is not None:
            return False
        return name in self.names or (self.any_address and _is_address(name))

    def opens(self, scope: Scope) -> bool:
        """Returns whether the query string of a request has the token or an unused ticket; marks the ticket as used."""
        given = [value for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name == "token"]
        if len(given) != 1:
            return False
        if _is_same(given[0], self.token):
            return True
        used = [ticket for ticket in self._tickets if _is_same(given[0], ticket)]
        self._tickets = [ticket for ticket in self._tickets if ticket not in used]
        return bool(used)

    def has_token(self, scope: Scope) -> bool:
        given = _values(scope["headers"], b"authorization")
        return len(given) == 1 and _is_same(given[0], f"Bearer {self.token}")

    def guard(self, application: Application) -> Application:
        """Wraps `application`, which gets only allowed requests; adds security headers to all answers."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await application(scope, receive, send)
                return
            if scope["type"] != "http":
                await send({"type": "websocket.close", "code": 1008})
                return

            async def protected(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
                await send(message)

            if (refusal := self.refusal(scope)) is not None:
                await _refuse(refusal, protected)
            elif scope["path"].startswith("/api/") and not self.has_token(scope):
                await _refuse(Refusal(403, "the request has no valid token"), protected)
            else:
                await application(scope, receive, protected)

        return guarded


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]


def _is_same(given: str, expected: str) -> bool:
    """Compares two texts in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(refusal: Refusal, send: Send) -> None:
    body = json.dumps({"error": refusal.error, "hint": refusal.hint}).encode()
    headers = [(b"content-type", b"application/json")]
    if refusal.status == 405:
        headers.append((b"allow", b"GET, HEAD"))
    await _answer(send, refusal.status, headers, body)


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
