"""Reports on what is unusual: without manifest, without tokenizer, tiny, large, damaged, in a bucket, being written."""

from __future__ import annotations

import json

import pytest

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


def test_a_pair_in_a_bucket_is_read_by_range(write_pair, report, bucket):
    prefix = write_pair([[*range(10)] * 3] * 50)
    address = bucket.put_pair(prefix, "data/corpus")
    status, page, sections, _ = report(address)
    assert status == 0
    assert "50 documents of 1,500 tokens." in page
    assert address in page
    assert sections["tokens"]["made"]
    assert sections["samples"]["made"]
