"""Whether a bucket answers, and how fast: a few reads of ranges, within some seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tokenloom.doctor.bounded import answer_within
from tokenloom.doctor.check import Asked, Finding, Verdict
from tokenloom.errors import MissingObjectError, TokenloomError
from tokenloom.rendering.words import counted, size
from tokenloom.storage.addresses import ObjectAddress, ObjectVersion, parse_address
from tokenloom.storage.client import ObjectClient
from tokenloom.storage.helper import make_client
from tokenloom.storage.settings import ObjectStorageSettings

MOST_SECONDS = 2.0
_PATIENCE_SECONDS = 5.0
_READ_BYTES = 4 << 20
_NUM_AT_ONCE = 8
MOST_BYTES = _NUM_AT_ONCE * _READ_BYTES
_NUM_LATENCIES = 5
_LEAST_BYTES = 1_000_000
"""Less is no measure of speed."""

_SLOW_SECONDS = 0.5
_SLOW_BYTES_PER_SECOND = 20e6
_SUFFIXES = ("", ".bin", ".idx")
"""Of a pair, the tokens are what training reads."""

_WITHOUT_FOLDERS = ("http", "https")

_SETTINGS = ObjectStorageSettings(timeout_seconds=_PATIENCE_SECONDS, deadline_seconds=_PATIENCE_SECONDS, retries=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What was found at an address.

    Attributes:
        client: asks its bucket.
        object: the object to read; None of a folder without one.
        version: what it is now.
        num_objects: objects in the folder; None of an object.
        seconds: until the first answer.
    """

    client: ObjectClient
    object: ObjectAddress | None
    version: ObjectVersion | None
    num_objects: int | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSpeed:
    """What reading ranges came to.

    Attributes:
        latency_seconds, worst_latency_seconds: of reads of a byte, one after the other: the median, and the longest.
        num_bytes: read by several at once.
        bytes_per_second: of these; 0 where they are too few to tell.
    """

    latency_seconds: float
    worst_latency_seconds: float
    num_bytes: int
    bytes_per_second: float


def check_buckets(asked: Asked) -> Iterator[Finding]:
    """Yields of each address whether it answers, and how fast."""
    for address in asked.addresses:
        yield from findings_of(address, asked)


def findings_of(address: str, asked: Asked) -> Iterator[Finding]:
    """Yields whether an address answers, and how fast; within some 5 seconds where it does not."""
    subject, facts = "bucket", {"address": address}
    try:
        reached = answer_within(_PATIENCE_SECONDS, partial(reach, address))
    except TimeoutError as error:
        hint = "check the endpoint and the network; without credentials, a machine outside the cloud waits for its role"
        yield Finding(subject=subject, verdict=Verdict.problem, text=f"{address}: {error}", hint=hint, facts=facts)
        return
    except TokenloomError as error:
        yield Finding(subject=subject, verdict=Verdict.problem, text=error.message, hint=error.hint, facts=facts)
        return
    yield _reached_finding(address, reached)
    if reached.object is None or reached.version is None or not asked.measures_speed or not reached.version.num_bytes:
        return
    asked.say(f"measuring {reached.object}: {size(MOST_BYTES)} and {MOST_SECONDS:g} s at most")
    work = partial(measure_bucket, reached.client, reached.object, reached.version)
    try:
        speed = answer_within(2 * _PATIENCE_SECONDS, work)
    except (TokenloomError, TimeoutError) as error:
        text = f"reading {reached.object}: {error.message if isinstance(error, TokenloomError) else error}"
        hint = (
            error.hint if isinstance(error, TokenloomError) else None
        ) or "check the network on the way to the store"
        yield Finding(subject="speed", verdict=Verdict.problem, text=text, hint=hint, facts=facts)
        return
    yield speed_finding(str(reached.object), speed)


