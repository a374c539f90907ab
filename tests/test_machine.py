"""What the system says of this machine and its processes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np

import tokenloom
from tokenloom import machine


def test_a_boot_has_a_name_that_all_processes_see():
    program = "from tokenloom.machine import boot_id; print(boot_id())"
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout.strip()
    assert machine.boot_id() == there == str(uuid.UUID(there))


def test_processes_that_run_are_told_from_those_that_have_ended():
    process = subprocess.Popen(["sleep", "60"])
    assert machine.is_running(process.pid)
    process.kill()
    process.wait()
    assert not machine.is_running(process.pid)


def test_an_open_file_is_read_from_its_beginning(tmp_path):
    (tmp_path / "file").write_bytes(b"0123")
    with open(tmp_path / "file", "rb") as file:
        file.seek(2)
        assert machine.has_descriptor_paths()
        assert Path(machine.descriptor_path(file.fileno())).read_bytes() == b"0123"


def test_open_files_are_told_by_their_descriptors(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with open(tmp_path / "file", "rb") as file:
        descriptor = file.fileno()
        assert machine.open_files()[descriptor] == str(tmp_path / "file")
    assert machine.open_files().get(descriptor) != str(tmp_path / "file")


def test_memory_of_its_own_is_counted():
    before = machine.own_memory_bytes()
    block = np.ones(64 << 20, dtype=np.uint8)
    assert machine.own_memory_bytes() - before > 0.9 * block.nbytes


def test_nothing_else_reads_what_the_system_says():
    root = Path(tokenloom.__file__).parent
    readers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and str(node.value).startswith(f"{os.sep}proc{os.sep}")
    }
    assert readers == {"machine.py"}


MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /data rw,nosuid shared:7 master:1 - nfs4 server:/export/d rw,vers=4.2
31 22 0:41 / /data/with\\040blank ro - lustre 10.0.0.1@tcp:/fs rw
32 22 0:42 / /data rw - tmpfs hides rw
broken line
"""


def test_mounts_are_read_as_they_are_written():
    found = list(machine.mounts_in(MOUNTINFO.splitlines()))
    assert [(mount.path, mount.kind) for mount in found] == [
        ("/", "ext4"),
        ("/proc", "proc"),
        ("/data", "nfs4"),
        ("/data/with blank", "lustre"),
        ("/data", "tmpfs"),
    ]
    assert found[2].source == "server:/export/d"
    assert {"nosuid", "vers=4.2"} <= found[2].options


def test_a_path_lies_on_the_last_of_the_nearest_mounts():
    found = list(machine.mounts_in(MOUNTINFO.splitlines()))
    paths = {"/data/x": "hides", "/data/with blank/y": "10.0.0.1@tcp:/fs", "/database": "/dev/vda", "/": "/dev/vda"}
    for path, source in paths.items():
        mount = machine.mount_of(path, found)
        assert mount is not None
        assert mount.source == source
    assert machine.mount_of("/data", []) is None


def test_this_machine_says_what_it_has():
    assert machine.mount_of(os.curdir, machine.mounts()) is not None
    num_cores, quota = machine.allowed_cores()
    assert num_cores == len(os.sched_getaffinity(0))
    assert quota is None or quota > 0
    memory = machine.memory()
    assert 0 < memory.available_bytes <= memory.total_bytes
    name, flags = machine.processor()
    assert name == name.strip()
    assert flags


def test_limits_of_groups_above_count_too(tmp_path):
    """Version 2 has quota and period in one file, version 1 in two; in a container the folder of a group is missing."""
    inner = tmp_path / "jobs" / "mine"
    inner.mkdir(parents=True)
    (tmp_path / "jobs" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    folders = list(machine._folders(str(tmp_path), "/jobs/mine"))
    assert folders == [str(inner), str(tmp_path / "jobs"), str(tmp_path)]
    names = {"cpu.max": "cpu.max", "cpu.cfs_quota_us": "cpu.cfs_period_us"}
    found = [words for folder in folders for words in machine._words(folder, names)]
    assert found == [["max", "100000"], ["150000", "100000"]]
    (tmp_path / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert list(machine._words(str(tmp_path), names)) == [["-1", "100000"]]
    assert list(machine._folders(str(tmp_path), "/../gone")) == [str(tmp_path / "gone"), str(tmp_path)]
