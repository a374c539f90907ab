"""The server of S3 that the environment names, and whether it can be one: told at once, not when patience ends.

Requests are repeated for minutes, because a store may be busy. A name that does not resolve, a port where nothing
listens, or a server of another protocol will not get better: that is said after a few seconds, with the variable.
"""

from __future__ import annotations

import ipaddress
import logging
import multiprocessing
import os
import socket
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from tokenloom.errors import ConfigError, IgnoredSettingWarning, UnavailableError
from tokenloom.storage.addresses import ObjectAddress
from tokenloom.storage.secrets import endpoint_of

_LOGGER = logging.getLogger(__name__)

VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_S3_ENDPOINT_URL")
"""Where an endpoint may be named, the first that is set counts: boto3's names, the library's, and an older one."""

_PATIENCE_SECONDS = 3.0
_LONGEST_SECONDS = 4.0
_PAUSE_SECONDS = 0.25
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")

_reached: set[str] = set()
"""Endpoints that were found to answer; a fork knows what its parent knew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server of S3.

    Attributes:
        variable: the variable that names it.
        url: its address, without a slash at its end.
    """

    variable: str
    url: str

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine."""
        host = urlsplit(self.url).hostname or ""
        with suppress(ValueError):
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        return False

    def __str__(self) -> str:
        return f"{self.variable}={self.url}"


def s3_endpoint() -> Endpoint | None:
    """Returns the server of S3 that the environment names; None for Amazon's own.

    A second variable that names another server is warned of, as nobody asks that one.

    Raises:
        ConfigError: it is no address of a server, has a user, a password or a query, or is unencrypted and not on this
            machine, which `AWS_ALLOW_HTTP=true` allows.
    """
    named = [Endpoint(variable=name, url=url.rstrip("/")) for name in VARIABLES if (url := endpoint_of(name))]
    if not named:
        return None
    first, *others = named
    _check_address(first)
    if (unused := VARIABLES[-1]) in {each.variable for each in others if each.url != first.url}:
        message = f"{unused} has no effect beside {first.variable}, which names another endpoint, {first.url}"
        warnings.warn(message, IgnoredSettingWarning, stacklevel=2)
    return first


def server_words(address: ObjectAddress) -> str:
    """Returns what names the server of an address, for people who wait for it; "" for what the address itself names."""
    if address.scheme != "s3":
        return ""
    named = s3_endpoint()
    return f"Amazon's, as {VARIABLES[1]} is not set" if named is None else str(named)


def check_endpoint(endpoint: Endpoint) -> None:
    """Makes sure, once per process, that an endpoint can be one; what only takes long is logged, and believed.

    Processes that another one started count on it. Behind a proxy, nothing is known of the server.

    Raises:
        UnavailableError: there is no such host, nothing listens there, or it speaks another protocol: known after a few
            seconds.
    """
    import urllib.request  # with `ssl`, 10 ms of every start, and most have no endpoint

    parts = urlsplit(endpoint.url)
    proxied = parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.hostname or "")
    if endpoint.url in _reached or proxied or multiprocessing.parent_process() is not None:
        return
    found: list[str | None] = []
    looking = threading.Thread(target=lambda: found.append(_problem_of(parts)), name="tokenloom-endpoint", daemon=True)
    looking.start()
    looking.join(_LONGEST_SECONDS)
    if not found:
        _LOGGER.warning("%s has not answered for %.0f s; asking on", endpoint, _LONGEST_SECONDS)
        return
    if (problem := found[0]) is not None:
        message = f"the endpoint of {endpoint} cannot be reached: {problem}"
        raise UnavailableError(message, hint=f"correct {endpoint.variable}, or start the server it names")
    _reached.add(endpoint.url)


def _check_address(endpoint: Endpoint) -> None:
    parts = urlsplit(endpoint.url)
    if parts.scheme not in ("http", "https") or not parts.hostname or _port_of(parts) is None:
        message = f"expected the address of a store in {endpoint.variable}, found {endpoint.url!r}"
        raise ConfigError(message, hint="write it as http://HOST:PORT or https://HOST")
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on", "y")
    if parts.scheme == "http" and not endpoint.is_loopback and not allowed:
        message = f"expected an encrypted connection, found {endpoint}"
        raise ConfigError(message, hint="write https://…, or set AWS_ALLOW_HTTP=true where the network is your own")


def _port_of(parts: SplitResult) -> int | None:
    try:
        return parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:  # no number, or none of a port
        return None


def _problem_of(parts: SplitResult) -> str | None:
    """Returns why a server cannot be the right one, after it was so for a while; None if it answers."""
    host, port = parts.hostname or "", _port_of(parts) or 0
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        problem = _asked(host, port, parts.scheme == "https")
        if problem is None or time.monotonic() + _PAUSE_SECONDS > deadline:
            return problem
        time.sleep(_PAUSE_SECONDS)


def _asked(host: str, port: int, encrypted: bool) -> str | None:  # noqa: FBT001  of the address
    import ssl

    try:
        with socket.create_connection((host, port), _LONGEST_SECONDS) as connection:
            if encrypted:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the requests verify it
                context.wrap_socket(connection, server_hostname=host).close()
    except TimeoutError:
        return f"no answer from {host} at port {port}"
    except socket.gaierror as error:
        return f"the name {host} is unknown ({error.strerror})"
    except ssl.SSLError as error:  # of any other kind, it speaks TLS, and requests will say what it minds
        return f"{host} at port {port} does not speak TLS" if error.reason in _NO_TLS else None
    except OSError as error:
        return f"{host} at port {port}: {error.strerror or error}"
    return None
