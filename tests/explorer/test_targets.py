"""Whatever can be named can be explored, or is refused in words: blends, catalogues, images, buckets, half a pair."""

from __future__ import annotations

import os

import pytest
from tests.explorer.asking import serving, state_of
from tests.indexed.pairs import write_pair
from tests.support import write_corpus

from tokenloom.errors import DatasetNotFoundError
from tokenloom.explorer.looking import Looking
from tokenloom.explorer.views import views_of
from tokenloom.indexed.images import IMAGE_MODE
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.indexed.writing.catalogue_builder import build_catalogue
from tokenloom.inspect.target import SampleSettings, open_target


def looking_at(*words: str) -> Looking:
    return Looking(target=open_target([str(word) for word in words], settings=SampleSettings(sequence_length=8)))


def test_a_blend_has_the_documents_of_all_its_pairs(tmp_path):
    one, other = write_corpus(tmp_path / "a", [[1] * 20]), write_corpus(tmp_path / "b", [[2] * 20, [3]])
    with serving(views_of(looking_at("0.3", one, "0.7", other))) as ask:
        found = ask("target")
        assert (found["kind"], [source["weight"] for source in found["sources"]]) == ("blend", [0.3, 0.7])
        assert ask("documents", source=1)["rows"][1]["preview"] == "3"
        assert ask("jump", value="b:1") == {"view": "documents", "parameters": {"source": 1, "document": 1}}
        assert ask.error("jump", value="b:2")[0] == 404
        assert [match["source"] for match in ask("search", ids="2 2", source=1)["matches"]] == [1] * 19


def test_a_catalogue_is_the_documents_of_its_pairs(tmp_path):
    prefixes = [write_corpus(tmp_path / name, [[number] * 20]) for number, name in enumerate("abc", 1)]
    prefix = build_catalogue(prefixes, f"{tmp_path}/all").path_prefix
    with serving(views_of(looking_at(prefix))) as ask:
        assert (ask("target")["kind"], ask("documents")["total"]) == ("catalogue", 3)
        assert ask("documents", first=2)["rows"][0]["preview"] == " ".join(["3"] * 20)
        assert ask("search", ids="2")["matches"][0]["document"] == 1
        assert ask("positions")["total"] > 0


def test_images_are_named_and_their_bytes_are_no_tokens(tmp_path):
    with IndexedDatasetBuilder(f"{tmp_path}/mixed.bin", dtype="int32", multimodal=True) as builder:
        builder.add_item([5, 6, 7], mode=0)
        builder.add_item([7, 7, 7, 7], mode=IMAGE_MODE)
        builder.add_item([7, 8], mode=0)
        builder.end_document()
        builder.finalize(f"{tmp_path}/mixed.idx")
    with serving(views_of(looking_at(tmp_path / "mixed"))) as ask:
        assert ask("target")["views"] == ["overview", "documents", "search"]
        [row] = ask("documents")["rows"]
        assert (row["num_sequences"], row["preview"]) == (3, "5 6 7")
        assert ask("document", document=0)["num_tokens"] == 6  # an image counts as one
        assert [match["start"] for match in ask("search", ids="7")["matches"]] == [2, 4]
        status, message = ask.error("positions")
        assert (status, message.startswith("expected something with samples, found the pair")) == (400, True)


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


def test_a_corpus_that_is_being_written_is_refused_until_it_is_there(tmp_path):
    builder = IndexedDatasetBuilder(f"{tmp_path}/new.bin", dtype="uint16")
    builder.add_document([1, 2, 3], [3])
    with pytest.raises(DatasetNotFoundError, match="new`, found nothing there"):
        looking_at(tmp_path / "new")
    builder.finalize(f"{tmp_path}/new.idx")
    assert looking_at(tmp_path / "new").target.sources[0].num_documents == 1


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


def test_documents_without_sequences_and_pairs_without_documents(tmp_path):
    prefix = write_pair(tmp_path / "odd", [[], [[]], [[1], []]])
    before = state_of(tmp_path)
    with serving(views_of(looking_at(prefix))) as ask:
        assert [(row["num_tokens"], row["preview"]) for row in ask("documents")["rows"]] == [(0, ""), (0, ""), (1, "1")]
        assert [ask("document", document=number)["num_tokens"] for number in range(3)] == [0, 0, 1]
    assert state_of(tmp_path) == before
