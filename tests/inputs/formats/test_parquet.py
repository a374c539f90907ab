"""Parquet that is damaged."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.inputs.corpora import open_whole, parse_file, write_parquet

from tokenloom.errors import InputError


def test_a_damaged_row_group_is_an_error_and_the_ones_before_are_read(tmp_path):
    texts = [f"text {number} " + "abcdefgh"[number % 8] * 50 for number in range(400)]
    path = write_parquet(
        tmp_path / "a.parquet",
        [{"text": text} for text in texts],
        row_group_size=100,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    data = bytearray(path.read_bytes())
    data[data.index(b"text 250")] ^= 255
    path.write_bytes(bytes(data))
    reader = open_whole(path, keys=["text"], block_bytes=500)
    blocks = []
    with pytest.raises(InputError) as caught:
        blocks.extend(reader.blocks())
    assert caught.value.message.startswith(f"`{path}` row 201 or later: damaged Parquet data: ")
    assert sum(len(batch) for block in blocks for batch in block.batches) >= 190


def test_a_decoded_batch_above_the_limit_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * (65 << 20)]}), path, compression="zstd", use_dictionary=False)
    message = "a.parquet` row 1: a record batch takes 6815.... bytes, more than 67108864"
    with pytest.raises(InputError, match=message) as caught:
        parse_file(path, memory_bytes=64 << 20)
    assert "`memory_bytes`" in caught.value.hint
