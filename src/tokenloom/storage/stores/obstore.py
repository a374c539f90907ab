"""S3, Google Cloud Storage, Azure and plain HTTP through obstore."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tokenloom.errors import ConfigError, MissingObjectError, StorageError, UnavailableError
from tokenloom.optional import require
from tokenloom.storage.addresses import (
    ObjectAddress,
    ObjectVersion,
    as_folder,
    denied,
    missing,
    reason_of,
    replaced,
    unreachable,
)
from tokenloom.storage.secrets import clean_cause, endpoint_of, query_of
from tokenloom.storage.settings import ObjectStorageSettings

_UPLOAD_PART_BYTES = 8 << 20
_MOST_UPLOAD_PARTS = 9000  # S3 takes 10,000
_UPLOAD_RETRIES = 10
_INSTANCE_METADATA = "169.254.169.254"
_WAYS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or install boto3 for profiles",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a file, or run `gcloud auth application-default login`",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN",
    **dict.fromkeys(("http", "https"), "sign the address"),
}
"""To credentials, by scheme."""

_STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
"""The library's classes, by scheme."""

_MOST_SIGNED_STORES = 128
"""Kept for addresses with queries, which have one each; the oldest goes first."""

S3_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_S3_ENDPOINT_URL")
"""Where an endpoint may be named, the first that is set counts: boto3's names, the library's, and an older one."""

_ENDPOINTS = (
    *S3_VARIABLES,
    "AWS_METADATA_ENDPOINT",
    *("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL"),
)
"""Variables that name a server; the library reads some by itself, and would print them."""

_SERVER = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+)(:\d{1,5})?(/\S*)?")
_CONNECT_SECONDS = 4.0


