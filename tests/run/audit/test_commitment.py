"""What a root stands for: by the definition, step by step, and as a literal."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from tests.run.data import write_source
from tests.run.small_runs import lock, segment

from tokenloom import ConfigError
from tokenloom.errors import DatasetFormatError, StorageError
from tokenloom.run.audit.commitment import commit, read_commitment, write_commitment
from tokenloom.run.lock import LockedDenial, LockedSource, LockedTokenizer
from tokenloom.run.sources import lock_pair

ROOT = "a8aec1adbedfaf376c3576c61c5cbcf1bb35d33fe37876765fab5b857e9dd294"
"""Of the run below. The form of commitments is kept for ever: who has a root would have nothing else."""


@pytest.fixture
def run(tmp_path):
    web = lock_pair(write_source(str(tmp_path / "web"), *[20] * 3, 0, 7))
    code = lock_pair(write_source(str(tmp_path / "code"), *[9] * 260))
    sources = [LockedSource(name="web", pairs=(web,)), LockedSource(name="code", pairs=(code,), max_passes=3)]
    segments = [segment(0, 10, [4, 2]), segment(10, None, [1, 0])]
    return lock(sources, segments, block=4, denials=(LockedDenial(start=3, documents=((0, (1, 4)),)),))


def leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\0" + data).digest()


def tree(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\1" + tree(leaves[:k]) + tree(leaves[k:])).digest()


def canonical(members: object) -> bytes:
    return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()


def pair_roots(documents: list[list[int]]) -> dict[str, str]:
    blocks, sums = [], b""
    for number, first in enumerate(range(0, len(documents), 256)):
        block = documents[first : first + 256]
        digests = [hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).digest() for tokens in block]
        lengths = struct.pack(f"<{len(block)}i", *map(len, block))
        root = tree([leaf(b"document\0" + digest) for digest in digests])
        blocks.append(leaf(b"block\0" + struct.pack("<2Q", number, len(block)) + lengths + root))
        sums += struct.pack("<Q", sum(map(len, block)))
    return {"blocks": tree(blocks).hex(), "sums": hashlib.sha256(sums).hexdigest()}


def test_the_root_by_its_definition(run):
    documents = {"web": [20, 20, 20, 0, 7], "code": [9] * 260}
    hashes = []
    for number, source in enumerate(run.sources):
        [pair] = source.pairs
        facts = {
            "prefix": "0", "num_documents": pair.num_documents, "num_tokens": pair.num_tokens, "dtype": "uint16",
            "idx_bytes": pair.idx_bytes, "index_start_crc32": f"{pair.index_start_crc32:08x}",
        }  # fmt: skip
        roots = pair_roots([[place % 200] * length for place, length in enumerate(documents[source.name])])
        denials = [[3, [1, 4]]] if number == 0 else []
        members = {"number": number, "name": source.name, "pairs": [facts], "denials": denials, "roots": [roots]}
        hashes.append(leaf(b"source\0" + canonical(members)))
    segments = [
        {"stage": "", "start": 0, "num_samples": 10, "mixed_as": None, "sequence_length": 10,
         "weights": [[0, 2], [1, 1]]},
        {"stage": "", "start": 10, "num_samples": None, "mixed_as": None, "sequence_length": 10, "weights": [[0, 1]]},
    ]  # fmt: skip
    head = {
        "order": 1, "seed": 1, "documents": "shuffled", "windows": "concat", "mixing_block": 4, "dataset": "gpt",
        "samples": {}, "tokenizer": None, "consumed": 0, "settings_sha256": "", "content_sha256": "",
        "segments": segments, "denials": [], "sources": ["web", "code"], "sources_root": tree(hashes).hex(),
    }  # fmt: skip
    assert commit(run).root == leaf(b"run\0" + canonical(head)).hex() == ROOT


def test_what_decides_nothing_is_left_out(run):
    tokenizer = LockedTokenizer(name="a.json", fingerprint="0" * 64, eod=1, pad=None, vocab_size=9)
    run = replace(run, tokenizer=tokenizer)
    root = commit(run).root
    assert root != ROOT
    same = replace(
        run, tokenizer=replace(tokenizer, name="b.json"), consumed=5, settings_sha256="1" * 64,
        segments=(replace(run.segments[0], stage="other", weights=((0, 2), (1, 1)), mixed_as=10), run.segments[1]),
        sources=(replace(run.sources[0], max_passes=7), run.sources[1]),
    )  # fmt: skip
    assert commit(same).root == root


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"mixing_block": 8},
        {"documents": "file"},
        {"denials": ()},
        {"denials": (LockedDenial(start=4, documents=((0, (1, 4)),)),)},
        {"samples": {"add_extra_token_to_sequence": False}},
        {"segments": (segment(0, 10, [3, 2]), segment(10, None, [1, 0]))},
        {"segments": (segment(0, 10, [4, 2], mixed_as=12), segment(10, None, [1, 0]))},
    ],
)
def test_what_decides_something_is_in_it(run, change):
    assert commit(replace(run, **change)).root != commit(run).root


def test_threads_and_dtypes_make_no_difference(run, tmp_path):
    wide = write_source(str(tmp_path / "wide"), *[9] * 260, dtype=np.int64)
    source = LockedSource(name="wide", pairs=(lock_pair(wide),))
    found = commit(replace(run, sources=(*run.sources, source)), num_threads=3)
    assert found.pairs[2].blocks == found.pairs[1].blocks == commit(run, num_threads=1).pairs[1].blocks


def test_a_file_of_it(run, tmp_path):
    commitment = commit(run)
    path = str(tmp_path / "run.commitment.json")
    write_commitment(path, commitment)
    assert read_commitment(path) == commitment
    for text, message in (
        ("{}", "expected `root`, found none"),
        ("[", r"wrong.commitment.json`: Expecting value"),
        (json.dumps({**json.loads((tmp_path / "run.commitment.json").read_text()), "version": 2}), "version 2"),
    ):
        (tmp_path / "wrong.commitment.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_commitment(str(tmp_path / "wrong.commitment.json"))
    with pytest.raises(StorageError, match="cannot read"):
        read_commitment(str(tmp_path / "none"))


def test_what_cannot_be_committed_to(run, tmp_path):
    with pytest.raises(ConfigError, match='found `order = "megatron"`'):
        commit(replace(run, order=0))
    write_source(str(tmp_path / "web"), *[20] * 3, 1, 6)
    with pytest.raises(DatasetFormatError, match=r"web.idx` changed after it was locked"):
        commit(run)
