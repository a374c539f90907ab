"""Repositories of the Hugging Face hub, to read: `hf://datasets/ORG/NAME/PATH`, and `hf://ORG/NAME/PATH` of models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from urllib.parse import unquote

from tokenloom.errors import ConfigError, StorageError
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
from tokenloom.storage.secrets import clean_cause
from tokenloom.storage.settings import ObjectStorageSettings

_KINDS = {"datasets": "dataset", "spaces": "space"}
_TOKEN_HINT = "name your token: `HF_TOKEN` or `hf auth login`; accept the conditions on the page of a gated one"


class HubClient:
    """Repositories of the Hugging Face hub, or of the server that `HF_ENDPOINT` names, through `huggingface_hub`.

    The token is that of `HF_TOKEN`, or of `hf auth login`. A version is told by the hash of the bytes, which the hub
    sends with each answer; `@REVISION` behind the name of a repository pins what a branch stands for.
    """

    def __init__(self, _: ObjectAddress, settings: ObjectStorageSettings) -> None:
        self._library = require("huggingface_hub", extra="hf")
        self._errors = require("huggingface_hub.errors", extra="hf")
        self._tools = require("huggingface_hub.utils", extra="hf")
        self._api = self._library.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        self._seconds = settings.timeout_seconds

    def version(self, address: ObjectAddress) -> ObjectVersion:
        repository, path = _place_of(address)
        with self._worded(address):
            found = self._api.get_paths_info(paths=[path], **repository) if path else []
        for file in found:
            if hasattr(file, "blob_id"):  # folders have none
                return _version_of(file)
        raise missing(address)

    def read(self, address: ObjectAddress, start: int, stop: int, version: ObjectVersion) -> Any:
        repository, path = _place_of(address)
        url = self._library.hf_hub_url(filename=path, endpoint=self._api.endpoint, **repository)
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with self._worded(address):
            headers |= self._tools.build_hf_headers()
            session = self._tools.get_session()
            answer = session.get(url, headers=headers, follow_redirects=True, timeout=self._seconds)
            if answer.status_code != 416:  # beyond the end that the file had when it was opened
                self._tools.hf_raise_for_status(answer)
        tags = [_tag_of(each.headers) for each in [*answer.history, answer]]
        found = next((tag for tag in tags if tag is not None), version.etag)
        if answer.status_code == 416 or (version.etag is not None and found != version.etag):
            raise replaced(address)
        data: bytes = answer.content
        return data if answer.status_code == 206 else data[start:stop]

    def upload(self, address: ObjectAddress, path: str) -> None:
        _refuse(address)

    def delete(self, address: ObjectAddress) -> None:
        _refuse(address)

    def keys(self, address: ObjectAddress) -> list[str]:
        folder = as_folder(address)
        return [key for key in self.objects(address) if "/" not in key[len(folder) :]]

    def objects(self, address: ObjectAddress) -> dict[str, ObjectVersion]:
        repository, path = _place_of(address)
        before = address.key.removesuffix("/").removesuffix(path)
        before = before if before.endswith("/") else f"{before}/"
        with self._worded(address):
            try:
                listed = list(self._api.list_repo_tree(path_in_repo=path or None, recursive=True, **repository))
            except self._errors.EntryNotFoundError:
                return {}
        return {before + each.path: _version_of(each) for each in listed if hasattr(each, "blob_id")}

    @contextmanager
    def _worded(self, address: ObjectAddress) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except (errors.HFValidationError, self._tools.OfflineModeIsEnabled) as error:
            message = f"`{address}` cannot be read: {reason_of(error)}"
            hint = "write `hf://datasets/ORG/NAME/PATH`, and unset `HF_HUB_OFFLINE`"
            raise StorageError(message, hint=hint) from clean_cause(error)
        except (errors.HTTPError, OSError) as error:
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if status in (401, 403):
                reason = getattr(error, "server_message", None) or error
                raise denied(address, reason, hint=_TOKEN_HINT) from clean_cause(error)
            if status in (404, 410):
                raise missing(address) from clean_cause(error)
            raise unreachable(address, error, hint="check the network, and `HF_ENDPOINT`") from clean_cause(error)


def _place_of(address: ObjectAddress) -> tuple[dict[str, str], str]:
    """Returns what names a repository to the hub's client, and a path in it; "" for all of it."""
    kind = _KINDS.get(address.bucket)
    parts = [*([] if kind else [address.bucket]), *address.key.removesuffix("/").split("/")]
    owner, name, *path = [*parts, ""]  # of `hf://datasets/NAME` the name is missing, and the path has an end too many
    if not owner or not name:
        message = f"expected `hf://datasets/ORG/NAME/PATH`, found `{address}`"
        raise ConfigError(message)
    name, _, revision = name.partition("@")
    repository = {"repo_id": f"{owner}/{name}", "repo_type": kind or "model", "revision": unquote(revision) or "main"}
    return repository, "/".join(path[:-1])


def _version_of(file: Any) -> ObjectVersion:
    large = getattr(file, "lfs", None)
    return ObjectVersion(num_bytes=file.size, etag=file.blob_id if large is None else large.sha256)


def _tag_of(headers: Any) -> str | None:
    """Returns the hash that an answer of the hub itself has; what a redirect leads to has tags of its own."""
    tag = headers.get("x-linked-etag") or (headers.get("etag") if "x-repo-commit" in headers else None)
    return None if tag is None else tag.removeprefix("W/").strip('"')


def _refuse(address: ObjectAddress) -> NoReturn:
    message = f"cannot write `{address}`: the hub is read only here"
    raise StorageError(message, hint="write to a local folder, and upload it: `hf upload`")
