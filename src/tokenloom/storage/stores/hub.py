"""Repositories of the Hugging Face hub, to read: `hf://datasets/ORG/NAME/PATH`, and `hf://ORG/NAME/PATH` of models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import unquote

from tokenloom.errors import AccessDeniedError, ConfigError, MissingObjectError, StorageError, UnavailableError
from tokenloom.optional import require
from tokenloom.storage.addresses import ObjectAddress, ObjectVersion
from tokenloom.storage.client import ObjectClient, as_folder, missing, reason_of, replaced
from tokenloom.storage.secrets import clean_cause
from tokenloom.storage.settings import ObjectStorageSettings

SCHEMES = ("hf",)

_KINDS = {"datasets": "dataset", "spaces": "space"}
_DENIED = (401, 403)
_ABSENT = (404, 410)


def make_client(_: ObjectAddress, settings: ObjectStorageSettings) -> ObjectClient:
    """Returns a client of the hub.

    Raises:
        MissingExtraError: its client is not installed.
    """
    return HubClient(settings)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a file is: in the repository of a kind, at a revision; a path of "" is all of it."""

    repository: str
    kind: str
    revision: str
    path: str
    before: str  # what keys of the repository begin with


class HubClient:
    """Repositories of the Hugging Face hub, or of the server that `HF_ENDPOINT` names, through `huggingface_hub`.

    The token is that of `HF_TOKEN`, or of `hf auth login`. A version is told by the hash of the bytes, which the hub
    sends with each answer; `@REVISION` behind the name of a repository pins what a branch stands for.
    """

    def __init__(self, settings: ObjectStorageSettings) -> None:
        self._library = require("huggingface_hub", extra="hf")
        self._errors = require("huggingface_hub.errors", extra="hf")
        self._tools = require("huggingface_hub.utils", extra="hf")
        self._api = self._library.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        self._seconds = settings.timeout_seconds

    def version(self, address: ObjectAddress) -> ObjectVersion:
        place = _place_of(address)
        if not place.path:
            raise missing(address)
        with self._worded(address):
            found = self._api.get_paths_info(
                place.repository, [place.path], revision=place.revision, repo_type=place.kind
            )
        files = [each for each in found if hasattr(each, "blob_id")]
        if not files:
            raise missing(address)
        return _version_of(files[0])

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        if stop <= start:
            return b""
        place = _place_of(address)
        url = self._library.hf_hub_url(
            place.repository,
            place.path,
            repo_type=place.kind,
            revision=place.revision,
            endpoint=self._api.endpoint,
        )
        headers = {
            **self._tools.build_hf_headers(),
            "Range": f"bytes={start}-{stop - 1}",
            "Accept-Encoding": "identity",
        }
        with self._worded(address):
            session = self._tools.get_session()
            answer = session.get(url, headers=headers, follow_redirects=True, timeout=self._seconds)
            if answer.status_code != 416:
                self._tools.hf_raise_for_status(answer)
        tags = [_tag_of(each.headers) for each in [*answer.history, answer]]
        found = next((tag for tag in tags if tag is not None), None)
        if answer.status_code == 416 or (version.etag is not None and found is not None and found != version.etag):
            raise replaced(address)
        data: bytes = answer.content
        data = data if answer.status_code == 206 else data[start:stop]
        if len(data) != stop - start:
            message = f"`{address}` sent {len(data)} bytes of the {stop - start} that were asked for"
            raise UnavailableError(message)
        return data

    def upload(self, address: ObjectAddress, path: str) -> None:
        _refuse(address)

    def delete(self, address: ObjectAddress) -> None:
        _refuse(address)

    def keys(self, address: ObjectAddress) -> list[str]:
        folder = as_folder(address)
        return [key for key in self.objects(address) if "/" not in key[len(folder) :]]

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        place = _place_of(address)
        try:
            with self._worded(address):
                listed = list(
                    self._api.list_repo_tree(
                        place.repository,
                        place.path or None,
                        recursive=True,
                        revision=place.revision,
                        repo_type=place.kind,
                    )
                )
        except MissingObjectError as error:
            if isinstance(error.__cause__, self._errors.EntryNotFoundError):
                return {}
            raise
        return {place.before + each.path: _version_of(each) for each in listed if hasattr(each, "blob_id")}

    @contextmanager
    def _worded(self, address: ObjectAddress) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except errors.GatedRepoError as error:
            message = f"access to `{address}` was denied: its repository is gated"
            hint = "accept its conditions on its page of the hub, and name your token: `HF_TOKEN` or `hf auth login`"
            raise AccessDeniedError(message, hint=hint) from clean_cause(error)
        except (errors.EntryNotFoundError, errors.RevisionNotFoundError) as error:
            message = f"no object `{address}`"
            raise MissingObjectError(message, hint="check the path, and the revision if there is one") from error
        except errors.RepositoryNotFoundError as error:
            message = f"no repository for `{address}`, or a private one"
            hint = "check its name; a private one needs a token: `HF_TOKEN` or `hf auth login`"
            raise MissingObjectError(message, hint=hint) from clean_cause(error)
        except errors.HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0)
            if status in _DENIED:
                message = f"access to `{address}` was denied: {reason_of(error)}"
                raise AccessDeniedError(message, hint="check the token: `HF_TOKEN`") from clean_cause(error)
            if status in _ABSENT:
                raise missing(address) from clean_cause(error)
            message = f"`{address}` cannot be reached: {reason_of(error)}"
            raise UnavailableError(message, hint=_HINT) from clean_cause(error)
        except errors.HFValidationError as error:
            message = f"`{address}` names no repository: {reason_of(error)}"
            raise ConfigError(message, hint="write `hf://datasets/ORG/NAME/PATH`") from clean_cause(error)
        except self._tools.OfflineModeIsEnabled as error:
            message = f"`{address}` cannot be read: the hub's client is offline"
            raise StorageError(message, hint="unset `HF_HUB_OFFLINE`, or name local files") from clean_cause(error)
        except (errors.HTTPError, OSError) as error:
            message = f"`{address}` cannot be reached: {reason_of(error)}"
            raise UnavailableError(message, hint=_HINT) from clean_cause(error)


