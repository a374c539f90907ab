import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from tests.indexed.pairs import pair_bytes
from tests.inputs.corpora import json_lines, write_parquet
from tests.support import small_shards

from tokenloom import preprocess_corpus
from tokenloom.errors import AccessDeniedError, ReplacedObjectError, StorageError, UnavailableError
from tokenloom.inputs.find import find_inputs
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.storage.objects import RemoteFile, close_storages
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.plain import ByteTokenizer

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


pytest.importorskip("huggingface_hub")

LINES = json_lines({"text": f"text {number}"} for number in range(50))
QUICK = ObjectStorageSettings(retries=0, deadline_seconds=5, timeout_seconds=2)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        server.repositories["org/name"] = Repository(
            {"data/a.jsonl": LINES, "data/b.jsonl": LINES, "README.md": b"# words"}, large={"data/b.jsonl"}
        )
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        close_storages()
        yield server
        close_storages()


@pytest.mark.parametrize(("name", "revision"), [("a", ""), ("b", "@v1"), ("b", "@refs%2Fpr%2F1")])
def test_ranges_of_small_and_large_files(hub: HubServer, name: str, revision: str):
    file = RemoteFile(f"hf://datasets/org/name{revision}/data/{name}.jsonl")
    assert file.num_bytes == len(LINES)
    assert file.read(0, len(LINES)).tobytes() == LINES
    assert file.read(7, 100).tobytes() == LINES[7:107]
    assert file.read(len(LINES) - 3, 3).tobytes() == LINES[-3:]


def test_what_names_stand_for(hub: HubServer):
    both = ["hf://datasets/org/name/data/a.jsonl", "hf://datasets/org/name/data/b.jsonl"]
    some = {"": both, "/": both, "/data": both, "/data/*b*.jsonl": both[1:], "/data/a.jsonl": both[:1]}
    for name, expected in some.items():
        assert [file.path for file in find_inputs([f"hf://datasets/org/name{name}"]).files] == expected


def test_a_corpus_of_the_hub_is_that_of_the_same_files_here(hub: HubServer, tmp_path: Path):
    parquet = write_parquet(tmp_path / "c.parquet", [{"text": "of a table"}]).read_bytes()
    hub.repositories["org/name"].files["data/c.parquet"] = parquet
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(LINES)
    remote, local = "hf://datasets/org/name/data", str(tmp_path)
    with small_shards():
        settings = CorpusSettings(shard_bytes=200)
    for folder, output in ((remote, "x"), (local, "y")):
        names = [f"{folder}/{name}" for name in ("a.jsonl", "b.jsonl", "c.parquet")]
        preprocess_corpus(names, tmp_path / output, ByteTokenizer(), settings, num_processes=1)
    assert pair_bytes(tmp_path / "x_text_document") == pair_bytes(tmp_path / "y_text_document")


@pytest.mark.parametrize("name", ["a", "b"])
def test_other_bytes_than_those_that_were_opened_are_an_error(hub: HubServer, name: str):
    file = RemoteFile(f"hf://datasets/org/name/data/{name}.jsonl")
    hub.repositories["org/name"].files[f"data/{name}.jsonl"] = LINES[::-1]
    with pytest.raises(ReplacedObjectError, match=r"was replaced after it was opened"):
        file.read(0, 10)


def test_private_files_need_the_token_and_gated_files_say_what_to_accept(hub, monkeypatch):
    address, denied = "hf://datasets/org/secret/a.jsonl", r"access to `.*secret/a.jsonl` was denied: "
    hub.repositories["org/secret"] = Repository({"a.jsonl": LINES}, token="hf_right")
    with pytest.raises(AccessDeniedError, match=denied) as caught:
        RemoteFile(address, QUICK)
    assert caught.value.hint.startswith("set `HF_TOKEN` or run `hf auth login`")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(AccessDeniedError, match=denied) as caught:
        RemoteFile(address, QUICK)
    assert "hf_wrong" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert RemoteFile(address, QUICK).read(0, 5).tobytes() == LINES[:5]
    hub.repositories["org/gated"] = Repository({"a.jsonl": LINES}, is_gated=True)
    with pytest.raises(AccessDeniedError, match=r"access to `.*gated.*` was denied: .*restricted") as caught:
        find_inputs(["hf://datasets/org/gated/a.jsonl"])
    assert "for a gated repository, accept the conditions on its page" in caught.value.hint


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://datasets/org/none/a.jsonl", "no object `hf://datasets/org/none/a.jsonl/?`"),
        ("hf://datasets/org/name/none.jsonl", "no object `hf://datasets/org/name/none.jsonl`"),
        ("hf://datasets/org/name@v9/data/a.jsonl", "no object `hf://datasets/org/name@v9/data/a.jsonl/?`"),
        ("hf://datasets/name", "cannot read `hf://datasets/name/?`: "),
    ],
)
def test_what_is_not_there(hub: HubServer, address: str, message: str):
    with pytest.raises(StorageError, match=message):
        find_inputs([address])


@pytest.mark.slow
def test_without_a_network_the_endpoint_is_named(monkeypatch: pytest.MonkeyPatch):
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    close_storages()
    with pytest.raises(UnavailableError, match=r"cannot reach") as caught:
        RemoteFile("hf://datasets/org/name/data/a.jsonl", QUICK)
    assert "HF_ENDPOINT" in caught.value.hint
    close_storages()
