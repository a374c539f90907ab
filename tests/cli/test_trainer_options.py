"""`tokenloom prepare-cache` with the options of Megatron's trainer."""

from __future__ import annotations

import json
import sys

import pytest
from tests.support import write_corpus

from tokenloom import cli
from tokenloom.megatron import args as megatron_args


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Holds a pair; it is the current folder. No tokenizer of Megatron's is there."""
    write_corpus(tmp_path / "books", [[number % 60 + 1] * (number % 11 + 2) for number in range(40)])
    (tmp_path / "counts.json").write_text(json.dumps({"books": [40, 41]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(megatron_args, "_is_importable", lambda name: False)
    return tmp_path


DATA = "--data-path books --split 80,20,0 --seed 5"
NULL = "--tokenizer-type NullTokenizer --vocab-size 99"


def prepare(line, cache):
    return cli.main(["prepare-cache", *line.split(), "--data-cache-path", cache])


def cached(folder, cache):
    return sorted(path.name for path in (folder / cache).iterdir())


def test_the_trainers_counts_give_the_same_indices_as_sizes(folder, capsys):
    counts = "--train-iters 10 --eval-iters 2 --eval-interval 5 --micro-batch-size 1 --prepare-cache-world-size 2"
    more = "--num-dataset-builder-threads 2 --per-dataset-sequences-path counts.json --no-mmap-bin-files"
    flags = "--reset-position-ids --eod-mask-loss --dataloader-fast-cache-load --num-workers 4"
    assert prepare(f"{DATA} {NULL} --seq-length 8 {counts} {more} {flags}", "one") == 0
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[0] for note in notes] == [word for word in flags.split() if word.startswith("--")]
    assert (
        prepare(f"{DATA} {NULL} --sequence-length 8 --train-samples 20 --valid-samples 12 --test-samples 0", "two") == 0
    )
    assert cached(folder, "one") == cached(folder, "two") != []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--train-iters 10 --eval-interval 5 --valid-samples 1", "--valid-samples and --train-iters both"),
        ("--train-iters 10 --global-batch-size 2", "expected --eval-interval"),
        ("--train-iters 10 --eval-interval 5", "--micro-batch-size"),
        ("--mock-data", "--mock-data makes up samples"),
        ("--phase-transition-iterations 3 --global-batch-size 2 --train-iters 9 --eval-interval 3", "--train-samples"),
        (
            "--step-batch-size-schedule 50:2 --micro-batch-size 1 --train-samples 9 --eval-interval 3",
            "expected the consumed samples of sizes[0] in [0, 1), found 6",
        ),
    ],
)
def test_what_cannot_be_meant_is_said(folder, capsys, line, words):
    assert prepare(f"{DATA} {NULL} --seq-length 8 {line}", "cache") == 1
    assert words in capsys.readouterr().err


def test_phases_are_counted_one_by_one(folder, capsys):
    counts = "--train-samples 30 --global-batch-size 2 --eval-interval 5 --eval-iters 1"
    assert prepare(f"{DATA} {NULL} --seq-length 8 {counts} --phase-transition-iterations 5,9 --iteration 6", "a") == 0
    assert prepare(f"{DATA} {NULL} --seq-length 8 --train-samples 8 --valid-samples 8 --test-samples 2", "b") == 0
    assert cached(folder, "a") == cached(folder, "b")


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_megatrons_own_tokenizer_names_the_indices(folder, monkeypatch, capsys):
    """A run of Megatron's finds them: its tokenizer is in their names."""
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert prepare(f"{DATA} {NULL} --seq-length 8 --train-samples 8 --valid-samples 0 --test-samples 0", "cache") == 0
    described = [json.loads(path.read_text()) for path in (folder / "cache").glob("*-description.txt")]
    assert described
    assert all(one["tokenizer"]["class"].startswith("megatron.core.tokenizers.") for one in described)
    assert "megatron.core" in sys.modules
