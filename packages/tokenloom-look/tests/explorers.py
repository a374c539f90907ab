"""An explorer for tests: its data (a run over two sources, statistics, a pair without tokenizer) and its server."""

import http.client
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.preprocess.corpus import byte_level_json
from tests.support import write_corpus

from tokenloom import cli
from tokenloom.loading.batch_sizes import BatchSizeSchedule, Topology
from tokenloom.loading.losses import JsonLinesWriter
from tokenloom.run.run import Run
from tokenloom_look.explorer.application import View
from tokenloom_look.explorer.server import LocalServer
from tokenloom_look.explorer.session import Session
from tokenloom_look.target import SampleSettings, open_target

RUN = """\
order = 1
seed = 7
mixing_block = 8
tokenizer = "tokenizer.json"

[sources]
web = "web_text_document"
code = "code_text_document"

[[stages]]
name = "main"
sequence_length = {length}
samples = {samples}
weights = {{ web = 3, code = 1 }}
"""


@dataclass(frozen=True)
class Explored:
    folder: Path
    length: int  # tokens per sample

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def session(self, name: str, **settings: object) -> Session:
        target = open_target([self.path(name)], settings=SampleSettings(sequence_length=self.length))
        return Session(target=target, **settings)

    def run(self, *, consumed: int) -> Session:
        """Returns a session of the run in steps of 8, with statistics of training."""
        topology = Topology(batch_sizes=BatchSizeSchedule.constant(8))
        return self.session("run.toml", topology=topology, consumed=consumed, followed=self.path("train.jsonl"))


def make_explored(folder: Path, *, web: list[str], code: list[str], length: int, samples: int) -> Explored:
    (folder / "tokenizer.json").write_text(byte_level_json())
    for name, texts in (("web", web), ("code", code)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        words = ["preprocess", folder / f"{name}.jsonl", "--tokenizer", folder / "tokenizer.json"]
        words += ["--append-eod", "--output-prefix", folder / name, "--engine", "tokenizers"]
        assert cli.main([str(word) for word in words]) == 0
    (folder / "run.toml").write_text(RUN.format(length=length, samples=samples))
    Run.open(folder / "run.toml")
    write = JsonLinesWriter(folder / "train.jsonl")
    for step in range(1, 31):
        write(step=step, consumed_samples=8 * step, loss={"web": 2 + 3 / step, "code": 1.2 + 4 / step})
    write_corpus(folder / "ids", [[1, 2, 3], [], list(range(100))])
    return Explored(folder, length)


HOSTILE = "<script>alert(1)</script>\x1b[31m \u202e txt.exe &amp; caf\u00e9 \u4e2d\u6587"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Asker:
    """Sends requests to a server."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server

    def send(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, token: str | None = ""
    ) -> Reply:
        """Sends one request, with the server's token if `token` is "", and without one if it is None."""
        given = {"Host": f"127.0.0.1:{self.server.port}", **(headers or {})}
        if token is not None:
            given["Authorization"] = f"Bearer {token or self.server.access.token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            headers_of = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, headers_of, answer.read())
        finally:
            connection.close()

    def __call__(self, name: str, **values: object) -> Any:
        reply = self.send(f"/api/{name}?{urlencode(values)}")
        assert reply.status == 200, reply.body
        return reply.json()

    def error(self, name: str, **values: object) -> tuple[int, str]:
        """Returns status and message of an error response."""
        reply = self.send(f"/api/{name}?{urlencode(values)}")
        assert reply.status >= 400, reply.body
        return reply.status, reply.json()["error"]


@contextmanager
def serving(views: Mapping[str, View]) -> Iterator[Asker]:
    server = LocalServer(views)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Asker(server)
    finally:
        server.stop()
        thread.join()


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns size and modification time of all files in a folder."""
    found = {}
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            status = os.lstat(os.path.join(root, name))
            found[os.path.join(root, name)] = (status.st_size, status.st_mtime_ns)
    return found
