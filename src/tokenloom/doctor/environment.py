"""Python, the system, processor and memory, and what standard output can show."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from tokenloom.doctor.check import Asked, Finding, Verdict
from tokenloom.machine import allowed_cores, memory, processor
from tokenloom.megatron.versions import CHECKED, NEWEST, installed_version, version_numbers
from tokenloom.rendering.words import counted, size

_TOLD_INSTRUCTIONS = ("sse4_1", "pclmulqdq", "avx2", "avx512f", "asimd", "sve")
"""Those that our kernels have code for, and what tells kinds of processors apart."""

_ROOM_BYTES = 2 << 30
"""Memory of a job of one process, and of a loader with its default budgets, is below this."""


def check_environment(asked: Asked) -> Iterator[Finding]:
    """Yields what there is, and what is short."""
    version = metadata.version("tokenloom")
    yield Finding(subject="tokenloom", text=version, facts={"version": version})
    yield _python()
    yield _system()
    yield _processor()
    yield _cores()
    yield _memory()
    yield from _megatron()
    yield _output(asked.encoding)


def _python() -> Finding:
    is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    text = f"{platform.python_implementation()} {platform.python_version()}" + ("" if is_locked else ", free-threaded")
    facts = {"version": platform.python_version(), "executable": sys.executable, "free_threaded": not is_locked}
    return Finding(subject="python", text=f"{text}, {sys.executable}", facts=facts)


def _system() -> Finding:
    libc = " ".join(platform.libc_ver()).strip()
    text = f"{platform.system()} {platform.release()}, {platform.machine()}" + (f", {libc}" if libc else "")
    facts = {"system": platform.system(), "release": platform.release(), "machine": platform.machine(), "libc": libc}
    return Finding(subject="system", text=text, facts=facts)


def _processor() -> Finding:
    name, flags = processor()
    told = [flag for flag in _TOLD_INSTRUCTIONS if flag in flags]
    text = f"{name or 'of an unknown name'}" + (f", with {', '.join(told)}" if told else "")
    facts = {"name": name, "instructions": told}
    if platform.machine() == "x86_64" and "avx2" not in flags:
        hint = "kernels have faster code for AVX2; on a virtual machine, ask for the processor of its host"
        return Finding(subject="processor", verdict=Verdict.warning, text=f"{text}, no avx2", hint=hint, facts=facts)
    return Finding(subject="processor", text=text, facts=facts)


def _cores() -> Finding:
    allowed, quota = allowed_cores()
    there = os.cpu_count() or allowed
    text = counted(allowed, "core") + (f" of {there:,}" if allowed < there else "")
    facts = {"num_cores": there, "num_allowed_cores": allowed, "quota_cores": quota}
    if quota is None or quota >= allowed:
        return Finding(subject="cores", text=text, facts=facts)
    text += f", of which a control group gives the time of {quota:g}"
    hint = "threads are made for as many cores as are seen: tell jobs and loaders how many to make"
    return Finding(subject="cores", verdict=Verdict.warning, text=text, hint=hint, facts=facts)


def _memory() -> Finding:
    found = memory()
    usable = found.available_bytes if found.limit_bytes is None else min(found.available_bytes, found.limit_bytes)
    text = f"{size(found.available_bytes)} of {size(found.total_bytes)} available"
    facts = {"num_total_bytes": found.total_bytes, "num_available_bytes": found.available_bytes}
    facts["num_limit_bytes"] = found.limit_bytes  # type: ignore[assignment]  # None without a limit
    if found.limit_bytes is not None and found.limit_bytes < found.total_bytes:
        text += f", of which a control group gives {size(found.limit_bytes)}"
    if usable < _ROOM_BYTES:
        hint = "give jobs fewer processes and less memory, and loaders less to read ahead"
        return Finding(subject="memory", verdict=Verdict.warning, text=text, hint=hint, facts=facts)
    return Finding(subject="memory", text=text, facts=facts)


def _megatron() -> Iterator[Finding]:
    megatron = installed_version()
    if megatron is None:
        return
    facts = {"version": megatron, "newest_known": ".".join(map(str, NEWEST)), "compared": list(CHECKED)}
    text = megatron or "of an unknown version"
    if (numbers := version_numbers(megatron)) and numbers[:2] <= NEWEST:
        yield Finding(subject="megatron-core", text=text, facts=facts)
        return
    hint = f"the versions that we are compared with are {', '.join(CHECKED)}; one of these is safe"
    yield Finding(subject="megatron-core", verdict=Verdict.warning, text=f"{text}, not known", hint=hint, facts=facts)


def _output(encoding: str | None) -> Finding:
    set_by = next((f"{name}={os.environ[name]}" for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "")
    names = sys.getfilesystemencoding()
    text = f"{encoding or 'without an encoding'}, names of files in {names}" + (f"; {set_by}" if set_by else "")
    facts = {"encoding": encoding, "file_names": names, "locale": set_by or None}
    if (encoding or "").lower().replace("-", "") == "utf8":
        return Finding(subject="output", text=text, facts=facts)
    hint = "texts are shown with escapes; set LC_ALL=C.UTF-8 or PYTHONIOENCODING=utf-8 to see them as they are"
    return Finding(subject="output", verdict=Verdict.warning, text=text, hint=hint, facts=facts)
