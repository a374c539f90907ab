"""Clients of object stores: one class per library; `addresses.STORES` lists them."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tokenloom.errors import (
    AccessDeniedError,
    ConfigError,
    MissingObjectError,
    ReplacedObjectError,
    StorageError,
    UnavailableError,
)
from tokenloom.optional import require
from tokenloom.storage.addresses import ObjectAddress, ObjectVersion, missing
from tokenloom.storage.secrets import clean_cause, endpoint_of, query_of, redacted
from tokenloom.storage.settings import ObjectStorageSettings

_CONNECT_SECONDS = 5.0
_UPLOAD_PART_BYTES = 8 << 20
_MOST_UPLOAD_PARTS = 9000  # S3 accepts 10,000
_TRY_ONCE = {"max_retries": 0}
_INSTANCE_METADATA = "169.254.169.254"
_WAYS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or install boto3 for profiles",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a file, or run `gcloud auth application-default login`",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN",
    **dict.fromkeys(("http", "https"), "sign the address"),
}
"""Hints for missing credentials, by scheme."""

_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}  # names of the store classes of obstore, by scheme

_MOST_SIGNED_STORES = 128  # maximum number of cached stores of obstore for signed addresses, one store per address

S3_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_S3_ENDPOINT_URL")
"""Environment variables of the S3 endpoint: of boto3, of obstore, and an older one. The first that is set counts."""

_ENDPOINTS = (*S3_VARIABLES, "AWS_METADATA_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL")
"""Environment variables with URLs of servers. obstore reads some itself, and its errors would print secrets in URLs."""

_SERVER = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+)(:\d{1,5})?(/\S*)?")


class _Client:
    """Base class of the clients; converts errors of a client's library to `StorageError`s that contain no secrets."""

    _failures: tuple[type[BaseException], ...]
    """Error classes of the library."""

    def _problem(self, address: ObjectAddress, error: Any) -> StorageError:
        """Returns the `StorageError` for an error of the library."""
        raise NotImplementedError

    @contextmanager
    def _worded(self, address: ObjectAddress) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except self._failures as error:
            raise self._problem(address, error) from clean_cause(error)


class ObstoreClient(_Client):
    """A client for S3, Google Cloud Storage, Azure and plain HTTP through obstore.

    Endpoint, region and credentials come from the usual environment variables (`AWS_ENDPOINT_URL`, ...). If
    AWS_ACCESS_KEY_ID is not set, boto3, if installed, provides credentials from profiles, single sign-on or roles.
    """

    def __init__(self, address: ObjectAddress, settings: ObjectStorageSettings) -> None:
        self._library = require("obstore", extra="s3")
        self._exceptions = require("obstore.exceptions", extra="s3")
        self._failures = (self._exceptions.BaseError, OSError)
        for variable in _ENDPOINTS:
            endpoint_of(variable)
        self._hint: str | None = None
        if address.scheme == "s3":
            self._hint = f"set {S3_VARIABLES[1]} if the store is not Amazon's"
            if (endpoint := s3_endpoint()) is not None:
                check_endpoint(*endpoint)
                self._hint = f"check the endpoint, {endpoint[0]}={endpoint[1]}, and the network"
        timeout = timedelta(seconds=settings.timeout_seconds)
        make = partial(_make_store, options={"timeout": timeout, "connect_timeout": timeout})
        try:
            self._store = make(address.root, retry_config=_TRY_ONCE)
            self._writer = make(address.root)
        except (self._exceptions.BaseError, ValueError) as error:
            message = f"cannot connect to `{address.root}` with the settings of the environment: {_reason_of(error)}"
            hint = "correct the environment variables of account and credentials, which `tokenloom doctor` lists"
            raise ConfigError(message, hint=hint) from clean_cause(error)
        # Makes a store for each signed address, so that the path is sent exactly as it was signed.
        self._signed = lru_cache(_MOST_SIGNED_STORES)(partial(make, retry_config=_TRY_ONCE))

    def version(self, address: ObjectAddress) -> ObjectVersion:
        store, key = self._place(address)
        with self._worded(address):
            if store is self._store:
                return _version_of(self._library.head(store, key))
            try:  # a signature for GET does not allow HEAD
                return _version_of(self._library.get(store, key, options={"range": (0, 1)}).meta)
            except self._exceptions.BaseError as error:
                if "status code: 416" not in str(error):  # 416: the object is empty
                    raise
                return _version_of(self._library.get(store, key).meta)

    def _place(self, address: ObjectAddress) -> tuple[Any, str]:
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
            found = self._library.list_with_delimiter(self._writer, _as_folder(address))
        return [each["path"] for each in found["objects"]]

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        with self._worded(address):
            parts = self._library.list(self._writer, _as_folder(address))
            return {each["path"]: _version_of(each) for part in parts for each in part}

    def _problem(self, address: ObjectAddress, error: Any) -> StorageError:
        exceptions, reason = self._exceptions, _reason_of(error)
        if isinstance(error, (exceptions.NotFoundError, FileNotFoundError)):
            return missing(address)
        if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
            return _denied(address, reason, hint="check the credentials and their permissions in this bucket")
        if _INSTANCE_METADATA in reason:  # the last source of credentials that obstore tries
            return _denied(address, "no credentials were found", hint=_WAYS[address.scheme])
        # 416: the object is shorter than when it was opened
        if isinstance(error, exceptions.PreconditionError) or "status code: 416" in reason:
            return replaced(address)
        return _unreachable(address, reason, hint=self._hint)


