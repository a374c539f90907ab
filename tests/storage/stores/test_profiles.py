"""Credentials of profiles."""

from __future__ import annotations

from tests.object_store.server import aws_environment
from tests.storage.remotes import SETTINGS, read

from tokenloom.storage.objects import RemoteFile


def test_credentials_of_a_profile_are_found_through_boto3(bucket, data, tmp_path, monkeypatch):
    path = bucket.put("key", data)
    environment = aws_environment(bucket.proxy.endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    credentials = tmp_path / "credentials"
    credentials.write_text(
        f"[training]\naws_access_key_id = {environment['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {environment['AWS_SECRET_ACCESS_KEY']}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "training")
    assert read(RemoteFile(path, SETTINGS), 100, 50) == data[100:150]
