import pytest
from tests.inputs.corpora import open_whole, write_parquet

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