def _version_of(meta: Any) -> ObjectVersion:
    return ObjectVersion(num_bytes=meta["size"], etag=meta["e_tag"])


def s3_endpoint() -> tuple[str, str] | None:
    """Returns (environment variable, URL) of the S3 endpoint; None (Amazon's endpoint) if no variable is set."""
    named = ((variable, endpoint_of(variable)) for variable in S3_VARIABLES)
    variable, url = next(((variable, url.rstrip("/")) for variable, url in named if url), ("", ""))
    if not url:
        return None
    if _SERVER.fullmatch(url) is None:
        raise ConfigError(f"{variable}: must be a URL, got {url!r}", hint="write http://HOST:PORT or https://HOST")
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on", "y")
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1") and not allowed:
        hint = "write https://…, or set AWS_ALLOW_HTTP=true in a private network"
        raise ConfigError(f"{variable}={url}: the connection is not encrypted", hint=hint)
    return variable, url


@cache
def check_endpoint(variable: str, url: str) -> None:
    """Raises `UnavailableError` if no server listens at an endpoint. Skipped in child processes and behind a proxy."""
    from urllib.request import getproxies, proxy_bypass  # slow (10 ms), and most users do not need it

    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if multiprocessing.parent_process() is not None or (parts.scheme in getproxies() and not proxy_bypass(host)):
        return
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except TimeoutError:
        pass
    except OSError as error:
        message = f"cannot reach the endpoint {variable}={url}: {error.strerror or error}"
        raise UnavailableError(message, hint=f"correct {variable}, or start the server") from error


def _make_store(url: str, *, options: dict[str, Any], **settings: Any) -> Any:
    """Makes the obstore store for a bucket, or for everything below an HTTP address."""
    stores = require("obstore.store", extra="s3")
    scheme, _, bucket = url.partition("://")
    if scheme not in _CLASSES:
        options = {**options, "allow_http": scheme == "http"}
        return stores.HTTPStore.from_url(url, client_options=options, **settings)
    if scheme == "s3":
        settings["credential_provider"] = _boto3_credentials()
        if (endpoint := s3_endpoint()) is not None:
            settings["endpoint"] = endpoint[1]
            # Given `client_options`, obstore ignores AWS_ALLOW_HTTP, which `s3_endpoint` has checked.
            options = {**options, "allow_http": endpoint[1].startswith("http://")}
    return getattr(stores, _CLASSES[scheme])(bucket, client_options=options, **settings)


def _boto3_credentials() -> Any | None:
    """Returns the credentials of boto3; None if AWS_ACCESS_KEY_ID is set, or boto3 is missing or has no credentials."""
    is_missing = importlib.util.find_spec("boto3") is None and not os.environ.get("AWS_PROFILE")  # profiles need boto3
    if is_missing or os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    session = require("boto3", extra="aws").Session()
    if session.get_credentials() is None:
        return None
    return require("obstore.auth.boto3", extra="s3").Boto3CredentialProvider(session)


