"""Reports on what is unusual: without manifest, without tokenizer, tiny, large, damaged, in a bucket, being written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tokenloom import IndexedDatasetBuilder
from tokenloom.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture
def report(tmp_path, capsys):
    """Writes a report; returns the exit status, the page, what was said of each section, and the errors."""

    def written(*words: str) -> tuple[int, str, dict[str, dict], str]:
        path = tmp_path / "report.html"
        status = main(["report", *words, "-o", str(path), "--json", "--overwrite", "--sequence-length", "16"])
        out, err = capsys.readouterr()
        sections = {each["id"]: each for each in json.loads(out)["sections"]} if out else {}
        return status, path.read_text() if path.exists() else "", sections, err

    return written


def test_a_damaged_index_fails_what_needs_it_and_no_more(write_pair, report):
    prefix = write_pair([[1, 2, 3] * 10] * 20)
    index = Path(f"{prefix}.idx")
    data = bytearray(index.read_bytes())
    data[42:46] = (10**6).to_bytes(4, "little")
    index.write_bytes(data)
    status, page, sections, err = report(prefix)
    assert status == 1
    assert "verify" in sections["documents"]["error"]
    assert sections["tokens"]["made"]
    assert "error: Documents and tokens: " in err
    assert "This section could not be made." in page


def test_what_is_no_whole_pair_has_no_report(write_pair, report, tmp_path):
    cut, gone = write_pair([300], "cut"), write_pair([3], "gone")
    with open(f"{cut}.bin", "r+b") as stream:
        stream.truncate(100)  # as while others write it
    Path(f"{gone}.bin").unlink()
    for prefix, message in ((cut, "truncated or still being written"), (gone, "the pair is incomplete")):
        status, page, _, err = report(prefix)
        assert (status, page) == (1, "")
        assert message in err
    with IndexedDatasetBuilder(f"{tmp_path}/open.bin", dtype=np.uint16) as builder:
        builder.add_document([1], [1])
        assert report(f"{tmp_path}/open")[0] == 1  # nothing has its name yet
        builder.finalize(f"{tmp_path}/open.idx")
    assert report(f"{tmp_path}/open")[0] == 0


def test_a_pair_in_a_bucket_is_read_by_range(write_pair, report, bucket):
    prefix = write_pair([[*range(10)] * 3] * 50)
    address = bucket.put_pair(prefix, "data/corpus")
    status, page, sections, _ = report(address)
    assert status == 0
    assert "50 documents of 1,500 tokens." in page
    assert address in page
    assert sections["tokens"]["made"]
    assert sections["samples"]["made"]
