"""What `data` of a source stands for."""

from __future__ import annotations

import os

import pytest
from tests.run.data import settings_of, write_source

from tokenloom import build_catalogue
from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.run.sources import find_pairs


def found(folder, data):
    settings = settings_of(folder, f"web = {data}")
    return [os.path.relpath(prefix, folder) for prefix in find_pairs(settings.sources[0], settings)]


@pytest.fixture
def folder(tmp_path):
    for name in ("web/b", "web/a", "web/c", "more/a", ".hidden/a"):
        write_source(tmp_path / "data" / name, 3)
    (tmp_path / "data" / "web" / "notes.txt").write_text("no data")
    return tmp_path


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('"data/web/a"', ["data/web/a"]),
        ('"data/web/a.bin"', ["data/web/a"]),
        ('"data/web/a.idx"', ["data/web/a"]),
        ('"data/web/*"', ["data/web/a", "data/web/b", "data/web/c"]),
        ('"data/web/[ac].idx"', ["data/web/a", "data/web/c"]),
        ('"data/*/a"', ["data/more/a", "data/web/a"]),
        ('"data/**/a"', ["data/more/a", "data/web/a"]),
        ('"data/web"', ["data/web/a", "data/web/b", "data/web/c"]),
        ('["data/web/c", "data/more/*", "data/web/a"]', ["data/web/c", "data/more/a", "data/web/a"]),
    ],
)
def test_pairs_in_the_order_of_data(folder, data, expected):
    assert found(folder, data) == expected


def test_a_catalogue_stands_for_its_pairs_in_its_order(folder):
    pairs = [f"{folder}/data/web/{name}" for name in "cab"]
    build_catalogue(pairs, f"{folder}/data/all")
    expected = ["data/web/c", "data/web/a", "data/web/b"]
    assert found(folder, '"data/all"') == found(folder, '"data/all.catalogue"') == expected
    assert found(folder, '"data/al*"') == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('"data/none/*"', "source 'web': '.*data/none/\\*' matches no pair"),
        ('"data/web/*.txt"', "source 'web': '.*' matches no pair"),
        ('["data/web/a", "data/web/../web/a"]', "expected (each pair once|.* once)"),
        ('["data/web/*", "data/web/a"]', "source 'web': expected each pair once, found `.*data/web/a` twice"),
        ('["data/web/*", "data/all"]', "source 'web': expected each pair once, found `.*data/web/c` twice"),
        ('["data/web/a", "data/link"]', "found `.*data/link` twice, as `.*data/web/a` too"),
    ],
)
def test_bad_data(folder, data, message):
    build_catalogue([f"{folder}/data/web/c"], f"{folder}/data/all")
    for suffix in (".bin", ".idx"):
        os.symlink(f"{folder}/data/web/a{suffix}", f"{folder}/data/link{suffix}")
    with pytest.raises((ConfigError, DatasetNotFoundError), match=message):
        found(folder, data)


@pytest.mark.parametrize("missing", [".bin", ".idx"])
@pytest.mark.parametrize("data", ['"data/web/*"', '"data/web"'])
def test_half_a_pair(folder, missing, data):
    os.unlink(f"{folder}/data/web/b{missing}")
    with pytest.raises(DatasetNotFoundError, match=rf"half of the pair `.*b`: `.*b\{missing}` is missing"):
        found(folder, data)


def test_objects_of_a_store(bucket, tmp_path):
    for name in ("web/0/b", "web/1/a", "web/a"):
        bucket.put_pair(write_source(tmp_path / name, 3), f"data/{name}")
    build_catalogue([bucket.url("data/web/1/a")], bucket.url("data/all"))

    def prefixes(entry):
        settings = settings_of(tmp_path, f'web = "{bucket.url(entry)}"')
        return [each.removeprefix(bucket.url("data/")) for each in find_pairs(settings.sources[0], settings)]

    assert prefixes("data/web/a") == ["web/a"]
    assert prefixes("data/web/*") == prefixes("data/web/") == ["web/a"]
    assert prefixes("data/web/*/*") == ["web/0/b", "web/1/a"]
    assert prefixes("data/all") == prefixes("data/al*") == ["web/1/a"]
    with pytest.raises(DatasetNotFoundError, match="matches no pair"):
        prefixes("data/none/*")
    bucket.put("data/web/half.idx", b"")
    with pytest.raises(DatasetNotFoundError, match=r"half of the pair `.*half`: `.*half\.bin` is missing"):
        prefixes("data/web/*")
