"""Data for tests of the explorer: a run over two sources, training statistics, and a pair without tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.preprocess.corpus import byte_level_json
from tests.support import write_corpus

from tokenloom import cli
from tokenloom.loading.batch_sizes import BatchSizeSchedule, Topology
from tokenloom.loading.losses import JsonLinesWriter
from tokenloom.run.run import Run
from tokenloom_look.explorer.session import Session
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
sequence_length = {length}
samples = {samples}
weights = {{ web = 3, code = 1 }}
"""


@dataclass(frozen=True)
class Explored:
    folder: Path
    length: int  # tokens per sample

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def session(self, name: str, **settings: object) -> Session:
        target = open_target([self.path(name)], settings=SampleSettings(sequence_length=self.length))
        return Session(target=target, **settings)

    def run(self, *, consumed: int) -> Session:
        """Returns a session of the run in steps of 8, with statistics of training."""
        topology = Topology(batch_sizes=BatchSizeSchedule.constant(8))
        return self.session("run.toml", topology=topology, consumed=consumed, followed=self.path("train.jsonl"))


def make_explored(folder: Path, *, web: list[str], code: list[str], length: int, samples: int) -> Explored:
    (folder / "tokenizer.json").write_text(byte_level_json())
    for name, texts in (("web", web), ("code", code)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        words = ["preprocess", folder / f"{name}.jsonl", "--tokenizer", folder / "tokenizer.json"]
        words += ["--append-eod", "--output-prefix", folder / name, "--engine", "tokenizers"]
        assert cli.main([str(word) for word in words]) == 0
    (folder / "run.toml").write_text(RUN.format(length=length, samples=samples))
    Run.open(folder / "run.toml")
    write = JsonLinesWriter(folder / "train.jsonl")
    for step in range(1, 31):
        write(step=step, consumed_samples=8 * step, loss={"web": 2 + 3 / step, "code": 1.2 + 4 / step})
    write_corpus(folder / "ids", [[1, 2, 3], [], list(range(100))])
    return Explored(folder, length)