class MultiStorageClient(_Client):
    """A client for NVIDIA's multi-storage-client: `msc://profile/key`. Each read takes two requests."""

    def __init__(self, _: ObjectAddress, __: ObjectStorageSettings) -> None:
        self._library = require("multistorageclient", extra="msc")
        self._types = require("multistorageclient.types", extra="msc")
        self._failures = (OSError, RuntimeError, ValueError, self._types.RetryableError)

    def version(self, address: ObjectAddress) -> ObjectVersion:
        with self._resolved(address) as (client, path):
            found = client.info(path)
        return ObjectVersion(num_bytes=found.content_length, etag=found.etag)

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        with self._resolved(address) as (client, path):
            data = client.read(path, self._types.Range(offset=start, size=stop - start))
        if (found := self.version(address)) != version:
            raise replaced(address, version, found)
        return data

    def upload(self, address: ObjectAddress, path: str) -> None:
        with self._resolved(address) as (client, remote):
            client.upload_file(remote, path)

    def delete(self, address: ObjectAddress) -> None:
        with suppress(MissingObjectError), self._resolved(address) as (client, path):
            client.delete(path)

    def keys(self, address: ObjectAddress) -> list[str]:
        return _right_below(address, self._below(address))

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        # Versions do not come from the listing, which has no etags for some stores.
        return {key: self.version(replace(address, key=key)) for key in self._below(address)}

    def _below(self, address: ObjectAddress) -> list[str]:
        folder = _as_folder(address)
        with self._resolved(replace(address, key=folder)) as (client, path):
            names = [each.key[len(path) :] for each in client.list(path=path) if each.key.startswith(path)]
        return [folder + name for name in names if name]

    @contextmanager
    def _resolved(self, address: ObjectAddress) -> Iterator[tuple[Any, str]]:
        with self._worded(address):
            yield self._library.resolve_storage_client(str(address))

    def _problem(self, address: ObjectAddress, error: Any) -> StorageError:
        if isinstance(error, FileNotFoundError):
            return missing(address)
        if isinstance(error, PermissionError):
            return _denied(address, error, hint="check the credentials of the profile")
        if isinstance(error, ValueError):
            hint = "check the profiles in the file $MSC_CONFIG"
            return StorageError(f"cannot open `{address}`: {_reason_of(error)}", hint=hint)
        return _unreachable(address, error)


