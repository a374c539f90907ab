import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

_COMMIT = "c" * 40
_API = re.compile(r"/api/datasets/([^/]+/[^/]+)/(tree|paths-info)/([^/]+)(?:/(.*))?")
_FILE = re.compile(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.*)")


@dataclass
class Repository:
    """A dataset of the hub with the same files at every revision; those in `large` are behind a redirect."""

    files: dict[str, bytes]
    large: set[str] = field(default_factory=set)
    token: str | None = None
    is_gated: bool = False


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            paths = json.loads(body)["paths"]
        except ValueError:
            paths = parse_qs(body.decode())["paths"]
        self._api([paths] if isinstance(paths, str) else paths)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith("/elsewhere/"):
            self._bytes(self.server.hub.elsewhere[path], {"ETag": '"of-elsewhere"'})
        elif found := _FILE.fullmatch(path):
            self._file(*map(unquote, found.groups()))
        else:
            self._api(None)

    def _file(self, name: str, revision: str, path: str) -> None:
        if (repository := self._repository(name, revision)) is None:
            return
        if path not in repository.files:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data = repository.files[path]
        headers = {"X-Repo-Commit": _COMMIT}
        if path in repository.large:
            place = f"/elsewhere/{name}/{path}"
            self.server.hub.elsewhere[place] = data
            self._answer(302, b"", {**headers, "Location": place, "X-Linked-Etag": f'"{_tag(data)}"'})
        else:
            self._bytes(data, {**headers, "ETag": f'"{_tag(data)}"'})

    def _api(self, paths: list[str] | None) -> None:
        found = _API.fullmatch(urlsplit(self.path).path)
        if found is None:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        name, _, revision, folder = (unquote(each or "") for each in found.groups())
        if (repository := self._repository(name, revision)) is None:
            return
        folder = f"{folder.rstrip('/')}/" if folder else ""
        below = {path for path in repository.files if path.startswith(folder)}
        if paths is None and folder and not below:
            self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        chosen = below if paths is None else set(paths) & set(repository.files)
        folders = {path.rpartition("/")[0] for path in chosen if "/" in path} if paths is None else set()
        entries: list[dict[str, Any]] = [{"type": "directory", "path": each, "oid": "0"} for each in sorted(folders)]
        for path in sorted(chosen):
            data = repository.files[path]
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": _tag(data)}
            if path in repository.large:
                entry |= {"oid": "pointer", "lfs": {"oid": _tag(data), "size": len(data), "pointerSize": 130}}
            entries.append(entry)
        self._answer(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def _repository(self, name: str, revision: str) -> Repository | None:
        repository = self.server.hub.repositories.get(name)
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        if self.server.hub.status is not None:
            self._answer(self.server.hub.status, b"{}", {})
        elif repository is None or (repository.token is not None and not token):
            self._answer(401 if repository else 404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif repository.is_gated:
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        elif repository.token is not None and token != repository.token:
            self._answer(403, b"{}", {"X-Error-Message": "no rights"})
        elif revision not in ("main", "v1", "refs/pr/1"):
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return repository
        return None

    def _bytes(self, data: bytes, headers: dict[str, str]) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if asked is None:
            self._answer(200, data, headers)
            return
        start, stop = int(asked[1]), min(int(asked[2]) + 1, len(data))
        if start >= len(data):
            self._answer(416, b"", headers)
            return
        self._answer(206, data[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class HubServer:
    """A server of `repositories` by `org/name`; answers everything with `status` unless that is None."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.elsewhere: dict[str, bytes] = {}
        self.status: int | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.hub = self  # type: ignore[attr-defined]
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
