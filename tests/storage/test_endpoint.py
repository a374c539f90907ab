"""The server of S3 that the environment names."""

from __future__ import annotations

import socket

import pytest

from tokenloom import ConfigError, UnavailableError
from tokenloom.storage.stores import S3_VARIABLES, check_endpoint, s3_endpoint


@pytest.fixture(autouse=True)
def no_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*S3_VARIABLES, "AWS_ALLOW_HTTP", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", S3_VARIABLES)
def test_each_variable_names_the_endpoint(variable, monkeypatch):
    assert s3_endpoint() is None
    monkeypatch.setenv(variable, "https://minio.example:9000/")
    assert s3_endpoint() == (variable, "https://minio.example:9000")


@pytest.mark.parametrize("url", ["localhost:9000", "minio", "s3://bucket", "https://", "http://host:port", "/tmp"])
def test_what_is_no_address_is_refused_with_the_variable(url, monkeypatch):
    monkeypatch.setenv("AWS_S3_ENDPOINT_URL", url)
    with pytest.raises(ConfigError, match="expected the address of a store in AWS_S3_ENDPOINT_URL, found") as info:
        s3_endpoint()
    assert info.value.hint == "write it as http://HOST:PORT or https://HOST"


def test_an_unencrypted_endpoint_elsewhere_must_be_allowed(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio.example:9000")
    with pytest.raises(ConfigError, match=r"expected an encrypted connection, found AWS_ENDPOINT_URL=http://minio"):
        s3_endpoint()
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert s3_endpoint() is not None
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert s3_endpoint() is not None


def test_an_unknown_name_and_a_closed_port_are_told_at_once():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        cases = {
            "https://nothing.invalid": "(?i)name or service not known|name resolution|no address",
            f"http://127.0.0.1:{closed.getsockname()[1]}": "Connection refused",
        }
        for url, problem in cases.items():
            with pytest.raises(UnavailableError, match=problem) as info:
                check_endpoint("AWS_S3_ENDPOINT_URL", url)
            assert f"the endpoint of AWS_S3_ENDPOINT_URL={url} cannot be reached" in info.value.message
            assert info.value.hint == "correct AWS_S3_ENDPOINT_URL, or start the server it names"


def test_a_server_that_listens_is_asked_once_and_no_proxy_is(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = f"http://127.0.0.1:{server.getsockname()[1]}"
        check_endpoint("AWS_ENDPOINT", listening)
    check_endpoint("AWS_ENDPOINT", listening)
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    check_endpoint("AWS_ENDPOINT", "http://nothing.invalid")
