import dataclasses
import itertools
import json
import os
import pickle
import re
import shutil
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import dies_at
from tests.indexed.manifest.manifests import (
    SHA256,
    make_facts,
    make_manifest,
    make_tokenizer_identity,
    write_manifest,
    write_recorded,
)
from tests.indexed.pairs import pair_bytes, read_pair, write_pair
from tests.support import contents

from tokenloom.errors import ConfigError, DatasetFormatError, StorageError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import (
    HEAD_BYTES,
    DocumentLedger,
    FileChecksum,
    InputRecord,
    Manifest,
    ManifestHead,
    SpecialToken,
    TokenizerIdentity,
    combine_manifests,
    identity_of,
    manifest_bytes,
    manifest_head_of,
    manifest_of,
    manifest_path,
    parse_manifest,
    read_manifest,
    read_manifest_head,
)
from tokenloom.indexed.verify import verify_dataset
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.indexed.writing.concatenate import build_catalogue, merge_datasets

LITERAL = """\
{
  "format": "tokenloom manifest",
  "version": 1,
  "pair": {
    "dtype": "uint16",
    "num_documents": 2,
    "num_sequences": 3,
    "num_tokens": 5,
    "largest_token": 14,
    "tokens": {
      "num_bytes": 10,
      "crc32": "0a0b0c0d"
    },
    "index": {
      "num_bytes": 94,
      "crc32": "ffffffff"
    },
    "index_start_crc32": "00000001"
  },
  "tokenizer": {
    "kind": "word-level",
    "sha256": "abababababababababababababababababababababababababababababababab",
    "path": "words/tokenizer.json",
    "vocab_size": 100,
    "bos": null,
    "eod": {
      "id": 9,
      "text": "</s>"
    }
  },
  "options": {
    "key": "text",
    "append_eod": true
  },
  "ledger": {
    "num_read": 4,
    "num_kept": 2,
    "num_rejected": 1,
    "num_blank": 1,
    "num_duplicates": 0,
    "num_empty": 0,
    "num_elsewhere": 0
  },
  "engine": "gigatoken",
  "tokenloom_version": "0.1.0",
  "num_input_files": 2,
  "num_input_bytes": 70,
  "inputs": [
    {
      "path": "a.jsonl",
      "num_bytes": 70,
      "version": "17"
    },
    {
      "path": "-",
      "num_bytes": 0,
      "version": null
    }
  ]
}
"""


def test_the_file_is_json_that_a_person_can_read(tmp_path):
    write_manifest(f"{tmp_path}/corpus", make_manifest())
    assert (tmp_path / "corpus.manifest.json").read_text() == LITERAL
    assert os.listdir(tmp_path) == ["corpus.manifest.json"]
    assert read_manifest(f"{tmp_path}/corpus") == make_manifest()


def head_of(manifest):
    return ManifestHead(
        tokenizer=manifest.tokenizer,
        options=manifest.options,
        largest_token=manifest.pair.largest_token,
        index_start_crc32=manifest.pair.index_start_crc32,
    )


def test_the_head_is_read_from_any_layout_and_null_is_as_good_as_a_member_that_is_left_out(tmp_path):
    document = json.loads(LITERAL)
    others = json.dumps(document, indent=4), json.dumps(document), json.dumps({**document, "note": {"by": "a person"}})
    backwards = json.dumps(dict(reversed(document.items())), indent=2)
    document["pair"]["copied_tokens"] = None
    for text in (LITERAL, *others, backwards, json.dumps(document)):
        (tmp_path / "corpus.manifest.json").write_text(text)
        assert read_manifest_head(f"{tmp_path}/corpus") == head_of(make_manifest())
        assert read_manifest(f"{tmp_path}/corpus") == make_manifest()


def test_the_head_needs_the_start_of_the_file_alone(tmp_path):
    many = tuple(InputRecord(path=f"{number}.jsonl", num_bytes=1) for number in range(1000))
    path = tmp_path / "corpus.manifest.json"
    write_manifest(f"{tmp_path}/corpus", make_manifest(inputs=many))
    os.truncate(path, HEAD_BYTES)
    assert read_manifest_head(f"{tmp_path}/corpus") == head_of(make_manifest())
    with pytest.raises(DatasetFormatError, match="expected JSON, found 4096 bytes that are not JSON"):
        read_manifest(f"{tmp_path}/corpus")


