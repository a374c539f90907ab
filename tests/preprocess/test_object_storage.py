from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from tests.corpus.jobs import preprocess
from tests.preprocess.corpus import PAIR_SUFFIXES, byte_level_json, make_tokenizer

from tokenloom import InputError, MissingObjectError
from tokenloom.indexed.origins import read_origins


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
