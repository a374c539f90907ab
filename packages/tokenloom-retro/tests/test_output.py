"""Outputs of tasks: files that appear together with a manifest."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tokenloom.errors import OutputExistsError
from tokenloom_retro.output import MANIFEST, NewOutput, Output, OutputManifest, crc32_of

IDENTITY = {"of": [1, 2]}


def output_at(folder: Path, identity: object = None) -> Output:
    identity = IDENTITY if identity is None else identity
    return Output(folder=os.fspath(folder), task="texts", identity=identity, pattern="*.txt")


def publish(folder: Path, *texts: str, identity: object = None, overwrite: bool = False) -> OutputManifest:
    """Publishes files 0.txt, 1.txt and so on with these texts."""
    with NewOutput(output_at(folder, identity)) as output:
        for number, text in enumerate(texts):
            output.file(f"{number}.txt").write(text.encode())
        return output.publish({"n": len(texts)}, overwrite=overwrite)


def files_of(folder: Path) -> dict[str, str]:
    found = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    return {name: text for name, text in found.items() if name != MANIFEST}


def test_content_of_a_manifest(tmp_path: Path):
    manifest = publish(tmp_path, "one", "")
    assert json.loads((tmp_path / MANIFEST).read_text()) == {
        "version": 1,
        "task": "texts",
        "identity": {"of": [1, 2]},
        "counts": {"n": 2},
        "files": [
            {"name": "0.txt", "num_bytes": 3, "crc32": "7a6c86f1"},
            {"name": "1.txt", "num_bytes": 0, "crc32": "00000000"},
        ],
        "blocks": [],
    }
    assert OutputManifest.read(os.fspath(tmp_path / MANIFEST)) == manifest
    assert files_of(tmp_path) == {"0.txt": "one", "1.txt": ""}
    assert crc32_of(os.fspath(tmp_path / "0.txt")) == 0x7A6C86F1
    assert output_at(tmp_path, {"of": (1, 2)}).finished() == manifest


def test_existing_output_is_replaced_only_with_overwrite(tmp_path: Path):
    publish(tmp_path, "a", "b", "c")
    with pytest.raises(OutputExistsError, match=r"`.*0\.txt` exists, and was made with other settings"):
        publish(tmp_path, "new", identity={"of": "else"})
    assert files_of(tmp_path) == {"0.txt": "a", "1.txt": "b", "2.txt": "c"}
    publish(tmp_path, "new", identity={"of": "else"}, overwrite=True)
    assert files_of(tmp_path) == {"0.txt": "new"}
    assert sorted(os.listdir(tmp_path)) == ["0.txt", MANIFEST]
