import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.object_store.proxy import FaultProxy
from tests.object_store.server import S3Server, aws_environment
from tokenloom.storage.objects import close_storages
from tokenloom.storage.settings import CACHE_VARIABLE

_NUMBERS = itertools.count()


@dataclass
class Bucket:
    """A bucket of the server, behind a proxy; boto3 goes straight to the server."""

    name: str
    proxy: FaultProxy
    boto3: Any

    def url(self, key: str) -> str:
        return f"s3://{self.name}/{key}"

    def put(self, key: str, data: bytes) -> str:
        self.boto3.put_object(Bucket=self.name, Key=key, Body=data)
        return self.url(key)

    def get(self, key: str) -> bytes:
        data: bytes = self.boto3.get_object(Bucket=self.name, Key=key)["Body"].read()
        return data

    def keys(self) -> list[str]:
        return [each["Key"] for each in self.boto3.list_objects_v2(Bucket=self.name).get("Contents", [])]

    def put_pair(self, prefix: str, key: str) -> str:
        for path in Path(prefix).parent.glob(f"{Path(prefix).name}.*"):
            self.put(key + path.name.removeprefix(Path(prefix).name), path.read_bytes())
        return self.url(key)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    name = f"bucket-{os.getpid()}-{next(_NUMBERS)}"
    s3_server.boto3.create_bucket(Bucket=name)
    close_storages()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "object-cache"))
    with FaultProxy(s3_server.port) as proxy:
        for variable, value in aws_environment(proxy.endpoint).items():
            monkeypatch.setenv(variable, value)
        yield Bucket(name, proxy, s3_server.boto3)
    close_storages()
