"""Clean-up after a failure."""

from __future__ import annotations

import logging
import os

import pytest

from tokenloom.storage.atomic import PendingFile, pending_link
from tokenloom.storage.cleaning import remove_leftover
from tokenloom.storage.locks import filling


@pytest.fixture
def unremovable(monkeypatch):
    """Lets no file be removed, as a filesystem that became read-only."""

    def refuse(path, **_):
        raise PermissionError(30, "Read-only file system", path)

    monkeypatch.setattr(os, "unlink", refuse)


def test_what_stays_is_logged(tmp_path, unremovable, caplog):
    with caplog.at_level(logging.WARNING, logger="tokenloom"):
        remove_leftover(f"{tmp_path}/x")
    assert [each.getMessage() for each in caplog.records] == [
        f"cannot remove `{tmp_path}/x`, which stays: Read-only file system"
    ]


def test_what_is_gone_is_not_worth_a_word(tmp_path, caplog):
    remove_leftover(f"{tmp_path}/x")
    assert caplog.records == []


def fail(context):
    with context:
        raise KeyError("first")


def test_the_first_error_is_told(tmp_path, unremovable):
    for context in (PendingFile(f"{tmp_path}/x"), filling(f"{tmp_path}/y")):
        with pytest.raises(KeyError, match="first"):
            fail(context)


def test_a_link_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("1")

    def refuse(source, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match=r"cannot publish `.*y`: Input/output error"):
        pending_link(f"{tmp_path}/x", f"{tmp_path}/y")