@pytest.mark.parametrize("text", ["é" * HEAD_BYTES, '{"tokenizer": 1},\n  "tokenizer": {},\n  "options": {'])
def test_a_head_may_be_long_and_a_text_cannot_pass_for_its_end(tmp_path, text):
    odd = make_manifest(tokenizer=make_tokenizer_identity(path=text), options={text: text})
    write_manifest(f"{tmp_path}/corpus", odd)
    assert read_manifest_head(f"{tmp_path}/corpus") == head_of(odd)
    assert read_manifest(f"{tmp_path}/corpus") == odd


COUNTS = st.integers(0, 2**40)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
CRCS = st.integers(0, 2**32 - 1)
SPECIAL = st.none() | st.builds(SpecialToken, id=COUNTS, text=st.none() | TEXTS)
HASHES = st.none() | st.binary(min_size=32, max_size=32).map(bytes.hex)
MAYBE = {"path": st.none() | TEXTS, "vocab_size": st.none() | COUNTS, "bos": SPECIAL, "eod": SPECIAL, "sha256": HASHES}
TOKENIZERS = st.builds(TokenizerIdentity, kind=TEXTS, **MAYBE)
INPUTS = st.builds(InputRecord, path=TEXTS, num_bytes=COUNTS, version=st.none() | TEXTS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=5,
)


@st.composite
def manifests(draw):
    dtype = draw(st.sampled_from(["uint8", "uint16", "int32", "int64"]))
    num_tokens, kept = draw(st.integers(0, 2**30)), draw(COUNTS)
    reasons = ("num_rejected", "num_blank", "num_duplicates", "num_empty", "num_elsewhere")
    others = {name: draw(st.integers(0, 9)) for name in reasons}
    pair = make_facts(
        dtype=dtype,
        num_documents=kept,
        num_sequences=draw(COUNTS),
        num_tokens=num_tokens,
        largest_token=draw(st.none() | st.integers(0, 255)) if num_tokens else None,
        tokens=FileChecksum(num_bytes=num_tokens * np.dtype(dtype).itemsize, crc32=draw(CRCS)),
        index=FileChecksum(num_bytes=draw(COUNTS), crc32=draw(CRCS)),
        index_start_crc32=draw(CRCS),
        copied_tokens=draw(st.sampled_from([None, "compared", "inherited", "unverified"])),
    )
    return Manifest(
        pair=pair,
        tokenizer=draw(TOKENIZERS),
        options=draw(st.dictionaries(TEXTS, JSON, max_size=3)),
        ledger=DocumentLedger(num_read=kept + sum(others.values()), num_kept=kept, **others),
        inputs=tuple(draw(st.lists(INPUTS, max_size=3))),
        engine=draw(st.none() | TEXTS),
        tokenloom_version=draw(TEXTS),
    )


@given(manifests())
def test_what_is_written_is_read(tmp_path_factory, manifest):
    data = manifest_bytes(manifest)
    assert parse_manifest(data, path="x") == manifest
    prefix = str(tmp_path_factory.getbasetemp() / "any")
    write_manifest(prefix, manifest)
    assert read_manifest_head(prefix) == head_of(manifest)


# --- files that are none ------------------------------------------------------------------------------------------


