"""Words that lead to something else, or to nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.inspect.targets import write_pair, write_run

from tokenloom.errors import ConfigError, DatasetNotFoundError, TokenloomError
from tokenloom.inspect.target import open_target


def test_what_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(DatasetNotFoundError, match=r"as `.*nothing_here`, found nothing there\nhint: name a prefix"):
        open_target([str(tmp_path / "nothing_here")])
    (tmp_path / "half.idx").write_bytes(b"")
    with pytest.raises(DatasetNotFoundError, match=r"no file `.*half\.bin`"):
        open_target([str(tmp_path / "half")])
    with pytest.raises(DatasetNotFoundError, match="'nothing_here' in the blend"):
        open_target(["30", write_pair(tmp_path / "one"), "70", "nothing_here"])
    with pytest.raises(DatasetNotFoundError, match=r"expected a run at `.*missing\.toml`"):
        open_target([str(tmp_path / "missing.toml")])
    with pytest.raises(ConfigError, match="something to look at, found nothing"):
        open_target([])


def test_other_files_are_told_from_blends(tmp_path: Path):
    records = tmp_path / "records.jsonl"
    records.write_text('{"text": "one 4 two"}\n{"text": 7}\n')
    with pytest.raises(TokenloomError, match=r"expected a blend in `.*jsonl`.*\nhint: .* `tokenloom preprocess` first"):
        open_target([str(records)])
    write_run(tmp_path)
    with pytest.raises(ConfigError, match="found its lock"):
        open_target([str(tmp_path / "run.lock")])
