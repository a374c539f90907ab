"""The pool of open files."""

from __future__ import annotations

import threading

import pytest
from tests.storage.descriptors import num_open

from tokenloom.storage import local
from tokenloom.storage.local import MappedFile, PositionalFile


@pytest.fixture
def paths(tmp_path):
    made = [tmp_path / f"{number}.bin" for number in range(12)]
    for number, path in enumerate(made):
        path.write_bytes(bytes([number]) * 10)
    return [str(path) for path in made]


def test_many_threads_share_a_small_pool(tmp_path, paths, monkeypatch):
    monkeypatch.setattr(local, "_MOST_HANDLES", 2)
    failures = []

    def read(path: str, number: int) -> None:
        file = PositionalFile(path)
        for _ in range(300):
            if file.read(0, 10).tolist() != [number] * 10:
                failures.append(number)

    threads = [threading.Thread(target=read, args=(path, number)) for number, path in enumerate(paths)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert num_open(tmp_path) <= 2


def test_a_file_that_is_let_go_is_closed(tmp_path, paths):
    files = [PositionalFile(path) for path in paths[:2]]
    assert [file.read(0, 1).tolist() for file in files] == [[0], [1]]
    assert num_open(tmp_path) == 2
    del files[0]
    assert num_open(tmp_path) == 1


def test_many_files_are_read_with_few_descriptors(tmp_path):
    files = []
    for number in range(600):
        path = tmp_path / str(number)
        path.write_bytes(number.to_bytes(4, "little"))
        files.append(PositionalFile(str(path)) if number % 2 else MappedFile(str(path)))
    for number, file in enumerate(files):
        assert int.from_bytes(file.read(0, 4).tobytes(), "little") == number
    assert num_open(tmp_path) <= 256