def reach(address: str) -> Reached:
    """Returns what is at an address: an object, a pair, or a folder with objects.

    Raises:
        ConfigError, StorageError, MissingExtraError: it cannot be reached, nothing is there, or its client is missing.
    """
    parsed = parse_address(address, is_folder=True)
    client = make_client(parsed, _SETTINGS)
    began = time.perf_counter()
    for suffix in _SUFFIXES if parsed.key and not address.endswith("/") else ():
        each = parse_address(f"{address}{suffix}")
        try:
            version = client.version(each)
        except MissingObjectError:
            continue
        seconds = time.perf_counter() - began
        return Reached(client=client, object=each, version=version, num_objects=None, seconds=seconds)
    if parsed.scheme in _WITHOUT_FOLDERS:
        message = f"no object or pair at `{address}`"
        raise MissingObjectError(message, hint="name an object or a pair: over HTTP nothing lists what is there")
    keys = sorted(client.keys(parsed))
    seconds = time.perf_counter() - began
    if not keys and parsed.key:
        message = f"no object, pair or folder at `{address}`"
        raise MissingObjectError(message, hint="name what is there, or the bucket alone")
    if not keys:
        return Reached(client=client, object=None, version=None, num_objects=0, seconds=seconds)
    found = parse_address(f"{parsed.root}/{next((key for key in keys if key.endswith('.bin')), keys[0])}")
    return Reached(client=client, object=found, version=client.version(found), num_objects=len(keys), seconds=seconds)


def measure_bucket(client: ObjectClient, address: ObjectAddress, version: ObjectVersion) -> BucketSpeed:
    """Returns how fast ranges of an object are read.

    Raises:
        StorageError: it cannot be read.
    """
    latencies = []
    for number in range(_NUM_LATENCIES):
        start = number * (version.num_bytes - 1) // _NUM_LATENCIES
        began = time.perf_counter()
        client.read(address, start, start + 1, version)
        latencies.append(time.perf_counter() - began)
    end = min(version.num_bytes, MOST_BYTES)
    began, num_bytes = time.perf_counter(), 0
    if end >= _LEAST_BYTES:
        step = max(_LEAST_BYTES // 4, min(_READ_BYTES, -(-end // _NUM_AT_ONCE)))

        def read(start: int) -> int:
            if time.perf_counter() - began > MOST_SECONDS:
                return 0
            return len(client.read(address, start, min(start + step, end), version))

        with ThreadPoolExecutor(_NUM_AT_ONCE) as readers:
            num_bytes = sum(readers.map(read, range(0, end, step)))
    seconds = time.perf_counter() - began
    return BucketSpeed(
        latency_seconds=statistics.median(latencies),
        worst_latency_seconds=max(latencies),
        num_bytes=num_bytes,
        bytes_per_second=num_bytes / seconds if num_bytes else 0.0,
    )


def speed_finding(address: str, speed: BucketSpeed) -> Finding:
    """Returns how fast a bucket is: a warning where loaders will have to wait."""
    facts = {
        "address": address,
        "latency_seconds": speed.latency_seconds,
        "worst_latency_seconds": speed.worst_latency_seconds,
        "num_bytes": speed.num_bytes,
        "bytes_per_second": speed.bytes_per_second,
    }
    text = f"{address}: first byte after {1e3 * speed.latency_seconds:.0f} ms, at most "
    text += f"{1e3 * speed.worst_latency_seconds:.0f} ms"
    text += f"; {size(round(speed.bytes_per_second))}/s by {_NUM_AT_ONCE} readers" if speed.num_bytes else ""
    is_slow = speed.num_bytes > 0 and speed.bytes_per_second < _SLOW_BYTES_PER_SECOND
    if speed.latency_seconds < _SLOW_SECONDS and not is_slow:
        return Finding(subject="speed", text=text, facts=facts)
    hint = "more requests at once and more read ahead may help; or read from nearer by, or copy the data to a disk here"
    return Finding(subject="speed", verdict=Verdict.warning, text=text, hint=hint, facts=facts)


def _reached_finding(address: str, reached: Reached) -> Finding:
    facts = {
        "address": address,
        "object": None if reached.object is None else str(reached.object),
        "num_bytes": None if reached.version is None else reached.version.num_bytes,
        "num_objects": reached.num_objects,
        "seconds": reached.seconds,
    }
    what = "" if reached.num_objects is None else f" with {counted(reached.num_objects, 'object')}"
    text = f"{address}{what} answers after {reached.seconds:.2f} s"
    if reached.version is not None and reached.num_objects is None:
        text += f": {size(reached.version.num_bytes)}"
    if reached.object is None:
        return Finding(subject="bucket", text=f"{text}; without an object there is nothing to measure", facts=facts)
    return Finding(subject="bucket", text=text, facts=facts)
