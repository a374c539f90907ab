import os
import subprocess
import sys
from contextlib import closing

import pytest
from tests.inputs.corpora import (
    COMPRESSIONS,
    documents,
    json_lines,
    open_whole,
    parse_slices,
    write_arrow,
    write_parquet,
)

from tokenloom.errors import InputError
from tokenloom.inputs import InputSlice
from tokenloom.inputs.find import cut_inputs, find_inputs, inspect_input, whole_file
from tokenloom.inputs.record_format import open_slice

ROWS = [{"id": number, "text": f"text {number}"} for number in range(300)]


def write_any(path):
    if path.suffix == ".parquet":
        return write_parquet(path, ROWS, row_group_size=100)
    if path.suffix == ".arrow":
        return write_arrow(path, ROWS, batch_rows=50)
    data = json_lines(ROWS)
    path.write_bytes(COMPRESSIONS.get(path.suffix, bytes)(data))
    return path


NAMES = ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda path: path.write_bytes(path.read_bytes() + b"more\n"), r"it grew from \d+ to \d+ bytes\nhint: run"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "it shrank from "),
        (lambda path: os.utime(path, ns=(1, 1)), "it was replaced or modified"),
        (lambda path: path.unlink(), "it no longer exists"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_another_one_now_is_refused(tmp_path, name, change, what):
    path = write_any(tmp_path / name)
    slice_ = whole_file(inspect_input(str(path)))
    with closing(open_slice(slice_, block_bytes=500)) as reader:
        blocks = reader.blocks()
        next(blocks)
        change(path)
        with pytest.raises(InputError, match=f"changed after the job was planned: {what}"):
            list(blocks)
    with pytest.raises(InputError, match=f"changed after the job was planned: {what}"):
        open_slice(slice_, block_bytes=500)


PROGRAM = """
import sys
from tokenloom.inputs.find import cut_inputs
from tokenloom.inputs.find import find_inputs
from tokenloom.inputs.record_format import open_slice
from tokenloom.inputs.records import parse_block

[[slice_]] = cut_inputs(find_inputs(["-"], input_format=sys.argv[1]).files, shard_bytes=1)
reader = open_slice(slice_, block_bytes=100, keys=["text"])
for block in reader.blocks():
    print(*parse_block(block, ["text"]).columns[0].texts, sep="\\n")
reader.close()
"""


@pytest.mark.parametrize(
    ("name", "input_format"), [pytest.param("a.jsonl.zst", "jsonl", marks=pytest.mark.slow), ("a.arrows", "arrow")]
)
def test_standard_input_is_read_to_its_end(tmp_path, name, input_format):
    path = tmp_path / name
    data = write_arrow(path, ROWS, stream=True) if name == "a.arrows" else write_any(path)
    command = [sys.executable, "-c", PROGRAM, input_format]
    done = subprocess.run(command, input=data.read_bytes(), capture_output=True, check=True)
    assert done.stdout.decode().split("\n")[:-1] == [row["text"] for row in ROWS]


@pytest.mark.parametrize("name", NAMES)
def test_objects_are_read_like_files(bucket, tmp_path, name):
    address = bucket.put(name, write_any(tmp_path / name).read_bytes())
    slices = [slice_ for shard in cut_inputs(find_inputs([address]).files, shard_bytes=1500) for slice_ in shard]
    assert len(slices) > 1 or name not in ("a.jsonl", "a.parquet")
    assert documents(parse_slices(slices, block_bytes=700)) == [[row["text"]] for row in ROWS]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_an_object_that_is_replaced_is_refused(bucket, tmp_path, name):
    data = write_any(tmp_path / name).read_bytes()
    slice_ = whole_file(inspect_input(bucket.put(name, data)))
    bucket.put(name, data + b"x")
    with pytest.raises(InputError, match=f"changed after the job was planned: it grew from {len(data)} to"):
        open_slice(slice_, block_bytes=100)
    bucket.put(name, data)
    with closing(open_slice(slice_, block_bytes=100)) as reader:
        blocks = reader.blocks()
        next(blocks)
        bucket.put(name, bytes(reversed(data)))
        with pytest.raises(InputError, match=r"changed after the job was planned: (it|the object) was replaced"):
            list(blocks)
    bucket.boto3.delete_object(Bucket=bucket.name, Key=name)
    with pytest.raises(InputError, match="changed after the job was planned: it no longer exists"):
        open_slice(slice_, block_bytes=100)


def test_a_range_of_an_object_reads_little_more_than_itself(bucket, tmp_path):
    data = json_lines({"text": "x" * 1000} for _ in range(20_000))  # several blocks of the storage
    file = inspect_input(bucket.put("a.jsonl", data))
    middle = InputSlice(file=file, start=9_000_000, stop=9_500_000)
    before = bucket.proxy.counts["body_bytes"]
    found = documents(parse_slices([middle], block_bytes=100_000))
    assert len(found) == len([at for at in range(0, len(data), 1013) if 9_000_000 <= at < 9_500_000])
    assert bucket.proxy.counts["body_bytes"] - before < 600_000


@pytest.mark.parametrize("name", NAMES)
def test_progress_reaches_the_size_of_the_slice(tmp_path, name):
    path = write_any(tmp_path / name)
    reader = open_whole(path, keys=["text"], block_bytes=2000)
    positions = []
    for block in reader.blocks():
        assert (block.path, block.unit) == (str(path), "line" if "jsonl" in name else "row")
        positions.append(reader.position)
    assert positions == sorted(positions)
    assert reader.position == reader.num_bytes > 0
    assert reader.num_rows == len(ROWS)
    assert reader.num_text_bytes >= sum(len(row["text"]) for row in ROWS)
    reader.close()
    reader.close()
    assert reader.position == reader.num_bytes
