"""Signs of life of those who hold locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenloom.errors import StorageError
from tokenloom.jobs.leases import Silence


def test_a_lock_that_cannot_be_looked_at_is_an_error_of_storage(tmp_path: Path):
    (tmp_path / "folder").write_bytes(b"a file since")
    with pytest.raises(StorageError, match=r"cannot look at `.*folder/KEY.lock`: Not a directory"):
        Silence(str(tmp_path / "folder" / "KEY.lock"), 1.0).is_too_long()


def test_a_lock_that_is_gone_is_not_silent(tmp_path: Path):
    assert not Silence(str(tmp_path / "KEY.lock"), 0.0).is_too_long()
