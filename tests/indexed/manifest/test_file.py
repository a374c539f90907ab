import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed.manifest.manifests import make_facts, make_manifest, make_tokenizer_identity, write_manifest

from tokenloom.errors import DatasetFormatError, StorageError
from tokenloom.indexed import manifests as manifest_file
from tokenloom.indexed.manifests import (
    HEAD_BYTES,
    DocumentLedger,
    FileChecksum,
    InputRecord,
    Manifest,
    SpecialToken,
    TokenizerIdentity,
    manifest_bytes,
    parse_manifest,
    read_manifest,
    read_manifest_head,
)

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


def test_without_a_file_there_is_none(tmp_path):
    assert read_manifest(f"{tmp_path}/corpus") is None
    assert read_manifest_head(f"{tmp_path}/corpus") is None


def head_of(manifest):
    return manifest_file.ManifestHead(
        tokenizer=manifest.tokenizer,
        options=manifest.options,
        largest_token=manifest.pair.largest_token,
        index_start_crc32=manifest.pair.index_start_crc32,
    )


@pytest.mark.parametrize("layout", ["ours", "indented", "compact", "reversed"])
def test_the_head_is_read_from_any_layout(tmp_path, layout):
    document = json.loads(LITERAL)
    text = {
        "ours": LITERAL,
        "indented": json.dumps(document, indent=4),
        "compact": json.dumps(document),
        "reversed": json.dumps(dict(reversed(document.items())), indent=2),
    }[layout]
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


def test_a_head_that_is_longer_than_usual_is_read_too(tmp_path):
    long = make_manifest(tokenizer=make_tokenizer_identity(path="é" * HEAD_BYTES))
    write_manifest(f"{tmp_path}/corpus", long)
    assert read_manifest_head(f"{tmp_path}/corpus") == head_of(long)


def test_a_text_cannot_pass_for_the_end_of_the_head(tmp_path):
    trap = '{"tokenizer": 1},\n  "tokenizer": {},\n  "options": {'
    odd = make_manifest(tokenizer=make_tokenizer_identity(path=trap), options={trap: trap})
    write_manifest(f"{tmp_path}/corpus", odd)
    assert read_manifest_head(f"{tmp_path}/corpus") == head_of(odd)
    assert read_manifest(f"{tmp_path}/corpus") == odd


def test_null_is_as_good_as_a_member_that_is_left_out():
    document = json.loads(LITERAL)
    document["pair"] |= {"copied_tokens": None}
    assert parse_manifest(json.dumps(document).encode(), path="x") == make_manifest()


COUNTS = st.integers(0, 2**40)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
CRCS = st.integers(0, 2**32 - 1)
SPECIAL = st.none() | st.builds(SpecialToken, id=COUNTS, text=st.none() | TEXTS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=5,
)


@st.composite
def manifests(draw):
    dtype = draw(st.sampled_from(["uint8", "uint16", "int32", "int64"]))
    num_tokens, kept = draw(st.integers(0, 2**30)), draw(COUNTS)
    others = {
        name: draw(st.integers(0, 9))
        for name in ("num_rejected", "num_blank", "num_duplicates", "num_empty", "num_elsewhere")
    }
    return Manifest(
        pair=make_facts(
            dtype=dtype,
            num_documents=kept,
            num_sequences=draw(COUNTS),
            num_tokens=num_tokens,
            largest_token=draw(st.none() | st.integers(0, 255)) if num_tokens else None,
            tokens=FileChecksum(num_bytes=num_tokens * np.dtype(dtype).itemsize, crc32=draw(CRCS)),
            index=FileChecksum(num_bytes=draw(COUNTS), crc32=draw(CRCS)),
            index_start_crc32=draw(CRCS),
            copied_tokens=draw(st.sampled_from([None, "compared", "inherited", "unverified"])),
        ),
        tokenizer=TokenizerIdentity(
            kind=draw(TEXTS),
            sha256=draw(st.none() | st.binary(min_size=32, max_size=32).map(bytes.hex)),
            path=draw(st.none() | TEXTS),
            vocab_size=draw(st.none() | COUNTS),
            bos=draw(SPECIAL),
            eod=draw(SPECIAL),
        ),
        options=draw(st.dictionaries(TEXTS, JSON, max_size=3)),
        ledger=DocumentLedger(num_read=kept + sum(others.values()), num_kept=kept, **others),
        inputs=tuple(
            draw(st.lists(st.builds(InputRecord, path=TEXTS, num_bytes=COUNTS, version=st.none() | TEXTS), max_size=3))
        ),
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
        (changed(pair=...), "expected `pair`, found none"),
        (changed(pair=[]), r"expected `pair` to be an object, found \[\]"),
        (changed(inputs=[1]), r"expected `inputs\[0\]` to be an object, found 1"),
        (changed(pair__num_tokens=True), "expected `pair.num_tokens` to be an integer, found True"),
        (changed(pair__num_tokens=5.0), "expected `pair.num_tokens` to be an integer, found 5.0"),
        (changed(pair__num_tokens=6), "in `pair`: `tokens`: expected 12 bytes for 6 tokens of uint16, found 10"),
        (changed(pair__num_sequences=-1), "num_sequences of the pair: must be an integer of 0 or more, got -1"),
        (changed(pair__num_sequences=2**63), "num_sequences of the pair: must be an integer of 0 or more"),
        (changed(pair__dtype="bfloat16"), "in `pair`: `dtype`: must be one of uint8, .*, got 'bfloat16'"),
        (changed(pair__largest_token=65536), "`largest_token`: must be at most 65535 for 5 tokens of uint16"),
        (changed(pair__index__crc32="0x1f"), "expected `pair.index.crc32` to be 8 hexadecimal digits, found '0x1f'"),
        (changed(pair__index_start_crc32="+0000001"), "expected `pair.index_start_crc32` to be 8 hexadecimal digits"),
        (changed(pair__copied_tokens=["x"]), r"expected `pair.copied_tokens` to be a string, found \['x'\]"),
        (changed(pair__copied_tokens="so"), "`copied_tokens`: must be one of compared, inherited, .*, got 'so'"),
        (changed(tokenizer__sha256="AB" * 32), "`sha256` of the tokenizer: must be 64 hexadecimal digits"),
        (changed(tokenizer__sha256=...), "expected `tokenizer.sha256`, found none"),
        (changed(tokenizer__eod__id=-1), "in `tokenizer.eod`: the id of a special token: must be .*, got -1"),
        (changed(tokenizer__kind="x" * 99, tokenizer__path=["y" * 99]), r"found \['y{58}…"),
        (changed(ledger__num_blank=0), "in `ledger`: ledger: expected 4 documents, as many as read, found 2 kept"),
        (
            changed(ledger__num_read=5, ledger__num_kept=3),
            "expected 2 documents kept, as many as the pair has, found 3",
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


def test_members_that_are_not_known_are_left_alone(tmp_path):
    (tmp_path / "corpus.manifest.json").write_bytes(changed(note={"by": "a person"}))
    assert read_manifest(f"{tmp_path}/corpus") == make_manifest()


def test_a_file_that_cannot_be_opened_is_not_taken_for_none(tmp_path):
    (tmp_path / "corpus.manifest.json").mkdir()
    with pytest.raises(StorageError, match=r"cannot read `.*corpus\.manifest\.json"):
        read_manifest_head(f"{tmp_path}/corpus")
