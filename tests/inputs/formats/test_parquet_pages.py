"""Pages of Parquet that say what they take."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.inputs.corpora import parse_file

from tokenloom.errors import InputError


def test_a_page_that_takes_too_much_memory_is_refused(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x" * (2 << 20)]}), path, compression="zstd", use_dictionary=False)
    message = "row group 0: a page of the column 'text' takes 20971.. bytes, more than 1048576"
    with pytest.raises(InputError, match=message) as caught:
        parse_file(path, max_unit_bytes=1 << 20)
    assert "`memory_bytes`" in caught.value.hint
