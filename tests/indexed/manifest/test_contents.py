import dataclasses
import os

import numpy as np
import pytest
from tests.indexed.manifest.manifests import SHA256, make_facts, make_manifest, make_tokenizer_identity, write_recorded

from tokenloom.errors import ConfigError
from tokenloom.indexed.manifests import (
    DocumentLedger,
    FileChecksum,
    InputRecord,
    TokenizerIdentity,
    combine_manifests,
    identity_of,
    manifest_path,
    read_manifest,
)
from tokenloom.indexed.verify import verify_dataset
from tokenloom.indexed.writing.concatenate import build_catalogue, merge_datasets


def test_a_ledger_must_balance():
    with pytest.raises(
        ConfigError,
        match=r"ledger: expected 10 documents, as many as read, found 7 kept \+ 1 rejected \+ 1 blank \+ 0 duplicates",
    ):
        DocumentLedger(num_read=10, num_kept=7, num_rejected=1, num_blank=1)
    total = DocumentLedger(num_read=3, num_kept=2, num_empty=1) + DocumentLedger(
        num_read=5, num_kept=4, num_duplicates=1
    )
    assert total == DocumentLedger(num_read=8, num_kept=6, num_empty=1, num_duplicates=1)


def test_options_are_values_of_json():
    assert make_manifest(options={"keys": ("a", "b")}).options == {"keys": ["a", "b"]}
    for value in (float("nan"), {1, 2}, b"bytes"):
        with pytest.raises(ConfigError, match=r"`options`: must be JSON values"):
            make_manifest(options={"odd": value})


def test_manifests_of_one_tokenizer_and_options_combine():
    first = make_manifest()
    second = make_manifest(
        tokenizer=make_tokenizer_identity(path="elsewhere.json"),
        ledger=DocumentLedger(num_read=2, num_kept=2),
        inputs=(InputRecord(path="b.jsonl", num_bytes=5),),
        engine="tokenizers",
    )
    pair = make_facts(num_documents=4, num_sequences=6, num_tokens=10, tokens=FileChecksum(num_bytes=20, crc32=3))
    both = combine_manifests([first, second], pair=pair)
    assert both.pair == pair
    assert both.tokenizer == first.tokenizer
    assert both.ledger == DocumentLedger(num_read=6, num_kept=4, num_rejected=1, num_blank=1)
    assert [record.path for record in both.inputs] == ["a.jsonl", "-", "b.jsonl"]
    assert both.engine == "gigatoken, tokenizers"
    assert combine_manifests([first], pair=first.pair) == dataclasses.replace(
        first, tokenloom_version=both.tokenloom_version
    )


def test_options_that_differ_are_recorded_together():
    changes = [{"key": "text", "append_eod": True}, {"key": "body", "append_eod": True}, {"key": "text"}]
    pair = make_facts(num_documents=4, num_sequences=6, num_tokens=10, tokens=FileChecksum(num_bytes=20, crc32=3))
    manifests = [make_manifest(options=options) for options in changes]
    both = combine_manifests(manifests[:2], pair=pair)
    assert both.options == {"key": {"several": ["text", "body"]}, "append_eod": True}
    all_of_them = combine_manifests([both, manifests[2]], pair=pair)
    assert all_of_them.options == {"key": {"several": ["text", "body"]}, "append_eod": {"several": [True, None]}}


def test_documents_that_are_left_out_went_elsewhere():
    found = combine_manifests([make_manifest(), make_manifest()], pair=make_facts())
    assert found.ledger == DocumentLedger(num_read=8, num_kept=2, num_rejected=2, num_blank=2, num_elsewhere=2)


@pytest.fixture
def pairs(tmp_path):
    return [write_recorded(tmp_path / name, [[[1, 2]], [[3]]]) for name in "ab"]


@pytest.mark.parametrize(
    ("join", "change"),
    [(merge_datasets, {"sha256": "cd" * 32}), (merge_datasets, {"eod": None}), (build_catalogue, {"vocab_size": 101})],
)
def test_pairs_of_different_tokenizers_are_not_joined(tmp_path, pairs, join, change):
    other = write_recorded(tmp_path / "c", [[[4]]], tokenizer=make_tokenizer_identity(**change))
    with pytest.raises(ConfigError, match=r"expected one tokenizer, found word-level `.*json` \(sha256 abab.* for `"):
        join([*pairs, other], f"{tmp_path}/all")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("all")]
    join(pairs, f"{tmp_path}/all")
    manifest = read_manifest(f"{tmp_path}/all")
    assert (manifest.ledger.num_kept, len(manifest.inputs), manifest.options["append_eod"]) == (4, 2, True)
    assert verify_dataset(f"{tmp_path}/all").has_manifest


@pytest.mark.parametrize("join", [merge_datasets, build_catalogue])
def test_a_pair_without_a_manifest_leaves_the_result_without(tmp_path, pairs, join, caplog):
    os.unlink(manifest_path(pairs[1]))
    join(pairs, f"{tmp_path}/all")
    assert read_manifest(f"{tmp_path}/all") is None
    assert f"because `{pairs[1]}` has none" in caplog.text


class Peer:
    def __init__(self):
        self.unique_identifiers = {"class": "peer", "tokenizer_path": ["there/tokenizer"]}
        self.vocab_size = np.int64(100)

    def __getattr__(self, name):
        raise NotImplementedError


class Wrapper:
    def __init__(self):
        self.unique_identifiers = {"sha256": SHA256}


def test_any_tokenizer_has_an_identity():
    found = identity_of(Peer())
    assert found == TokenizerIdentity(kind="Peer", sha256=None, path="there/tokenizer", vocab_size=100)
    assert found.describe() == "Peer `there/tokenizer` (100 ids)"
    assert identity_of(Wrapper()).sha256 == SHA256
    assert identity_of(object()).describe() == "object"
