"""`tokenloom doctor`: checks Python, extras, compiled code, shared memory, disks and buckets of this machine."""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Annotated

from tokenloom.cli.options import Written
from tokenloom.cli.output import print_json, print_lines
from tokenloom.errors import MissingObjectError, TokenloomError
from tokenloom.kernels.arrays import crc32
from tokenloom.megatron.installation import version_numbers
from tokenloom.rendering.words import counted, printable, size
from tokenloom.storage.addresses import is_remote, make_client, parse_address
from tokenloom.storage.settings import ObjectStorageSettings

_TIMEOUT_SECONDS = 5.0
_LEAST_SHARED_BYTES = 1 << 30  # eight workers with two batches of 8 x 8,192 ids need 40 MB
_LEAST_FREE_BYTES = 1 << 30
_MEASURED_BYTES = 64_000_000
_SLOW_BYTES_PER_SECOND = 50e6
_SLOW_LATENCY_SECONDS = 0.5
_INTERNAL_EXTRAS = frozenset({"all", "test", "fuzz", "dev", "look", "check"})
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*(?:[>=]=\s*([0-9.]+))?[^;]*;.*extra == ['\"](\S+)['\"]")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    subject: str  # the part that was checked, in a word or two
    verdict: str  # "ok"; "warning": works, but slower or with less space than it should; "problem": will fail
    text: str  # the fact that was found
    hint: str | None = None  # how to fix it; None if nothing needs to be done


@dataclass(frozen=True, kw_only=True)
class Options:
    """Check Python, extras, compiled code, shared memory, and the given folders and buckets. Prints one line per check:
    ok, warning (works, but slowly or with little space) or problem (will fail), with a fix. A disk is measured by
    writing 64 MB to an unnamed file. Exits with 1 if there is a problem.

    Attributes:
        targets: folders, files and prefixes of pairs to read or write, local or s3://, gs://, az://, https://.
        json: print one JSON object: ok, num_warnings, num_problems, and findings, a list of objects with subject,
            verdict, text and hint.
    """

    targets: Annotated[tuple[str, ...], Written(metavar="PATH|ADDRESS", is_positional=True)] = ()
    json: bool = False


def run(options: Options) -> int:
    """Prints each finding as soon as it is known; returns 1 if there is a problem."""
    width = max(40, shutil.get_terminal_size((80, 24)).columns) if sys.stdout.isatty() else 80
    findings = []
    for finding in check_all(list(options.targets)):
        findings.append(finding)
        if not options.json:
            print_lines(printable(line, keep="") for line in _lines(finding, width))
    counts = Counter(finding.verdict for finding in findings)
    if options.json:
        head = {"ok": not counts["problem"], "num_warnings": counts["warning"], "num_problems": counts["problem"]}
        print_json({**head, "findings": findings})
    else:
        print(f"\n{counts['ok']} ok, warnings: {counts['warning']}, problems: {counts['problem']}")
    return 1 if counts["problem"] else 0


def _lines(finding: Finding, width: int) -> list[str]:
    indent = " " * 25
    head = f"{finding.verdict:<9}{finding.subject:<15} "
    wrap = partial(textwrap.wrap, width=width, break_on_hyphens=False)
    lines = wrap(finding.text, initial_indent=head, subsequent_indent=indent)
    if finding.hint is not None:
        lines += wrap(finding.hint, initial_indent=f"{indent}hint: ", subsequent_indent=f"{indent}  ")
    return lines


def check_all(targets: list[str]) -> Iterator[Finding]:
    """Yields all findings; a check that raises or hangs becomes a problem. Targets are local paths and addresses."""
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [("python", check_python), ("native", check_native)]
    checks += [("extras", check_extras), ("shared memory", check_shared_memory)]
    checks += [("bucket", partial(check_bucket, each)) for each in targets if is_remote(each)]
    checks += [("disk", partial(check_disk, each)) for each in targets if not is_remote(each)]
    for subject, check in checks:
        try:
            yield from _within_timeout(check)
        except TokenloomError as error:
            yield Finding(subject, "problem", error.message, error.hint)
        except TimeoutError:
            text = f"no answer within {2 * _TIMEOUT_SECONDS:g} s"
            yield Finding(subject, "problem", text, "its disk or server does not answer")
        except (OSError, ValueError, LookupError, ImportError, RuntimeError) as error:
            yield Finding(subject, "problem", f"the check failed: {error}")


def check_python() -> Iterator[Finding]:
    yield Finding("tokenloom", "ok", metadata.version("tokenloom"))
    yield Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield Finding("system", "ok", f"{platform.platform()}, {counted(os.cpu_count() or 1, 'core')}")


def check_native() -> Iterator[Finding]:
    """Checks that the compiled module computes a known CRC."""
    if crc32(b"123456789") == 0xCBF43926:
        yield Finding("native", "ok", "the compiled module computes a known result")
    else:
        hint = "build it on this machine: `pip install --force-reinstall --no-deps --no-binary tokenloom tokenloom`"
        yield Finding("native", "problem", "the compiled module computes a wrong result", hint)


