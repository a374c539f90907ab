import pytest
from tests.inputs.corpora import documents, parse_file, write_arrow

from tokenloom.errors import InputError


@pytest.mark.parametrize("cut", [0, 100, -9])
@pytest.mark.parametrize("stream", [True, False])
def test_arrow_that_is_cut_is_an_error(tmp_path, cut, stream):
    path = write_arrow(tmp_path / "a.arrow", [{"text": "x" * 50}] * 100, batch_rows=10, stream=stream)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"`.*a\.arrow`( as Arrow: |: the Arrow stream has no end mark)"):
        parse_file(path)


LIMIT = 64 << 20


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
def test_a_decoded_batch_above_the_limit_is_refused(tmp_path, stream):
    rows = [{"text": "x" * (15 << 20)}] * 5
    path = write_arrow(tmp_path / "a.arrow", rows, stream=stream, compression="zstd")
    assert path.stat().st_size < 40_000
    message = rf"row 1: a record batch takes 7864\d{{4}} bytes, more than {LIMIT}\n.*`memory_bytes`"
    with pytest.raises(InputError, match=message):
        parse_file(path, memory_bytes=LIMIT)
    assert documents(parse_file(path, memory_bytes=2 * LIMIT)) == [["x" * (15 << 20)]] * 5
