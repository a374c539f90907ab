"""Files and services that a page of the documentation needs, by name; each function returns environment variables."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import boto3
from tests.object_store.server import ACCESS_KEY, REGION, SECRET_KEY, S3Server, aws_environment
from tests.preprocess.corpus import byte_level_json, sources, write_lines

from tokenloom import CorpusSettings, load_tokenizer, preprocess_corpus
from tokenloom.storage.settings import CACHE_VARIABLE


def _corpus(folder: Path, _: ExitStack) -> dict[str, str]:
    """200 documents, each some lines of Python."""
    lines = [line for source in sources() for line in source.splitlines() if line.strip()]
    texts = ["\n".join(lines[10 * number : 10 * number + 10]) for number in range(200)]
    write_lines(folder / "corpus.jsonl", [{"text": text, "meta": {"id": number}} for number, text in enumerate(texts)])
    return {}


def _tokenizer(folder: Path, _: ExitStack) -> dict[str, str]:
    """A byte-level tokenizer of 1,000 tokens, with `<|endoftext|>` and `<|pad|>`."""
    (folder / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    settings = {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return {}


def _chat(folder: Path, _: ExitStack) -> dict[str, str]:
    """60 conversations of a question and an answer."""

    def turns(number: int) -> list[dict[str, str]]:
        asked = {"role": "user", "content": f"What is {number} plus {number}?"}
        return [asked, {"role": "assistant", "content": f"{number} plus {number} is {2 * number}."}]

    write_lines(folder / "chat.jsonl", [{"messages": turns(number)} for number in range(60)])
    return {}


def _run(folder: Path, _: ExitStack) -> dict[str, str]:
    """A run of three sources, `web` out of `crawl/0007.jsonl` among them; `letter.txt` is one of its texts."""
    lines = [line for source in sources() for line in source.splitlines() if line.strip()]
    web = [f"{number}: {lines[number % len(lines)]}" for number in range(13_000)]
    web[87] = "a letter with some words of it"
    (folder / "letter.txt").write_text(web[87], encoding="utf-8")
    (folder / "crawl").mkdir()
    inputs = {"web": "crawl/0007.jsonl", "code": "code.jsonl", "books": "books.jsonl"}
    for name, texts in (("web", web), ("code", lines), ("books", lines[::3])):
        path = write_lines(folder / inputs[name], [{"text": text} for text in texts])
        settings = CorpusSettings(append_eod=True, document_hashes=True)
        preprocess_corpus(path, folder / name, load_tokenizer("byte"), settings, num_processes=1, num_workers=1)
    (folder / "run.toml").write_text(RUN, encoding="utf-8")
    return {}


RUN = """\
order = 1
seed = 1234
tokenizer = "byte"

[sources]
web = { data = "web_text_document", holdout = "0.1%" }
code = "code_text_document"
books = "books_text_document"

[[stages]]
sequence_length = 128
samples = 300_000
weights = { web = 8, code = 2 }
"""


def _bucket(folder: Path, ending: ExitStack) -> dict[str, str]:
    """An object store with the empty bucket `corpus`, and the variables that lead to it."""
    server = ending.enter_context(S3Server())
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": REGION}
    client = boto3.client("s3", endpoint_url=server.endpoint, **keys)
    client.create_bucket(Bucket="corpus")
    client.close()
    return aws_environment(server.endpoint) | {CACHE_VARIABLE: str(folder.with_name(f"{folder.name}-object-cache"))}


GIVEN: dict[str, Callable[[Path, ExitStack], dict[str, str]]] = {
    "corpus.jsonl": _corpus,
    "tokenizer.json": _tokenizer,
    "chat.jsonl": _chat,
    "s3://corpus": _bucket,
    "run.toml": _run,
}
