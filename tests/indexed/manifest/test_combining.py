"""Manifests of merged pairs and of catalogues."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.corpus.jobs import preprocess
from tests.preprocess.corpus import byte_level_json, make_tokenizer, word_level_json, write_lines

from tokenloom.errors import ConfigError
from tokenloom.indexed.manifest.contents import DocumentLedger
from tokenloom.indexed.manifest.file import manifest_path, read_manifest
from tokenloom.indexed.verify import verify_dataset
from tokenloom.indexed.writing.catalogue_builder import build_catalogue
from tokenloom.indexed.writing.merge import merge_datasets


@pytest.fixture
def pairs(tmp_path: Path) -> list[str]:
    """Two pairs of one tokenizer, with 3 and 4 documents."""
    prefixes = []
    for name, words in (("a", ["one", "two", "three"]), ("b", ["four", "", "six", "seven"])):
        path = write_lines(tmp_path / f"{name}.jsonl", [{"text": word} for word in words])
        preprocess(path, tmp_path / name, make_tokenizer(byte_level_json()), append_eod=True)
        prefixes.append(f"{tmp_path}/{name}_text_document")
    return prefixes


@pytest.mark.parametrize("join", [merge_datasets, build_catalogue])
def test_the_result_says_what_its_inputs_say(tmp_path: Path, pairs: list[str], join):
    join(pairs, f"{tmp_path}/all")
    manifest = read_manifest(f"{tmp_path}/all")
    assert manifest is not None
    assert manifest.ledger == DocumentLedger(num_read=7, num_kept=7)
    assert [os.path.basename(record.path) for record in manifest.inputs] == ["a.jsonl", "b.jsonl"]
    assert manifest.options["append_eod"] is True
    report = verify_dataset(f"{tmp_path}/all")
    assert (report.problems, report.has_manifest) == ((), True)


def test_pairs_of_a_wanted_size_account_for_all_documents(tmp_path: Path, pairs: list[str]):
    parts = merge_datasets(pairs, f"{tmp_path}/part", part_bytes=14)
    assert len(parts) > 2
    manifests = [read_manifest(part.path_prefix) for part in parts]
    assert sum(manifest.ledger.num_kept for manifest in manifests) == 7
    assert all(verify_dataset(part.path_prefix).ok for part in parts)


@pytest.mark.parametrize("join", [merge_datasets, build_catalogue])
def test_different_tokenizers_are_refused(tmp_path: Path, pairs: list[str], join):
    path = write_lines(tmp_path / "c.jsonl", [{"text": "alpha"}])
    preprocess(path, tmp_path / "c", make_tokenizer(word_level_json()), append_eod=True)
    with pytest.raises(
        ConfigError, match=r"expected one tokenizer, found huggingface .* for `.*a_text_document` and hug"
    ):
        join([*pairs, f"{tmp_path}/c_text_document"], f"{tmp_path}/all")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("all")]


@pytest.mark.parametrize("join", [merge_datasets, build_catalogue])
def test_a_pair_without_a_manifest_leaves_the_result_without(
    tmp_path: Path, pairs: list[str], join, caplog: pytest.LogCaptureFixture
):
    os.unlink(manifest_path(pairs[1]))
    join(pairs, f"{tmp_path}/all")
    assert read_manifest(f"{tmp_path}/all") is None
    assert f"because `{pairs[1]}` has none" in caplog.text
