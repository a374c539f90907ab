"""The JSON output of values and of every command."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from retro_command_data import build_words, write_data
from tests.cli.runs import write_run
from tests.preprocess.corpus import byte_level_json, write_lines
from tests.run.data import write_source

from tokenloom import cli
from tokenloom.cli import demo
from tokenloom.cli.output import json_text


class Shape(Enum):
    round = 1


@dataclass(frozen=True, slots=True)
class Pair:
    path: Path
    lengths: object


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Pair(Path("a/b"), np.array([1, 2], dtype=np.uint16)), '{"path": "a/b", "lengths": [1, 2]}'),
        ({"n": np.int64(3), "b": np.bool_(True), "x": np.float32(0.5)}, '{"n": 3, "b": true, "x": 0.5}'),
        ([Shape.round, Fraction(1, 4), datetime(2026, 1, 2)], '["round", 0.25, "2026-01-02T00:00:00"]'),
        ({"m": MappingProxyType({"k": (1, None)})}, '{"m": {"k": [1, null]}}'),
        ("ü\udcff", r'"\u00fc\udcff"'),
    ],
)  # fmt: skip
def test_values_of_all_kinds(value, text):
    assert json_text(value) == text


def _leaves(parser, name=()):
    """Yields the words and the parser of each command."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield " ".join(name), parser
    for group in groups:
        for word, inner in group.choices.items():
            yield from _leaves(inner, (*name, word))


COMMANDS = dict(_leaves(cli.build_parser()))

WITHOUT_JSON = {"explore"}

LIKE = {
    "when": "trace",
    "run amend": "run lock",
    **dict.fromkeys(("preprocess-chat", "preprocess-multimodal"), "preprocess"),
}
"""Commands whose help refers to the keys of another one."""

DATA = ("--data-path", "F/plain", "--sequence-length", 8, "--split", "8,1,1")
RUN = ("F/run.toml",)

# F is a folder with a run, P a prefix in it.
CASES: dict[str, Sequence[object]] = {
    "preprocess": ("F/in.jsonl", "--output-prefix", "F/out/text", "--tokenizer", "byte", "--workers", 1),
    "preprocess-chat": (
        *("F/chat.jsonl", "--output-prefix", "F/out/chat", "--tokenizer", "F/tokenizer.json", "--workers", 1),
        *("--chat-template", "chatml"),
    ),
    "preprocess-multimodal": ("F/mm", "--output-prefix", "F/out/mm", "--tokenizer", "byte", "--workers", 1),
    "merge": ("P", "P", "--output-prefix", "F/out/merged"),
    "catalogue": ("P", "P", "--output-prefix", "F/out/all"),
    "column": ("info", "P"),
    "info": ("P",),
    "plan": DATA,
    "pack-report": ("P", "--max-seqlen-per-dp-cp-rank", 64, "--dp-size", 2),
    "prepare-cache": (*DATA, "--path-to-cache", "F/out/cache", "--tokenizer", "null:5000", "--verify"),
    "sequences-per-dataset": ("--data-path", "P", "--output", "F/out/counts.json"),
    "show": ("P", "--document", 0, "--tokenizer", "null:5000"),
    "stream": (*DATA, "--tokenizer", "null:5000", "--batches", 2),
    "trace": (*RUN, "--position", 3),
    "when": (*RUN, "--document", "code:3"),
    "deny": (*RUN, "--document", "code:3", "--from-position", 2, "--dry-run"),
    "verify": ("P",),
    "contamination": ("F/in.jsonl", "--data", "P", "--tokenizer", "null:5000"),
    "run init": ("--data-path", "P", "-o", "F/out/new.toml"),
    "run lock": RUN,
    "run plan": RUN,
    "run amend": (*RUN, "--at-position", 50, "--weights", "web=1,code=1", "--dry-run"),
    "run check": RUN,
    "run digest": RUN,
    "run id": RUN,
    "run diff": (*RUN, *RUN),
    "run stream": (*RUN, "--batches", 2),
    "export": ("P", "--output", "F/out/rows.parquet"),
    "ledger": (*RUN, "--until-position", 20),
    "replay": (*RUN, "--to-position", 8),
    "report": ("P", "--sequence-length", 16, "--tokenizer", "null:5000", "-o", "F/out/page.html"),
    "demo": ("--output", "F/out/demo", "--vocab-size", 300, "--sequence-length", 64),
    "check-isolation": ("F/models.py:make", "F/packed.toml"),
    "doctor": ("F",),
    "retro build": build_words(Path("F/retro"))[2:],
    "retro show": ("F/retro/project", "--sample", 0),
    "retro verify": ("F/retro/project",),
    "verify-resume": ("F/loaders.py:make", "--batches", 3, "--world-sizes", "1", "--kill-at", 1, "--seed", 1),
}

