"""Trials: a copy of the package with one fault, and runs of the tests that should detect it."""

import ast
import json
import os
import resource
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.faults import ROOT, Fault

MOST_TEST_SECONDS = 180.0  # a longer test is considered to hang

_PHASE_SECONDS = (300.0, 900.0)
_MOST_BUILD_SECONDS = 1200.0
_MOST_BYTES = 16 << 30  # memory of a process; browsers reserve terabytes of address space


class TrialError(Exception):
    """Tests fail without a fault, or the kernels do not build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    verdict: str
    test: str = ""
    how: str = ""
    phase: int = 0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Suite:
    deselected: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def phases(self, room: str) -> tuple[list[str], list[str]]:
        """Returns the tests of a room, and the tests of the rooms above it, nearest first, and of no room."""
        module = ast.parse((ROOT / "tests" / "test_layers.py").read_text())
        assigned = {ast.unparse(each.targets[0]): each.value for each in module.body if isinstance(each, ast.Assign)}
        layers: list[str] = ast.literal_eval(assigned["LAYERS"])
        own = ["kernels", "order", "datasets"] if room == "native" else [room]
        above = dict.fromkeys([*layers[layers.index(own[0]) + 1 :], "peer", "megatron", "fuzz"])
        others = [f"tests/{path.name}" for path in sorted((ROOT / "tests").glob("test_*.py"))]
        return self._folders(own), self._folders([layer for layer in above if layer not in own]) + others

    def _folders(self, names: list[str]) -> list[str]:
        return [f"tests/{name}" for name in names if (ROOT / "tests" / name).is_dir()]


class Workspace:
    """A folder with a copy of the package, and an environment that imports the copy."""

    def __init__(self, number: int, suite: Suite, *, num_compilers: int) -> None:
        self.folder: Path = ROOT / "build" / "mutants" / str(number)
        self.log: Path = self.folder / "log.txt"
        self._suite = suite
        self._num_compilers = num_compilers
        self._package: Path = self.folder / "src" / "tokenloom"
        self._python: Path = self.folder / "env" / "bin" / "python"
        self._is_built = False
        self._copy()
        self._module: Path = next(self._package.glob("_native.*.so"))
        self._make_environment()

    def _copy(self) -> None:
        shutil.rmtree(self.folder / "src", ignore_errors=True)
        shutil.copytree(ROOT / "src" / "tokenloom", self._package, ignore=shutil.ignore_patterns("*.so"))
        for source in [ROOT / "CMakeLists.txt", *(ROOT / "native").rglob("*.[hc]pp")]:
            target = self.folder / source.relative_to(ROOT)
            if not target.exists() or target.read_bytes() != source.read_bytes():  # otherwise it is not compiled again
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        finding = "import tokenloom._native as module; print(module.__file__)"
        module = subprocess.run([sys.executable, "-c", finding], capture_output=True, text=True, check=True).stdout
        shutil.copy2(module.strip(), self._package)
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(self._package)], check=True)

    def _make_environment(self) -> None:
        """Creates an environment with the packages of this one, and the copy of ours before them."""
        environment, scripts = self.folder / "env", Path(sys.executable).parent
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        packages = next(environment.glob("lib/python*/site-packages"))
        # Plain paths: the finder of the editable installation, which a .pth file there starts, does not see the copy.
        (packages / "mutants.pth").write_text("\n".join([str(self._package.parent), *site.getsitepackages()]))
        shutil.copy2(Path(__file__).with_name("note_failure.py"), packages)
        for script in scripts.glob("swift-*"):  # servers of object storage, which tests start
            (self._python.parent / script.name).symlink_to(script)
        finding = "import tokenloom, tokenloom._native as native; print(tokenloom.__file__, native.__file__)"
        found = subprocess.check_output([self._python, "-c", finding], text=True, cwd="/", env=self._environ()).split()
        if {Path(path).parent for path in found} != {self._package}:
            raise TrialError(f"tests would run with {found}, not with {self._package}")

    def check_baseline(self, room: str) -> None:
        self._build_once(room)
        how, test = self._run_tests(self._suite.phases(room)[0], most_seconds=_PHASE_SECONDS[0])
        if how != "passes":
            raise TrialError(f"tests of `{room}` without a fault: {test or 'pytest'} {how} (see {self.log})")

    def try_fault(self, fault: Fault) -> Outcome:
        """Plants a fault, runs tests until one fails that passes without it, and removes it."""
        self._build_once(fault.room)
        shutil.copy2(self._module, self.folder / "sound.so")
        begin = time.monotonic()
        try:
            self._write(fault, fault.changed)
            if fault.room == "native" and not self._build():
                return Outcome(verdict="unbuildable")
            for phase, folders in enumerate(self._suite.phases(fault.room), start=1):
                verdict, test, how = self._try_phase(fault, phase, folders)
                if verdict != "survived":
                    break
            seconds = round(time.monotonic() - begin, 1)
            return Outcome(verdict=verdict, test=test, how=how, phase=phase, seconds=seconds)
        finally:
            self._write(fault, fault.source)
            self._put_module(self.folder / "sound.so")  # the next build compiles the restored file, too

    def _try_phase(self, fault: Fault, phase: int, folders: list[str]) -> tuple[str, str, str]:
        num_flaky = 0
        while folders:
            how, test = self._run_tests(folders, most_seconds=_PHASE_SECONDS[phase - 1])
            if how == "passes":
                break
            if how == "runs out of time":
                return "undecided", test, how
            if how == "fails" and test and self._run_tests([test], most_seconds=2 * MOST_TEST_SECONDS)[0] == "passes":
                print(f"    fails once, and then passes with the same fault: {test}", flush=True)
                if (num_flaky := num_flaky + 1) > 1:
                    return "undecided", test, how
                continue
            if self._passes_without_fault(fault, [test] if test else [*folders, "--collect-only"]):
                return "caught", test, how
            if not test:
                raise TrialError(f"pytest {how} above `{fault.room}` without a fault, too (see {self.log})")
            print(f"    deselected, as it also fails without a fault: {test}", flush=True)
            self._suite.deselected.append(test)
        return "survived", "", ""

    def _passes_without_fault(self, fault: Fault, tests: list[str]) -> bool:
        shutil.copy2(self._module, self.folder / "faulty.so")
        self._write(fault, fault.source)
        self._put_module(self.folder / "sound.so")
        passes = self._run_tests(tests, most_seconds=2 * MOST_TEST_SECONDS)[0] == "passes"
        self._write(fault, fault.changed)
        self._put_module(self.folder / "faulty.so")
        return passes

    def _write(self, fault: Fault, text: str) -> None:
        path = self.folder / fault.file
        if path.read_text() not in (fault.source, fault.changed):
            raise TrialError(f"`{fault.file}` has changed since this run began")
        path.write_text(text)

    def _put_module(self, built: Path) -> None:
        copy = self._module.with_suffix(".new")
        shutil.copy2(built, copy)
        os.replace(copy, self._module)

    def _build_once(self, room: str) -> None:
        if room == "native" and not self._is_built:
            configure = ["cmake", "-G", "Ninja", "-S", ".", "-B", "build", "-DCMAKE_BUILD_TYPE=Release"]
            self._execute([*configure, f"-DPython_EXECUTABLE={sys.executable}"], self.folder, _MOST_BUILD_SECONDS)
            self._is_built = self._build()
            if not self._is_built:
                raise TrialError(f"the kernels do not build (see {self.log})")

    def _build(self) -> bool:
        command = ["cmake", "--build", "build", "--parallel", str(self._num_compilers)]
        if self._execute(command, self.folder, _MOST_BUILD_SECONDS)[0] != "passes":
            return False
        self._put_module(self.folder / "build" / self._module.name)
        return True

    def _run_tests(self, tests: list[str], *, most_seconds: float) -> tuple[str, str]:
        left_out = [f"--deselect={test}" if "::" in test else f"--ignore={test}" for test in self._suite.deselected]
        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "note_failure"]
        command = [str(self._python), "-m", "pytest", *options, *left_out, *tests]
        return self._execute(command, ROOT, most_seconds)

    def _execute(self, command: list[str], folder: Path, most_seconds: float) -> tuple[str, str]:
        shutil.rmtree(self.folder / "hypothesis", ignore_errors=True)
        note = self.folder / "note.json"
        note.write_text("{}")
        how = ""
        begin = time.monotonic()
        with self.log.open("w") as log, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            os.chmod(temporary, 0o755)  # some tests run as another user
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=self._environ() | {"TMPDIR": temporary},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_limit_memory,
            )
            try:
                while process.poll() is None and not how:
                    if self._suite.stop.wait(0.1):
                        raise TrialError("another trial failed, or this run was interrupted")
                    in_test = time.time() - note.stat().st_mtime if "pytest" in command else 0.0
                    if in_test > MOST_TEST_SECONDS:
                        how = "hangs"
                    elif time.monotonic() - begin > most_seconds and in_test < 20:  # otherwise it may hang
                        how = "runs out of time"
            finally:
                self._kill(process)
        status = process.returncode
        how = how or ("passes" if status in (0, 5) else "crashes" if status < 0 else "fails")  # 5: all are deselected
        return how, "" if how == "passes" else json.loads(note.read_text()).get("test", "")

    def _environ(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
        return inherited | {
            "PATH": f"{self._python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",  # for example ninja
            "PYTHONDONTWRITEBYTECODE": "1",
            # Hypothesis would first try the failing examples of another fault.
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "hypothesis"),
            "MUTANTS_NOTE": str(self.folder / "note.json"),
        }

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        mark = f"MUTANTS_NOTE={self.folder / 'note.json'}".encode()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
