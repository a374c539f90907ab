"""Sources are compared with the lock: at a glance, byte by byte, and when a pair is opened."""

from __future__ import annotations

import os

import pytest
from tests.run.data import settings_of, write_source, write_with_manifest
from tests.run.locks import make_lock

from tokenloom.run.sources import check_sources, lock_sources


@pytest.fixture
def lock(tmp_path):
    write_with_manifest(tmp_path / "web" / "a", 3, 4)
    write_with_manifest(tmp_path / "web" / "b", 5)
    write_source(tmp_path / "code", 6)
    return make_lock(*lock_sources(settings_of(tmp_path, 'web = "web/*"', 'code = "code"'), old=None, at=0))


def messages(lock, **options):
    return [problem.message for problem in check_sources(lock, **options) if not problem.is_unknown]


def flip(path, *, at):
    with open(path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_nothing_is_wrong(lock, tmp_path):
    assert check_sources(lock, full=False) == []
    unknown = check_sources(lock, full=True)
    assert [(problem.source, os.path.relpath(problem.path, tmp_path)) for problem in unknown] == [
        ("code", "code.bin"),
        ("code", "code.idx"),
    ]
    assert all(problem.is_unknown and "no checksum is known" in problem.message for problem in unknown)


def test_every_pair_that_is_missing_or_changed_is_told(lock, tmp_path):
    os.unlink(tmp_path / "web" / "a.bin")
    os.truncate(tmp_path / "web" / "b.bin", 8)
    os.unlink(tmp_path / "code.bin")
    os.unlink(tmp_path / "code.idx")
    write_source(tmp_path / "code", 6, 7)
    problems = check_sources(lock, full=False)
    assert [problem.source for problem in problems] == ["web", "web", "code"]
    assert [problem.message.replace(f"{tmp_path}/", "") for problem in problems] == [
        "no file `web/a.bin`",
        "`web/b.bin`: expected 10 bytes (the end of sequence 0 in `web/b.idx`), found 8",
        "`code.idx` changed after it was locked: expected documents: 1, found 2",
    ]


def test_other_tokens_are_found_by_reading_alone(lock, tmp_path):
    flip(tmp_path / "web" / "a.bin", at=3)
    assert messages(lock, full=False) == []
    (message,) = messages(lock, full=True)
    assert message.startswith(f"`{tmp_path}/web/a.bin` changed after it was locked: expected bytes with CRC-32 ")


def test_pairs_of_a_store(bucket, tmp_path):
    write_with_manifest(tmp_path / "web", 3, 4)
    bucket.put_pair(f"{tmp_path}/web", "web")
    bucket.put("web.manifest.json", (tmp_path / "web.manifest.json").read_bytes())
    lock = make_lock(*lock_sources(settings_of(tmp_path, f'web = "{bucket.url("web")}"'), old=None, at=0))
    assert check_sources(lock, full=True) == []
    flip(tmp_path / "web.bin", at=1)
    bucket.put("web.bin", (tmp_path / "web.bin").read_bytes())
    (message,) = messages(lock, full=True)
    assert message.startswith(f"`{bucket.url('web.bin')}` changed after it was locked: expected bytes with CRC-32 ")
