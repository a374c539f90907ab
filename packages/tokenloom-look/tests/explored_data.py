"""What the tests of the explorer's page look at: a run over two sources, of which one attacks the page."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from explorer_requests import Asker, serving
from tests.preprocess.corpus import byte_level_json, sources

from tokenloom import cli
from tokenloom.loading.batch_sizes import BatchSizeSchedule, Topology
from tokenloom.loading.json_lines import JsonLinesWriter
from tokenloom.run.run import Run
from tokenloom_look.explorer.application import views_of
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.target import SampleSettings, open_target

OWNED = "<script>globalThis.owned = 1</script><img src=x onerror='globalThis.owned = 2'>"
"""What a page that inserts texts as HTML would run, or ask for."""

HOSTILE = f"{OWNED}</div></main><style>*{{display:none}}</style>\x00\x1b[2J\u202eevil\u2066 &amp; \u200b"
"""That, and characters that turn a page around, or drive a terminal."""

RUN = """\
order = 1
seed = 7
mixing_block = 8
tokenizer = "tokenizer.json"

[sources]
web = "web_text_document"
code = "code_text_document"

[[stages]]
name = "warm-up"
sequence_length = 96
samples = 200
weights = { web = 3, code = 1 }

[[stages]]
name = "main"
sequence_length = 96
samples = 1000
weights = { web = 1, code = 1 }
"""

_SUBJECTS = (
    "The keeper",
    "A letter from the harbour",
    "The old survey",
    "My neighbour",
    "Nobody",
    "The second edition",
)
_VERBS = ("counted", "described", "forgot", "repaired", "measured", "would not believe")
_OBJECTS = ("every wave of the winter", "the road to the north", "a clock without hands", "what the map left out")


def _prose(seed: int) -> str:
    """Returns some sentences."""
    chosen = random.Random(seed)
    words = [
        f"{chosen.choice(_SUBJECTS)} {chosen.choice(_VERBS)} {chosen.choice(_OBJECTS)}." for _ in range(3 + seed % 9)
    ]
    return " ".join(words) + "\n"


@dataclass(frozen=True)
class Explored:
    """What there is to look at.

    Attributes:
        folder: the folder of all of it.
        web: texts of the source `web`, by number of the document.
    """

    folder: Path
    web: tuple[str, ...]

    def looking(self, name: str = "run.toml", **settings: object) -> Looking:
        """Returns what is asked about a file or prefix of the folder."""
        target = open_target([str(self.folder / name)], settings=SampleSettings(sequence_length=96))
        return Looking(target=target, **settings)

    def run(self) -> Looking:
        """Returns the run in steps of 8 of which 30 are done, with what its training wrote."""
        topology = Topology(batch_sizes=BatchSizeSchedule.constant(8))
        followed = str(self.folder / "train.jsonl")
        return self.looking(topology=topology, consumed=240, followed=followed)

    @contextmanager
    def served(self, looking: Looking) -> Iterator[Asker]:
        """Serves it."""
        with serving(views_of(looking)) as asker:
            yield asker


def make_explored(folder: Path) -> Explored:
    """Makes the data and the runs."""
    (folder / "tokenizer.json").write_text(byte_level_json())
    web = [_prose(seed) for seed in range(400)]
    web[3] = HOSTILE
    web[5] = ""
    web[11] = "A document of many pages. " * 2000
    code = [block for text in sources() for block in text.split("\n\n\n") if block.strip()]
    preprocess(folder, "web", "web.jsonl", web)
    preprocess(folder, "code", "code.jsonl", code)
    (folder / "run.toml").write_text(RUN)
    (folder / "other.toml").write_text(
        RUN.replace("samples = 1000", "samples = 900").replace("web = 1, c", "web = 2, c")
    )
    for name in ("run", "other"):
        Run.open(folder / f"{name}.toml")
    write = JsonLinesWriter(folder / "train.jsonl")
    for step in range(1, 31):
        write(step=step, consumed_samples=8 * step, loss={"web": 2 + 3 / step, "code": 1.2 + 4 / step})
    return Explored(folder, tuple(web))


def preprocess(folder: Path, name: str, file: str, texts: list[str]) -> None:
    """Makes `NAME_text_document` out of a file of texts, with the `tokenizer.json` of the folder."""
    (folder / file).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ["preprocess", folder / file, "--tokenizer", folder / "tokenizer.json", "--append-eod"]
    words += ["--output-prefix", folder / name, "--engine", "tokenizers"]
    assert cli.main([str(word) for word in words]) == 0
