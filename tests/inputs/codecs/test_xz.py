"""What xz refuses."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from tests.inputs.corpora import bad, parse_file

from tokenloom.errors import InputError


def test_a_dictionary_of_xz_that_takes_too_much_memory_is_refused(tmp_path: Path):
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(b"{}\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]))
    with pytest.raises(InputError, match="expected a xz window of at most 128 MiB, found a larger one") as caught:
        parse_file(path)
    assert "`max_window_bytes`" in caught.value.hint
    assert bad(parse_file(path, max_window_bytes=1 << 30)) == [(1, "no key 'text'; found none")]
