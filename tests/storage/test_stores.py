import socket

import pytest

from tokenloom.errors import ConfigError, MissingObjectError, UnavailableError
from tokenloom.storage.addresses import (
    STORES,
    ObjectAddress,
    ObjectVersion,
    is_remote,
    make_client,
    missing,
    parse_address,
    path_of_name,
    relative_name,
)
from tokenloom.storage.objects import RemoteFile, close_storages
from tokenloom.storage.resolve import exists, read_start
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.stores import S3_VARIABLES, check_endpoint, s3_endpoint

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
    assert (remote.num_bytes, remote.read(2, 3).tobytes()) == (10, b"234")
    assert (read_start("mem://bucket/one", 4), exists("mem://bucket/two")) == (b"0123", False)
    with pytest.raises(MissingObjectError, match="no object `mem://bucket/two`"):
        RemoteFile("mem://bucket/two")
    close_storages()


@pytest.fixture
def nothing_set(monkeypatch):
    for name in (*S3_VARIABLES, "AWS_PROFILE", "AWS_ALLOW_HTTP", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)


def test_what_the_library_refuses_is_a_setting_that_is_wrong(nothing_set):
    with pytest.raises(ConfigError, match=r"connect to `az://box` with .* environment: .*Account must be specified"):
        make_client(parse_address("az://box/key"), ObjectStorageSettings())


@pytest.mark.parametrize("variable", S3_VARIABLES)
def test_each_variable_names_the_endpoint(variable, nothing_set, monkeypatch):
    assert s3_endpoint() is None
    monkeypatch.setenv(variable, "https://minio.example:9000/")
    assert s3_endpoint() == (variable, "https://minio.example:9000")


@pytest.mark.parametrize("url", ["localhost:9000", "minio", "s3://bucket", "https://", "http://host:port", "/tmp"])
def test_what_is_no_address_is_refused_with_the_variable(url, nothing_set, monkeypatch):
    monkeypatch.setenv("AWS_S3_ENDPOINT_URL", url)
    with pytest.raises(ConfigError, match="AWS_S3_ENDPOINT_URL: must be a URL, got") as info:
        s3_endpoint()
    assert info.value.hint == "write http://HOST:PORT or https://HOST"


def test_an_unencrypted_endpoint_elsewhere_must_be_allowed(nothing_set, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio.example:9000")
    with pytest.raises(ConfigError, match=r"AWS_ENDPOINT_URL=http://minio.*: the connection is not encrypted"):
        s3_endpoint()
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert s3_endpoint() is not None
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert s3_endpoint() is not None


def test_an_address_has_three_parts():
    address = parse_address("s3://bucket/a/b.idx")
    assert address == ObjectAddress("s3", "bucket", "a/b.idx")
    assert (str(address), address.root) == ("s3://bucket/a/b.idx", "s3://bucket")
    assert parse_address("s3://bucket", is_folder=True) == ObjectAddress("s3", "bucket", "")
    for path in ("gs://b/k", "az://b/k", "https://host:80/k", "msc://profile/k"):
        assert (str(parse_address(path)), is_remote(path)) == (path, True)


@pytest.mark.parametrize(
    ("path", "owner", "name"),
    [
        ("/a/b/c", "/a/run.lock", "b/c"),
        ("/a/b/c", "/a/d/run.lock", "/a/b/c"),
        ("s3://bucket/a/b", "/a/run.lock", "s3://bucket/a/b"),
        ("s3://bucket/a/b", "s3://bucket/a/run.lock", "b"),
        ("s3://bucket/b", "s3://bucket/a/run.lock", "s3://bucket/b"),
    ],
)
def test_there_and_back(path, owner, name):
    assert relative_name(path, owner=owner) == name
    assert path_of_name(name, owner=owner) == path


def test_names_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relative_name("data/web", owner="run.lock") == "data/web"
    assert relative_name(f"{tmp_path}/data/web", owner="run.lock") == "data/web"
    assert relative_name("../web", owner="run.lock") == f"{tmp_path.parent}/web"
    assert path_of_name("data/web", owner="run.lock") == "data/web"


def test_what_others_could_not_read_is_refused():
    message = r"`s3://bucket/run\.lock` is in object storage and cannot refer to the local pair"
    with pytest.raises(ConfigError, match=message):
        relative_name("/a/b", owner="s3://bucket/run.lock")
    for name in ("/a/b", "../b", "a/../../b"):
        with pytest.raises(ValueError, match=r"refers to the local path '.*'"):
            path_of_name(name, owner="s3://bucket/run.lock")


def test_an_endpoint_where_nothing_listens_is_an_error_at_once():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        unknown = "(?i)name or service not known|name resolution|no address"
        refusing = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for url, problem in (("https://nothing.invalid", unknown), (refusing, "Connection refused")):
            with pytest.raises(UnavailableError, match=problem) as info:
                check_endpoint("AWS_S3_ENDPOINT_URL", url)
            assert f"cannot reach the endpoint AWS_S3_ENDPOINT_URL={url}: " in info.value.message


def test_a_server_is_checked_once_and_not_behind_a_proxy(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = f"http://127.0.0.1:{server.getsockname()[1]}"
        check_endpoint("AWS_ENDPOINT", listening)
    check_endpoint("AWS_ENDPOINT", listening)
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    check_endpoint("AWS_ENDPOINT", "http://nothing.invalid")
