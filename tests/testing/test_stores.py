"""The conformance checks of object store clients: tokenloom's clients pass them, and every fault is found and named."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

import pytest
from tests.object_store.server import ACCESS_KEY, REGION, SECRET_KEY

from tokenloom.errors import ConformanceError, UnavailableError
from tokenloom.storage.addresses import ObjectVersion, make_client, missing, parse_address
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.stores import replaced
from tokenloom.testing import check_store

ALL = 12


def test_object_stores_conform(bucket):
    client = make_client(parse_address(bucket.url("any")), ObjectStorageSettings())
    report = check_store(client, bucket.url("folder"))
    assert len(report.passed) == ALL
    assert report.skipped == {}
    assert bucket.keys() == []


@pytest.mark.slow
def test_profiles_conform(bucket, tmp_path, monkeypatch):
    options = {"base_path": bucket.name, "endpoint_url": bucket.proxy.endpoint, "region_name": REGION}
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
    profile = {
        "storage_provider": {"type": "s3", "options": options},
        "credentials_provider": {"type": "S3Credentials", "options": keys},
    }
    name = f"checked-{bucket.name}"  # the library keeps what it knows of a name
    (tmp_path / "msc.json").write_text(json.dumps({"profiles": {name: profile}}))
    monkeypatch.setenv("MSC_CONFIG", str(tmp_path / "msc.json"))
    bucket.put("deep/er/left alone", b"kept")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports
        client = make_client(parse_address(f"msc://{name}/any"), ObjectStorageSettings())
        report = check_store(client, f"msc://{name}/deep/er/", large_bytes=1000)
    assert len(report.passed) == ALL
    assert bucket.keys() == ["deep/er/left alone"]


class MemoryClient:
    def __init__(self):
        self.held = {}

    def version(self, address):
        if address.key not in self.held:
            raise missing(address)
        data = self.held[address.key]
        return ObjectVersion(num_bytes=len(data), etag=self.etag(data))

    def etag(self, data):
        return hashlib.sha256(data).hexdigest()

    def read(self, address, start, stop, version):
        if (found := self.version(address)) != version:
            raise replaced(address, version, found)
        return self.held[address.key][start:stop]

    def upload(self, address, path):
        self.held[address.key] = Path(path).read_bytes()

    def delete(self, address):
        self.held.pop(address.key, None)

    def keys(self, address):
        folder = address.key.removesuffix("/") + "/"
        return [key for key in self.held if key.startswith(folder) and "/" not in key[len(folder) :]]

    def objects(self, address):
        folder = address.key.removesuffix("/") + "/"
        return {
            key: ObjectVersion(num_bytes=len(data), etag=self.etag(data))
            for key, data in self.held.items()
            if key.startswith(folder)
        }


@pytest.mark.parametrize("folder", ["s3://anything", "gs://anything/", "az://any/where/else/"])
def test_a_minimal_client_conforms(folder):
    client = MemoryClient()
    assert len(check_store(client, folder).passed) == ALL
    assert client.held == {}


class WithoutEtags(MemoryClient):
    def etag(self, data):
        return None


def test_a_store_without_etags_conforms():
    report = check_store(WithoutEtags(), "s3://anything")
    assert report.skipped["a replaced version is never read"].startswith("the store has no etags")


class Decoding(WithoutEtags):
    def upload(self, address, path):
        self.held[address.key.replace("+", " ")] = Path(path).read_bytes()

    def version(self, address):
        return super().version(parse_address(str(address).replace("+", " ")))

    def read(self, address, start, stop, version):
        return super().read(parse_address(str(address).replace("+", " ")), start, stop, version)


def changed(**methods):
    return type("Changed", (MemoryClient,), methods)()


def silent(self, address):
    known = address.key in self.held
    return MemoryClient.version(self, address) if known else ObjectVersion(num_bytes=0, etag=None)


def other_errors(self, address):
    if address.key not in self.held:
        raise FileNotFoundError(address.key)
    return MemoryClient.version(self, address)


def newest(self, address, start, stop, version):
    self.version(address)
    return self.held[address.key][start:stop]


def written_once(self, address, path):
    if address.key not in self.held:
        MemoryClient.upload(self, address, path)


def deleted_once(self, address):
    if address.key not in self.held:
        raise UnavailableError(f"no `{address}`")
    del self.held[address.key]


def truncated(self, address, path):
    self.held[address.key] = Path(path).read_bytes()[: 8 << 20]


def flat(self, address):
    keys = self.keys(address)
    return {key: found for key, found in MemoryClient.objects(self, address).items() if key in keys}


def prefixes(self, address):
    return [key for key in self.held if key.startswith(address.key) and "deep" not in key]


def one_too_far(self, address, start, stop, version):
    return MemoryClient.read(self, address, start, stop + 1, version)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (
            changed(read=one_too_far),
            "Changed fails the check that a range of bytes is read exactly: expected 1 bytes for bytes [0, 1)",
        ),
        (
            changed(upload=truncated),
            "a large object is read as written: expected 9437184 bytes of `version`, found 8388608",
        ),
        (Decoding(), "name different objects: expected bytes [0, 3) of an object of 3 bytes, found other bytes"),
        (changed(version=silent), "expected `MissingObjectError` from `version` of a missing object, found no error"),
        (
            changed(version=other_errors),
            "`MissingObjectError` from `version` of a missing object, found FileNotFoundError: deep/er/check-",
        ),
        (changed(upload=written_once), "an upload replaces an object and changes its version: expected 1023 bytes"),
        (
            changed(read=newest),
            "expected `ReplacedObjectError` from `read` of a replaced version, found no error",
        ),
        (
            changed(keys=lambda self, address: list(self.objects(address))),
            "`keys` lists the objects directly in a folder: expected",
        ),
        (changed(keys=prefixes), "`keys` lists the objects directly in a folder: expected"),
        (changed(objects=flat), "`objects` lists all objects below a folder: expected"),
    ],
)
def test_faults_are_named(client, message):
    with pytest.raises(ConformanceError) as raised:
        check_store(client, "s3://anything/deep/er")
    assert message in str(raised.value)
    assert client.held == {} or isinstance(client, Decoding)


def test_errors_of_a_client_name_the_check():
    with pytest.raises(UnavailableError) as raised:
        check_store(changed(delete=deleted_once), "s3://anything")
    assert raised.value.__notes__[0].startswith("raised by the check of Changed that a deleted object is missing")
