import json
import multiprocessing
import pickle
import subprocess
import sys
import traceback

import boto3
import pytest
from botocore.config import Config
from tests.object_store.fixtures import Bucket
from tests.object_store.server import ACCESS_KEY, REGION, SECRET_KEY
from tests.preprocess.corpus import byte_level_json
from tests.support import forking_from, write_corpus

from tokenloom import AccessDeniedError, ConfigError, IndexedDataset, ObjectStorageSettings, storage_statistics
from tokenloom.storage import secrets
from tokenloom.storage.objects import RemoteFile, close_storages
from tokenloom.storage.resolve import open_pending
from tokenloom.storage.secrets import admit, query_of, redacted

_HELD: list[IndexedDataset] = []
SETTINGS = ObjectStorageSettings(timeout_seconds=5, deadline_seconds=5)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_queries", {})


def signed(bucket: Bucket, key: str, *, version: str = "s3v4") -> str:
    """Returns an address that anybody may read, for GET alone, signed by the store's own client."""
    names = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": REGION}
    names |= {"endpoint_url": bucket.boto3.meta.endpoint_url}
    client = boto3.client("s3", **names, config=Config(signature_version=version))
    url: str = client.generate_presigned_url("get_object", Params={"Bucket": bucket.name, "Key": key})
    client.close()
    return url


@pytest.fixture
def unsigned(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket into which nothing but a signed address leads."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    return bucket


USERS = ["http://user:hunter22@host/key", "https://hunter22@host:80/key?x=1", "s3://AKIA:hunter22@bucket/key"]
USERS += ["s3://AKIA:hunt/hunter22@bucket/key", "msc://me:hunter22@profile/key", "ftp://me:hunter22@host/key"]


@pytest.mark.parametrize("address", USERS)
def test_users_in_addresses_are_refused_and_not_repeated(address):
    for door in (admit, RemoteFile, IndexedDataset, open_pending):
        with pytest.raises(ConfigError, match="the address must not contain a user or password") as info:
            door(address)
        assert "hunter22" not in "".join(traceback.format_exception(info.value))


def test_users_in_endpoints_are_refused_and_not_repeated(monkeypatch):
    close_storages()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:hunter22@127.0.0.1:9")
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL: the endpoint must not contain a user") as info:
        RemoteFile("s3://bucket/key", SETTINGS)
    assert "hunter22" not in str(info.value)


def test_a_query_is_taken_off_and_sent():
    assert admit("https://host/a/b.jsonl?X-Amz-Signature=abc&X-Amz-Date=1#x") == "https://host/a/b.jsonl"
    assert query_of("https://host/a/b.jsonl") == "X-Amz-Signature=abc&X-Amz-Date=1"
    assert query_of("https://host/a/c.jsonl") is None
    assert admit("s3://bucket/part-?.jsonl") == "s3://bucket/part-?.jsonl"
    assert admit("/local/what?.jsonl") == "/local/what?.jsonl"


def test_the_query_of_a_dataset_holds_for_its_files():
    assert admit("https://host/data/train?sig=one&sv=2") == "https://host/data/train"
    for suffix in (".bin", ".idx", ".roles.npy", ".manifest.json"):
        assert query_of(f"https://host/data/train{suffix}") == "sig=one&sv=2"
    assert query_of("https://host/data/train2.bin") is None
    assert admit("https://host/data/valid?sig=two.bin") == "https://host/data/valid.bin"
    assert admit("https://host/data/valid.idx?sig=three") == "https://host/data/valid.idx"
    assert query_of("https://host/data/valid.idx") == "sig=three"
    assert query_of("https://host/data/valid.roles.npy") == "sig=two"


def test_a_signature_is_renewed_and_another_object_refused():
    admit("https://host/get?id=5&token=first")
    admit("https://host/get?id=5&token=second")
    assert query_of("https://host/get") == "id=5&token=second"
    with pytest.raises(ConfigError, match=r"`https://host/get\?…`: two addresses differ only in their queries") as info:
        admit("https://host/get?id=6&token=second")
    assert "second" not in str(info.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at http://me:word@host:1/k?a=b, again", "at http://…@host:1/k?…"),
        ("s3://AKIA:wo/rd@bucket/k", "s3://…@bucket/k"),
        ("http://host:80/k and http://host/@scope", "http://host:80/k and http://host/@scope"),
        ('username: "me", password: Some("word"), query: None', 'username: "…", password: Some("…"), query: None'),
        ("what? nothing", "what? nothing"),
    ],
)  # fmt: skip
def test_texts_are_shown_without_secrets_and_keys_of_the_environment(text, expected, monkeypatch):
    assert redacted(text).startswith(expected)
    assert "word" not in redacted(text).replace("password", "")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret/of/the/run")
    assert redacted("refused secret/of/the/run here") == "refused … here"


