"""The explorer on a corpus of 100 GB: start, pages, jumps, search and memory.

    .venv/bin/python benchmarks/explorer.py /tmp/explored --documents 20000000

Creates the corpus if it does not exist: 2 * 10^7 documents of 2,500 tokens in a sparse file, whose index takes 0.4 GB
on disk. Unwritten tokens read as zeros, so the search is measured without a disk; a thousand documents contain text.
All numbers are measured in a client on this machine, including the connection.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np
from common import print_rows
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenloom.indexed.layout import Header
from tokenloom.tokenizers.load import load_tokenizer

TOKENS_PER_DOCUMENT = 2500
NEEDLE = "a needle that stands at the end of the haystack"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the corpus is, or is made")
    parser.add_argument("--documents", type=int, default=20_000_000)
    parser.add_argument("--requests", type=int, default=50, help="of each kind")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    prefix, tokenizer = options.folder / f"sparse-{options.documents}", options.folder / "tokenizer.json"
    if not tokenizer.exists():
        write_tokenizer(tokenizer)
    if not Path(f"{prefix}.idx").exists():
        write_corpus(prefix, options.documents, tokenizer)
    num_bytes = os.path.getsize(f"{prefix}.bin")
    rows = measured(prefix, tokenizer, options.documents, options.requests)
    title = f"{options.documents:,} documents, {num_bytes / 1e9:.0f} GB of tokens"
    print_rows(title, ("what", "median ms", "worst ms", "memory MB", "of it private MB"), rows)
    return 0


def write_tokenizer(path: Path) -> None:
    """Writes a small byte-level tokenizer, trained on our own sources."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts(), trainer)
    backend.save(str(path))


def texts() -> list[str]:
    return [path.read_text() for path in sorted(Path(__file__).parent.parent.rglob("src/**/*.py"))]


def write_corpus(prefix: Path, num_documents: int, tokenizer: Path) -> None:
    """Writes a pair of zero tokens, with text in a thousand documents."""
    header = Header(dtype_code=8, num_sequences=num_documents, num_boundaries=num_documents + 1)
    with open(f"{prefix}.idx.part", "wb") as stream:
        stream.write(header.pack())
        np.full(num_documents, TOKENS_PER_DOCUMENT, dtype=np.int32).tofile(stream)
        (np.arange(num_documents, dtype=np.int64) * (2 * TOKENS_PER_DOCUMENT)).tofile(stream)
        np.arange(num_documents + 1, dtype=np.int64).tofile(stream)
    ids = np.array(load_tokenizer(str(tokenizer)).tokenize("\n".join(texts())), dtype=np.uint16)
    needle = np.array(load_tokenizer(str(tokenizer)).tokenize(f"\n{NEEDLE}\n"), dtype=np.uint16)
    with open(f"{prefix}.bin", "wb") as stream:
        stream.truncate(num_documents * TOKENS_PER_DOCUMENT * 2)
        for number in sorted({0, num_documents - 1, *random.Random(0).sample(range(num_documents), 998)}):
            begin = random.Random(number).randrange(len(ids) - TOKENS_PER_DOCUMENT)
            stream.seek(number * TOKENS_PER_DOCUMENT * 2)
            stream.write(ids[begin : begin + TOKENS_PER_DOCUMENT].tobytes())
        stream.seek(-len(needle) * 2, os.SEEK_END)
        stream.write(needle.tobytes())
    os.replace(f"{prefix}.idx.part", f"{prefix}.idx")


class Client:
    """A client of one explorer on one connection, like a browser."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._connection = HTTPConnection(parts.hostname, parts.port)
        self._headers = {"Authorization": f"Bearer {parts.query.removeprefix('token=')}"}

    def __call__(self, view: str, **values: object) -> dict:
        self._connection.request("GET", f"/api/{view}?{urlencode(values)}", headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return json.loads(body)

    def page(self) -> None:
        self._connection.request("GET", "/", headers=self._headers)
        self._connection.getresponse().read()


def measured(prefix: Path, tokenizer: Path, num_documents: int, num_requests: int) -> list[tuple[str, ...]]:
    """Starts an explorer and returns rows of the table."""
    rng = random.Random(1)
    command = [
        sys.executable,
        "-m",
        "tokenloom",
        "explore",
        str(prefix),
        "--no-browser",
        "--tokenizer",
        str(tokenizer),
    ]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            client = Client(process.stdout.readline().strip())
            client.page()
            first = time.perf_counter() - started
            rows = [row("start, until the page is there", [first], process.pid)]

            def timed(what: str, ask: Callable[[], object], count: int = num_requests) -> None:
                seconds = []
                for _ in range(count):
                    begun = time.perf_counter()
                    ask()
                    seconds.append(time.perf_counter() - begun)
                rows.append(row(what, seconds, process.pid))

            timed("what is looked at", lambda: client("target"))
            timed("a page of 50 documents", lambda: client("documents", first=rng.randrange(num_documents), count=50))
            timed("1,024 tokens of a document", lambda: client("document", document=rng.randrange(num_documents)))
            timed("a jump to a document", lambda: client("jump", what="document", value=rng.randrange(num_documents)))
            timed("the first page of samples", lambda: client("positions", first=0, count=50), 1)
            last = client("positions", first=0, count=1)["total"] - 50
            timed("a page of 50 samples", lambda: client("positions", first=rng.randrange(last), count=50))
            timed("a jump to a position", lambda: client("jump", what="position", value=rng.randrange(last)))
            timed("a sample", lambda: client("position", position=rng.randrange(last)))
            rows += searched(client, process.pid)
            sections = [section["id"] for section in client("target")["sections"]]
            for name in sections:
                timed(f"the section {name!r}", lambda name=name: client("section", id=name), 1)
        finally:
            process.terminate()
    return rows


def searched(client: Client, process: int) -> list[tuple[str, ...]]:
    """Returns the rows of searches that run for some seconds each."""
    rows = []
    for what, asked in (
        ("ids", {"ids": "17 4 4711 3 99"}),
        ("a sentence", {"text": NEEDLE}),
        ("a word", {"text": "ne"}),
    ):
        seconds, cursor, tokens = [], "", 0
        while sum(seconds) < 5 and cursor is not None:
            begun = time.perf_counter()
            answer = client("search", cursor=cursor, **asked)
            seconds.append(time.perf_counter() - begun)
            cursor, tokens = answer["cursor"], int(answer["searched_tokens"])
        rate = tokens / sum(seconds)
        rows.append(row(f"a request of a search for {what} ({rate / 1e6:,.1f} M tokens/s)", seconds, process))
    return rows


def row(what: str, seconds: list[float], process: int) -> tuple[str, ...]:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    memory = [f"{int(fields[name].split()[0]) / 1024:,.0f}" for name in ("VmRSS", "RssAnon")]
    return (what, f"{1000 * statistics.median(seconds):,.1f}", f"{1000 * max(seconds):,.1f}", *memory)


if __name__ == "__main__":
    sys.exit(main())