class ObstoreClient:
    """S3, Google Cloud Storage, Azure and plain HTTP through obstore.

    Endpoint, region and credentials come from the usual environment variables (`AWS_ENDPOINT_URL`, ...). Where those
    name no S3 key and boto3 is installed, boto3 finds the credentials: profiles, single sign-on, roles.
    """

    def __init__(self, address: ObjectAddress, settings: ObjectStorageSettings) -> None:
        self._library = require("obstore", extra="s3")
        for variable in _ENDPOINTS:
            endpoint_of(variable)
        self._hint: str | None = None
        endpoint = s3_endpoint() if address.scheme == "s3" else None
        if endpoint is not None:
            check_endpoint(*endpoint)
            self._hint = f"check the endpoint, {endpoint[0]}={endpoint[1]}, and the network"
        elif address.scheme == "s3":
            self._hint = f"no endpoint is named, so Amazon's was asked; another is named by {S3_VARIABLES[1]}"
        self._exceptions = require("obstore.exceptions", extra="s3")
        timeout = timedelta(seconds=settings.timeout_seconds)
        options = {"timeout": timeout, "connect_timeout": timeout}
        try:
            self._store = _make_store(address, endpoint, options, max_retries=0)
            self._writer = _make_store(address, endpoint, options, max_retries=_UPLOAD_RETRIES)
        except (self._exceptions.BaseError, ValueError) as error:
            message = f"`{address.root}` cannot be asked with these settings: {reason_of(error)}"
            hint = "correct the variables of account and credentials; `tokenloom doctor` says which are set"
            raise ConfigError(message, hint=hint) from clean_cause(error)
        # A store for one object; its path stays as it was signed.
        self._signed = lru_cache(_MOST_SIGNED_STORES)(partial(_make_http_store, options=options, max_retries=0))

    def version(self, address: ObjectAddress) -> ObjectVersion:
        store, key = self._place(address)
        with self._worded(address):
            if store is self._store:
                return _version_of(self._library.head(store, key))
            try:  # what is signed for GET allows no HEAD
                return _version_of(self._library.get(store, key, options={"range": (0, 1)}).meta)
            except self._exceptions.BaseError as error:
                if "status code: 416" not in str(error):  # the answer for an empty object
                    raise
                return _version_of(self._library.get(store, key).meta)

    def _place(self, address: ObjectAddress) -> tuple[Any, str]:
        """Returns a store and the key in it by which an object is read."""
        query = query_of(str(address))
        return (self._store, address.key) if query is None else (self._signed(f"{address}?{query}"), "")

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        options: dict[str, Any] = {"range": (start, stop)}
        if version.etag is not None:
            options["if_match"] = version.etag
        with self._worded(address):
            store, key = self._place(address)
            result = self._library.get(store, key, options=options)
            if (found := _version_of(result.meta)) != version:
                raise replaced(address, version, found)
            return result.bytes()

    def upload(self, address: ObjectAddress, path: str) -> None:
        part = max(_UPLOAD_PART_BYTES, os.path.getsize(path) // _MOST_UPLOAD_PARTS)
        with self._worded(address):
            self._library.put(self._writer, address.key, Path(path), chunk_size=part)

    def delete(self, address: ObjectAddress) -> None:
        with suppress(MissingObjectError), self._worded(address):
            self._library.delete(self._writer, address.key)

    def keys(self, address: ObjectAddress) -> list[str]:
        with self._worded(address):
            found = self._library.list_with_delimiter(self._writer, as_folder(address))
        return [each["path"] for each in found["objects"]]

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        with self._worded(address):
            parts = self._library.list(self._writer, as_folder(address))
            return {each["path"]: _version_of(each) for part in parts for each in part}

    @contextmanager
    def _worded(self, address: ObjectAddress) -> Iterator[None]:
        """Turns the library's errors into ours."""
        exceptions = self._exceptions
        try:
            yield
        except StorageError:
            raise
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            raise missing(address) from clean_cause(error)
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            hint = "check the credentials and what they may do in this bucket"
            raise denied(address, error, hint=hint) from clean_cause(error)
        except exceptions.PreconditionError as error:
            raise replaced(address) from clean_cause(error)
        except (exceptions.BaseError, OSError) as error:
            reason = reason_of(error)
            if _INSTANCE_METADATA in reason:  # the last place where the library looks for credentials
                raise denied(address, "no credentials were found", hint=_WAYS[address.scheme]) from clean_cause(error)
            if "status code: 416" in reason:  # beyond the end that the object had when it was opened
                raise replaced(address) from clean_cause(error)
            raise unreachable(address, reason, hint=self._hint) from clean_cause(error)


def _version_of(meta: Any) -> ObjectVersion:
    return ObjectVersion(num_bytes=meta["size"], etag=meta["e_tag"])


def s3_endpoint() -> tuple[str, str] | None:
    """Returns the server of S3 that the environment names, behind the variable that does; None for Amazon's own."""
    named = ((variable, endpoint_of(variable)) for variable in S3_VARIABLES)
    variable, url = next(((variable, url.rstrip("/")) for variable, url in named if url), ("", ""))
    if not url:
        return None
    if _SERVER.fullmatch(url) is None:
        message = f"expected the address of a store in {variable}, found {url!r}"
        raise ConfigError(message, hint="write it as http://HOST:PORT or https://HOST")
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on", "y")
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1") and not allowed:
        message = f"expected an encrypted connection, found {variable}={url}"
        raise ConfigError(message, hint="write https://…, or set AWS_ALLOW_HTTP=true where the network is your own")
    return variable, url


@cache
def check_endpoint(variable: str, url: str) -> None:
    """Checks, once per process, that something listens at an endpoint; a server that takes long counts as one.

    Requests are repeated for minutes, because a store may be busy; a name that does not resolve, or a port where
    nothing listens, will not get better. Processes of `multiprocessing` count on the one that started them. Behind a
    proxy, nothing is known of the server.
    """
    from urllib.request import getproxies, proxy_bypass  # 10 ms of every start, and most have no endpoint

    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    is_behind_proxy = parts.scheme in getproxies() and not proxy_bypass(host)
    if is_behind_proxy or multiprocessing.parent_process() is not None:
        return
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except TimeoutError:
        pass
    except OSError as error:
        message = f"the endpoint of {variable}={url} cannot be reached: {error.strerror or error}"
        raise UnavailableError(message, hint=f"correct {variable}, or start the server it names") from error


def _make_store(
    address: ObjectAddress, endpoint: tuple[str, str] | None, options: dict[str, Any], *, max_retries: int
) -> Any:
    if address.scheme in ("http", "https"):
        return _make_http_store(address.root, options, max_retries=max_retries)
    more: dict[str, Any] = {}
    if address.scheme == "s3":
        more["credential_provider"] = _boto3_credentials()
    if endpoint is not None:
        more["endpoint"] = endpoint[1]
        # `s3_endpoint` has found it to be allowed; the library reads AWS_ALLOW_HTTP only where no options are given.
        options = {**options, "allow_http": endpoint[1].startswith("http://")}
    kind = getattr(require("obstore.store", extra="s3"), _STORES[address.scheme])
    return kind(address.bucket, client_options=options, retry_config={"max_retries": max_retries}, **more)


def _make_http_store(url: str, options: dict[str, Any], *, max_retries: int) -> Any:
    options = {**options, "allow_http": url.startswith("http://")}
    store = require("obstore.store", extra="s3").HTTPStore
    return store.from_url(url, client_options=options, retry_config={"max_retries": max_retries})


def _boto3_credentials() -> Any | None:
    """Returns boto3's credentials where the environment names none itself and boto3 finds some."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    if importlib.util.find_spec("boto3") is None:
        if os.environ.get("AWS_PROFILE"):
            require("boto3", extra="aws")  # nothing else reads profiles
        return None
    session = require("boto3", extra="aws").Session()
    if session.get_credentials() is None:
        return None
    return require("obstore.auth.boto3", extra="s3").Boto3CredentialProvider(session)