@pytest.mark.slow
@pytest.mark.parametrize(("version", "name"), [("s3v4", "X-Amz-Signature="), ("s3", "&Signature=")])
def test_a_signed_object_is_read_and_its_signature_found_nowhere(unsigned, tmp_path, version, name):
    lines = b"".join(json.dumps({"text": f"line {number} " + "long " * 100}).encode() + b"\n" for number in range(300))
    unsigned.put("in put/a+b.jsonl", lines)
    address = signed(unsigned, "in put/a+b.jsonl", version=version)
    signature = address.replace("?", "&").partition(name)[2].partition("&")[0]
    assert signature
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    command = [sys.executable, "-m", "tokenloom", "preprocess", address, "--tokenizer", str(tmp_path)]
    command += ["--output-prefix", str(tmp_path / "out"), "--processes", "2", "--shard-bytes", "64KB"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert IndexedDataset(tmp_path / "out_text_document").num_documents == 300
    assert signature not in done.stdout + done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in written if signature.encode() in path.read_bytes() or signature in path.name] == []
    assert address.partition("?")[0] in (tmp_path / "out_text_document.manifest.json").read_text()


def test_a_signed_pair_is_read_and_carries_no_signature(unsigned, tmp_path):
    prefix = write_corpus(tmp_path / "pair", [[1, 2, 3], [4, 5]])
    unsigned.put_pair(prefix, "pair")
    addresses = [signed(unsigned, f"pair{suffix}") for suffix in (".bin", ".idx")]
    for address in addresses:
        admit(address)
    dataset = IndexedDataset(addresses[0])
    assert [sequence.tolist() for sequence in dataset[0:2]] == [[1, 2, 3], [4, 5]]
    shown = repr(dataset) + repr(storage_statistics()) + repr(dataset.__dict__)
    data = pickle.dumps(dataset)
    for address in addresses:
        for value in address.partition("?")[2].split("&"):
            name, _, secret = value.partition("=")
            told = secret if len(secret) > 4 else value  # as many digits are in hashes and numbers of ports by chance
            assert told not in shown, name
            assert told.encode() not in data, name
    assert pickle.loads(data)[1].tolist() == [4, 5]


@pytest.mark.slow
def test_a_refused_signature_is_not_repeated(unsigned):
    unsigned.put("key", b"data")
    address = signed(unsigned, "key").replace("X-Amz-Signature=", "X-Amz-Signature=wrong0123")
    with pytest.raises(AccessDeniedError, match="was denied") as info:
        RemoteFile(address, SETTINGS)
    assert "wrong0123" not in "".join(traceback.format_exception(info.value)) + repr(info.value.__dict__)


def test_an_unreachable_signed_address_is_not_repeated_nor_written_to():
    secret = "wrong" + "0123"
    with pytest.raises(OSError, match="cannot reach") as info:
        RemoteFile(f"http://127.0.0.1:9/key?sig={secret}", ObjectStorageSettings(deadline_seconds=0.1))
    assert secret not in "".join(traceback.format_exception(info.value))
    with pytest.raises(ConfigError, match="signed addresses are read-only") as info:
        open_pending(f"http://127.0.0.1:9/key?sig={secret}")
    assert secret not in str(info.value)


@pytest.mark.slow
def test_workers_of_every_kind_read_what_is_signed(unsigned, tmp_path):
    prefix = write_corpus(tmp_path / "pair", [[number] * 9 for number in range(20)])
    unsigned.put_pair(prefix, "pair")
    admit(signed(unsigned, "pair.idx"))
    dataset = IndexedDataset(signed(unsigned, "pair.bin"))
    for method in ("forkserver", "spawn"):
        with forking_from("tokenloom"), multiprocessing.get_context(method).Pool(1, _hold, (dataset,)) as pool:
            assert pool.map(_read, range(3)) == [[0] * 9, [1] * 9, [2] * 9]


def _hold(dataset: IndexedDataset) -> None:
    _HELD.append(dataset)


def _read(number: int) -> list[int]:
    found: list[int] = _HELD[0][number].tolist()
    return found
