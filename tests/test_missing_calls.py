"""Writers where the filesystem lacks a call, which is taken away below Python: no locks, no links."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.indexed.pairs import write_pair
from tests.kill_loop import CASES, make_inputs
from tokenloom.adapters import export_documents
from tokenloom.errors import StorageError

ROOT = Path(__file__).parents[1]
MISSING = ("flock", "link", "flock,link")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """Returns a library to preload."""
    path = tmp_path_factory.mktemp("shim") / "missing_calls.so"
    source = Path(__file__).with_name("missing_calls.cpp")
    subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-fPIC", "-o", path, source], check=True)
    return path


def run_without(shim: Path, missing: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Runs Python where calls are missing."""
    settings = {"LD_PRELOAD": str(shim), "TOKENLOOM_MISSING": missing}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )


def written(folder: Path, inputs: Path, names: list[str]) -> dict[str, str]:
    """Returns what writers leave, by name: a hash of all files that are not hidden, or the error; each writes twice."""
    found = {}
    for number, name in enumerate(names):
        out = folder / str(number)
        out.mkdir()
        try:
            for overwrite in (False, True):
                CASES[name].work(out, inputs, overwrite)
        except StorageError as error:
            found[name] = str(error).replace(str(out), "")
            continue
        files = sorted(path for path in out.rglob("*") if path.is_file())
        hidden = [path.name for path in files if path.name.startswith(".") and not path.name.endswith(".lock")]
        assert hidden == []
        shown = [path for path in files if not path.name.startswith(".")]
        content = b"".join(str(path.relative_to(out)).encode() + path.read_bytes() for path in shown)
        found[name] = hashlib.sha256(content).hexdigest()
    return found


NAMES = ["builder", "merge", "catalogue", "corpus, copied parts", "index cache"]
EVERY = pytest.param(list(CASES), marks=pytest.mark.slow, id="every")


@pytest.mark.parametrize("names", [pytest.param(NAMES, id="some"), EVERY])
@pytest.mark.parametrize("missing", MISSING)
def test_writers_do_without(tmp_path, shim, missing, names):
    inputs = tmp_path / "inputs"
    make_inputs(inputs, "new")
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    expected = written(tmp_path / "with", inputs, names)
    done = run_without(shim, missing, "-m", "tests.test_missing_calls", tmp_path / "without", inputs, json.dumps(names))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    without_locks = {name for name in names if "flock" in missing and found[name] != expected[name]}
    for name in without_locks:  # jobs, whose processes need locks
        assert "its filesystem does not support locks\nhint: mount it with locks" in found[name]
    assert {name.split(",")[0].split()[0] for name in without_locks} <= {"corpus", "chat", "multimodal"}
    assert {name: found[name] for name in names if name not in without_locks} == {
        name: expected[name] for name in names if name not in without_locks
    }


def test_a_folder_is_replaced_where_names_cannot_be_swapped(tmp_path, shim):
    old, new = (write_pair(tmp_path / name, [[[number]]]) for number, name in enumerate("ab"))
    export_documents(old, tmp_path / "out")
    program = "import sys; from tokenloom.adapters import *; export_documents(*sys.argv[1:], overwrite=True)"
    done = run_without(shim, "exchange", "-c", program, new, tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet")["tokens"].to_pylist() == [[1]]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".out")) == []


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["link"])
def test_kills_leave_old_or_new(shim, missing):
    done = run_without(shim, missing, "-m", "tests.kill_loop", "--kills", 150, "--faults", 60, "--seed", 5)
    assert (done.returncode, done.stdout.splitlines()[-1].split(",")[1]) == (0, " 0 problems"), done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("missing", MISSING)
def test_changes_of_a_run_and_exports_leave_old_or_new(shim, missing):
    files = ["tests/run/test_amend.py", "tests/adapters/test_arrow.py"]
    done = run_without(
        shim, missing, "-m", "pytest", "-q", "-m", "", "-k", "leaves_old_or_new", "-p", "no:cacheprovider", *files
    )
    assert done.returncode == 0, done.stdout[-3000:]


if __name__ == "__main__":
    print(json.dumps(written(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))))
