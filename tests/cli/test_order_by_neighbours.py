"""`tokenloom order-by-neighbours`, and a run that reads what it wrote, stops and goes on."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.support import write_corpus

from tokenloom import load_tokenizer
from tokenloom.cli import main
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.run import Run
from tokenloom.samplers import MegatronPretrainingSampler

KINDS = ["The cat purred on mat number {}.", "Shares fell by {} points today.", "Mountain {} has snow in winter."]
RUN = """\
order = 1
seed = 1
tokenizer = "byte"
documents = "file"

[sources]
all = "ordered"

[[stages]]
sequence_length = 64
passes = { all = 1 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair of texts of three kinds by turns, and the same in another order."""
    folder, tokenizer = tmp_path_factory.mktemp("data"), load_tokenizer("byte")
    texts = [KINDS[number % 3].format(number) for number in range(60)]
    write_corpus(folder / "corpus", [[*tokenizer.tokenize(text), tokenizer.eod] for text in texts])
    words = ["order-by-neighbours", f"{folder}/corpus", "--output-prefix", f"{folder}/ordered", "--tokenizer", "byte"]
    assert main(words) == 0
    return folder


def test_texts_of_a_kind_follow_each_other(folder, capsys):
    tokenizer, made = load_tokenizer("byte"), IndexedDataset(f"{folder}/ordered")
    texts = [tokenizer.detokenize(document.tolist()) for document in made]
    kinds = [text[:3] for text in texts]
    assert len(set(texts)) == 60
    assert len(list(itertools.groupby(kinds))) == 3
    words = ["order-by-neighbors", f"{folder}/corpus", "--output-prefix", f"{folder}/again", "--tokenizer", "byte"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["similarity"] > found["similarity_before"]
    assert (found["num_documents"], found["num_tokens"]) == (60, made.num_tokens)
    assert Path(f"{folder}/again.bin").read_bytes() == Path(f"{folder}/ordered.bin").read_bytes()


def test_a_run_reads_the_order_and_goes_on_in_it(folder):
    (folder / "run.toml").write_text(RUN)
    run = Run.open(folder / "run.toml")
    dataset, stream = run.dataset(), np.concatenate(list(IndexedDataset(f"{folder}/ordered"))).tobytes()
    for position in range(len(dataset)):  # each sample is one piece of the new order
        assert dataset[position]["tokens"].numpy().astype(np.uint16).tobytes() in stream

    def loader() -> ThreadLoader:
        return ThreadLoader(run.dataset(), MegatronPretrainingSampler(len(dataset), 0, 4, 0, 1))

    whole = [batch["tokens"] for batch in loader()]
    first, second = loader(), loader()
    for _ in itertools.islice(first, 2):
        pass
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert np.array_equal(np.concatenate([batch["tokens"] for batch in second]), np.concatenate(whole[2:]))


def test_what_is_there_is_refused_before_any_work(folder, capsys):
    words = ["order-by-neighbours", f"{folder}/absent", "--output-prefix", f"{folder}/ordered", "--tokenizer", "byte"]
    assert main(words) == 1
    assert re.match(r"error: `.*ordered\.idx` exists", capsys.readouterr().err)
