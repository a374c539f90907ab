"""Data for tests of reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.jobs import preprocess
from tests.support import write_corpus

from tokenloom import load_tokenizer

WritePair = Callable[..., str]


@pytest.fixture
def write_pair(tmp_path: Path) -> WritePair:
    """Writes a pair with documents of ids, or of that many tokens; returns its prefix."""

    def written(documents: Sequence[Sequence[int] | int], name: str = "corpus") -> str:
        texts = [[3] * document if isinstance(document, int) else document for document in documents]
        return write_corpus(tmp_path / name, texts, dtype=np.uint16)

    return written


@pytest.fixture
def make_corpus(tmp_path: Path) -> WritePair:
    """Preprocesses good and bad records of a file with a hostile name; returns the prefix of the pair."""

    def made(name: str = "in", *, append_eod: bool = True) -> str:
        lines = [json.dumps({"text": f"text {number}"}) for number in range(8)]
        lines += ["", '{"no": 1}', '{"<b>": 2}', "{\x1b", lines[0]]
        (tmp_path / f"{name}<i>.jsonl").write_text("\n".join(lines) + "\n")
        settings = {"skip_bad_records": True, "drop_duplicates": True, "append_eod": append_eod, "num_workers": 1}
        preprocess(tmp_path / f"{name}<i>.jsonl", tmp_path / name, load_tokenizer("byte"), **settings)
        return f"{tmp_path}/{name}_text_document"

    return made


@pytest.fixture
def corpus(make_corpus: WritePair) -> str:
    return make_corpus()
