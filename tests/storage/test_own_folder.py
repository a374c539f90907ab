"""Folders that belong to one user."""

from __future__ import annotations

import os
import stat

import pytest

from tokenloom.errors import StorageError
from tokenloom.storage.objects import own_folder


def test_a_folder_is_made_for_this_user_alone(tmp_path):
    path = own_folder(f"{tmp_path}/a/b", hint="another")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert own_folder(path, hint="another") == path


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702, 0o1777])
def test_one_that_others_may_write_into_is_refused(tmp_path, mode):
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(mode)
    with pytest.raises(StorageError) as caught:
        own_folder(f"{tmp_path}/own", hint="another")
    user, found = os.geteuid(), stat.filemode(stat.S_IFDIR | mode)
    expected = f"expected a folder that user {user} alone may write into, found {found} of user {user}"
    assert caught.value.message == f"`{tmp_path}/own`: {expected}"
    assert caught.value.hint == f"another, or allow nobody else to write there: `chmod 700 {tmp_path}/own`"


def test_one_that_others_may_read_is_taken(tmp_path):
    (tmp_path / "own").mkdir(mode=0o755)
    assert own_folder(f"{tmp_path}/own", hint="another") == f"{tmp_path}/own"


def test_a_link_is_refused(tmp_path):
    (tmp_path / "own").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="found lrwxrwxrwx of user"):
        own_folder(f"{tmp_path}/own", hint="another")
