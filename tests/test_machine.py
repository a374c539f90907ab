"""What the system says of this machine and its processes."""

import os
import subprocess
import sys
import uuid

import numpy as np

from tests.support import wait_until
from tokenloom import machine


def test_processes_of_a_boot_and_a_namespace_see_the_same_names():
    program = "from tokenloom.machine import boot_id, process_namespace; print(boot_id(), process_namespace())"
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout.split()
    assert [machine.boot_id(), machine.process_namespace()] == there
    assert str(uuid.UUID(there[0])) == there[0]


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


def test_memory_of_its_own_is_counted():
    before = machine.own_memory_bytes()
    block = np.ones(64 << 20, dtype=np.uint8)
    assert machine.own_memory_bytes() - before > 0.9 * block.nbytes
