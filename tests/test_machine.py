"""What the system says of this machine and its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import numpy as np

from tests.support import wait_until
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


def test_a_process_that_ended_has_no_start_although_nobody_waited_for_it():
    process = subprocess.Popen(["sleep", "60"])
    start = machine.process_start(process.pid)
    assert start is not None
    assert int(start) >= int(machine.process_start(os.getpid()))
    process.kill()
    wait_until(lambda: machine.process_start(process.pid) is None)
    assert machine.is_running(process.pid)  # as a zombie
    process.wait()
    assert machine.process_start(process.pid) is None


def test_processes_of_a_user_in_a_container_share_a_namespace():
    program = "from tokenloom.machine import process_namespace; print(process_namespace())"
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout.strip()
    assert machine.process_namespace() == there


def test_memory_of_its_own_is_counted():
    before = machine.own_memory_bytes()
    block = np.ones(64 << 20, dtype=np.uint8)
    assert machine.own_memory_bytes() - before > 0.9 * block.nbytes


MOUNTINFO = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /data rw,nosuid shared:7 master:1 - nfs4 server:/export/d rw,vers=4.2
31 22 0:41 / /data/with\\040blank ro - lustre 10.0.0.1@tcp:/fs rw
32 22 0:42 / /data rw - tmpfs hides rw
broken line
"""
