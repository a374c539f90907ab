"""Runs the explorer's application with uvicorn on a local socket."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.optional import require
from tokenloom_look.explorer.access import Access
from tokenloom_look.explorer.application import View, application

_MOST_CONNECTIONS = 512
_SECONDS_TO_FINISH = 2
_LAST_PORT = 65535


class LocalServer:
    """An HTTP server for the explorer. The constructor begins to listen; `run` answers requests."""

    def __init__(self, views: Mapping[str, View], *, host: str = "127.0.0.1", port: int = 0) -> None:
        uvicorn = require("uvicorn", extra="look")
        require("starlette", extra="look")
        self._socket = _listening(host, port)
        self.port: int
        address, self.port = self._socket.getsockname()[:2]
        bound = ipaddress.ip_address(address.partition("%")[0])
        self.is_loopback: bool = bound.is_loopback
        self._host = socket.gethostname() if bound.is_unspecified else host
        self.access: Access = Access.at(
            names=(self._host, str(bound)),
            is_loopback=bound.is_loopback,
            is_everywhere=bound.is_unspecified,
        )
        config = uvicorn.Config(
            application(views, self.access),
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,  # URLs contain the token
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_SECONDS_TO_FINISH,
        )
        self._server: Any = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """Returns the address of the page, including the token."""
        return self._url(self.access.token)

    def url_for_once(self) -> str:
        """Returns an address that opens the page only once; safe in command lines, which other users can see."""
        return self._url(self.access.ticket())

    def _url(self, token: str) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/?token={token}"

    def run(self) -> None:
        """Serves until `stop` is called; in the main thread, also ends at SIGINT or SIGTERM and raises it again."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Makes `run` return; thread-safe."""
        self._server.should_exit = True

    def close(self) -> None:
        """Closes the socket of a server that was never run."""
        self._socket.close()


def _listening(host: str, port: int) -> socket.socket:
    where = f"`{host}`, port {port}"
    if not 0 <= port <= _LAST_PORT:
        raise ConfigError(f"the port must be in [0, {_LAST_PORT}], got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        message = f"cannot resolve {where}: {error}"
        raise ConfigError(message, hint="use an address of this machine, such as 127.0.0.1") from error
    try:
        listening = socket.create_server(address[:2], family=family)
    except OSError as error:
        message = f"cannot listen on {where}: {os.strerror(error.errno) if error.errno else error}"
        raise ConfigError(message, hint="use port 0 for a free port") from error
    # asyncio sets TCP_NODELAY only for sockets with a known protocol; without it, an answer of two packets takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
