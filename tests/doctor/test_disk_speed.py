"""How fast a disk is."""

from __future__ import annotations

import os
import subprocess
import sys

from tokenloom.doctor.disk_speed import measure_disk


def test_a_small_measurement_is_what_it_says(tmp_path):
    found = measure_disk(str(tmp_path), most_bytes=3_500_000, most_seconds=3600.0)
    assert (found.num_bytes, found.problem) == (3_500_000, None)
    assert found.written_per_second > 0
    assert found.read_per_second > 0
    assert os.listdir(tmp_path) == []


def test_it_ends_when_its_time_is_over(tmp_path):
    found = measure_disk(str(tmp_path), most_bytes=64_000_000, most_seconds=0.0)
    assert found.num_bytes == 1_000_000  # the first chunk
    assert os.listdir(tmp_path) == []


def test_a_disk_that_is_full_is_a_problem(tmp_path):
    """A limit on the size of files stands in for a full disk."""
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))\n"
        "from tokenloom.doctor.disk_speed import measure_disk\n"
        "print(measure_disk(sys.argv[1]).problem)"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "cannot be measured: File too large\n"
    assert os.listdir(tmp_path) == []
