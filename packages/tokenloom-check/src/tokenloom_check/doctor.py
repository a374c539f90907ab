"""`tokenloom doctor`: checks Python, extras, compiled code, shared memory, disks and buckets of this machine."""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import re
import statistics
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Annotated

from tokenloom.cli.options import JsonOption, Written
from tokenloom.cli.output import Answer
from tokenloom.errors import MissingObjectError, TokenloomError
from tokenloom.kernels.storage import crc32
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
_REQUIREMENT = re.compile(r"([\w.-]+).*;.*extra == ['\"](\S+)['\"]")
_WIDTH = 80
_INDENT = " " * 25


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    subject: str  # the part that was checked, in a word or two
    verdict: str  # "ok"; "warning": works, but slower or with less space than it should; "problem": will fail
    text: str  # the fact that was found
    hint: str | None = None  # how to fix it; None if nothing needs to be done


@dataclass(frozen=True, kw_only=True)
class Options(JsonOption):
    """Check Python, extras, compiled code, shared memory, and the given folders and buckets. Prints one line per check:
    ok, warning (works, but slowly or with little space) or problem (will fail), with a fix. A disk is measured by
    writing 64 MB to an unnamed file. Exits with 1 if there is a problem.

    Attributes:
        targets: folders, files and prefixes of pairs to read or write, local or s3://, gs://, az://, https://.
        json: print one JSON object: ok, num_warnings, num_problems, and findings, a list of objects with subject,
            verdict, text and hint.
    """

    targets: Annotated[tuple[str, ...], Written(metavar="PATH|ADDRESS", is_positional=True)] = ()


def run(options: Options) -> Iterator[Answer]:
    """Yields each finding as soon as it is known, then the counts; the exit status is 1 if there is a problem."""
    findings = []
    for finding in check_all(list(options.targets)):
        findings.append(finding)
        if not options.json:
            wrap = partial(textwrap.wrap, width=_WIDTH, break_on_hyphens=False)
            label = f"{finding.verdict:<9}{finding.subject:<15} "
            lines = wrap(finding.text, initial_indent=label, subsequent_indent=_INDENT)
            hint = "" if finding.hint is None else f"hint: {finding.hint}"
            lines += wrap(hint, initial_indent=_INDENT, subsequent_indent=f"{_INDENT}  ")
            yield Answer(finding, [printable(line, keep="") for line in lines])
    counts = Counter(finding.verdict for finding in findings)
    head = {"ok": not counts["problem"], "num_warnings": counts["warning"], "num_problems": counts["problem"]}
    text = f"\n{counts['ok']} ok, warnings: {counts['warning']}, problems: {counts['problem']}"
    yield Answer({**head, "findings": findings}, text, status=1 if counts["problem"] else 0)


def check_all(targets: list[str]) -> Iterator[Finding]:
    """Yields all findings; a check that raises becomes a problem. Targets are local paths and addresses."""
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [("python", check_python), ("native", check_native)]
    checks += [("extras", check_extras), ("shared memory", check_shared_memory)]
    checks += [("bucket", partial(check_bucket, each)) for each in targets if is_remote(each)]
    checks += [("disk", partial(check_disk, each)) for each in targets if not is_remote(each)]
    for subject, check in checks:
        try:
            yield from check()
        except TokenloomError as error:
            yield Finding(subject, "problem", error.message, error.hint)
        except (OSError, ValueError, LookupError, ImportError, RuntimeError) as error:
            yield Finding(subject, "problem", f"the check failed: {error}")


def check_python() -> list[Finding]:
    python = f"{platform.python_version()}, {sys.executable}"
    system = f"{platform.platform()}, {counted(os.cpu_count() or 1, 'core')}"
    texts = {"tokenloom": metadata.version("tokenloom"), "python": python, "system": system}
    return [Finding(subject, "ok", text) for subject, text in texts.items()]


def check_native() -> list[Finding]:
    """Checks that the compiled module computes a known CRC."""
    if crc32(b"123456789") == 0xCBF43926:
        return [Finding("native", "ok", "the compiled module computes a known result")]
    hint = "build it on this machine: `pip install --force-reinstall --no-deps --no-binary tokenloom tokenloom`"
    return [Finding("native", "problem", "the compiled module computes a wrong result", hint)]


