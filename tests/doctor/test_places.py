"""Folders that are read and written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading

import pytest
from tests.indexed.pairs import write_pair

from tokenloom.doctor import places
from tokenloom.doctor.check import Asked, Verdict
from tokenloom.doctor.disk_speed import DiskSpeed
from tokenloom.doctor.disk_trial import Trial
from tokenloom.doctor.places import check_places, folder_of, place_finding, speed_finding
from tokenloom.machine import Mount
from tokenloom.storage.settings import CACHE_VARIABLE

MANY = 1 << 50


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(path))
    return path


def mounted(kind: str) -> Mount:
    return Mount(path="/", kind=kind, source="source", options=frozenset({"rw"}))


def trial(**facts) -> Trial:
    return Trial(folder="/data", **{"num_free_bytes": MANY, "num_free_inodes": MANY, **facts})


def test_the_cache_and_each_path_have_a_line(tmp_path, cache):
    prefix = write_pair(tmp_path / "pair", [[[1, 2]]])
    cached, *named = check_places(Asked(paths=(str(tmp_path), prefix, f"{prefix}.idx"), measures_speed=False))
    assert (cached.subject, cached.facts["folder"]) == ("cache", str(tmp_path))  # where it would be made
    assert not cache.exists()
    assert [found.facts["folder"] for found in named] == [str(tmp_path)] * 3
    assert all("; writable" in found.text for found in named)


def test_what_is_not_there_is_a_problem(tmp_path):
    *_, found = check_places(Asked(paths=(f"{tmp_path}/absent",), measures_speed=False))
    assert found.verdict is Verdict.problem
    assert found.text == f"`{tmp_path}/absent`: there is no such file, folder or pair"
    assert folder_of(f"{tmp_path}/absent") is None


def test_a_disk_is_measured_once_and_that_is_said_before(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(places, "measure_disk", lambda folder: said.append(folder) or DiskSpeed(num_bytes=1))
    asked = Asked(paths=(str(tmp_path), str(tmp_path)), say=said.append)
    subjects = [found.subject for found in check_places(asked)]
    assert subjects == ["cache", "speed", "data", "data"]
    assert said == [f"measuring the disk of {tmp_path}: 64 MB and 2 s at most", str(tmp_path)]


def test_a_mount_that_does_not_answer_is_a_problem(tmp_path, monkeypatch):
    forever = threading.Event()
    monkeypatch.setattr(places, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(places, "try_folder", lambda _: forever.wait())
    try:
        (found,) = check_places(Asked())
    finally:
        forever.set()
    assert found.verdict is Verdict.problem
    assert found.text.endswith(": no answer within 0.01 s")


@pytest.mark.parametrize(
    ("subject", "kind", "facts", "verdict", "hint"),
    [
        ("data", "ext4", {}, Verdict.ok, None),
        ("data", "nfs4", {}, Verdict.ok, None),
        ("cache", "nfs4", {}, Verdict.warning, "kept on a network"),
        ("cache", "fuse.juicefs", {}, Verdict.warning, "kept on a network"),
        ("cache", "overlay", {}, Verdict.warning, "goes with the container"),
        ("data", "overlay", {}, Verdict.ok, None),
        ("cache", "ext4", {"num_free_bytes": 1 << 30}, Verdict.warning, "takes up to 8.59 GB"),
        ("data", "ext4", {"num_free_bytes": 1 << 26}, Verdict.warning, "make room before"),
        ("data", "ext4", {"num_free_bytes": 0, "failed": {"mapping": "No space"}}, Verdict.problem, "it is full"),
        ("cache", "ext4", {"num_free_bytes": 1 << 20}, Verdict.problem, "it is full: make room, or name a folder"),
        ("data", "ext4", {"num_free_inodes": 5}, Verdict.warning, "few files"),
        ("data", "btrfs", {"num_free_inodes": None}, Verdict.ok, None),
        ("data", "ext4", {"reason": "Read-only file system"}, Verdict.ok, "data can be read here"),
        ("cache", "ext4", {"reason": "Permission denied"}, Verdict.problem, "nothing of object storage can be kept"),
        ("data", "nfs", {"failed": {"locks (flock)": "No locks available"}}, Verdict.problem, "mount it with locks"),
    ],
)
def test_what_is_to_be_thought_of_a_place(subject, kind, facts, verdict, hint):
    found = place_finding(subject, "/data", mounted(kind), trial(**facts))
    assert found.verdict is verdict
    assert (found.hint is None) if hint is None else hint in found.hint
    assert f"{kind} of source" in found.text


def test_a_read_only_folder_is_told_with_the_reason():
    found = place_finding("data", "/data/x", mounted("nfs4"), trial(reason="Read-only file system"))
    assert found.text.endswith("; cannot be written (Read-only file system)")
    assert (found.facts["writable"], found.facts["file_system"]) == (False, "nfs4")


def test_a_folder_that_takes_no_files_can_still_be_read():
    (found,) = (each for each in check_places(Asked(paths=("/proc",), measures_speed=True)) if each.subject == "data")
    assert found.verdict is Verdict.ok
    assert "/proc: proc; " in found.text
    assert "cannot be written" in found.text


def test_a_disk_that_is_nearly_full_is_not_filled_by_measuring_it(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "try_folder", lambda folder: trial(num_free_bytes=100_000_000))
    said: list[str] = []
    subjects = [found.subject for found in check_places(Asked(paths=(str(tmp_path),), say=said.append))]
    assert (subjects, said) == (["cache", "data"], [])


def test_a_full_file_system_is_a_problem(tmp_path):
    """A real one, where this machine lets a test mount it; another test holds what is made of its numbers."""
    mount = f"mount -t tmpfs -o size=64k none {tmp_path} && head -c 65536 /dev/zero > {tmp_path}/all"
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*inside, mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    look = f"{sys.executable} -m tokenloom doctor --json {tmp_path}"
    done = subprocess.run([*inside, f"{mount} && {look}"], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    findings = {each["subject"]: each for check in json.loads(done.stdout)["checks"] for each in check["findings"]}
    assert findings["data"]["verdict"] == "problem"
    assert findings["data"]["text"].startswith(f"{tmp_path}: tmpfs; 0 bytes free")
    assert findings["data"]["hint"] == "it is full: make room, or write to another disk"


def test_a_slow_disk_is_warned_of():
    fast = DiskSpeed(num_bytes=64_000_000, written_per_second=2e8, read_per_second=1e9)
    found = speed_finding("/data", fast, is_in_memory=True)
    assert (found.verdict, found.text) == (Verdict.ok, "/data: writes 200 MB/s, reads 1 GB/s, of 64 MB in memory")
    slow = DiskSpeed(num_bytes=4_000_000, written_per_second=2e6, read_per_second=1e9)
    assert speed_finding("/data", slow, is_in_memory=False).verdict is Verdict.warning
    full = DiskSpeed(problem="cannot be measured: No space left on device")
    assert speed_finding("/data", full, is_in_memory=False).verdict is Verdict.problem
