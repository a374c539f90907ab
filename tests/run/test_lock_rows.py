"""Rows of a lock with anything else in them than what belongs there are refused, whatever its checksum says."""

from __future__ import annotations

import hashlib
import json

import pytest
from tests.run.locks import make_lock, source_of

from tokenloom.errors import ConfigError
from tokenloom.run.lock import LockedDenial
from tokenloom.run.lock_file import lock_bytes, parse_lock
from tokenloom.run.lock_rows import pair_members


def with_members(change):
    """Returns the file of a lock that something else has written, with a checksum of its own."""
    lock = make_lock(source_of("web", "web"), source_of("code", "code"), denials=(LockedDenial(start=1, documents=()),))
    members = json.loads(lock_bytes(lock, path="run.lock"))
    change(members)
    text = json.dumps({name: value for name, value in members.items() if name not in ("format", "version", "sha256")})
    content = f"{text[1:]}\n".encode()
    return (
        b'{"format": "tokenloom run lock", "version": 1, "sha256": "%s",\n'
        % (hashlib.sha256(content).hexdigest().encode())
        + content
    )


def in_pair(**members):
    return lambda lock: lock["sources"][0]["pairs"][0].update(members)


def in_segment(**members):
    return lambda lock: lock["segments"][0].update(members)


def in_denial(**members):
    return lambda lock: lock["denials"][0].update(members)


def test_what_was_not_changed_is_read():
    assert parse_lock(with_members(lambda lock: None), path="run.lock").sources[1].name == "code"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_pair(prefix=5), "expected a text, found 5"),
        (in_pair(prefix="a\0b"), "expected the prefix of a pair, found 'a\\x00b'"),
        (in_pair(prefix="s3://me:word@host/a"), "without user and password"),
        (in_pair(num_documents="7"), "expected counts of 'web' in [0, 2**60), found ('7', 100"),
        (in_pair(num_documents=True), "expected counts of 'web'"),
        (in_pair(num_tokens=-1), "expected counts of 'web'"),
        (in_pair(num_tokens=2**60), "expected counts of 'web'"),
        (in_pair(idx_bytes=1.5), "expected counts of 'web'"),
        (in_pair(since=None), "expected counts of 'web'"),
        (in_pair(dtype="float32"), "expected the dtype of 'web' to be one of uint8"),
        (in_pair(dtype=[]), "expected the dtype of 'web'"),
        (in_pair(index_start_crc32="xyz"), "expected a checksum of 8 hexadecimal digits, found 'xyz'"),
        (in_pair(index_start_crc32=5), "int() can't convert non-string with explicit base in {'prefix': 'web'"),
        (in_pair(fingerprint=5), "expected a text, found 5"),
        (in_pair(held_blocks=2), "expected blocks or documents of 'web' that are held out"),
        (in_pair(held_documents=11), "expected blocks or documents of 'web' that are held out"),
        (in_pair(held_tokens=1), "expected blocks or documents of 'web' that are held out"),
        (in_pair(held_blocks=1, held_documents=1), "expected blocks or documents of 'web' that are held out"),
        (in_pair(packs=[[1]]), "expected pairs of integers for 'web', found [[1]]"),
        (in_pair(packs=[[4, 1], [4, 2]]), "expected rising numbers from 0 on, found [4, 4]"),
        (in_pair(packs={"4": 1}), "expected pairs of integers for 'web'"),
        (lambda lock: lock["sources"][0]["pairs"][0].pop("dtype"), "expected a member 'dtype' of each such object"),
        (lambda lock: lock["sources"][0].update(max_passes=0), "expected `max_passes` of 'web' in [1, 2**60), found 0"),
        (lambda lock: lock["sources"][0].update(name=None), "expected a text, found None"),
        (lambda lock: lock["sources"][0].update(pairs={}), "expected `pairs` to be an array of pairs, found {}"),
        (lambda lock: lock["sources"][0].update(pairs=[5]), "expected `pairs` to be an array of pairs, found [5]"),
        (lambda lock: lock["sources"].append(5), "expected `sources` to be an array of sources"),
        (lambda lock: lock["sources"][1].update(name="web"), "expected each source once, found 'web'"),
        (lambda lock: lock.pop("sources"), "expected `sources` to be an array of sources, found None"),
        (in_segment(start=1), "expected a segment from position 0 on, found 1"),
        (in_segment(start=-1), "expected a segment of 'main' with a start and sizes"),
        (in_segment(num_samples=0), "expected a segment of 'main' with a start and sizes"),
        (in_segment(sequence_length=None), "expected a segment of 'main' with a start and sizes"),
        (in_segment(num_samples=8, mixed_as=7), "expected a segment of 'main' that is mixed as 8 samples or more"),
        (in_segment(weights=[]), "expected weights of 'main' with a sum in [1, 2**60], found ()"),
        (in_segment(weights=[[0, 0]]), "expected weights of 'main'"),
        (in_segment(weights=[[0, 2**59], [1, 2**59 + 1]]), "expected weights of 'main'"),
        (in_segment(weights=[[1, 1], [0, 1]]), "expected rising numbers from 0 on, found [1, 0]"),
        (in_segment(weights=[[2, 1]]), "expected numbers of 2 sources, found 2"),
        (in_segment(weights=[[0, 0.5]]), "expected integers in [0, 2**60) for 'main', found [0.5]"),
        (lambda lock: lock["segments"].append(dict(lock["segments"][0])), "expected a segment from position inf on"),
        (in_denial(start="0"), "expected a denial with start and documents"),
        (in_denial(documents=[[0]]), "expected a source with documents, found [0]"),
        (in_denial(documents=[[0, [3, 2]]]), "expected rising numbers from 0 on, found [3, 2]"),
        (in_denial(documents=[[0, [3]], [0, [4]]]), "expected rising numbers from 0 on, found [0, 0]"),
        (in_denial(documents=[[9, [3]]]), "expected numbers of 2 sources, found 9"),
        (in_denial(documents=[[0, ["3"]]]), "expected integers, found ['3']"),
        (
            lambda lock: lock["denials"].append({"start": 0, "documents": []}),
            "expected denials in the order of their positions, found [1, 0]",
        ),
        (lambda lock: lock.update(seed=-1), "expected seed in [0, 9223372036854775808), found -1"),
        (lambda lock: lock.update(seed="1"), "expected `seed` to be an integer, found '1'"),
        (lambda lock: lock.update(mixing_block=0), "expected mixing_block in [1, "),
        (lambda lock: lock.update(tokenizer={}), "expected `tokenizer.name`, found none"),
        (lambda lock: lock.update(samples=[]), "expected `samples` to be an object, found []"),
    ],
)
def test_wrong_types_and_ranges_are_refused(change, message):
    with pytest.raises(ConfigError) as caught:
        parse_lock(with_members(change), path="run.lock")
    assert message in caught.value.message


def test_a_local_pair_in_a_lock_of_a_store_is_refused():
    with pytest.raises(ConfigError, match="the local pair '/etc/web' in object storage"):
        parse_lock(with_members(in_pair(prefix="/etc/web")), path="s3://bucket/run.lock")


def test_a_row_leaves_out_what_is_as_it_is_by_default():
    pair = source_of("web", "data/web", held_documents=3).pairs[0]
    assert list(pair_members(pair, path="run.lock")) == [
        "prefix",
        "num_documents",
        "num_tokens",
        "dtype",
        "idx_bytes",
        "index_start_crc32",
        "held_documents",
    ]
