"""Which credentials are found, in which order, and until when: never what they are."""

from __future__ import annotations

import base64
import importlib.util
import json
from datetime import UTC, datetime, timedelta

import pytest

from tokenloom.cli.json_output import json_text
from tokenloom.doctor.check import Asked, Verdict
from tokenloom.doctor.credentials import CLOUDS, check_credentials, finding_of

S3, GOOGLE, AZURE = CLOUDS
SECRET = "wJalrXUtnFEMI-never-to-be-seen"
KEY = {"AWS_ACCESS_KEY_ID": "AKIA-never-to-be-seen", "AWS_SECRET_ACCESS_KEY": SECRET}


def look(environment, *, cloud=S3, wanted=False, home="/nowhere"):
    return finding_of(cloud, {"HOME": str(home), **environment}, is_wanted=wanted)


def test_nothing_is_said_of_stores_that_nobody_uses():
    assert [look({}, cloud=cloud) for cloud in CLOUDS] == [None, None, None]
    found = look({}, wanted=True)
    assert (found.verdict, found.text) == (Verdict.warning, "no credentials")
    assert found.hint.startswith("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")


def test_names_are_told_and_secrets_never():
    more = {"AWS_SESSION_TOKEN": SECRET, "AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "https://minio.example"}
    found = look({**KEY, **more}, wanted=True)
    assert found.verdict is Verdict.ok
    way, *told = found.text.split("; ")
    assert way == "key (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
    assert told == ["AWS_ENDPOINT_URL=https://minio.example", "AWS_REGION=eu-west-1"]
    assert found.facts["set"] == ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]
    assert "never-to-be-seen" not in json_text(found)


def test_values_that_are_told_have_no_password_in_them():
    found = look({**KEY, "AWS_ENDPOINT_URL": f"https://me:{SECRET}@minio.example/?sig={SECRET}"})
    assert "never-to-be-seen" not in json_text(found)
    assert "AWS_ENDPOINT_URL=https://…@minio.example/?…" in found.text


def test_the_first_way_counts_and_others_are_named(tmp_path, monkeypatch):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("")
    (tmp_path / ".aws" / "config").write_text("[profile research]\nregion = eu-west-1\n")
    found = look({**KEY, "AWS_PROFILE": "research"}, home=tmp_path)
    assert [way["name"] for way in found.facts["ways"]] == ["key", "profile", "files of AWS"]
    assert "before profile (AWS_PROFILE), files of AWS (~/.aws/config)" in found.text
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = look({"AWS_PROFILE": "research"}, home=tmp_path)
    assert found.verdict is Verdict.problem
    assert found.hint == "`pip install 'tokenloom[aws]'`: nothing else reads it"


def test_half_a_pair_is_warned_of():
    found = look({"AWS_ACCESS_KEY_ID": "AKIA-never-to-be-seen"})
    assert (found.verdict, found.text) == (Verdict.warning, "no credentials; set: AWS_ACCESS_KEY_ID")
    found = look({"AWS_CA_BUNDLE": "/etc/ssl/ca.pem"})
    assert (found.verdict, found.text, found.hint) == (Verdict.ok, "no credentials; set: AWS_CA_BUNDLE", None)


def _in_hours(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


@pytest.mark.parametrize(
    ("hours", "verdict", "word"),
    [(-2, Verdict.problem, "ended"), (0.5, Verdict.warning, "until"), (9, Verdict.ok, "until")],
)
def test_the_end_of_credentials_is_told(tmp_path, hours, verdict, word):
    ends = _in_hours(hours)
    found = [look({**KEY, "AWS_CREDENTIAL_EXPIRATION": ends})]
    account = {"AZURE_STORAGE_ACCOUNT_NAME": "lab", "AZURE_STORAGE_ACCOUNT_KEY": SECRET}
    signed = f"?sv=2024-01-01&se={ends.replace('+', '%2B')}&sig={SECRET}"
    found.append(look({**account, "AZURE_STORAGE_SAS_TOKEN": signed}, cloud=AZURE))
    payload = base64.urlsafe_b64encode(json.dumps({"exp": int(datetime.fromisoformat(ends).timestamp())}).encode())
    (tmp_path / "token").write_text(f"head.{payload.decode().rstrip('=')}.{SECRET}")
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": "arn:aws:iam::1:role/x"}
    found.append(look(web))
    for each in found:
        assert (each.verdict, f"; {word} 2" in each.text, each.text.count(" UTC")) == (verdict, True, 1)
        assert datetime.fromisoformat(each.facts["expires"]).timestamp() // 1 == (
            datetime.fromisoformat(ends).timestamp() // 1
        )
        assert "never-to-be-seen" not in json_text(each)


@pytest.mark.parametrize("text", ["", "one", "a.b.c", "a.bm8=.c", f"a.{base64.urlsafe_b64encode(b'[1]').decode()}.c"])
def test_a_token_that_says_nothing_is_no_problem(tmp_path, text):
    (tmp_path / "token").write_text(text)
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": "arn:aws:iam::1:role/x"}
    found = look({**web, "AWS_CREDENTIAL_EXPIRATION": ""})
    assert (found.verdict, found.facts["expires"]) == (Verdict.ok, None)
    assert look({**KEY, "AWS_CREDENTIAL_EXPIRATION": "soon"}).facts["expires"] is None


def test_stores_are_told_where_an_address_asks_for_them(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [*KEY, "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"]:
        monkeypatch.delenv(name, raising=False)
    subjects = [found.subject for found in check_credentials(Asked(addresses=("gs://bucket/x", "az://box/y")))]
    assert [subject for subject in subjects if subject != "S3"] == ["Google", "Azure"]
