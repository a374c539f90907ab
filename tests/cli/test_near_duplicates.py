"""`tokenloom near-duplicates`, `neighbours` and `order-by-neighbours`, as a person or a check calls them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from tests.support import write_corpus

from tokenloom import load_tokenizer
from tokenloom.cli import main
from tokenloom.indexed.dataset import IndexedDataset

CORPUS = ["The cat sat on the warm mat and purred all day long.", "Shares fell sharply after the bank raised rates."]
BENCHMARK = ["An entirely different sentence about mountains and rivers.", CORPUS[0]]
KINDS = ["The cat purred on mat number {}.", "Shares fell by {} points today.", "Mountain {} has snow in winter."]
BYTE = ("--tokenizer", "byte")


def write_texts(prefix: Path, texts: list[str]) -> str:
    tokenizer = load_tokenizer("byte")
    return write_corpus(prefix, [[*tokenizer.tokenize(text), tokenizer.eod] for text in texts])


@pytest.fixture
def prefixes(tmp_path: Path) -> list[str]:
    return [write_texts(tmp_path / "corpus", CORPUS), write_texts(tmp_path / "benchmark", BENCHMARK)]


def test_both_texts_are_shown_and_the_status_says_whether_there_are_too_many(prefixes, capsys):
    assert main(["near-duplicates", *prefixes, *BYTE]) == 0
    out, err = capsys.readouterr()
    assert out.count(f"  │ {CORPUS[0]}\n") == 2
    assert "1 of 2 chunks" in out
    assert "comparing with all 2 vectors, without an index" in err
    assert main(["near-duplicates", *prefixes, *BYTE, "--fail-above", "1"]) == 0
    assert main(["near-duplicates", *prefixes, *BYTE, "--fail-above", "0"]) == 1


def test_the_nearest_document_is_shown(prefixes, capsys):
    assert main(["neighbours", prefixes[1], "--document", "1", "-k", "1", *BYTE]) == 0
    assert f"  │ {BENCHMARK[0]}" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["near-duplicates", "--threshold", "1.5"], "expected a threshold above 0 and at most 1, found"),
        (["near-duplicates", "--index", "IVF16,Falt"], "expected a string of `faiss.index_factory`"),
        (["neighbours", "--document", "9"], "was asked for, but it has 2"),
        (["neighbours", "--document", "0", "--embedder", "x"], "expected the name of an embedder"),
    ],
)
def test_what_cannot_be_is_refused_before_vectors_are_made(prefixes, command, message, tmp_path, capsys):
    name, *more = command
    assert main([name, prefixes[0], *more, *BYTE]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.glob("*.neighbors")) == []


def test_texts_of_a_kind_follow_each_other(tmp_path, capsys):
    texts = [KINDS[number % 3].format(number) for number in range(60)]
    prefix = write_texts(tmp_path / "corpus", texts)
    command = ["order-by-neighbours", prefix, "--output-prefix", f"{tmp_path}/ordered", *BYTE]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_documents"] == 60
    found = [load_tokenizer("byte").detokenize(each.tolist()) for each in IndexedDataset(f"{tmp_path}/ordered")]
    assert len(set(found)) == 60
    assert len(list(itertools.groupby(text[:3] for text in found))) == 3
    assert main(command) == 1
    assert "ordered.idx` exists" in capsys.readouterr().err
