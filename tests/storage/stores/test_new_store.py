"""Kinds of object storage: a module is all that one needs."""

from __future__ import annotations

import pytest

from tokenloom.errors import ConfigError, MissingObjectError
from tokenloom.storage import stores
from tokenloom.storage.addresses import parse_address
from tokenloom.storage.object_storage import close_storages
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.resolve import exists, read_start

MODULE = """
from tokenloom.storage.addresses import ObjectVersion
from tokenloom.storage.client import missing

SCHEMES = ("mem",)
OBJECTS = {"one": b"0123456789"}

def make_client(address, settings):
    return Client()

class Client:
    def version(self, address):
        if address.key not in OBJECTS:
            raise missing(address)
        return ObjectVersion(num_bytes=len(OBJECTS[address.key]), etag=None)

    def read(self, address, start, stop, version):
        return OBJECTS[address.key][start:stop]
"""


@pytest.fixture
def memory_store(tmp_path, monkeypatch):
    (tmp_path / "memory.py").write_text(MODULE)
    monkeypatch.setattr(stores, "__path__", [*stores.__path__, str(tmp_path)])
    stores.store_modules.cache_clear()
    yield
    stores.store_modules.cache_clear()
    close_storages()


def test_a_new_module_is_a_new_store(memory_store):
    remote = RemoteFile("mem://bucket/one")
    assert remote.num_bytes == 10
    assert remote.read(2, 3).tobytes() == b"234"
    assert read_start("mem://bucket/one", 4) == b"0123"
    assert not exists("mem://bucket/two")
    with pytest.raises(MissingObjectError, match="no object `mem://bucket/two`"):
        RemoteFile("mem://bucket/two")


def test_schemes_without_a_module_are_refused():
    with pytest.raises(ConfigError) as caught:
        parse_address("mem://bucket/one")
    known = "hf://, s3://, gs://, az://, http://, https://, msc://"
    assert caught.value.message == f"expected a path or an address with one of {known}, found `mem://bucket/one`"
