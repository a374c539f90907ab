"""Proofs of what a run read, checked against the spans of every position."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.run.small_runs import lock, segment

from tokenloom.errors import ConfigError
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.run.audit.commitment import commit
from tokenloom.run.audit.proof import parse_proof, proof_bytes, prove
from tokenloom.run.audit.proof_check import check_proof
from tokenloom.run.dataset import RunDataset
from tokenloom.run.lock import LockedDenial, LockedSource
from tokenloom.run.members import Reading
from tokenloom.run.sources import lock_pair
from tokenloom.run.timeline import Timeline
from tokenloom.run.tokenizer import RunTokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two sources, two stages of two lengths, and a denial of documents of the first."""
    folder, rng, pairs = tmp_path_factory.mktemp("pairs"), np.random.default_rng(5), []
    for number, size in enumerate((700, 300, 520)):
        lengths = rng.integers(0, 12, size=size).astype(np.int32)
        with IndexedDatasetBuilder(f"{folder}/{number}.bin", dtype=np.uint16) as builder:
            builder.append_block(rng.integers(0, 1000, size=int(lengths.sum())), lengths)
            builder.finalize(f"{folder}/{number}.idx")
        pairs.append(lock_pair(f"{folder}/{number}"))
    sources = [LockedSource(name="web", pairs=tuple(pairs[:2])), LockedSource(name="code", pairs=(pairs[2],))]
    segments = [segment(0, 100, [3, 1], length=16), segment(100, 300, [1, 1], length=40)]
    denials = (LockedDenial(start=50, documents=((0, (7, 300)),)),)
    samples = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    return lock(sources, segments, block=8, denials=denials, seed=6, samples=samples)


def readings(run) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """Where each document of each source is read, and denied, by the spans of every position."""
    timeline = Timeline(run)
    dataset = RunDataset(timeline, tokenizer=RunTokenizer(None, None), reading=Reading())
    found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for position, source in enumerate(timeline.locate(np.arange(400)).sources.tolist()):
        spans = dataset.spans(position)
        for document, length in zip(spans.documents.tolist(), spans.lengths.tolist(), strict=True):
            if length:
                which = -1 - document if document < 0 else document
                found.setdefault((source, which), ([], []))[document < 0].append(position)
    return found


def test_proofs_are_true(run):
    commitment, expected = commit(run), readings(run)
    for source, document in (("web", 7), ("web", 300), ("web", 701), ("web", 20), ("code", 1), ("code", 519)):
        proof = prove(run, commitment, source=source, document=document, begin=0, end=400, with_tokens=True)
        proven = check_proof(parse_proof(proof_bytes(proof), path="proof.json"), commitment.root)
        which = int(source == "code"), document
        assert (list(proven.read), list(proven.denied)) == expected.get(which, ([], []))


def test_a_changed_proof_is_refused(run):
    commitment = commit(run)
    members = json.loads(proof_bytes(prove(run, commitment, source="web", document=7, begin=0, end=120)))
    for name, value in members.items():
        forged = {**members, name: value[1:] if isinstance(value, list | str) else None}
        with pytest.raises(ConfigError):
            check_proof(parse_proof(json.dumps(forged).encode(), path="proof.json"), commitment.root)
    with pytest.raises(ConfigError, match="that does not lead to the root"):
        check_proof(parse_proof(json.dumps(members).encode(), path="proof.json"), commit(replace(run, seed=7)).root)
