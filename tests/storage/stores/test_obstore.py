"""What is said where the library finds no credentials, or refuses its settings; reading is in `test_objects.py`."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError

from tokenloom import ConfigError
from tokenloom.errors import AccessDeniedError
from tokenloom.storage.addresses import parse_address
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.stores.obstore import make_client


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_S3_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)


@pytest.mark.parametrize(
    ("scheme", "variable"), [("s3", "AWS_ACCESS_KEY_ID"), ("gs", "GOOGLE_APPLICATION_CREDENTIALS"), ("az", "AZURE_")]
)
def test_a_store_without_credentials_names_its_own_variables(scheme, variable, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "lab")
    address = parse_address(f"{scheme}://bucket/key")
    client = make_client(address, ObjectStorageSettings())
    failure = GenericError("Error performing GET http://169.254.169.254/metadata")  # the last place where it looks
    with pytest.raises(AccessDeniedError, match=f"no credentials for `{scheme}://bucket/key` were found") as caught:
        _fail(client, address, failure)
    assert variable in caught.value.hint


def _fail(client, address, failure):
    with client._worded(address):
        raise failure


def test_what_the_library_refuses_is_a_setting_that_is_wrong():
    with pytest.raises(
        ConfigError, match=r"`az://box` cannot be asked with these settings: .*Account must be specified"
    ):
        make_client(parse_address("az://box/key"), ObjectStorageSettings())
