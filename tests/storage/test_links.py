"""Links are made once, and never in the place of something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenloom.errors import OutputExistsError, StorageError
from tokenloom.storage.links import check_leads_to, link_to


def test_a_link_leads_to_the_file_from_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("source").write_text("bytes")
    Path("folder").mkdir()
    for _ in range(2):
        link_to("source", "folder/link")
    monkeypatch.chdir("/")
    assert (tmp_path / "folder" / "link").read_text() == "bytes"
    assert os.listdir(tmp_path / "folder") == ["link"]


def test_something_else_stays(tmp_path: Path):
    for name in ("source", "other"):
        (tmp_path / name).write_text(name)
    check_leads_to(str(tmp_path / "source"), str(tmp_path / "free"))
    for there in (tmp_path / "file", tmp_path / "link", tmp_path / "dangling"):
        if there.name == "file":
            there.write_text("file")
        else:
            there.symlink_to(tmp_path / ("other" if there.name == "link" else "nothing"))
        for call in (link_to, check_leads_to):
            with pytest.raises(OutputExistsError, match=rf"expected nothing at `{there}`, or a link to `.*source`"):
                call(str(tmp_path / "source"), str(there))
    assert (tmp_path / "file").read_text() == "file"
    assert (tmp_path / "link").read_text() == "other"


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(StorageError, match="cannot link"):
        link_to(str(tmp_path / "source"), str(tmp_path / "none" / "link"))
