"""The server of S3 that the environment names."""

from __future__ import annotations

import socket
import threading

import pytest

from tokenloom import ConfigError, UnavailableError
from tokenloom.errors import IgnoredSettingWarning
from tokenloom.storage import endpoint
from tokenloom.storage.endpoint import VARIABLES, Endpoint, check_endpoint, s3_endpoint


@pytest.fixture(autouse=True)
def no_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "AWS_ALLOW_HTTP", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(endpoint, "_reached", set())
    monkeypatch.setattr(endpoint, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(endpoint, "_LONGEST_SECONDS", 60)


@pytest.mark.parametrize("variable", VARIABLES)
def test_each_variable_names_the_endpoint(variable, monkeypatch):
    assert s3_endpoint() is None
    monkeypatch.setenv(variable, "https://minio.example:9000/")
    assert s3_endpoint() == Endpoint(variable=variable, url="https://minio.example:9000")


def test_the_older_name_beside_another_endpoint_is_warned_of(monkeypatch):
    monkeypatch.setenv("AWS_S3_ENDPOINT_URL", "https://one.example")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://two.example")
    with pytest.warns(IgnoredSettingWarning, match=r"AWS_S3_ENDPOINT_URL has no effect beside AWS_ENDPOINT_URL"):
        assert str(s3_endpoint()) == "AWS_ENDPOINT_URL=https://two.example"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://one.example")
    s3_endpoint()


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


def test_an_unknown_name_a_closed_port_and_another_protocol_are_told():
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as other:
        closed.bind(("127.0.0.1", 0))
        threading.Thread(target=_answer_in_text, args=(other,), daemon=True).start()
        cases = {
            "https://nothing.invalid": "the name nothing.invalid is unknown",
            f"http://127.0.0.1:{closed.getsockname()[1]}": "Connection refused",
            f"https://127.0.0.1:{other.getsockname()[1]}": "does not speak TLS",
        }
        for url, problem in cases.items():
            with pytest.raises(UnavailableError, match=problem) as info:
                check_endpoint(Endpoint(variable="AWS_S3_ENDPOINT_URL", url=url))
            assert f"AWS_S3_ENDPOINT_URL={url} cannot be reached" in info.value.message
            assert info.value.hint == "correct AWS_S3_ENDPOINT_URL, or start the server it names"


def _answer_in_text(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