def changed(**changes):
    """Returns the literal document with members replaced, by dotted names; None for a member removes it."""
    document = json.loads(LITERAL)
    for name, value in changes.items():
        *owners, last = name.split("__")
        inner = document
        for owner in owners:
            inner = inner[int(owner)] if isinstance(inner, list) else inner[owner]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return json.dumps(document, indent=2).encode()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "expected JSON, found 0 bytes"),
        (LITERAL[:700].encode(), "expected JSON, found 700 bytes"),
        (b"[" * 100_000, "expected JSON, found 100000 bytes"),
        (b'{"format": ' + b"9" * 5000 + b"}", "expected JSON, found"),
        (b"[]", "expected an object whose `format` is 'tokenloom manifest', found something else"),
        (changed(format="recipe"), "expected an object whose `format` is"),
        (changed(version=2), "expected version 1, found 2"),
        (changed(pair=...), "expected `pair`, found no such member"),
        (changed(pair=[]), r"expected `pair` to be an object, found \[\]"),
        (changed(inputs=[1]), r"expected `inputs\[0\]` to be an object, found 1"),
        (changed(pair__num_tokens=True), "expected `pair.num_tokens` to be an integer, found True"),
        (changed(pair__num_tokens=5.0), "expected `pair.num_tokens` to be an integer, found 5.0"),
        (changed(pair__num_tokens=6), "in `pair`: `tokens`: must have 12 bytes for 6 tokens of uint16, got 10 bytes"),
        (changed(pair__num_sequences=-1), "num_sequences of the pair: must be an integer of 0 or more, got -1"),
        (changed(pair__num_sequences=2**63), "num_sequences of the pair: must be an integer of 0 or more"),
        (changed(pair__dtype="bfloat16"), "in `pair`: `dtype`: must be one of uint8, .*, got 'bfloat16'"),
        (changed(pair__largest_token=65536), "`largest_token`: must be at most 65535 for 5 tokens of uint16"),
        (changed(pair__index__crc32="0x1f"), "expected `pair.index.crc32` to be 8 hexadecimal digits, found '0x1f'"),
        (changed(pair__index_start_crc32="+0000001"), "expected `pair.index_start_crc32` to be 8 hexadecimal digits"),
        (changed(pair__copied_tokens=["x"]), r"expected `pair.copied_tokens` to be a string, found \['x'\]"),
        (changed(pair__copied_tokens="so"), "`copied_tokens`: must be one of compared, inherited, .*, got 'so'"),
        (changed(tokenizer__sha256="AB" * 32), "`sha256` of the tokenizer: must be 64 hexadecimal digits"),
        (changed(tokenizer__sha256=...), "expected `tokenizer.sha256`, found no such member"),
        (changed(tokenizer__eod__id=-1), "in `tokenizer.eod`: the id of a special token: must be .*, got -1"),
        (changed(tokenizer__kind="x" * 99, tokenizer__path=["y" * 99]), r"found \['y{58}…"),
        (changed(ledger__num_blank=0), "in `ledger`: ledger: `num_read` is 4, but the other counts are 2 kept"),
        (
            changed(ledger__num_read=5, ledger__num_kept=3),
            "expected 2 kept documents, as many as the pair has, found 3",
        ),
        (changed(inputs__1__path=None), r"expected `inputs\[1\].path` to be a string, found None"),
    ],
)
def test_what_is_no_manifest_is_named(tmp_path, data, problem):
    path = tmp_path / "corpus.manifest.json"
    path.write_bytes(data)
    with pytest.raises(DatasetFormatError, match=problem) as caught:
        read_manifest(f"{tmp_path}/corpus")
    assert caught.value.message.startswith(f"`{path}`")
    assert caught.value.hint is not None


def test_wrong_members_of_the_head_are_found_at_the_start(tmp_path):
    for data in (changed(pair__largest_token="x"), changed(tokenizer__vocab_size="x"), changed(version=7)):
        (tmp_path / "corpus.manifest.json").write_bytes(data)
        with pytest.raises(DatasetFormatError, match=r"corpus\.manifest\.json`: expected"):
            read_manifest_head(f"{tmp_path}/corpus")


def test_without_a_file_there_is_none_but_one_that_cannot_be_opened_is_not_taken_for_none(tmp_path):
    assert read_manifest(f"{tmp_path}/corpus") is None
    assert read_manifest_head(f"{tmp_path}/corpus") is None
    (tmp_path / "corpus.manifest.json").mkdir()
    with pytest.raises(StorageError, match=r"cannot read `.*corpus\.manifest\.json"):
        read_manifest_head(f"{tmp_path}/corpus")


def test_a_ledger_must_balance():
    message = "`num_read` is 10, but the other counts are 7 kept + 1 rejected + 1 blank + 0 duplicates"
    with pytest.raises(ConfigError, match=f"ledger: {re.escape(message)}"):
        DocumentLedger(num_read=10, num_kept=7, num_rejected=1, num_blank=1)
    first, second = {"num_read": 3, "num_kept": 2, "num_empty": 1}, {"num_read": 5, "num_kept": 4, "num_duplicates": 1}
    total = DocumentLedger(**first) + DocumentLedger(**second)
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
    found = combine_manifests([first], pair=first.pair)
    assert found == dataclasses.replace(first, tokenloom_version=both.tokenloom_version)
    found = combine_manifests([first, first], pair=make_facts())  # documents that are left out went elsewhere
    assert found.ledger == DocumentLedger(num_read=8, num_kept=2, num_rejected=2, num_blank=2, num_elsewhere=2)


def test_options_that_differ_are_recorded_together():
    changes = [{"key": "text", "append_eod": True}, {"key": "body", "append_eod": True}, {"key": "text"}]
    pair = make_facts(num_documents=4, num_sequences=6, num_tokens=10, tokens=FileChecksum(num_bytes=20, crc32=3))
    manifests = [make_manifest(options=options) for options in changes]
    both = combine_manifests(manifests[:2], pair=pair)
    assert both.options == {"key": {"several": ["text", "body"]}, "append_eod": True}
    all_of_them = combine_manifests([both, manifests[2]], pair=pair)
    assert all_of_them.options == {"key": {"several": ["text", "body"]}, "append_eod": {"several": [True, None]}}


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


