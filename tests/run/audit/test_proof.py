"""Proofs of what was read, against the spans of every position."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.run.audit.committed_runs import SIZES, committed_runs, plain_run, readings, write_pairs

from tokenloom import ConfigError
from tokenloom.errors import DatasetFormatError
from tokenloom.run.audit.commitment import commit
from tokenloom.run.audit.proof import parse_proof, proof_bytes, prove
from tokenloom.run.audit.proof_check import check_proof, is_document


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def run(pairs):
    return plain_run(pairs)


@pytest.fixture(scope="module")
def commitment(run):
    return commit(run)


def test_a_proof_says_where_a_document_was_read(run, commitment):
    expected = readings(run, 0, 400)
    proof = prove(run, commitment, source="web", document=7, begin=0, end=400, with_tokens=True)
    again = parse_proof(proof_bytes(proof), path="proof.json")
    assert again == proof
    proven = check_proof(again, commitment.root)
    assert (proven.num_tokens, proven.begin, proven.end) == (100, 0, 400)
    assert (list(proven.read), list(proven.denied)) == expected[0, 7]
    assert (proven.read, proven.denied) == ((49,), (58, 59, 68, 111, 143, 273, 317))
    assert is_document(proof.tokens, 100, proven.sha256)
    assert not is_document(proof.tokens[::-1], 100, proven.sha256)


def test_a_proof_says_that_a_document_was_not_read(run, commitment):
    found = readings(run, 0, 20)
    document = next(document for document in range(SIZES[0]) if (0, document) not in found)
    proof = prove(run, commitment, source="web", document=document, begin=0, end=20)
    assert proof.tokens is None
    proven = check_proof(proof, commitment.root)
    assert (proven.read, proven.denied) == ((), ())
    assert len(proof_bytes(proof)) < 10_000


def test_it_is_about_one_run_alone(run, commitment, pairs):
    proof = prove(run, commitment, source="code", document=1, begin=0, end=400)
    other = replace(run, seed=7)
    assert commit(other).root != commitment.root
    with pytest.raises(ConfigError, match="that does not lead to the root"):
        check_proof(proof, commit(other).root)
    with pytest.raises(ConfigError, match="to another state of it"):
        prove(other, commitment, source="code", document=1, begin=0, end=400)
    with pytest.raises(ConfigError, match="expected a root of 64 hexadecimal digits"):
        check_proof(proof, "0")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"source": "books"}, "expected a source of this run, found 'books'"),
        ({"document": 1000}, r"expected a document of source 'web' in \[0, 1000\), found 1000"),
        ({"end": 401}, r"expected a position in \[0, 400\], found 401"),
        ({"begin": 5, "end": 5}, r"expected a range of positions, found \[5, 5\)"),
    ],
)
def test_what_is_not_there_is_refused(run, commitment, wrong, message):
    with pytest.raises(ConfigError, match=message):
        prove(run, commitment, **({"source": "web", "document": 3, "begin": 0, "end": 10} | wrong))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"windows": "best_fit"}, "found packs"),
        ({"dataset": "sft"}, "found packs"),
        ({"order": 0}, 'found `order = "megatron"`'),
    ],
)
def test_orders_that_depend_on_more_are_refused(run, commitment, changes, message):
    with pytest.raises(ConfigError, match=message):
        prove(replace(run, **changes), commitment, source="web", document=3, begin=0, end=10)


def test_other_data_are_refused(run, commitment, tmp_path):
    moved = write_pairs(tmp_path)
    own = replace(run, sources=(replace(run.sources[0], pairs=tuple(moved[:2])), run.sources[1]))
    assert commit(own).root == commitment.root  # wherever they lie
    content = bytearray((tmp_path / "pair-1.bin").read_bytes())
    content[100] ^= 1
    (tmp_path / "pair-1.bin").write_bytes(content)
    with pytest.raises(DatasetFormatError, match=r"pair-1`: expected the tokens that were committed to, found others"):
        prove(own, commitment, source="web", document=701, begin=0, end=10)


def test_hashes_that_are_kept(run, commitment, tmp_path):
    kept = str(tmp_path / "web-0.tree")
    read = []
    where = {"source": "web", "begin": 0, "end": 400, "tree_file": kept, "progress": read.append}
    first = prove(run, commitment, document=7, **where)
    assert (tmp_path / "web-0.tree").stat().st_size == 22 + 8 + 3 * 40
    assert sum(read) == 2 * run.sources[0].pairs[0].num_tokens
    assert prove(run, commitment, document=7, **where) == first
    assert check_proof(prove(run, commitment, document=600, **where), commitment.root).document == 600
    assert sum(read) == 2 * run.sources[0].pairs[0].num_tokens
    with pytest.raises(ConfigError, match=r"web-0.tree`: expected the hashes of `.*pair-1`.*found others"):
        prove(run, commitment, document=701, **where)
    content = (tmp_path / "web-0.tree").read_bytes()
    for wrong in (content[:-1], b"", content[1:]):
        (tmp_path / "web-0.tree").write_bytes(wrong)
        with pytest.raises(ConfigError, match="expected the hashes of the blocks of a pair, found something else"):
            prove(run, commitment, document=7, **where)
    moved = write_pairs(tmp_path)
    own = replace(run, sources=(replace(run.sources[0], pairs=tuple(moved[:2])), run.sources[1]))
    changed = bytearray((tmp_path / "pair-0.bin").read_bytes())
    changed[0] ^= 1
    (tmp_path / "pair-0.bin").write_bytes(changed)
    (tmp_path / "web-0.tree").write_bytes(content)
    with pytest.raises(DatasetFormatError, match="expected the tokens that were committed to, found others"):
        prove(own, commitment, document=7, **where)
    assert prove(own, commitment, document=600, **where).block.sums == first.block.sums  # another block


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_proofs_of_random_runs_are_true(pairs, data):
    run = data.draw(committed_runs(pairs))
    commitment = commit(run, num_threads=1)
    end_of_run = run.segments[-1].start + run.segments[-1].num_samples
    begin = data.draw(st.integers(0, end_of_run - 1))
    end = data.draw(st.integers(begin + 1, end_of_run))
    expected = readings(run, begin, end)
    for source, most in ((0, sum(SIZES[:3])), (1, SIZES[3])):
        read = [document for which, document in expected if which == source]
        documents = [data.draw(st.integers(0, most - 1)), *([data.draw(st.sampled_from(read))] if read else [])]
        for document in documents:
            name = run.sources[source].name
            proof = prove(run, commitment, source=name, document=document, begin=begin, end=end, num_threads=1)
            proven = check_proof(parse_proof(proof_bytes(proof), path="proof.json"), commitment.root)
            assert (list(proven.read), list(proven.denied)) == expected.get((source, document), ([], []))
