"""Proofs that were changed, are none, or are too large: they prove nothing that is not true."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.run.audit.committed_runs import plain_run, readings, write_pairs

from tokenloom import ConfigError
from tokenloom.run.audit.commitment import commit
from tokenloom.run.audit.proof import parse_proof, proof_bytes, prove
from tokenloom.run.audit.proof_check import check_proof


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def run(pairs):
    return plain_run(pairs)


@pytest.fixture(scope="module")
def commitment(run):
    return commit(run)


def mutations(value, path=()):
    """Yields (where, value) of each member of a proof that can be changed."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from mutations(inner, (*path, name))
    elif isinstance(value, list) and value:
        yield path, value
        for number in sorted({*range(min(3, len(value))), len(value) - 1}):
            yield from mutations(value[number], (*path, number))
    else:
        yield path, value


def changed(value, data):
    """Another value of the same kind, or of another."""
    if isinstance(value, bool) or value is None:
        return data.draw(st.sampled_from([0, "", not value]))
    if isinstance(value, int):
        return data.draw(st.sampled_from([value + 1, value - 1, -value - 1, 2**63, 2**70, float(value), str(value)]))
    if isinstance(value, str):
        flipped = f"{'1' if value[:1] == '0' else '0'}{value[1:]}"
        return data.draw(st.sampled_from([flipped, value + "0", value[1:] or "x", 0]))
    return data.draw(st.sampled_from([value[1:] or [1], [*value, *value[-1:], 0], {}, None]))


@pytest.fixture(scope="module")
def honest(run, commitment):
    proof = prove(run, commitment, source="web", document=7, begin=0, end=120, with_tokens=True)
    members = json.loads(proof_bytes(proof))
    return members, list(mutations(members)), readings(run, 0, 400)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_changed_proof_proves_nothing_that_is_not_true(honest, commitment, data):
    members, places, expected = honest
    top = data.draw(st.sampled_from(sorted({path[0] for path, _ in places})))
    path, value = data.draw(st.sampled_from([place for place in places if place[0][0] == top]))
    other = changed(value, data)
    forged = json.loads(json.dumps(members))
    at = forged
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = other
    if json.dumps(forged) == json.dumps(members):
        return
    try:
        proven = check_proof(parse_proof(json.dumps(forged).encode(), path="proof.json"), commitment.root)
    except ConfigError:
        return
    # what is left says something else that is true: other positions, or a document of the same tokens
    assert path[0] == "claim"
    reads, denied = expected[0, proven.document]
    assert list(proven.read) == [each for each in reads if proven.begin <= each < proven.end]
    assert list(proven.denied) == [each for each in denied if proven.begin <= each < proven.end]


@pytest.mark.parametrize("name", ["claim", "lock", "roots", "source_path", "block", "tokens", "format", "version"])
@pytest.mark.parametrize("how", ["missing", "null", "more"])
def test_members_that_are_missing_or_too_many(honest, commitment, name, how):
    forged = dict(honest[0])
    if how == "missing":
        del forged[name]
    elif how == "null":
        forged[name] = None
    else:
        forged[f"{name} "] = 1
    if (name, how) == ("tokens", "missing"):
        assert check_proof(parse_proof(json.dumps(forged).encode(), path="p"), commitment.root).num_tokens == 100
        return
    with pytest.raises(ConfigError):
        check_proof(parse_proof(json.dumps(forged).encode(), path="p"), commitment.root)


def test_what_is_no_proof(commitment):
    for data in (b"", b"[]", b"{}", b"nan", b'{"format": "tokenloom run proof", "version": 1}', b"[" * 10_000, b"\xff"):
        with pytest.raises(ConfigError, match=r"^`proof.json`"):
            parse_proof(data, path="proof.json")


def test_a_pair_of_many_documents_takes_no_memory(honest, commitment):
    members = json.loads(json.dumps(honest[0]))
    members["lock"]["sources"][0]["pairs"][0]["num_documents"] = 1 << 50
    with pytest.raises(ConfigError, match="about a pair of 1125899906842624 documents"):
        check_proof(parse_proof(json.dumps(members).encode(), path="p"), commitment.root)