def test_any_tokenizer_has_an_identity():
    found = identity_of(Peer())
    assert found == TokenizerIdentity(kind="Peer", sha256=None, path="there/tokenizer", vocab_size=100)
    assert found.describe() == "Peer `there/tokenizer` (100 ids)"
    assert identity_of(SimpleNamespace(unique_identifiers={"sha256": SHA256})).sha256 == SHA256
    assert identity_of(object()).describe() == "object"


CORPUS = [[[10, 11, 12], [13]], [[14]]]
OTHER = [[[20, 21, 22], [23]], [[24]]]
"""The same lengths as `CORPUS`, so that only the order of writing keeps the manifests apart."""

OTHER_TOKENIZER = make_tokenizer_identity(sha256="cd" * 32)


def test_the_manifest_says_what_the_files_hold(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    pair = read_manifest(prefix).pair
    tokens, index = pair_bytes(prefix)
    assert (pair.dtype, pair.num_documents, pair.num_sequences, pair.num_tokens) == ("uint16", 2, 3, 5)
    assert pair.largest_token == 14
    assert (pair.tokens.num_bytes, pair.tokens.crc32) == (len(tokens), zlib.crc32(tokens))
    assert (pair.index.num_bytes, pair.index.crc32) == (len(index), zlib.crc32(index))
    assert pair.index_start_crc32 == zlib.crc32(index[: 34 + 4 * 3])
    assert (tokens, index) == pair_bytes(write_pair(tmp_path / "plain", CORPUS, dtype=np.uint16))


@pytest.mark.parametrize(
    ("dtype", "num_documents"), [(np.uint8, 2500), (np.int32, 0), (np.int64, 999), (np.int64, 1), (np.float32, 1001)]
)
def test_every_way_of_adding_is_counted(tmp_path, dtype, num_documents):
    rng = np.random.default_rng(num_documents)
    lengths = rng.integers(0, 4, size=num_documents).astype(np.int32)
    with IndexedDatasetBuilder(f"{tmp_path}/corpus.bin", dtype=dtype, checksums=True) as builder:
        builder.append_block(rng.integers(0, 100, size=int(lengths.sum())).astype(dtype), lengths)
        builder.add_documents([[1, 2], [3]])
        builder.add_index(write_pair(tmp_path / "plain", [[[5, 120], []], []], dtype=dtype))
        ledger = DocumentLedger(num_read=builder.num_documents, num_kept=builder.num_documents)
        builder.finalize(f"{tmp_path}/corpus.idx", manifest=lambda pair: make_manifest(pair=pair, ledger=ledger))
    report = verify_dataset(f"{tmp_path}/corpus")
    expected = f"`{tmp_path}/corpus.bin`: expected tokens below 100 (the vocabulary size), found {report.largest_token}"
    assert report.problems == (expected,)
    largest = manifest_of(IndexedDataset(f"{tmp_path}/corpus")).pair.largest_token
    assert largest == (None if dtype is np.float32 else 120)


def test_a_manifest_needs_checksums(tmp_path):
    builder = IndexedDatasetBuilder(f"{tmp_path}/corpus.bin")
    with pytest.raises(ConfigError, match="`manifest`: needs a builder with `checksums=True`"):
        builder.finalize(f"{tmp_path}/corpus.idx", manifest=lambda pair: make_manifest(pair=pair))
    assert os.listdir(tmp_path) == []


def test_a_manifest_that_does_not_balance_leaves_the_old_pair_alone(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="expected 2 kept documents"):
        write_recorded(tmp_path / "corpus", OTHER, ledger=DocumentLedger(num_read=7, num_kept=7))
    assert contents(tmp_path) == before
    assert read_manifest(prefix).pair.num_documents == 2


# --- an old manifest beside new data --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("has_manifest", "step"),
    [(True, 3), (False, 4), *(pytest.param(each, 1, marks=pytest.mark.slow) for each in (True, False))],
)
def test_wherever_a_writer_dies_a_pair_that_opens_has_its_own_manifest(tmp_path, has_manifest, step):
    def write():
        if has_manifest:
            write_recorded(tmp_path / "corpus", OTHER, tokenizer=OTHER_TOKENIZER)
        else:
            write_pair(tmp_path / "corpus", OTHER, dtype=np.uint16)

    seen = set()
    for at in itertools.count(0, step):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        prefix = write_recorded(tmp_path / "corpus", CORPUS)
        was_killed = dies_at(tmp_path, at, write)
        pair = IndexedDataset(prefix)
        made_by = None if (manifest := manifest_of(pair)) is None else manifest.tokenizer
        if read_pair(prefix) == CORPUS:
            assert made_by == make_tokenizer_identity()
            seen.add("old")
        else:
            assert made_by == (OTHER_TOKENIZER if has_manifest else None)
            seen.add("new")
        assert verify_dataset(prefix).ok
        if not was_killed:
            break
    assert at > 10
    assert seen == {"old", "new"}


