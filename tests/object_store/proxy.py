import asyncio
import random
import threading
from asyncio import StreamReader, StreamWriter
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from tests.object_store.server import reserved_port

KINDS = ("reset", "truncate", "500", "503", "slow_first_byte")

_EXPECT = b"expect: 100-continue"
_Streams = tuple[StreamReader, StreamWriter]


@dataclass
class Faults:
    """Faults of later requests: "reset" before the response, "truncate" within the body, statuses, "slow_first_byte".

    `shares` are probabilities by kind, `every` has n by kind for every n-th GET request. `link_bytes_per_second` limits
    all bodies together. Responses wait until `until_at_once` requests were in flight together.
    """

    latency_seconds: float = 0.0
    link_bytes_per_second: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    every: dict[str, int] = field(default_factory=dict)
    slow_seconds: float = 0.3
    until_at_once: int = 0


class FaultProxy:
    """A proxy of a server; `counts` has requests by method, faults by kind, and `body_bytes` sent for GET."""

    def __init__(self, upstream_port: int, *, seed: int = 0) -> None:
        self.faults = Faults()
        self.counts: Counter[str] = Counter()
        self.most_at_once = 0
        self._num_under_way = 0
        self._link_free_at = 0.0
        self._upstream_port = upstream_port
        self._random = random.Random(seed)
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._connections: set[StreamWriter] = set()
        self._reserved = reserved_port()
        self.port: int = self._reserved.getsockname()[1]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._reserved.close()

    def go_away(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    def come_back(self) -> None:
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _close(self) -> None:
        self._server.close()
        for each in self._connections:
            each.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        upstream: _Streams | None = None
        self._connections.add(writer)
        try:
            while head := await _read_head(reader):
                if upstream is None:
                    upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
                self._num_under_way += 1
                self.most_at_once = max(self.most_at_once, self._num_under_way)
                try:
                    if not await self._exchange(head, reader, writer, upstream):
                        break
                finally:
                    self._num_under_way -= 1
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()
            if upstream is not None:
                upstream[1].close()

    async def _exchange(self, head: bytes, reader: StreamReader, writer: StreamWriter, upstream: _Streams) -> bool:
        """Forwards one request and its response; returns whether the connection lives on."""
        faults = self.faults
        method = head.split(b" ", 1)[0].decode()
        self.counts[method] += 1
        if _EXPECT in head.lower():  # the client wants to be asked for the body; upstream gets it unasked
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(_EXPECT))
        body = await _read_body(head, reader)
        fault = self._choose() if method == "GET" else None
        if fault is not None:
            self.counts[fault] += 1
        await asyncio.sleep(faults.latency_seconds + (faults.slow_seconds if fault == "slow_first_byte" else 0.0))
        while self.most_at_once < faults.until_at_once:
            await asyncio.sleep(0.005)
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault in ("500", "503"):
            text = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>try again</Message></Error>"
            lines = [f"HTTP/1.1 {fault} Injected", "Content-Type: application/xml", f"Content-Length: {len(text)}"]
            writer.write("\r\n".join([*lines, "", ""]).encode() + text)
            await writer.drain()
            return True
        upstream[1].write(head + body)
        await upstream[1].drain()
        response = await _read_head(upstream[0])
        length = 0 if method == "HEAD" else _content_length(response)
        writer.write(response)
        if b"transfer-encoding: chunked" in response.lower():  # of unknown length, such as lists and long commands
            await _forward_chunks(upstream[0], writer)
            return True
        kept = length // 2 if fault == "truncate" else length
        left = kept
        while left:
            data = await upstream[0].read(min(left, 1 << 16))
            if not data:
                return False
            left -= len(data)
            if method == "GET":
                self.counts["body_bytes"] += len(data)
            writer.write(data)
            await writer.drain()
            if faults.link_bytes_per_second is not None:
                now = self._loop.time()
                self._link_free_at = max(self._link_free_at, now) + len(data) / faults.link_bytes_per_second
                await asyncio.sleep(self._link_free_at - now)
        await writer.drain()
        if kept < length:
            writer.transport.abort()
            return False
        return True

    def _choose(self) -> str | None:
        for kind, number in self.faults.every.items():
            if self.counts["GET"] % number == 0:
                return kind
        draw = self._random.random()
        for kind, share in self.faults.shares.items():
            if draw < share:
                return kind
            draw -= share
        return None


async def _read_head(reader: StreamReader) -> bytes:
    """Returns the lines up to the empty one, or nothing at the end of the connection."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


async def _read_body(head: bytes, reader: StreamReader) -> bytes:
    length = _content_length(head)
    return await reader.readexactly(length) if length else b""


async def _forward_chunks(source: StreamReader, writer: StreamWriter) -> None:
    length = -1
    while length:
        line = await source.readuntil(b"\r\n")
        length = int(line.split(b";")[0], 16)
        writer.write(line + await source.readexactly(length + 2))
        await writer.drain()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0
