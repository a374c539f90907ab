"""What lies beside the pairs of a part: of jobs that go on, of other versions, damaged, or asked for later."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.corpus.jobs import files_of, interrupt_after, preprocess
from tests.corpus.records import BYTES, check
from tests.preprocess.corpus import leftovers, write_lines

from tokenloom.indexed.origins import read_origins


def mixed(folder: Path) -> list[Path]:
    return [
        write_lines(
            folder / f"part-{number}.jsonl",
            [
                b"" if line % 5 == 0 else b"bad" if line % 11 == 0 else {"text": f"{number} {line}"}
                for line in range(60)
            ],
        )
        for number in range(3)
    ]


OPTIONS: dict[str, Any] = {"shard_bytes": 300, "skip_bad_records": True, "document_hashes": True}


def test_an_interrupted_job_ends_with_the_same_bytes(tmp_path: Path):
    paths = mixed(tmp_path)
    (tmp_path / "whole").mkdir()
    (tmp_path / "out").mkdir()
    preprocess(paths, tmp_path / "whole" / "p", BYTES, **OPTIONS | {"shard_bytes": 1 << 20})
    interrupt_after(4, paths, tmp_path / "out" / "p", BYTES, **OPTIONS)
    summary = preprocess(paths, tmp_path / "out" / "p", BYTES, **OPTIONS)
    assert summary.num_shards_reused > 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    names = {
        "p.rejected.jsonl",
        *(f"p_text_document.{name}" for name in ("bin", "idx", "origins.npy", "hashes.npy", "columns.json")),
    }
    assert set(files_of(tmp_path / "out")) == names
    check(tmp_path / "out" / "p_text_document")


def test_a_damaged_list_of_records_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    paths = mixed(tmp_path)
    interrupt_after(4, paths, tmp_path / "out", BYTES, **OPTIONS)
    [damaged, *_] = sorted((tmp_path / "out.job").glob("*.records"))
    damaged.write_bytes(np.array([[0, 1]], dtype=np.int64).tobytes())
    with caplog.at_level(logging.WARNING):
        preprocess(paths, tmp_path / "out", BYTES, **OPTIONS)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        f"`{damaged}` does not hold what its report says"
    ]
    check(tmp_path / "out_text_document")


def test_a_job_that_began_without_origins_goes_on_with_them(tmp_path: Path):
    paths = mixed(tmp_path)
    interrupt_after(4, paths, tmp_path / "out", BYTES, **OPTIONS, origins=False)
    assert preprocess(paths, tmp_path / "out", BYTES, **OPTIONS).num_shards_reused > 0
    check(tmp_path / "out_text_document")


def test_what_was_made_without_origins_stays_as_it_is_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path, *_ = paths = mixed(tmp_path)
    options = {"skip_bad_records": True}
    preprocess(path, tmp_path / "out", BYTES, **options, origins=False)
    assert leftovers(tmp_path, *paths) == [
        "out.rejected.jsonl",
        *(f"out_text_document.{name}" for name in ("bin", "idx", "manifest.json")),
    ]
    with caplog.at_level(logging.WARNING):
        assert preprocess(path, tmp_path / "out", BYTES, **options).was_complete
    [record] = caplog.records
    assert "was made without origins and stays so" in record.getMessage()
    preprocess(path, tmp_path / "out", BYTES, **options, restart=True, overwrite=True)
    check(tmp_path / "out_text_document")
    preprocess(path, tmp_path / "out", BYTES, **options, origins=False, restart=True, overwrite=True)
    assert read_origins(str(tmp_path / "out_text_document")) is None
