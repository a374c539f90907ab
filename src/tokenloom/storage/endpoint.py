"""The server of S3 that the environment names, and whether anything listens there.

Requests are repeated for minutes, because a store may be busy. A name that does not resolve, or a port where nothing
listens, will not get better: that is an error at once, with the variable that names it.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from tokenloom.errors import ConfigError, UnavailableError
from tokenloom.storage.addresses import ObjectAddress
from tokenloom.storage.secrets import endpoint_of

VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_S3_ENDPOINT_URL")
"""Where an endpoint may be named, the first that is set counts: boto3's names, the library's, and an older one."""

_ADDRESS = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+)(:\d{1,5})?(/\S*)?")
_TIMEOUT_SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server of S3.

    Attributes:
        variable: the variable that names it.
        url: its address, without a slash at its end.
    """

    variable: str
    url: str

    def __str__(self) -> str:
        return f"{self.variable}={self.url}"


def s3_endpoint() -> Endpoint | None:
    """Returns the server of S3 that the environment names; None for Amazon's own.

    Raises:
        ConfigError: it is no address of a server, has a user, a password or a query, or is unencrypted and not on this
            machine, which `AWS_ALLOW_HTTP=true` allows.
    """
    for variable in VARIABLES:
        if url := endpoint_of(variable):
            endpoint = Endpoint(variable=variable, url=url.rstrip("/"))
            break
    else:
        return None
    if _ADDRESS.fullmatch(endpoint.url) is None:
        message = f"expected the address of a store in {variable}, found {endpoint.url!r}"
        raise ConfigError(message, hint="write it as http://HOST:PORT or https://HOST")
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on", "y")
    parts = urlsplit(endpoint.url)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1") and not allowed:
        message = f"expected an encrypted connection, found {endpoint}"
        raise ConfigError(message, hint="write https://…, or set AWS_ALLOW_HTTP=true where the network is your own")
    return endpoint


def server_words(address: ObjectAddress) -> str:
    """Returns what names the server of an address, for people who wait for it; "" for what the address itself names."""
    if address.scheme != "s3":
        return ""
    named = s3_endpoint()
    return f"Amazon's, as {VARIABLES[1]} is not set" if named is None else str(named)


@cache
def check_endpoint(endpoint: Endpoint) -> None:
    """Checks, once per process, that something listens at an endpoint; a server that takes long counts as one.

    Processes of `multiprocessing` count on the one that started them. Behind a proxy, nothing is known of the server.

    Raises:
        UnavailableError: there is no such host, or nothing listens there.
    """
    from urllib.request import getproxies, proxy_bypass  # 10 ms of every start, and most have no endpoint

    parts = urlsplit(endpoint.url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    is_behind_proxy = parts.scheme in getproxies() and not proxy_bypass(host)
    if is_behind_proxy or multiprocessing.parent_process() is not None:
        return
    try:
        socket.create_connection((host, port), _TIMEOUT_SECONDS).close()
    except TimeoutError:
        pass
    except OSError as error:
        message = f"the endpoint of {endpoint} cannot be reached: {error.strerror or error}"
        hint = f"correct {endpoint.variable}, or start the server it names"
        raise UnavailableError(message, hint=hint) from error
