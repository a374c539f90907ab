"""Kinds of object storage: a class is all that one needs; credentials are found, or named where they are missing."""

from __future__ import annotations

import pytest
from tests.object_store.server import aws_environment
from tests.storage.remotes import SETTINGS, read

from tokenloom import ConfigError
from tokenloom.errors import MissingObjectError
from tokenloom.storage.addresses import STORES, ObjectVersion, make_client, missing, parse_address
from tokenloom.storage.objects import RemoteFile, close_storages
from tokenloom.storage.resolve import exists, read_start
from tokenloom.storage.settings import ObjectStorageSettings

OBJECTS = {"one": b"0123456789"}


class MemoryStore:
    def __init__(self, address, settings):
        pass

    def version(self, address):
        if address.key not in OBJECTS:
            raise missing(address)
        return ObjectVersion(num_bytes=len(OBJECTS[address.key]), etag=None)

    def read(self, address, start, stop, version):
        return OBJECTS[address.key][start:stop]


def test_a_class_is_a_new_store(monkeypatch):
    monkeypatch.setitem(STORES, "mem", f"{__name__}:MemoryStore")
    remote = RemoteFile("mem://bucket/one")
    assert remote.num_bytes == 10
    assert remote.read(2, 3).tobytes() == b"234"
    assert read_start("mem://bucket/one", 4) == b"0123"
    assert not exists("mem://bucket/two")
    with pytest.raises(MissingObjectError, match="no object `mem://bucket/two`"):
        RemoteFile("mem://bucket/two")
    close_storages()


@pytest.fixture
def nothing_set(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_S3_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)


def test_what_the_library_refuses_is_a_setting_that_is_wrong(nothing_set):
    with pytest.raises(
        ConfigError, match=r"`az://box` cannot be asked with these settings: .*Account must be specified"
    ):
        make_client(parse_address("az://box/key"), ObjectStorageSettings())


@pytest.mark.slow
def test_credentials_of_a_profile_are_found_through_boto3(bucket, data, tmp_path, monkeypatch):
    path = bucket.put("key", data)
    environment = aws_environment(bucket.proxy.endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    credentials = tmp_path / "credentials"
    credentials.write_text(
        f"[training]\naws_access_key_id = {environment['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {environment['AWS_SECRET_ACCESS_KEY']}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "training")
    assert read(RemoteFile(path, SETTINGS), 100, 50) == data[100:150]
