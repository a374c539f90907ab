"""Where the collector of meetings is found: it leaves its addresses, and a secret, in the store of `torch.distributed`.

Calls of a store may wait for ever where its host is frozen, so they are made in a thread of their own, see `Aside`.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tokenloom.distributed.wire import ForeignMessageError, Record, Wire

_SHORTEST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.2
_CONNECT_SECONDS = 3.0
_SIOCGIFADDR = 0x8915  # of linux/sockios.h


class StoreError(Exception):
    """The store of `torch.distributed` does not answer any more."""


class Aside(threading.Thread):
    """A call in a thread of its own, which is left alone where it never returns.

    Args:
        call: gets a function that says whether the result is still wanted.
        then: called at the end.
    """

    def __init__(self, call: Callable[[Callable[[], bool]], Any], then: Callable[[], None]) -> None:
        super().__init__(name="tokenloom-rendezvous", daemon=True)
        self._call = call
        self._then = then
        self._is_wanted = True
        self._moved = time.monotonic()
        self.is_done: bool = False
        self.result: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Calls."""
        try:
            self.result = self._call(self._move)
        except Exception as error:  # noqa: BLE001  it is looked at by who waits
            self.error = error
        self.is_done = True
        self._then()

    @property
    def stuck_seconds(self) -> float:
        """How long the call has not asked whether it is still wanted; 0 once it is done."""
        return 0.0 if self.is_done else time.monotonic() - self._moved

    def give_up(self) -> None:
        """Says that nobody wants the result any more."""
        self._is_wanted = False

    def _move(self) -> bool:
        self._moved = time.monotonic()
        return self._is_wanted


def open_listener(num_connections: int) -> socket.socket:
    """Returns a socket on which the others find this rank."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=num_connections, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=num_connections)


def advertisement(listener: socket.socket, host: str, store: Any) -> Record:
    """Returns what the collector leaves in the store: where it listens, and a secret that only ranks can know."""
    addresses = list(dict.fromkeys(_addresses(store)))
    return {"host": host, "addresses": addresses, "port": listener.getsockname()[1], "secret": secrets.token_hex(16)}


def publish(store: Any, key: str, record: Record) -> None:
    """Leaves a record in the store, and waits for the store to have it.

    Raises:
        StoreError: that failed.
    """
    try:
        store.set(key, json.dumps(record))
        store.check([key])  # a store over TCP says nothing about what it is given
    except RuntimeError as error:
        raise StoreError(str(error)) from error


def find_collector(
    store: Any, key: str, *, host: str, rank: int, is_wanted: Callable[[], bool]
) -> Wire | Record | None:
    """Returns a connection to the collector once it is there, or the verdict that it left; None if not wanted any more.

    What an earlier process group left under the same key leads nowhere, so it is read until it leads to a collector.

    Raises:
        StoreError: the store does not answer.
    """
    pause = _SHORTEST_PAUSE_SECONDS
    while is_wanted():
        try:
            found = json.loads(store.get(key)) if store.check([key]) else None
        except RuntimeError as error:
            raise StoreError(str(error)) from error
        if found is not None and "failure" in found:
            verdict: Record = found
            return verdict
        if found is not None and (wire := _connect(found, host=host, rank=rank, is_wanted=is_wanted)) is not None:
            return wire
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return None


def _connect(found: Record, *, host: str, rank: int, is_wanted: Callable[[], bool]) -> Wire | None:
    addresses = found["addresses"]
    if found["host"] == host:
        addresses = ["127.0.0.1", "::1", *addresses]
    for address in addresses:
        try:
            connection = socket.create_connection((address, found["port"]), timeout=_CONNECT_SECONDS)
        except OSError:
            continue
        wire = Wire(connection)
        wire.send({"secret": found["secret"], "rank": rank})
        while is_wanted() and wire.is_open:
            try:
                answers = wire.receive(at_most=1)
            except ForeignMessageError:
                break
            if answers and answers[0].get("welcome") == found["secret"]:
                return wire
            if answers:
                break
            time.sleep(_SHORTEST_PAUSE_SECONDS)
        wire.close()
    return None


def is_greeting(message: Record, advertised: Record, num_ranks: int) -> bool:
    """Whether a message is how a rank begins; each knows the secret from the store."""
    secret, rank = message.get("secret"), message.get("rank")
    is_known = isinstance(secret, str) and secrets.compare_digest(secret.encode(), advertised["secret"].encode())
    return is_known and isinstance(rank, int) and 0 <= rank < num_ranks


def _addresses(store: Any) -> Iterator[str]:
    """Yields the addresses under which this host may be reached, the likeliest first."""
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        for interface in os.environ.get(variable, "").lstrip("^=").split(","):
            if interface and not os.environ[variable].startswith("^"):
                with suppress(OSError):
                    yield _address_of(interface)
    for name in (_host_of(store), os.environ.get("MASTER_ADDR"), socket.gethostname()):
        if name:
            with suppress(OSError):
                yield from _routes_to(name)
    with suppress(OSError):
        for *_, place in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            yield str(place[0])
    yield "127.0.0.1"  # where names mean nothing there may be one host only; the secret tells whether it is


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
    return socket.inet_ntoa(answer[20:24])


def _routes_to(name: str) -> Iterator[str]:
    """Yields the addresses of this host from which packets to another one would come; nothing is sent."""
    for family, *_, place in socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            address = str(probe.getsockname()[0])
            if not ipaddress.ip_address(address.split("%")[0]).is_loopback:
                yield address


def _host_of(store: Any) -> str | None:
    for _ in range(8):  # wrapped in prefixes
        if isinstance(name := getattr(store, "host", None), str):
            return name
        store = getattr(store, "underlying_store", None)
    return None
