"""The machine as `tokenloom doctor` sees it: checks one by one, places, credentials without secrets, buckets."""

from __future__ import annotations

import pytest

from tokenloom.cli.json_output import json_text
from tokenloom.doctor import native
from tokenloom.doctor.buckets import check_buckets
from tokenloom.doctor.check import Asked, Finding, Verdict
from tokenloom.doctor.checks import CHECKS, ListedCheck, made_checks
from tokenloom.doctor.credentials import CLOUDS, finding_of
from tokenloom.doctor.places import check_places
from tokenloom.errors import UnavailableError
from tokenloom.storage.settings import CACHE_VARIABLE


def test_a_check_that_fails_is_a_problem_in_its_place():
    def well(_: Asked) -> list[Finding]:
        return [Finding(subject="a", text="there")]

    def broken(_: Asked):
        yield Finding(subject="first", text="seen before")
        raise UnavailableError("no store", hint="start one")

    listed = tuple(ListedCheck(id=look.__name__, title="", look=look) for look in (well, broken, well))
    before, failed, after = made_checks(Asked(), listed)
    assert before.findings == after.findings == (Finding(subject="a", text="there"),)
    assert [finding.text for finding in failed.findings] == ["seen before", "cannot be looked at: no store"]
    assert (failed.findings[1].subject, failed.findings[1].verdict) == ("broken", Verdict.problem)
    assert failed.findings[1].hint == "start one"
    assert len({each.id for each in CHECKS}) == len(CHECKS)


def test_a_native_module_that_computes_wrongly_is_named(monkeypatch):
    (found,) = native.check_native(Asked())
    assert (found.verdict, found.facts["failed"]) == (Verdict.ok, [])
    monkeypatch.setitem(native._TESTS, "blends", lambda: False)
    (found,) = native.check_native(Asked())
    assert found.verdict is Verdict.problem
    assert found.text.startswith("computes something else than it must: blends; ")


def test_a_folder_is_tried_and_a_missing_one_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    paths = (str(tmp_path), f"{tmp_path}/absent")
    _, there, missing = check_places(Asked(paths=paths, measures_speed=False))
    assert "; writable" in there.text
    assert missing.verdict is Verdict.problem
    assert missing.text == f"`{tmp_path}/absent`: there is no such file, folder or pair"
    assert list(tmp_path.iterdir()) == []


def test_credentials_are_named_and_secrets_never_shown():
    secret = "wJalrXUtnFEMI-never-to-be-seen"
    environment = {
        "HOME": "/nowhere",
        "AWS_ACCESS_KEY_ID": "AKIA-never-to-be-seen",
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_SESSION_TOKEN": secret,
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": f"https://me:{secret}@minio.example/?sig={secret}",
    }
    found = finding_of(CLOUDS[0], environment, is_wanted=True)
    assert found.verdict is Verdict.ok
    assert found.text.startswith("key (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY); ")
    assert "AWS_ENDPOINT_URL=https://…@minio.example/?…" in found.text
    assert "never-to-be-seen" not in json_text(found)


@pytest.mark.slow
def test_a_bucket_answers_and_a_missing_object_is_a_problem(bucket):
    bucket.put("data/web.bin", bytes(range(256)) * 64)
    asked = Asked(addresses=(bucket.url("data/web"), bucket.url("absent/data")), measures_speed=False)
    reached, missing = check_buckets(asked)
    assert (reached.verdict, reached.facts["object"]) == (Verdict.ok, bucket.url("data/web.bin"))
    assert missing.verdict is Verdict.problem
    assert missing.text == f"no object, pair or folder at `{bucket.url('absent/data')}`"