def check_extras() -> Iterator[Finding]:
    """Yields each extra with its installed packages, or the command that installs it."""
    packages: dict[str, list[str]] = {}
    for found in filter(None, map(_REQUIREMENT.match, metadata.requires("tokenloom") or [])):
        if found[2] not in _INTERNAL_EXTRAS and not found[1].startswith("tokenloom"):
            packages.setdefault(found[2], []).append(found[1])
    for extra, names in packages.items():
        versions = {}
        for name in names:
            with suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        missing = [f"without {name}" for name in names if name not in versions]
        text = "; ".join([", ".join(f"{name} {version}" for name, version in versions.items()), *missing])
        verdict = "warning" if missing and versions else "ok"  # an extra is optional
        hint = f"`pip install 'tokenloom[{extra}]'`" if missing else None
        yield Finding(extra, verdict, text if versions else "not installed", hint)


def check_shared_memory(folder: str = "/dev/shm") -> list[Finding]:
    """Checks the size of shared memory, through which torch's workers send batches."""
    status = os.statvfs(folder)
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    hint = "worker processes send batches through it: `docker run --shm-size=8g`, or use threads"
    text = f"{size(free)} of {size(total)} free, {folder}"
    return [_measured("shared memory", text, is_poor=free < _LEAST_SHARED_BYTES, hint=hint)]


def _measured(subject: str, text: str, *, is_poor: bool, hint: str) -> Finding:
    return Finding(subject, "warning", text, hint) if is_poor else Finding(subject, "ok", text)


def check_disk(path: str) -> list[Finding]:
    """Checks that files in a folder can be written, mapped, locked and renamed, and measures the write speed."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    if not any(map(os.path.exists, (path, f"{path}.idx", f"{path}.bin"))):
        hint = "pass an existing path, or the folder for new files"
        return [Finding("disk", "problem", f"`{path}`: no such file, folder or pair", hint)]
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    text = f"{path}: {size(free)} free"
    if not os.access(folder, os.W_OK):
        return [Finding("disk", "ok", f"{text}, read only", "write indices and outputs to another folder")]
    with tempfile.TemporaryDirectory(prefix=".tokenloom-doctor-", dir=folder) as scratch:
        if failed := _failing_call(os.path.join(scratch, "file")):
            hint = "outputs and caches need it: mount the disk with locks, or write to another one"
            return [Finding("disk", "problem", f"{text}; fails: {failed}", hint)]
    if free < _LEAST_FREE_BYTES:
        return [Finding("disk", "warning", text, "free space before writing here")]
    speed = _write_speed(folder)
    text += f", writes {size(round(speed))}/s"
    hint = "jobs will wait for this disk: try another one"
    return [_measured("disk", text, is_poor=speed < _SLOW_BYTES_PER_SECOND, hint=hint)]


def _failing_call(path: str) -> str | None:
    """Writes, maps, locks and renames a file; returns the system call that fails, None if all work."""
    with open(path, "xb") as file:
        file.write(b"tokens")
    with open(path, "rb") as first, open(path, "rb") as second:
        mmap.mmap(first.fileno(), 0, access=mmap.ACCESS_READ).close()
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # expected
            pass
        except OSError as error:
            return f"locks (flock): {error.strerror}"
        else:
            return "locks (flock): two files lock the same file"
    os.replace(path, f"{path}.new")
    return None


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


def check_bucket(address: str) -> list[Finding]:
    """Checks that an object, pair or folder can be read, and measures the latency."""
    settings = ObjectStorageSettings(timeout_seconds=_TIMEOUT_SECONDS, deadline_seconds=_TIMEOUT_SECONDS, retries=0)
    folder = parse_address(address, is_folder=True)
    client = make_client(folder, settings)
    for suffix in ("", ".bin") if folder.key and not address.endswith("/") else ():
        found = parse_address(f"{address}{suffix}")
        with suppress(MissingObjectError):
            version = client.version(found)
            break
    else:
        key = min(client.keys(folder), default=None)
        if key is None:
            verdict = "problem" if folder.key else "ok"
            return [Finding("bucket", verdict, f"no object, pair or folder at `{address}`")]
        found = parse_address(f"{folder.root}/{key}")
        version = client.version(found)
    seconds = []
    for start in range(min(5, version.num_bytes)):
        began = time.perf_counter()
        client.read(found, start, start + 1, version)
        seconds.append(time.perf_counter() - began)
    latency = statistics.median(seconds or [0.0])
    text = f"{found}: {size(version.num_bytes)}, answers after {1e3 * latency:.0f} ms"
    hint = "use a bucket in a nearer region, or copy the data to a disk"
    return [_measured("bucket", text, is_poor=latency > _SLOW_LATENCY_SECONDS, hint=hint)]
