from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenloom.corpus.image_folder import write_image_records
from tokenloom.errors import InputError, OutputExistsError, StorageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for name in ("b.png", "a.png", ".hidden"):
        (tmp_path / "images" / name).write_bytes(b"x")
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n\n{"text": "zwö", "more": 1}\n', encoding="utf-8")
    return tmp_path


def write(folder: Path, **options) -> int:
    return write_image_records(str(folder / "in.jsonl"), str(folder / "images"), str(folder / "out"), **options)


def test_images_go_with_records_by_name(folder: Path):
    assert write(folder) == write(folder) == 2  # the second time, nothing to do
    records = [json.loads(line) for line in (folder / "out").read_text(encoding="utf-8").splitlines()]
    images = str(folder / "images")
    assert records == [
        {"text": "one", "image": f"{images}/a.png"},
        {"text": "zwö", "more": 1, "image": f"{images}/b.png"},
    ]
    with pytest.raises(OutputExistsError):
        write(folder, image_key="path")
    assert write(folder, image_key="path", overwrite=True) == 2


def test_what_cannot_be_paired_is_said(folder: Path):
    (folder / "images" / "c.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"has 2 records, and `.*images` 3 images"):
        write(folder)
    for line, words in (("[1]", "line 4 of .*expected an object, found list"), ("{", "line 4 of .* is not JSON")):
        (folder / "in.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n\n' + line)
        with pytest.raises(InputError, match=words):
            write(folder)
    with pytest.raises(StorageError, match="nowhere"):
        write_image_records(str(folder / "in.jsonl"), str(folder / "nowhere"), str(folder / "out"))
