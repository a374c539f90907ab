"""One program with Megatron's data classes and with tokenloom's: the batches of all ranks are equal bit for bit."""

import json
import os
import pydoc_data.topics
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.support import write_corpus, write_sentences

pytestmark = [pytest.mark.peer, pytest.mark.slow]

pytest.importorskip("megatron.core.datasets.megatron_tokenizer", reason="the program derives its tokenizer from 0.16's")

ROOT = Path(__file__).parents[2]
PROGRAM = "tests/megatron/reading_loop.py"
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *(f"<extra_{number}>" for number in range(40))]
RESETS = {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True}
PLAIN = dict.fromkeys(RESETS, False)

PROGRAMS: list[dict[str, Any]] = [
    {"name": "GPT", "model": "gpt", "tp": 1, "pp": 1, "dp": 1, "settings": RESETS},
    {"name": "GPT on 8 ranks", "model": "gpt", "tp": 2, "pp": 2, "dp": 2, "settings": PLAIN},
    {"name": "BERT on 2 ranks", "model": "bert", "tp": 1, "pp": 1, "dp": 2, "settings": {}},
    {"name": "T5 on 2 ranks", "model": "t5", "tp": 2, "pp": 1, "dp": 1, "settings": {}},
]


@pytest.fixture
def programs(tmp_path):
    documents = [
        [re.findall(r"[a-z]+|[^\sa-z]", sentence.lower()) for sentence in text.split(". ") if sentence.strip()]
        for text in list(pydoc_data.topics.topics.values())[:40]
    ]
    counts = Counter(word for document in documents for sentence in document for word in sentence)
    words = SPECIAL + [word for word, _ in counts.most_common(500)]
    (tmp_path / "vocabulary.txt").write_text("\n".join(words))
    ids = {word: number for number, word in enumerate(words)}
    unknown = ids["[UNK]"]
    tokens = [[[ids.get(word, unknown) for word in sentence] for sentence in document] for document in documents]
    streams = [[*chain.from_iterable(document), ids["[SEP]"]] for document in tokens]
    paths = {
        "gpt": [write_corpus(tmp_path / "a", streams[:15]), write_corpus(tmp_path / "b", streams[15:])],
        "bert": [write_sentences(tmp_path / "c", tokens[:15]), write_sentences(tmp_path / "d", tokens[15:])],
    }
    paths["t5"] = paths["bert"]
    return [
        program
        | {
            "steps": 2,
            "vocabulary": str(tmp_path / "vocabulary.txt"),
            "data_path": list(chain.from_iterable(zip(("0.3", "0.7"), paths[program["model"]], strict=True))),
        }
        for program in PROGRAMS
    ]


def start(words: list[str], programs: list[dict[str, Any]], folder: Path) -> subprocess.Popen[str]:
    folder.mkdir()
    named = [
        program | {"cache": str(folder / f"cache-{number}"), "store": str(folder / f"store-{number}")}
        for number, program in enumerate(programs)
    ]
    (folder / "programs.json").write_text(json.dumps(named))
    return subprocess.Popen(
        [sys.executable, *words, PROGRAM, str(folder / "programs.json"), str(folder / "results.json")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_batches_equal_those_of_megatrons_data_classes(programs, tmp_path):
    folders = {"theirs": tmp_path / "theirs", "ours": tmp_path / "ours"}
    words = {"theirs": [], "ours": ["-m", "tokenloom.megatron"]}
    processes = {who: start(words[who], programs, folder) for who, folder in folders.items()}
    printed = {who: process.communicate(timeout=200)[0] for who, process in processes.items()}
    assert not any(process.returncode for process in processes.values()), "\n".join(printed.values())
    results = {who: json.loads((folder / "results.json").read_text()) for who, folder in folders.items()}
    for program, theirs, ours in zip(programs, results["theirs"], results["ours"], strict=True):
        for ranks, package in ((theirs, "megatron.core."), (ours, "tokenloom.")):
            kinds = [rank.pop("class") for rank in ranks]
            assert any(kinds), program["name"]
            assert all(kind is None or kind.startswith(package) for kind in kinds), kinds
        assert ours == theirs, program["name"]