def test_a_manifest_beside_data_that_others_replaced_is_refused(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    foreign = write_pair(tmp_path / "foreign", [[[1, 2]], [[3, 4, 5], [6]]], dtype=np.uint16)
    for end in ("bin", "idx"):
        shutil.copy(f"{foreign}.{end}", f"{prefix}.{end}")
    for look in (manifest_of, manifest_head_of):
        with pytest.raises(DatasetFormatError) as caught:
            look(IndexedDataset(prefix))
        assert caught.value.message == (f"`{prefix}.manifest.json`: belongs to another pair than the files beside it")
    named = [problem.split(":")[0] for problem in verify_dataset(prefix).problems]
    assert named == [f"`{prefix}.{end}`" for end in ("manifest.json", "manifest.json", "bin", "idx")]


def test_data_that_moved_keep_their_manifest_whose_head_is_read_once_and_travels(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    (tmp_path / "elsewhere").mkdir()
    for end in ("bin", "idx", "manifest.json"):
        os.rename(f"{prefix}.{end}", tmp_path / "elsewhere" / f"other.{end}")
    moved = IndexedDataset(tmp_path / "elsewhere" / "other")
    head = manifest_head_of(moved)
    assert head.tokenizer == make_tokenizer_identity()
    assert verify_dataset(moved.path_prefix).ok
    os.unlink(manifest_path(moved.path_prefix))
    assert manifest_head_of(moved) is head
    assert manifest_head_of(pickle.loads(pickle.dumps(moved))) == head
    assert manifest_head_of(IndexedDataset(moved.path_prefix)) is None


# --- verify -------------------------------------------------------------------------------------------------------


def test_verify_names_each_mismatch(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    manifest = read_manifest(prefix)
    wrong = {"num_documents": 3, "num_sequences": 4, "largest_token": 15}
    wrong["index"] = dataclasses.replace(manifest.pair.index, crc32=0)
    ledger = DocumentLedger(num_read=3, num_kept=3)
    write_manifest(
        prefix, dataclasses.replace(manifest, pair=dataclasses.replace(manifest.pair, **wrong), ledger=ledger)
    )
    assert verify_dataset(prefix).problems == (
        f"`{prefix}.manifest.json`: expected num_documents of 2, as the pair has, found 3",
        f"`{prefix}.manifest.json`: expected num_sequences of 3, as the pair has, found 4",
        f"`{prefix}.manifest.json`: expected largest_token of 14, as the pair has, found 15",
        f"`{prefix}.idx`: expected 94 bytes with CRC-32 00000000, as the manifest says, "
        f"found 94 bytes with CRC-32 {manifest.pair.index.crc32:08x}",
    )


@pytest.mark.parametrize(("end", "offset"), [("bin", 0), ("bin", 9), ("idx", 60), ("idx", 93)])
def test_verify_finds_any_byte_that_flipped(tmp_path, end, offset):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    data = bytearray(Path(f"{prefix}.{end}").read_bytes())
    data[offset] ^= 1
    Path(f"{prefix}.{end}").write_bytes(data)
    try:
        problems = verify_dataset(prefix).problems
    except DatasetFormatError:  # the last boundary is looked at when the pair is opened
        assert (end, offset) == ("idx", 93)
        return
    assert any(problem.startswith(f"`{prefix}.{end}`: expected") and "CRC-32" in problem for problem in problems)


def test_verify_reports_a_damaged_manifest_and_still_checks_the_pair(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS)
    Path(manifest_path(prefix)).write_text("{")
    report = verify_dataset(prefix, vocab_size=14)
    assert report.has_manifest is False
    assert [problem.split(":")[0] for problem in report.problems] == [f"`{prefix}.manifest.json`", f"`{prefix}.bin`"]
