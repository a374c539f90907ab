"""`run.lock` comes back as it was written, or not at all; a diff shows what changed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import dies_at
from tests.run.locks import make_lock, make_pair, source_of
from tests.run.small_runs import random_locks

from tokenloom.errors import ConfigError
from tokenloom.run.lock import (
    LockedDenial,
    LockedPair,
    LockedSegment,
    LockedSource,
    LockedTokenizer,
    RunLock,
    lock_bytes,
    parse_lock,
    read_lock,
    read_lock_if_there,
    write_lock,
)

HINT = "remove it and run `tokenloom run lock`"


def full_lock(folder):
    web = LockedSource(
        name="web",
        max_passes=4,
        pairs=(
            make_pair(f"{folder}/data/web-0", tokens_crc32=0, index_crc32=255, fingerprint="f", held_blocks=1),
            make_pair("s3://corpus/web-1", held_documents=2, held_tokens=20, packs=((4, 30), (8, 14)), since=100),
        ),
    )
    return make_lock(
        web,
        source_of("code", "/elsewhere/code"),
        dataset="fim",
        samples={"eod_mask_loss": True, "fim_rate": 0.5},
        tokenizer=LockedTokenizer(name="tokenizer.json", fingerprint="f", eod=0, pad=None, vocab_size=100),
        segments=(
            LockedSegment(
                stage="main", start=0, num_samples=100, mixed_as=200, sequence_length=4, weights=((0, 8), (1, 2))
            ),
            LockedSegment(stage="main", start=100, num_samples=None, sequence_length=8, weights=((1, 1),)),
        ),
        denials=(LockedDenial(start=7, documents=((0, (1, 5)), (1, (2,)))),),
        consumed=50,
    )


def test_the_file_of_a_lock(tmp_path):
    path = str(tmp_path / "run.lock")
    write_lock(path, full_lock(tmp_path))
    lines = (tmp_path / "run.lock").read_text().splitlines()
    digest = hashlib.sha256("".join(f"{line}\n" for line in lines[1:]).encode()).hexdigest()
    assert lines == [
        f'{{"format": "tokenloom run lock", "version": 1, "sha256": "{digest}",',
        f'"settings_sha256": "{"0" * 64}",',
        '"content_sha256": "",',
        '"order": 1,',
        '"seed": 1234,',
        '"documents": "shuffled",',
        '"windows": "concat",',
        '"mixing_block": 1024,',
        '"dataset": "fim",',
        '"samples": {"eod_mask_loss": true, "fim_rate": 0.5},',
        '"tokenizer": {"name": "tokenizer.json", "fingerprint": "f", "eod": 0, "pad": null, "vocab_size": 100},',
        '"consumed": 50,',
        '"sources": [',
        '{"name": "web", "max_passes": 4, "pairs": [',
        '{"prefix": "data/web-0", "num_documents": 10, "num_tokens": 100, "dtype": "uint16", "idx_bytes": 242, '
        '"index_start_crc32": "deadbeef", "tokens_crc32": "00000000", "index_crc32": "000000ff", "fingerprint": "f", '
        '"held_blocks": 1},',
        '{"prefix": "s3://corpus/web-1", "num_documents": 10, "num_tokens": 100, "dtype": "uint16", "idx_bytes": 242, '
        '"index_start_crc32": "deadbeef", "held_documents": 2, "held_tokens": 20, "packs": [[4, 30], [8, 14]], '
        '"since": 100}',
        "]},",
        '{"name": "code", "max_passes": null, "pairs": [',
        '{"prefix": "/elsewhere/code", "num_documents": 10, "num_tokens": 100, "dtype": "uint16", "idx_bytes": 242, '
        '"index_start_crc32": "deadbeef"}',
        "]}",
        "],",
        '"segments": [',
        '{"stage": "main", "start": 0, "num_samples": 100, "mixed_as": 200, "sequence_length": 4, '
        '"weights": [[0, 8], [1, 2]]},',
        '{"stage": "main", "start": 100, "num_samples": null, "mixed_as": null, "sequence_length": 8, '
        '"weights": [[1, 1]]}',
        "],",
        '"denials": [',
        '{"start": 7, "documents": [[0, [1, 5]], [1, [2]]]}',
        "]}",
    ]
    assert json.loads("\n".join(lines))["consumed"] == 50
    assert read_lock(path) == full_lock(tmp_path)


def test_a_lock_in_the_working_directory_names_pairs_from_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lock = make_lock(source_of("web", "data/web"))
    write_lock("run.lock", lock)
    assert read_lock("run.lock") == lock
    assert read_lock(f"{tmp_path}/run.lock").sources[0].pairs[0].prefix == f"{tmp_path}/data/web"


def test_a_lock_in_object_storage(bucket):
    folder = f"s3://{bucket.name}"
    lock = make_lock(source_of("web", f"{folder}/data/web", "s3://elsewhere/web"))
    write_lock(f"{folder}/run.lock", lock)
    assert read_lock(f"{folder}/run.lock") == lock
    assert read_lock_if_there(f"{folder}/other.lock") is None
    with pytest.raises(ConfigError, match="cannot refer to the local pair `data/web`"):
        write_lock(f"{folder}/run.lock", make_lock(source_of("web", "data/web")))


def test_no_secret_is_written(tmp_path):
    tokenizer = LockedTokenizer(name="https://host/t.json?sig=secret", fingerprint="f", eod=0, pad=0, vocab_size=9)
    data = lock_bytes(make_lock(tokenizer=tokenizer), path="run.lock")
    assert b"https://host/t.json" in data
    assert b"secret" not in data


def test_no_lock(tmp_path):
    assert read_lock_if_there(f"{tmp_path}/run.lock") is None
    with pytest.raises(ConfigError, match=r"no lock `.*run\.lock`") as caught:
        read_lock(f"{tmp_path}/run.lock")
    assert caught.value.hint == "create it with `tokenloom run lock`"


WHOLE = lock_bytes(full_lock("."), path="run.lock")


MERGE = b'    with pytest.raises(ConfigError, match="in object storage names the local path '/etc/web'"):
        parse_lock(with_members(in_pair(prefix="/etc/web")), path="s3://bucket/run.lock")
