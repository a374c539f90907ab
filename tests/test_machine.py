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