LOADER = "def make(consumed):\n    return [[number] for number in range(3)][consumed:]\n"
MODEL = """\
from torch import nn

class Model(nn.Embedding):
    def forward(self, tokens):
        return super().forward(tokens)

def make():
    return Model(300, 300)
"""

PACKED = """\
order = 1
seed = 1
samples.inter_document_masking = true
sources.packed = "packed_text_document"

[[stages]]
sequence_length = 24
samples = 4
weights = { packed = 1 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    write_run(folder, manifests=True)
    (folder / "out").mkdir()
    write_source(str(folder / "plain"), *[32] * 40)
    (folder / "tokenizer.json").write_text(byte_level_json())
    write_lines(folder / "in.jsonl", [{"text": "two words"}, {"text": "three more words"}])
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    write_lines(folder / "chat.jsonl", [{"messages": turns}])
    (folder / "mm").mkdir()
    (folder / "mm" / "cat.txt").write_text("a cat")
    (folder / "mm" / "cat.jpg").write_bytes(b"\xff\xd8\xff\xe0 an image")
    (folder / "loaders.py").write_text(LOADER)
    (folder / "models.py").write_text(MODEL)
    (folder / "packed.toml").write_text(PACKED)
    packed = (f"{folder}/in.jsonl", "--output-prefix", f"{folder}/packed", "--tokenizer", "byte", "--workers", "1")
    assert cli.main(["preprocess", *packed]) == 0
    (folder / "retro").mkdir()
    write_data(folder / "retro")
    for command, words in (("retro build", CASES["retro build"]), ("run lock", RUN)):
        assert cli.main(_words(command, words, folder)) == 0
    return folder


def _words(command, words, folder):
    prefix = str(folder / "data" / "code")
    given = [
        prefix if word == "P" else str(folder) if word == "F" else str(word).replace("F/", f"{folder}/")
        for word in words
    ]
    return [*command.split(), *given]


def _words_of_help(command):
    parser = COMMANDS[command]
    return re.findall(r"\w+", f"{parser.description} {parser._option_string_actions['--json'].help}")


def test_every_command_prints_json():
    assert set(CASES) | WITHOUT_JSON == set(COMMANDS)
    lacking = [name for name in CASES if "--json" not in COMMANDS[name]._option_string_actions]
    assert lacking == []


@pytest.mark.parametrize("command", CASES)
def test_json_is_one_object_whose_keys_the_help_names(command, folder, capsys, monkeypatch):
    texts = [(str(number), f"def f{number}():\n    return {number}\n" * 20) for number in range(40)]
    monkeypatch.setattr(demo, "_source_texts", lambda: iter(texts))
    capsys.readouterr()
    assert cli.main([*_words(command, CASES[command], folder), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 or command in ("trace", "when")
    named = {word for name in (command, LIKE.get(command, command)) for word in _words_of_help(name)}
    for line in lines:
        found = json.loads(line, parse_constant=pytest.fail)
        assert found
        assert [name for name in found if not re.fullmatch("[a-z][a-z0-9_]*", name)] == []
        assert sorted(set(found) - named) == []
