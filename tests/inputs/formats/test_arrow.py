"""Arrow files and streams that are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.inputs.corpora import (
    parse_file,
    write_arrow,
)

from tokenloom.errors import InputError


@pytest.mark.parametrize("cut", [0, 3, 100, -1, -9, -200])
@pytest.mark.parametrize("stream", [True, False])
def test_arrow_that_is_cut_is_an_error(tmp_path: Path, cut: int, stream: bool):
    path = write_arrow(tmp_path / "a.arrow", [{"text": "x" * 50}] * 100, batch_rows=10, stream=stream)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"`.*a\.arrow`( is not an Arrow file|: the Arrow stream has no end mark)"):
        parse_file(path)


def test_arrow_whose_offsets_lead_astray_is_an_error(tmp_path: Path):
    path = write_arrow(tmp_path / "a.arrow", [{"text": "x" * 50}] * 9)
    data = path.read_bytes()
    good = b"".join(number.to_bytes(4, "little") for number in (50, 100, 150))
    assert data.count(good) == 1
    path.write_bytes(data.replace(good, good[:4] + (1 << 30).to_bytes(4, "little") + good[8:]))
    with pytest.raises(InputError, match="row 1 or later: the Arrow data is damaged"):
        parse_file(path)
