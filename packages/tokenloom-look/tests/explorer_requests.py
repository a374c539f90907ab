"""Runs the explorer's server in a thread and sends it requests."""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tokenloom_look.explorer.application import View
from tokenloom_look.explorer.server import LocalServer

HOSTILE = "<script>alert(1)</script>\x1b[31m \u202e txt.exe &amp; caf\u00e9 \u4e2d\u6587"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Asker:
    """Sends requests to a server."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server

    def send(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, token: str | None = ""
    ) -> Reply:
        """Sends one request, with the server's token if `token` is "", and without one if it is None."""
        given = {"Host": f"127.0.0.1:{self.server.port}", **(headers or {})}
        if token is not None:
            given["Authorization"] = f"Bearer {token or self.server.access.token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            headers_of = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, headers_of, answer.read())
        finally:
            connection.close()

    def __call__(self, name: str, **values: object) -> Any:
        reply = self.send(f"/api/{name}?{urlencode(values)}")
        assert reply.status == 200, reply.body
        return reply.json()

    def error(self, name: str, **values: object) -> tuple[int, str]:
        """Returns status and message of an error response."""
        reply = self.send(f"/api/{name}?{urlencode(values)}")
        assert reply.status >= 400, reply.body
        return reply.status, reply.json()["error"]


@contextmanager
def serving(views: Mapping[str, View]) -> Iterator[Asker]:
    server = LocalServer(views)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Asker(server)
    finally:
        server.stop()
        thread.join()


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns size and modification time of all files in a folder."""
    found = {}
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            status = os.lstat(os.path.join(root, name))
            found[os.path.join(root, name)] = (status.st_size, status.st_mtime_ns)
    return found