def check_extras() -> Iterator[Finding]:
    """Yields each extra with its installed packages, or the command that installs it."""
    extras: dict[str, list[tuple[str, str, str | None]]] = {}
    for line in metadata.requires("tokenloom") or []:
        found = _REQUIREMENT.match(line)
        if found is None or found[3] in _INTERNAL_EXTRAS or found[1].startswith("tokenloom"):
            continue
        try:
            version: str | None = metadata.version(found[1])
        except metadata.PackageNotFoundError:
            version = None
        extras.setdefault(found[3], []).append((found[1], found[2] or "", version))
    for extra, packages in extras.items():
        installed = [(name, least, version) for name, least, version in packages if version is not None]
        text = ", ".join(f"{name} {version}" for name, _, version in installed)
        missing = [name for name, _, version in packages if version is None]
        old = [
            f"{name} is older than {least}"
            for name, least, version in installed
            if version_numbers(version) < version_numbers(least)
        ]
        hint = f"`pip install 'tokenloom[{extra}]'`" if missing or old else None
        text = "; ".join([text, *(f"without {name}" for name in missing), *old]) if text else "not installed"
        verdict = "warning" if hint and text != "not installed" else "ok"  # an extra is optional
        yield Finding(extra, verdict, text, hint)


def check_shared_memory(folder: str = "/dev/shm") -> Iterator[Finding]:
    """Checks the size of shared memory, through which torch's workers send batches."""
    status = os.statvfs(folder)
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    hint = "worker processes send batches through it: `docker run --shm-size=8g`, or use threads"
    short = hint if free < _LEAST_SHARED_BYTES else None
    yield Finding("shared memory", "warning" if short else "ok", f"{size(free)} of {size(total)} free, {folder}", short)


def check_disk(path: str) -> Iterator[Finding]:
    """Checks that files in a folder can be written, mapped, locked and renamed, and measures the write speed."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    if not any(map(os.path.exists, (path, f"{path}.idx", f"{path}.bin"))):
        hint = "pass an existing path, or the folder for new files"
        yield Finding("disk", "problem", f"`{path}`: no such file, folder or pair", hint)
        return
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    text = f"{path}: {size(free)} free"
    if not os.access(folder, os.W_OK):
        yield Finding("disk", "ok", f"{text}, read only", "write indices and outputs to another folder")
        return
    with tempfile.TemporaryDirectory(prefix=".tokenloom-doctor-", dir=folder) as scratch:
        if failed := list(_failing_calls(scratch)):
            hint = "outputs and caches need these: mount the disk with locks, or write to another one"
            yield Finding("disk", "problem", f"{text}; fails: {', '.join(failed)}", hint)
            return
    if free < _LEAST_FREE_BYTES:
        yield Finding("disk", "warning", text, "free space before writing here")
        return
    written = _write_speed(folder)
    text += f", writes {size(round(written))}/s"
    slow = "jobs will wait for this disk: try another one" if written < _SLOW_BYTES_PER_SECOND else None
    yield Finding("disk", "warning" if slow else "ok", text, slow)


def _failing_calls(folder: str) -> Iterator[str]:
    """Yields the system calls that outputs need and that fail in a folder."""
    old, new = os.path.join(folder, "old"), os.path.join(folder, "new")
    with open(old, "xb") as file:
        file.write(b"tokens")
    with open(old, "rb") as written, mmap.mmap(written.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        if mapped[:] != b"tokens":
            yield "mapping"
    with open(old, "rb") as first, open(old, "rb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield "locks (flock): two files lock the same file"
        except BlockingIOError:  # expected
            pass
        except OSError as error:
            yield f"locks (flock): {error.strerror}"
    shutil.copy(__file__, new)
    os.replace(old, new)
    if os.path.exists(old) or os.path.getsize(new) != len(b"tokens"):
        yield "renaming over a file"


def _write_speed(folder: str) -> float:
    """Returns the write speed in bytes per second, including fsync; measures for at most a second."""
    data = memoryview(os.urandom(4_000_000))  # not compressible
    began, num_bytes, seconds = time.perf_counter(), 0, 0.0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        while num_bytes < _MEASURED_BYTES and seconds < 1:
            num_bytes += file.write(data) or 0
            os.fsync(file.fileno())
            seconds = time.perf_counter() - began
    return num_bytes / seconds


def check_bucket(address: str) -> Iterator[Finding]:
    """Checks that an object, pair or folder can be read, and measures the latency."""
    settings = ObjectStorageSettings(timeout_seconds=_TIMEOUT_SECONDS, deadline_seconds=_TIMEOUT_SECONDS, retries=0)
    folder = parse_address(address, is_folder=True)
    client = make_client(folder, settings)
    for suffix in ("", ".bin") if folder.key and not address.endswith("/") else ():
        found = parse_address(f"{address}{suffix}")
        try:
            version = client.version(found)
        except MissingObjectError:
            continue
        break
    else:
        keys = sorted(client.keys(folder))
        if not keys:
            verdict = "problem" if folder.key else "ok"
            yield Finding("bucket", verdict, f"no object, pair or folder at `{address}`")
            return
        found = parse_address(f"{folder.root}/{keys[0]}")
        version = client.version(found)
    seconds = []
    for start in range(min(5, version.num_bytes)):
        began = time.perf_counter()
        client.read(found, start, start + 1, version)
        seconds.append(time.perf_counter() - began)
    latency = statistics.median(seconds or [0.0])
    text = f"{found}: {size(version.num_bytes)}, answers after {1e3 * latency:.0f} ms"
    slow = "use a bucket in a nearer region, or copy the data to a disk" if latency > _SLOW_LATENCY_SECONDS else None
    yield Finding("bucket", "warning" if slow else "ok", text, slow)


def _within_timeout(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Returns the findings of a check, or raises its error; abandons a check that hangs and raises TimeoutError."""
    future: Future[list[Finding]] = Future()

    def call() -> None:
        try:
            future.set_result(list(check()))
        except Exception as error:  # noqa: BLE001 - `result()` raises it again
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future.result(2 * _TIMEOUT_SECONDS)
