"""Clients of object storage, also for processes that were forked from one that had used it.

The client libraries run threads of their own, which a fork does not take along: in the child their calls never return,
and disturb the parent's. A child therefore asks a helper, a fresh process that is its own and ends with it, over a
socket: a frame for each request and each answer, in whatever order these are ready. Torch forks its workers unless it
is told otherwise: two of them have a first batch after 1.2 s, and fresh processes (`forkserver`, `spawn`), which import
torch first, after 5.5 s.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from tokenloom import errors
from tokenloom.errors import StorageError, TokenloomError
from tokenloom.storage.addresses import ObjectAddress, ObjectVersion, parse_address
from tokenloom.storage.client import ObjectClient
from tokenloom.storage.endpoint import believe_endpoints
from tokenloom.storage.secrets import query_of, redacted, remember
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.stores import store_modules

_FRAME = struct.Struct("<QBQ")  # number of the request, kind, bytes that follow
_REQUEST, _BYTES, _VALUE, _ERROR = range(4)

_process: int | None = None
"""The process whose threads the client libraries run in; a fork of it cannot use them."""


def make_client(address: ObjectAddress, settings: ObjectStorageSettings) -> ObjectClient:
    """Returns a client for the bucket of an address.

    Raises:
        MissingExtraError: the library is not installed.
    """
    global _process
    if _process not in (None, os.getpid()):
        return HelperClient(settings)
    _process = os.getpid()
    return _make_own_client(address, settings)


def _make_own_client(address: ObjectAddress, settings: ObjectStorageSettings) -> ObjectClient:
    client: ObjectClient = store_modules()[address.scheme].make_client(address, settings)
    return client


class HelperClient:
    """An `ObjectClient` whose requests a helper process sends; it is started with the first and ends with this one."""

    def __init__(self, settings: ObjectStorageSettings) -> None:
        ours, theirs = socket.socketpair()
        program = "from tokenloom.storage.helper import main; main()"
        command = [sys.executable, "-c", program, str(theirs.fileno()), json.dumps(asdict(settings))]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._socket = ours
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._num_requests = 0
        self._has_ended = False
        threading.Thread(target=self._receive, name="tokenloom-helper", daemon=True).start()

    def version(self, address: ObjectAddress) -> ObjectVersion:
        return ObjectVersion(**self._ask("version", address))

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        return self._ask("read", address, start, stop, asdict(version))

    def upload(self, address: ObjectAddress, path: str) -> None:
        self._ask("upload", address, path)

    def delete(self, address: ObjectAddress) -> None:
        self._ask("delete", address)

    def keys(self, address: ObjectAddress) -> list[str]:
        found: list[str] = self._ask("keys", address)
        return found

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        return {key: ObjectVersion(**version) for key, version in self._ask("objects", address).items()}

    def _ask(self, method: str, address: ObjectAddress, *arguments: Any) -> Any:
        answer: Future[Any] = Future()
        request = json.dumps([method, str(address), query_of(str(address)), *arguments]).encode()
        with self._lock:
            if self._has_ended:
                raise _ended()
            number = self._num_requests
            self._num_requests += 1
            self._waiting[number] = answer
            self._socket.sendall(_FRAME.pack(number, _REQUEST, len(request)) + request)
        return answer.result()

    def _receive(self) -> None:
        """Hands answers to those who wait for them, until the helper ends."""
        while (frame := _receive_frame(self._socket)) is not None:
            number, kind, data = frame
            with self._lock:
                answer = self._waiting.pop(number)
            if kind == _BYTES:
                answer.set_result(data)
            elif kind == _VALUE:
                answer.set_result(json.loads(data))
            else:
                name, message, hint = json.loads(data)
                answer.set_exception(getattr(errors, name)(message, hint=hint))
        with self._lock:
            self._has_ended = True
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_exception(_ended())


def _ended() -> StorageError:
    message = "the helper process that reads object storage for this forked process has ended"
    return StorageError(message, hint="start workers with `multiprocessing_context='forkserver'`, which need none")


def _receive_frame(source: socket.socket) -> tuple[int, int, bytearray] | None:
    if (head := _receive_exactly(source, _FRAME.size)) is None:
        return None
    number, kind, num_bytes = _FRAME.unpack(head)
    data = _receive_exactly(source, num_bytes)
    return None if data is None else (number, kind, data)


def _receive_exactly(source: socket.socket, num_bytes: int) -> bytearray | None:
    """Returns so many bytes; None at the end of the connection."""
    data = bytearray(num_bytes)
    view = memoryview(data)
    while view:
        try:
            count = source.recv_into(view)
        except ConnectionError:
            return None
        if count == 0:
            return None
        view = view[count:]
    return data


class _Server:
    """Answers the requests of one process."""

    def __init__(self, connection: socket.socket, settings: ObjectStorageSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._clients: dict[str, ObjectClient] = {}
        self._clients_lock = threading.Lock()
        self._send_lock = threading.Lock()

    def run(self) -> None:
        """Serves until the other side is gone."""
        executor = ThreadPoolExecutor(max_workers=self._settings.concurrency)
        while (frame := _receive_frame(self._connection)) is not None:
            number, _, data = frame
            executor.submit(self._serve, number, json.loads(data))
        os._exit(0)  # nobody waits for what is under way

    def _serve(self, number: int, request: list[Any]) -> None:
        try:
            kind, data = self._answer(*request)
        except TokenloomError as error:
            kind, data = _ERROR, json.dumps([type(error).__name__, error.message, error.hint]).encode()
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            message = f"the helper process failed: {type(error).__name__}: {redacted(str(error))}"
            kind, data = _ERROR, json.dumps(["StorageError", message, None]).encode()
        with self._send_lock:
            self._connection.sendall(_FRAME.pack(number, kind, len(data)))
            self._connection.sendall(data)

    def _answer(self, method: str, path: str, query: str | None, *arguments: Any) -> tuple[int, Any]:
        if query is not None:
            remember({path: query})
        address = parse_address(path, is_folder=method in ("keys", "objects"))
        client = self._client(address)
        if method == "read":
            start, stop, version = arguments
            return _BYTES, memoryview(client.read(address, start, stop, ObjectVersion(**version)))
        found = getattr(client, method)(address, *arguments)
        return _VALUE, json.dumps(found, default=asdict).encode()  # versions are all that is not plain

    def _client(self, address: ObjectAddress) -> ObjectClient:
        with self._clients_lock:
            if (client := self._clients.get(address.root)) is None:
                client = self._clients[address.root] = _make_own_client(address, self._settings)
            return client


def main() -> None:
    """Runs the helper; the arguments are a descriptor and the settings."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends them to all; it ends with the process that it serves
    descriptor, settings = sys.argv[1:]
    believe_endpoints()
    _Server(socket.socket(fileno=int(descriptor)), ObjectStorageSettings(**json.loads(settings))).run()
