"""How much memory it takes to read a file, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MEASURE = """
import json, re, sys
from contextlib import closing
from pathlib import Path
import pyarrow.compute, pyarrow.parquet, zstandard
from tokenloom.inputs.cut import whole_file
from tokenloom.inputs.detect import inspect_input
from tokenloom.inputs.reading import open_slice
from tokenloom.inputs.parsing import parse_block

def most_kilobytes():  # of this program; what `getrusage` tells begins with the program that started it
    return int(re.search(r"VmHWM:\\s+([0-9]+)", Path("/proc/self/status").read_text())[1])


path, input_format, most_blocks = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
before = most_kilobytes()
num_documents = num_blank = 0
bad = []
slice_ = whole_file(inspect_input(path, input_format=input_format))
with closing(open_slice(slice_, block_bytes=1 << 20, keys=["text"], max_record_bytes=8 << 20)) as reader:
    for number, block in zip(range(most_blocks), reader.blocks()):
        parsed = parse_block(block, ["text"])
        num_documents += parsed.num_documents
        num_blank += parsed.num_blank_lines
        bad += [line.reason for line in parsed.bad_lines]
grown = most_kilobytes() - before
print(json.dumps([num_documents, num_blank, bad, grown << 10]))
"""


def measured(path: Path, *, input_format: str = "", most_blocks: int = 1 << 30) -> tuple[int, int, list[str], int]:
    """Returns documents, blank lines, reasons of bad records, and by how many bytes the process grew."""
    command = [sys.executable, "-c", MEASURE, str(path), input_format, str(most_blocks)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return tuple(json.loads(done.stdout))
