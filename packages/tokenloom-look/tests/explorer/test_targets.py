"""Whatever can be named can be explored, or is refused in words: blends, catalogues, images, buckets, half a pair."""

from __future__ import annotations

import os

import pytest
from explorer_requests import serving
from tests.support import write_corpus

from tokenloom_look.explorer.application import views_of
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.target import SampleSettings, open_target

pytestmark = pytest.mark.slow


def looking_at(*words: str) -> Looking:
    return Looking(target=open_target([str(word) for word in words], settings=SampleSettings(sequence_length=8)))


def test_data_in_a_bucket_are_explored_as_local_ones(tmp_path, bucket):
    prefix = write_corpus(tmp_path / "web", [[1, 2, 3], list(range(50)), [9] * 30])
    bucket.put_pair(prefix, "data/web")
    keys = bucket.keys()
    with serving(views_of(looking_at(prefix))) as here, serving(views_of(looking_at(bucket.url("data/web")))) as there:
        for name, values in (
            ("documents", {"count": 2}),
            ("positions", {"count": 3}),
            ("search", {"ids": "9 9 9"}),
        ):
            local, remote = here(name, **values), there(name, **values)
            for row in (*local.get("rows", ()), *remote.get("rows", ())):
                row.pop("source", None)  # which is called by its address
            assert remote == local
        drawn = [ask("document", document=1)["html"].count("data-id=") for ask in (here, there)]
        assert drawn == [50, 50]
    assert bucket.keys() == keys


def test_a_corpus_that_is_replaced_is_an_error_and_never_other_text(tmp_path):
    prefix = write_corpus(tmp_path / "web", [[1, 2, 3]] * 3)
    with serving(views_of(looking_at(prefix))) as ask:
        assert ask("documents")["rows"][0]["preview"] == "1 2 3"
        write_corpus(tmp_path / "other", [[4, 5, 6]] * 3)
        for suffix in ("bin", "idx"):
            os.replace(f"{tmp_path}/other.{suffix}", f"{prefix}.{suffix}")
        reply = ask.send("/api/documents")
        assert (reply.status, b"4 5 6" in reply.body) in [(200, False), (409, False)]
        with open(f"{prefix}.bin", "r+b") as stream:
            stream.truncate(0)
        assert b"4 5 6" not in ask.send("/api/documents").body
