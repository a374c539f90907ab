"""Whether a bucket answers, and how fast, against a real server."""

from __future__ import annotations

import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tokenloom.doctor import buckets
from tokenloom.doctor.buckets import BucketSpeed, check_buckets, findings_of, speed_finding
from tokenloom.doctor.check import Asked, Verdict
from tokenloom.storage import endpoint


def look(*addresses: str, speed: bool = True):
    said: list[str] = []
    found = list(check_buckets(Asked(addresses=addresses, measures_speed=speed, say=said.append)))
    return found, said


def test_an_object_a_pair_and_a_folder_answer(bucket):
    data = bytes(range(256)) * 8192
    for key in ("data/web.bin", "data/web.idx", "other/notes.txt"):
        bucket.put(key, data)
    for name, read, num_objects in (
        ("data/web.idx", "data/web.idx", None),
        ("data/web", "data/web.bin", None),
        ("data/", "data/web.bin", 2),
        ("data", "data/web.bin", 2),
    ):
        (reached, speed), said = look(bucket.url(name))
        assert (reached.verdict, reached.facts["object"]) == (Verdict.ok, bucket.url(read))
        assert (reached.facts["num_objects"], reached.facts["num_bytes"]) == (num_objects, len(data))
        assert (speed.subject, speed.facts["num_bytes"]) == ("speed", len(data))
        assert speed.facts["bytes_per_second"] > 0
        assert 0 < speed.facts["latency_seconds"] <= speed.facts["worst_latency_seconds"]
        assert said == [f"measuring {bucket.url(read)}: 33.6 MB and 2 s at most"]
    assert look(bucket.url("data/web"), speed=False)[1] == []


def test_what_is_small_tells_no_speed_and_what_is_empty_nothing(bucket):
    bucket.put("small.txt", b"x" * 100)
    (_, speed), _ = look(bucket.url("small.txt"))
    assert (speed.facts["num_bytes"], speed.facts["bytes_per_second"]) == (0, 0.0)
    assert "readers" not in speed.text
    bucket.put("empty.txt", b"")
    assert len(look(bucket.url("empty.txt"))[0]) == 1


def test_a_bucket_without_objects_answers_too(bucket):
    (found,), _ = look(f"s3://{bucket.name}")
    assert found.verdict is Verdict.ok
    assert "with 0 objects answers after" in found.text


def test_what_is_not_there_is_a_problem(bucket):
    (found,), _ = look(bucket.url("absent/data"))
    assert (found.verdict, found.text) == (
        Verdict.problem,
        f"no object, pair or folder at `{bucket.url('absent/data')}`",
    )
    (found,), _ = look("s3://no-such-bucket-here/x")
    assert found.verdict is Verdict.problem


def test_wrong_credentials_are_a_problem(bucket, monkeypatch):
    bucket.put("x", b"1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    (found,), _ = look(bucket.url("x"))
    assert found.verdict is Verdict.problem
    assert "denied" in found.text
    assert "wrong-secret" not in found.text


def test_an_endpoint_where_nothing_listens_is_a_problem(monkeypatch):
    monkeypatch.setattr(endpoint, "_PATIENCE_SECONDS", 0.1)
    with socket.socket() as silent:  # which keeps the port from others
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        (found,), _ = look("s3://bucket/x")
    assert found.verdict is Verdict.problem
    assert f"the endpoint of AWS_ENDPOINT_URL=http://127.0.0.1:{port} cannot be reached" in found.text


def test_a_store_that_never_answers_is_a_problem_in_time(monkeypatch):
    forever = threading.Event()
    monkeypatch.setattr(buckets, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(buckets, "reach", lambda _: forever.wait())
    try:
        (found,) = findings_of("s3://bucket/x", Asked())
    finally:
        forever.set()
    assert (found.verdict, found.text) == (Verdict.problem, "s3://bucket/x: no answer within 0.01 s")


@pytest.mark.parametrize("address", ["ftp://x/y", "gs://", "s3://b/../x"])
def test_what_is_no_address_is_a_problem(address):
    (found,), _ = look(address)
    assert found.verdict is Verdict.problem


@pytest.mark.parametrize(
    ("latency", "speed", "verdict"),
    [(0.02, 5e8, Verdict.ok), (0.02, 5e6, Verdict.warning), (0.9, 5e8, Verdict.warning), (0.02, 0.0, Verdict.ok)],
)
def test_a_slow_store_is_warned_of(latency, speed, verdict):
    measured = BucketSpeed(
        latency_seconds=latency, worst_latency_seconds=1.5, num_bytes=32_000_000 if speed else 0, bytes_per_second=speed
    )
    found = speed_finding("s3://b/x", measured)
    assert found.verdict is verdict
    assert f"first byte after {1000 * latency:.0f} ms, at most 1500 ms" in found.text


def test_settings_that_a_store_refuses_are_a_problem(monkeypatch):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    (found,), _ = look("az://container/data")
    assert found.verdict is Verdict.problem
    assert found.text.startswith("`az://container` cannot be asked with these settings: ")
    assert "Account must be specified" in found.text
    assert found.hint == "correct the variables of account and credentials; `tokenloom doctor` says which are set"


def test_over_http_there_are_objects_and_no_folders(tmp_path):
    (tmp_path / "part.bin").write_bytes(b"x" * 100)
    handler = partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"http://127.0.0.1:{server.server_port}"
        (reached,), _ = look(f"{where}/part", speed=False)
        (missing,), _ = look(f"{where}/absent")
        server.shutdown()
    assert (reached.verdict, reached.facts["object"]) == (Verdict.ok, f"{where}/part.bin")
    assert (missing.verdict, missing.text) == (Verdict.problem, f"no object or pair at `{where}/absent`")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""
