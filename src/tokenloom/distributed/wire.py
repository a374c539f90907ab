"""Messages over sockets that never block: what a thread reads and writes beside those that wait."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import suppress
from typing import Any

Record = dict[str, Any]

_LENGTH = struct.Struct("!I")

LARGEST_MESSAGE_BYTES = 1 << 26
"""What another rank may send: some thousand settings. A stranger may send `LARGEST_GREETING_BYTES`."""

LARGEST_GREETING_BYTES = 1 << 12
_READ_BYTES = 1 << 16


class ForeignMessageError(Exception):
    """What arrived is none of our messages."""


class Wire:
    """A connection that carries records as JSON with their length in front.

    Args:
        connection: a connected socket, which belongs to this from now on.
        largest_bytes: what one message may take.
    """

    def __init__(self, connection: socket.socket, *, largest_bytes: int = LARGEST_GREETING_BYTES) -> None:
        self.socket = connection
        self.largest_bytes = largest_bytes
        self.is_open: bool = True
        self.rank: int | None = None
        """Rank of the other side, once that is known."""
        self._incoming = bytearray()
        self._outgoing = bytearray()
        connection.settimeout(0)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for room in the connection."""
        return bool(self._outgoing)

    def send(self, record: Record) -> None:
        """Sends a message, or as much of it as there is room for; a connection that has ended is closed."""
        data = json.dumps(record).encode()
        self._outgoing += _LENGTH.pack(len(data)) + data
        self.flush()

    def flush(self) -> None:
        """Sends what there is room for."""
        while self._outgoing and self.is_open:
            try:
                count = self.socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:  # what the other side said last may still be there to be read
                self._outgoing.clear()
                return
            del self._outgoing[:count]

    def receive(self, *, at_most: int | None = None) -> list[Record]:
        """Returns the messages that are there; afterwards `is_open` is False if the connection has ended.

        Args:
            at_most: how many; further ones are returned by the next call.

        Raises:
            ForeignMessageError: they are none of ours.
        """
        while self.is_open:
            try:
                data = self.socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.is_open = bool(data)
            self._incoming += data
            if len(data) < _READ_BYTES:
                break
        return self._take_messages(at_most)

    def end_sending(self) -> None:
        """Tells the other side that nothing follows."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends the connection."""
        self.is_open = False
        self.socket.close()

    def _take_messages(self, at_most: int | None) -> list[Record]:
        records: list[Record] = []
        while len(self._incoming) >= _LENGTH.size and len(records) != at_most:
            (length,) = _LENGTH.unpack_from(self._incoming)
            if length > self.largest_bytes:
                raise ForeignMessageError
            if len(self._incoming) < _LENGTH.size + length:
                break
            data = bytes(self._incoming[_LENGTH.size : _LENGTH.size + length])
            del self._incoming[: _LENGTH.size + length]
            try:
                record = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise ForeignMessageError from error
            if not isinstance(record, dict):
                raise ForeignMessageError
            records.append(record)
        return records