class HubClient(_Client):
    """A read-only client for repositories of the Hugging Face hub (or `HF_ENDPOINT`) through `huggingface_hub`.

    Addresses are `hf://datasets/ORG/NAME/PATH`, and `hf://ORG/NAME/PATH` for models; `@REVISION` after NAME selects a
    branch. The token comes from `HF_TOKEN` or `hf auth login`. The etag is the hash that the hub sends in each answer.
    """

    def __init__(self, _: ObjectAddress, settings: ObjectStorageSettings) -> None:
        self._library = require("huggingface_hub", extra="hf")
        self._errors = require("huggingface_hub.errors", extra="hf")
        self._tools = require("huggingface_hub.utils", extra="hf")
        self._api = self._library.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        self._seconds = settings.timeout_seconds
        self._refusals = (self._errors.HfUriError, self._errors.HFValidationError, self._tools.OfflineModeIsEnabled)
        self._failures = (*self._refusals, self._errors.HTTPError, OSError)

    def version(self, address: ObjectAddress) -> ObjectVersion:
        with self._worded(address):
            repository, path = self._place_of(address)
            found = self._api.get_paths_info(paths=[path], **repository) if path else []
        for file in found:
            if hasattr(file, "blob_id"):  # folders have none
                return _version_of_file(file)
        raise missing(address)

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with self._worded(address):
            repository, path = self._place_of(address)
            url = self._library.hf_hub_url(filename=path, endpoint=self._api.endpoint, **repository)
            headers |= self._tools.build_hf_headers()
            session = self._tools.get_session()
            answer = session.get(url, headers=headers, follow_redirects=True, timeout=self._seconds)
            if answer.status_code != 416:  # the file is shorter than when it was opened
                self._tools.hf_raise_for_status(answer)
        tags = [_tag_of(each.headers) for each in [*answer.history, answer]]
        found = next((tag for tag in tags if tag is not None), version.etag)
        if answer.status_code == 416 or (version.etag is not None and found != version.etag):
            raise replaced(address)
        data: bytes = answer.content
        return data if answer.status_code == 206 else data[start:stop]

    def upload(self, address: ObjectAddress, path: str = "") -> None:
        message = f"cannot write `{address}`: tokenloom only reads from the hub"
        raise StorageError(message, hint="write to a local folder, and upload it with `hf upload`")

    delete = upload

    def keys(self, address: ObjectAddress) -> list[str]:
        return _right_below(address, self.objects(address))

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        with self._worded(address):
            repository, path = self._place_of(address)
            try:
                listed = list(self._api.list_repo_tree(path_in_repo=path or None, recursive=True, **repository))
            except self._errors.EntryNotFoundError:
                return {}
        before = address.key.removesuffix("/").removesuffix(path).removesuffix("/")
        return {f"{before}/{each.path}": _version_of_file(each) for each in listed if hasattr(each, "blob_id")}

    def _place_of(self, address: ObjectAddress) -> tuple[dict[str, str], str]:
        """Returns the library's arguments for a repository, and the path inside the repository ("" for the root)."""
        place = self._tools.parse_hf_uri(str(address).removesuffix("/"))
        names = {"repo_id": place.id, "repo_type": place.type, "revision": place.revision or "main"}
        return names, place.path_in_repo

    def _problem(self, address: ObjectAddress, error: Any) -> StorageError:
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if isinstance(error, self._refusals):
            hint = "write `hf://datasets/ORG/NAME/PATH`, and unset `HF_HUB_OFFLINE`"
            return StorageError(f"cannot read `{address}`: {_reason_of(error)}", hint=hint)
        if status in (401, 403):
            hint = "set `HF_TOKEN` or run `hf auth login`; for a gated repository, accept the conditions on its page"
            return _denied(address, getattr(error, "server_message", None) or error, hint=hint)
        if status in (404, 410):
            return missing(address)
        return _unreachable(address, error, hint="check the network and `HF_ENDPOINT`")


def _version_of_file(file: Any) -> ObjectVersion:
    large = getattr(file, "lfs", None)
    return ObjectVersion(num_bytes=file.size, etag=file.blob_id if large is None else large.sha256)


def _tag_of(headers: Any) -> str | None:
    """Returns the file hash in an answer of the hub; None for another server's answer: its etags are no file hashes."""
    tag = headers.get("x-linked-etag") or (headers.get("etag") if "x-repo-commit" in headers else None)
    return None if tag is None else tag.removeprefix("W/").strip('"')


def _as_folder(address: ObjectAddress) -> str:
    """Returns the key prefix of all objects in a folder."""
    return address.key.removesuffix("/") + "/" if address.key else ""


def _right_below(address: ObjectAddress, keys: Iterable[str]) -> list[str]:
    folder = _as_folder(address)
    return [key for key in keys if "/" not in key[len(folder) :]]


def _denied(address: ObjectAddress, reason: object, *, hint: str) -> AccessDeniedError:
    return AccessDeniedError(f"access to `{address}` was denied: {_reason_of(reason)}", hint=hint)


def _unreachable(address: ObjectAddress, reason: object, *, hint: str | None = None) -> UnavailableError:
    return UnavailableError(f"cannot reach `{address}`: {_reason_of(reason)}", hint=hint)


def replaced(address: ObjectAddress, *versions: ObjectVersion) -> ReplacedObjectError:
    """Returns the error for a replaced object; `versions` are the expected and the found version, or empty."""
    difference = ": expected {}, found {}".format(*versions) if versions else ""
    message = f"`{address}` was replaced after it was opened{difference}"
    return ReplacedObjectError(message, hint="open the dataset again")


def _reason_of(error: object) -> str:
    """Returns the first line of a library's error message, without secrets."""
    text = redacted(str(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__
