"""Runs the fuzz targets, one on each CPU, and prints a table: `make fuzz`, see CONTRIBUTING.md.

Inputs come from `fuzz/corpus/TARGET`, which is kept in the repository, and from `build/fuzz/corpus/TARGET`, where new
ones go. What makes a target fail is copied to `build/fuzz/finds`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
WORK = BUILD / "fuzz"
FINDS = WORK / "finds"
NATIVE = "_native.*.so"

HANG_SECONDS = 60  # by the clock, and the machine may be busy
MEMORY_MB = 2048
MOST_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a target."""

    target: str
    executions: int
    new_inputs: int
    coverage: int
    corpus: int
    seconds: float
    finds: list[Path]
    status: int
    log: Path


def main() -> int:
    """Fuzzes the chosen targets, or repeats one input; returns 1 on a find."""
    sys.path.insert(0, str(ROOT))
    from fuzz.targets import NAMES

    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, help="targets at the same time; as many as there are CPUs if not given")
    parser.add_argument("--targets", nargs="*", choices=NAMES, default=list(NAMES))
    parser.add_argument("--input", type=Path, help="run one target on this file alone")
    parser.add_argument("--keep", action="store_true", help="add to the kept inputs what reaches new code")
    options = parser.parse_args()
    python = _environment()
    if options.input is not None:
        return subprocess.run(
            _command(python, options.targets[0], str(options.input.resolve())), cwd=ROOT, env=_variables(python)
        ).returncode
    jobs = min(options.jobs or len(os.sched_getaffinity(0)), len(options.targets))
    print(f"{len(options.targets)} targets for {options.seconds} s each, {jobs} at a time", flush=True)
    with ThreadPoolExecutor(jobs) as pool:  # of threads that wait for processes
        fuzz = partial(_fuzz, python, seconds=options.seconds, keep=options.keep)
        outcomes = []
        for outcome in pool.map(fuzz, options.targets):
            _print_target(outcome)
            outcomes.append(outcome)
    _print(outcomes)
    return int(any(outcome.status != 0 for outcome in outcomes))


def _environment() -> Path:
    """Returns the Python of an environment with the packages of `.venv`, the guided extension, and atheris."""
    folder = WORK / "env"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    asked = "import sys; print('\\n'.join(path for path in sys.path if path.endswith('-packages')))"
    installed = _output([ROOT / ".venv/bin/python", "-c", asked]).split()
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "fuzzed.pth").write_text("\n".join([str(BUILD / "guided/package"), *installed]) + "\n")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    subprocess.run([python, "-m", "pip", "install", "-q", *extras["fuzz"]], check=True)
    return python


def _variables(python: Path) -> dict[str, str]:
    folder = _output([python, "-c", "import atheris; print(atheris.path())"]).strip()
    builds = [*BUILD.glob(f"baseline/{NATIVE}"), *_installed_extension()]
    if "avx2" in Path("/proc/cpuinfo").read_text():
        builds += BUILD.glob(f"avx2/{NATIVE}")
    return os.environ | {
        "LD_PRELOAD": f"{folder}/asan_with_fuzzer.so",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=8",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # so that the sanitizer sees the ends of Python's objects
        "PYTHONPATH": str(ROOT),
        "TOKENLOOM_FUZZ_BUILDS": ":".join(map(str, builds)),
    }


def _installed_extension() -> list[Path]:
    asked = "import tokenloom._native as native; print(native.__file__)"
    return [Path(_output([ROOT / ".venv/bin/python", "-c", asked]).strip())]


def _output(command: list[str | Path]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _command(python: Path, name: str, *arguments: str) -> list[str | Path]:
    limits = [f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MEMORY_MB}", f"-malloc_limit_mb={MEMORY_MB}"]
    return [python, "-m", "fuzz.engine", name, *limits, *arguments]


def _fuzz(python: Path, name: str, *, seconds: int, keep: bool) -> Outcome:
    kept, found, crashes = ROOT / "fuzz/corpus" / name, WORK / "corpus" / name, FINDS / name
    for folder in (kept, found, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(crashes.iterdir())
    dictionary = ROOT / "fuzz/dictionaries" / f"{name}.txt"
    command = _command(
        python,
        name,
        f"-max_total_time={seconds}",
        f"-max_len={MOST_BYTES}",
        f"-artifact_prefix={crashes}/",
        "-print_final_stats=1",
        *([f"-dict={dictionary}"] if dictionary.exists() else []),
        str(found),
        str(kept),
    )
    begun = time.monotonic()
    log = WORK / f"{name}.log"
    with log.open("w") as stream:
        status = subprocess.run(command, cwd=ROOT, env=_variables(python), stdout=stream, stderr=stream).returncode
    text = log.read_text(errors="replace")
    if status == 0 and keep:
        _keep(python, name, kept=kept, found=found)
    marks = re.findall(r"^#(\d+)\s.*?cov: (\d+) .*?corp: (\d+)", text, re.MULTILINE)
    executions, coverage, corpus = map(int, marks[-1]) if marks else (0, 0, 0)
    if ran := re.findall(r"stat::number_of_executed_units:\s+(\d+)", text):  # also of a run that ended before a mark
        executions = int(ran[-1])
    added = re.findall(r"stat::new_units_added:\s+(\d+)", text)
    finds = sorted(set(crashes.iterdir()) - before)
    return Outcome(
        target=name,
        executions=executions,
        new_inputs=int(added[-1]) if added else 0,
        coverage=coverage,
        corpus=corpus,
        seconds=time.monotonic() - begun,
        finds=finds,
        status=status,
        log=log,
    )


def _print_target(outcome: Outcome) -> None:
    name = outcome.target
    print(f"{name}: {outcome.executions:,} executions, {'held' if outcome.status == 0 else 'FAILED'}", flush=True)
    if outcome.status == 0:
        return
    print(outcome.log.read_text(errors="replace")[-6000:])
    for path in outcome.finds:
        print(f"\nfound {path}\nrepeat it: make fuzz-repro TARGET={name} INPUT={path.relative_to(ROOT)}")
        print(f"keep it as a test: cp {path.relative_to(ROOT)} fuzz/corpus/{name}/", flush=True)


def _keep(python: Path, name: str, *, kept: Path, found: Path) -> None:
    """Makes the kept inputs the fewest that reach all that was reached; seeds and finds stay."""
    least = WORK / "merged" / name
    shutil.rmtree(least, ignore_errors=True)
    least.mkdir(parents=True)
    command = _command(python, name, "-merge=1", f"-max_len={MOST_BYTES}", str(least), str(kept), str(found))
    subprocess.run(command, cwd=ROOT, env=_variables(python), check=True, capture_output=True)
    for path in least.iterdir():
        if not any(path.read_bytes() == other.read_bytes() for other in kept.iterdir()):
            shutil.copy(path, kept / path.name[:16])


def _print(outcomes: list[Outcome]) -> None:
    print(
        f"\n{'target':<16} {'executions':>11} {'seconds':>8} {'new inputs':>11} {'coverage':>9} {'corpus':>7}  result"
    )
    for each in outcomes:
        result = "held" if each.status == 0 else f"FAILED, finds: {len(each.finds)} (build/fuzz/{each.target}.log)"
        print(
            f"{each.target:<16} {each.executions:>11,} {each.seconds:>8.0f} {each.new_inputs:>11,} {each.coverage:>9,} "
            f"{each.corpus:>7,}  {result}"
        )


if __name__ == "__main__":
    sys.exit(main())
