from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenloom.errors import OutputExistsError
from tokenloom.preprocess.multimodal import write_image_records


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
