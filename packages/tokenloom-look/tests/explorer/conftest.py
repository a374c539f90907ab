"""Small things to explore: a text corpus with tokenizer and origins, a run over two sources, ids without anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from explorer_requests import HOSTILE, Asker, serving
from tests.preprocess.corpus import byte_level_json
from tests.support import write_corpus

from tokenloom import cli
from tokenloom.loading.batch_sizes import BatchSizeSchedule, Topology
from tokenloom.run.run import Run
from tokenloom_look.explorer.application import views_of
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.target import SampleSettings, open_target

RUN = """\
order = 1
seed = 7
mixing_block = 8
tokenizer = "tokenizer.json"

[sources]
web = "web_text_document"
code = "code_text_document"

[[stages]]
name = "main"
sequence_length = 32
samples = 60
weights = { web = 3, code = 1 }
"""


@dataclass(frozen=True)
class Corpora:
    """What there is to explore.

    Attributes:
        folder: the folder of all of it.
        texts: texts of the documents, by source.
    """

    folder: Path
    texts: dict[str, list[str]]

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def looking(self, *words: str, **settings: object) -> Looking:
        target = open_target([self.path(word) for word in words], settings=SampleSettings(sequence_length=32))
        return Looking(target=target, **settings)


@pytest.fixture(scope="package")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    folder = tmp_path_factory.mktemp("explored")
    (folder / "tokenizer.json").write_text(byte_level_json())
    texts = {
        "web": [f"def page_{number}(text): return text.strip() + {number}\n" * 3 for number in range(40)],
        "code": [f"class Code{number}:\n    value = {number}\n" * 4 for number in range(20)],
    }
    texts["web"][3] = HOSTILE
    texts["web"][5] = ""
    for name, documents in texts.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        words = ["preprocess", folder / f"{name}.jsonl", "--tokenizer", folder / "tokenizer.json"]
        words += ["--append-eod", "--output-prefix", folder / name, "--engine", "tokenizers"]
        assert cli.main([str(word) for word in words]) == 0
    (folder / "run.toml").write_text(RUN)
    (folder / "other.toml").write_text(RUN.replace("samples = 60", "samples = 50").replace("code = 1", "code = 2"))
    for name in ("run", "other"):
        Run.open(folder / f"{name}.toml")
    write_corpus(folder / "ids", [[1, 2, 3], [], list(range(100))])
    return Corpora(folder, texts)


@pytest.fixture(scope="package")
def ask_pair(corpora: Corpora) -> Iterator[Asker]:
    """A server of the text corpus."""
    with serving(views_of(corpora.looking("web_text_document"))) as asker:
        yield asker


@pytest.fixture(scope="package")
def ask_run(corpora: Corpora) -> Iterator[Asker]:
    """A server of the run, in steps of 8, of which 3 are done."""
    topology = Topology(batch_sizes=BatchSizeSchedule.constant(8))
    with serving(views_of(corpora.looking("run.toml", topology=topology, consumed=24))) as asker:
        yield asker


@pytest.fixture(scope="package")
def ask_ids(corpora: Corpora) -> Iterator[Asker]:
    """A server of data without manifest and tokenizer."""
    with serving(views_of(corpora.looking("ids"))) as asker:
        yield asker
