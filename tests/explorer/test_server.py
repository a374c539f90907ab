"""A socket that listens, and its address."""

from __future__ import annotations

import socket

import pytest

from tokenloom.errors import ConfigError
from tokenloom.explorer.server import LocalServer


@pytest.fixture
def server() -> LocalServer:
    server = LocalServer({})
    yield server
    server.close()


def test_this_machine_alone_by_default(server):
    assert server.is_loopback
    assert server.url == f"http://127.0.0.1:{server.port}/?token={server.access.token}"
    assert len(server.access.token) == 43


def test_an_answer_of_two_packets_does_not_wait_for_the_client(server):
    with socket.create_connection(("127.0.0.1", server.port)), server._socket.accept()[0] as connection:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_tokens_differ(server):
    other = LocalServer({})
    other.close()
    assert other.access.token != server.access.token


def test_all_addresses_are_named_by_the_name_of_the_machine():
    server = LocalServer({}, host="0.0.0.0")
    server.close()
    assert not server.is_loopback
    assert server.url.startswith(f"http://{socket.gethostname()}:{server.port}/?token=")


def test_a_port_that_is_taken_is_named(server):
    with pytest.raises(ConfigError, match=rf"cannot listen at `127.0.0.1`, port {server.port}: Address already in use"):
        LocalServer({}, port=server.port)


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("127.0.0.1", 70000), ("a" * 300, 0)])
def test_what_is_no_host_or_port_of_this_machine_is_refused(host, port):
    with pytest.raises(ConfigError, match="listen at"):
        LocalServer({}, host=host, port=port)
