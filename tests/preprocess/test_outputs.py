from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.jobs import preprocess, preprocess_multimodal
from tests.preprocess.corpus import PAIR_SUFFIXES, byte_level_json, make_tokenizer, write_lines

from tokenloom import InputError, MissingObjectError
from tokenloom.indexed.manifests import DocumentLedger, InputRecord, SpecialToken, read_manifest
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.verify import verify_dataset


def test_json_lines_are_accounted_for(tmp_path: Path, words):
    lines = [{"a": "alpha beta", "b": "beta"}, b"", b"bad", {"a": "", "b": ["alpha", "alpha"]}]
    path = write_lines(tmp_path / "in.jsonl", lines)
    preprocess(path, tmp_path / "out", words, keys=["a", "b"], append_eod=True, skip_bad_records=True)
    for key, num_tokens, largest in (("a", 3, 3), ("b", 5, 3)):
        prefix = f"{tmp_path}/out_{key}_document"
        manifest = read_manifest(prefix)
        assert manifest.ledger == DocumentLedger(num_read=4, num_kept=2, num_rejected=1, num_blank=1)
        assert (manifest.pair.num_documents, manifest.pair.num_tokens) == (2, num_tokens)
        assert manifest.pair.largest_token == largest
        assert (manifest.options["key"], manifest.options["append_eod"]) == (key, True)
        num_bytes, version = path.stat().st_size, str(path.stat().st_mtime_ns)
        assert manifest.inputs == (InputRecord(path=str(path), num_bytes=num_bytes, version=version),)
        assert manifest.tokenizer.sha256 == words.sha256
        assert manifest.tokenizer.path == "memory/tokenizer.json"
        assert manifest.tokenizer.vocab_size == 4
        assert (manifest.tokenizer.bos, manifest.tokenizer.eod) == (None, SpecialToken(id=1, text="</s>"))
        assert manifest.engine == "tokenizers"
        report = verify_dataset(prefix)
        assert (report.problems, report.has_manifest) == ((), True)


@pytest.mark.parametrize("from_folder", [True, False])
def test_pairs_of_text_and_image_are_accounted_for(tmp_path: Path, words, from_folder):
    folder = tmp_path / "pairs"
    folder.mkdir()
    for name, text in (("cat", "alpha"), ("dog", "alpha beta")):
        (folder / f"{name}.jpg").write_bytes(b"\xff" * 9)
        (folder / f"{name}.txt").write_text(text)
    lines = write_lines(tmp_path / "in.jsonl", [{"text": "alpha beta", "image": "pairs/cat.jpg"}, b"bad"])
    path = folder if from_folder else lines
    preprocess_multimodal(path, tmp_path / "out", words, append_eod=True, skip_bad_lines=True)
    manifest = read_manifest(f"{tmp_path}/out")
    assert manifest.pair.largest_token == 3  # of the texts: images are no tokens
    expected = DocumentLedger(num_read=2, num_kept=2) if from_folder else None
    assert manifest.ledger == (expected or DocumentLedger(num_read=2, num_kept=1, num_rejected=1))
    (record,) = manifest.inputs
    assert (record.path, record.num_bytes) == (str(path), 2 * 9 + 15 if from_folder else lines.stat().st_size)
    for multimodal in (True, False):
        assert verify_dataset(f"{tmp_path}/out", multimodal=multimodal).problems == ()


@pytest.fixture
def text() -> bytes:
    texts = (f"document {number} " * (number % 7) for number in range(500))
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def test_the_result_is_that_of_local_files(bucket, text, tmp_path):
    tokenizer = make_tokenizer(byte_level_json())
    (tmp_path / "text.jsonl").write_bytes(text)
    local = preprocess(tmp_path / "text.jsonl", tmp_path / "out", tokenizer, append_eod=True)
    source = bucket.put("text", gzip.compress(text))
    seen = []
    options = {"append_eod": True, "input_format": "jsonl", "progress": seen.append}
    summary = preprocess(source, bucket.url("out"), tokenizer, **options)
    assert [each.num_tokens for each in summary.datasets] == [each.num_tokens for each in local.datasets]
    assert seen[-1].total == len(gzip.compress(text)) == seen[-1].counts["num_file_bytes"]
    assert bucket.keys() == [*(f"out_text_document.{suffix}" for suffix in PAIR_SUFFIXES), "text"]
    for suffix in (".bin", ".idx"):
        assert bucket.get(f"out_text_document{suffix}") == (tmp_path / f"out_text_document{suffix}").read_bytes()
    origins = read_origins(bucket.url("out_text_document"))
    assert origins is not None
    assert [file.path for file in origins.files] == [source]
    assert origins.locate(np.arange(origins.num_documents))[1].tolist() == list(range(1, origins.num_documents + 1))


def test_what_fails_writes_nothing(bucket, text):
    tokenizer = make_tokenizer(byte_level_json())
    source = bucket.put("text", text + b"no JSON\n")
    with pytest.raises(InputError, match=rf"`{source}` line 501"):
        preprocess(source, bucket.url("out"), tokenizer, input_format="jsonl")
    assert bucket.keys() == ["text"]
    with pytest.raises(MissingObjectError):
        preprocess(bucket.url("none"), bucket.url("out"), tokenizer, input_format="jsonl")
    summary = preprocess(source, bucket.url("out"), tokenizer, skip_bad_records=True, input_format="jsonl")
    assert json.loads(bucket.get("out.rejected.jsonl"))["line"] == 501
    assert summary.rejected_paths == (bucket.url("out.rejected.jsonl"),)