_HINT = "check the network, and `HF_ENDPOINT`"


def _place_of(address: ObjectAddress) -> _Place:
    """Returns the repository and path of an address.

    Raises:
        ConfigError: it names no repository.
    """
    parts = address.key.removesuffix("/").split("/") if address.key else []
    if address.bucket in _KINDS:
        kind, owner, rest = _KINDS[address.bucket], parts[:1], parts[1:]
        before = parts[:2]
    else:
        kind, owner, rest = "model", [address.bucket], parts
        before = parts[:1]
    if not owner or not rest:
        message = f"expected `hf://datasets/ORG/NAME/PATH`, found `{address}`"
        raise ConfigError(message)
    name, _, revision = rest[0].partition("@")
    return _Place(
        repository=f"{owner[0]}/{name}",
        kind=kind,
        revision=unquote(revision) or "main",
        path="/".join(rest[1:]),
        before="/".join(before) + "/",
    )


def _version_of(file: Any) -> ObjectVersion:
    """Returns the version of what the hub says of a file: the hash of large files, the blob of others."""
    large = getattr(file, "lfs", None)
    return ObjectVersion(num_bytes=file.size, etag=file.blob_id if large is None else large.sha256)


def _tag_of(headers: Any) -> str | None:
    """Returns the hash that an answer of the hub itself has; what a redirect leads to has tags of its own."""
    tag = headers.get("x-linked-etag") or (headers.get("etag") if "x-repo-commit" in headers else None)
    return None if tag is None else tag.removeprefix("W/").strip('"')


def _refuse(address: ObjectAddress) -> NoReturn:
    message = f"cannot write `{address}`: the hub is read only here"
    raise StorageError(message, hint="write to a local folder, and upload it: `hf upload`")
