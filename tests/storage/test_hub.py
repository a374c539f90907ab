from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.indexed.pairs import pair_bytes
from tests.inputs.corpora import json_lines, write_parquet
from tests.storage.hub import HubServer, Repository
from tests.support import small_shards

from tokenloom import preprocess_corpus
from tokenloom.errors import AccessDeniedError, ReplacedObjectError, StorageError, UnavailableError
from tokenloom.inputs.find import find_inputs
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.storage.objects import RemoteFile, close_storages
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.plain import ByteTokenizer

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
    both = ["data/a.jsonl", "data/b.jsonl"]
    for name, expected in (
        ("", both),
        ("/", both),
        ("/data", both),
        ("/data/*b*.jsonl", both[1:]),
        ("/data/a.jsonl", both[:1]),
    ):
        found = find_inputs([f"hf://datasets/org/name{name}"])
        assert [file.path for file in found.files] == [f"hf://datasets/org/name/{path}" for path in expected]


def test_a_corpus_of_the_hub_is_that_of_the_same_files_here(hub: HubServer, tmp_path: Path):
    parquet = write_parquet(tmp_path / "c.parquet", [{"text": "of a table"}]).read_bytes()
    hub.repositories["org/name"].files["data/c.parquet"] = parquet
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(LINES)
    remote, local = "hf://datasets/org/name/data", str(tmp_path)
    for folder, output in ((remote, "x"), (local, "y")):
        names = [f"{folder}/{name}" for name in ("a.jsonl", "b.jsonl", "c.parquet")]
        with small_shards():
            settings = CorpusSettings(shard_bytes=200)
        preprocess_corpus(names, tmp_path / output, ByteTokenizer(), settings, num_processes=1)
    assert pair_bytes(tmp_path / "x_text_document") == pair_bytes(tmp_path / "y_text_document")


@pytest.mark.parametrize("name", ["a", "b"])
def test_other_bytes_than_those_that_were_opened_are_an_error(hub: HubServer, name: str):
    file = RemoteFile(f"hf://datasets/org/name/data/{name}.jsonl")
    hub.repositories["org/name"].files[f"data/{name}.jsonl"] = LINES[::-1]
    with pytest.raises(ReplacedObjectError, match=r"was replaced after it was opened"):
        file.read(0, 10)


def test_private_files_need_the_token(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    hub.repositories["org/secret"] = Repository({"a.jsonl": LINES}, token="hf_right")
    with pytest.raises(AccessDeniedError, match=r"access to `.*secret/a.jsonl` was denied: ") as caught:
        RemoteFile("hf://datasets/org/secret/a.jsonl", QUICK)
    assert caught.value.hint.startswith("set `HF_TOKEN` or run `hf auth login`")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(AccessDeniedError, match=r"access to `.*secret/a.jsonl` was denied") as denied:
        RemoteFile("hf://datasets/org/secret/a.jsonl", QUICK)
    assert "hf_wrong" not in str(denied.value)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert RemoteFile("hf://datasets/org/secret/a.jsonl", QUICK).read(0, 5).tobytes() == LINES[:5]


def test_gated_files_say_what_to_accept(hub: HubServer):
    hub.repositories["org/gated"] = Repository({"a.jsonl": LINES}, is_gated=True)
    with pytest.raises(AccessDeniedError, match=r"access to `.*gated.*` was denied: .*restricted") as caught:
        find_inputs(["hf://datasets/org/gated/a.jsonl"])
    assert "for a gated repository, accept the conditions on its page" in caught.value.hint


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "hf://datasets/org/none/a.jsonl",
            "no object `hf://datasets/org/none/a.jsonl/?`",
        ),
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
