"""Mistakes that people made at the command line, and what they are told now, to the letter.

Each was tried as a new user would; most ended in silence, in a page of usage, or in words of Python.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.runs import write_run
from tests.preprocess.corpus import byte_level_json

from tokenloom import IndexedDatasetBuilder, cli


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, a dataset of it, and one of text and images."""
    folder = tmp_path_factory.mktemp("made")
    texts = {
        "corpus.jsonl": '{"text": "one two"}\n{"text": "three"}\n',
        "other.jsonl": '{"text": "four"}\n',
        "body.jsonl": '{"body": "one"}\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert preprocess("corpus.jsonl", "corpus") == 0
    with IndexedDatasetBuilder(f"{folder}/images.bin", dtype=np.int32, multimodal=True) as builder:
        builder.add_item(np.array([1, 2], dtype=np.int32), 0)
        builder.add_item(np.array([2**30], dtype=np.int32), 1)
        builder.end_document()
        builder.finalize(f"{folder}/images.idx")
    return folder


@pytest.fixture(autouse=True)
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, a copy of that one."""
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    monkeypatch.chdir(copy)
    return copy


def preprocess(path: str, prefix: str, *more: str) -> int:
    return cli.main(["preprocess", path, "--output-prefix", prefix, "--tokenizer", "byte", "--workers", "1", *more])


def said(capsys: pytest.CaptureFixture[str], command: str) -> tuple[object, str]:
    """Returns the exit status of a command, and what it says beside its output."""
    capsys.readouterr()
    try:
        status: object = cli.main(command.split())
    except SystemExit as stopped:
        status = stopped.code
    return status, capsys.readouterr().err


BYTE = "--tokenizer byte --workers 1"

REFUSED = [
    (
        "a command is a typing error",
        "preproces corpus.jsonl",
        "error: unknown command `preproces`\nhint: did you mean `preprocess`? `tokenloom --help` shows all commands\n",
    ),
    (
        "sizes in words of programmers",
        "plan --data-path corpus_text_document --sequence-length 2 --train-samples 1e6",
        "error: `--train-samples`: expected a number from 0 on, found '1e6'\n"
        "hint: `tokenloom plan --help` shows all options\n",
    ),
    (
        "data in two ways",
        "plan --data-path corpus_text_document --data-args-path data.txt --sequence-length 2",
        "error: `--data-args-path`: cannot stand beside `--data-path`\n"
        "hint: `tokenloom plan --help` shows all options\n",
    ),
    (
        "no lengths",
        "pack-report --max-seqlen-per-dp-cp-rank 4 --dp-size 1",
        "error: name a PREFIX or --lengths, one of both\nhint: `tokenloom pack-report --help` shows all options\n",
    ),
    (
        "two kinds of dataset",
        "prepare-cache --data-path corpus_text_document --sequence-length 2 --tokenizer byte --path-to-cache cache "
        "--sft --dataset bert",
        "error: `--dataset`: cannot stand beside `--sft`\nhint: `tokenloom prepare-cache --help` shows all options\n",
    ),
    (
        "a split that silently vanished",
        "plan --data-path corpus_text_document --sequence-length 2 --split 90,abc,5",
        "error: `--split`: split '90,abc,5': item 2 'abc' at column 4 is no number; "
        "write weights such as 98,1,1, or shares such as train=0.98,valid=0.01,test=0.01\n"
        "hint: `tokenloom plan --help` shows all options\n",
    ),
]

FAILED = [
    (
        "another corpus has the prefix",
        f"preprocess other.jsonl --output-prefix corpus {BYTE}",
        "error: `corpus_text_document.idx` exists, and was not made by this very job\n"
        "hint: choose another output, or replace it with `--overwrite`\n"
        "more: docs/troubleshooting.md#outputexistserror\n",
    ),
    (
        "a prefix without a name",
        f"preprocess corpus.jsonl --output-prefix . {BYTE}",
        "error: expected a path that ends with a name as `--output-prefix`, found '.'\n"
        "hint: such as './corpus'\n"
        "more: docs/troubleshooting.md#configerror\n",
    ),
    (
        "the texts have another key",
        f"preprocess body.jsonl --output-prefix body {BYTE}",
        "error: `body.jsonl` line 1: no key 'text'; found 'body'\n"
        "hint: name the key of the texts with `--json-keys`, or correct the line, or let bad lines be set aside in a "
        "file with `--max-bad-records`\n"
        "more: docs/troubleshooting.md#inputerror\n",
    ),
    (
        "an input that is not there",
        f"preprocess corpsu.jsonl --output-prefix x {BYTE}",
        "error: cannot open `corpsu.jsonl`: No such file or directory\n"
        "hint: did you mean `corpus.jsonl`?\n"
        "more: docs/troubleshooting.md#storageerror\n",
    ),
    (
        "a prefix without its key",
        "info corpus",
        "error: no file `corpus.idx` and `corpus.bin`\n"
        "hint: did you mean `corpus_text_document`?\n"
        "more: docs/troubleshooting.md#datasetnotfounderror\n",
    ),
    (
        "a blend of a prefix without its key",
        "plan --data-path corpus --sequence-length 2",
        "error: 'corpus' in the blend: no file `corpus.idx` and `corpus.bin`\n"
        "hint: did you mean `corpus_text_document`?\n"
        "more: docs/troubleshooting.md#datasetnotfounderror\n",
    ),
    (
        "sequences longer than a pack",
        "pack-report corpus_text_document --max-seqlen-per-dp-cp-rank 4 --dp-size 1",
        "error: sub-sample 0 has 7 tokens, but a pack holds 4\n"
        "hint: shorten it, raise `--max-seqlen-per-dp-cp-rank`, or plan with `hybrid_cost_balanced`\n"
        "more: docs/troubleshooting.md#configerror\n",
    ),
    (
        "samples longer than the data",
        "plan --data-path corpus_text_document --sequence-length 5000 --split 1",
        "problem: `corpus_text_document` has no sample for train\n"
        "hint: it holds too few tokens for one sample: shorten the samples, or give the split more data, or none\n",
    ),
    (
        "a sample of text and images as text",
        "show images --sample 0 --sequence-length 2 --split 1 --tokenizer byte",
        "error: expected text in `images`, found text and images\n"
        "hint: samples are of text: show a document with --document\n"
        "more: docs/troubleshooting.md#configerror\n",
    ),
    (
        "a document in words of another tokenizer",
        "show corpus_text_document --document 0 --tokenizer null:9",
        "error: the tokenizer cannot decode these tokens: tokenizer `null:9`: expected ids in [0, 10), found 111 at "
        "index 0\nhint: was the data made with this tokenizer?\nmore: docs/troubleshooting.md#configerror\n",
    ),
]


@pytest.mark.parametrize(("command", "message"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_wrong_usage(capsys, command, message):
    assert said(capsys, command) == (2, message)


@pytest.mark.parametrize(("command", "message"), [each[1:] for each in FAILED], ids=[each[0] for each in FAILED])
def test_what_cannot_be_done(capsys, folder, command, message):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert said(capsys, command) == (1, message)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_tokenizer_is_found_from_another_folder(capsys, folder, monkeypatch):
    Path("tokenizer.json").write_text(byte_level_json())
    words = "--output-prefix data/words --tokenizer tokenizer.json --append-eod --workers 1"
    assert cli.main(["preprocess", "corpus.jsonl", *words.split()]) == 0
    monkeypatch.chdir(folder.parent)
    show = "show copy/data/words_text_document"
    sample = "--sample 0 --sequence-length 2 --split 1"
    assert said(capsys, f"{show} --document 0") == said(capsys, f"{show} {sample}") == (0, "")
    (folder / "tokenizer.json").unlink()
    lost = f"cannot read tokenizer `{folder}/tokenizer.json`: No such file or directory"
    lost = f"expected `tokenizer`, found none, and {lost}"
    assert said(capsys, f"{show} --document 0") == (0, f"{lost}: ids are shown\n")
    assert said(capsys, f"{show} {sample}") == (
        1,
        f"error: {lost}\nhint: name the tokenizer that made the data, such as `--tokenizer tokenizer.json`\n"
        "more: docs/troubleshooting.md#tokenizererror\n",
    )


@pytest.mark.slow
def test_a_warning_has_neither_file_nor_source():
    command = "prepare-cache --data-path corpus_text_document corpus_text_document --split 1 --sequence-length 2 "
    command += "--path-to-cache cache --tokenizer byte"
    done = subprocess.run(
        [sys.executable, "-m", "tokenloom", *command.split()], capture_output=True, text=True, check=True
    )
    assert done.stderr == "warning: the data of `corpus_text_document` are twice in the blend\n"


def test_folders_of_outputs_are_made(capsys):
    assert preprocess("other.jsonl", "new/text/other") == 0
    commands = (
        "merge corpus_text_document --output-prefix new/merged/corpus",
        "catalogue corpus_text_document --output-prefix new/all/corpus",
        "sequences-per-dataset --data-path corpus_text_document --output new/counts/a.json",
        "run init corpus_text_document --output new/run/run.toml",
    )
    assert [said(capsys, command) for command in commands] == [(0, "")] * len(commands)
    for name in ("text/other_text_document.idx", "merged/corpus.bin", "all/corpus.catalogue", "run/run.toml"):
        assert Path("new", name).is_file()
    assert json.loads(Path("new/counts/a.json").read_text()) == {"corpus_text_document": [2, 3]}


DEALT = "--global-batch-size 8 --micro-batch-size 2 --data-parallel-size 2"
SCHEDULE = "a step needs --global-batch-size"
OF_RUNS = [
    # wrong usage
    ("run init", 2, "missing: --data-path, --args-file, or folders"),
    ("run lock RUN --consumed-step 1", 2, "`tokenloom run lock --help` shows"),
    ("run digest RUN --at-step 3", 2, "`tokenloom run digest --help` shows"),
    ("run init data --tokens 5X", 2, "5X"),
    ("run amend RUN --weights web=1", 2, "--at-"),
    ("run amend RUN --at-step 1 --grow", 2, SCHEDULE),
    ("run diff RUN", 2, "missing: "),
    ("show --position 1", 2, "--run"),
    ("show data --sample 1 --holdout", 2, "--holdout is about positions of a run"),
    ("ledger RUN --until-step 3", 2, SCHEDULE),
    ("ledger RUN --until-step 3 --until-position 4", 2, "`--until-position`: cannot stand beside `--until-step`"),
    ("deny RUN --from-position 5", 2, "missing: --document, --record or --documents-file"),
    ("deny RUN --document web:3", 2, "missing: --from-step or --from-position"),
    ("when RUN", 2, "missing: --document, --record, --text-file, --tokens or --ids"),
    ("when RUN --ids 1,x", 2, "expected ids such as 17,4,2051, found '1,x'"),
    ("when RUN --document code:5 --micro-batch-size 3", 2, "belong together"),
    ("trace RUN", 2, "missing: --step or --position"),
    ("trace RUN --step 1 --position 2", 2, "`--position`: cannot stand beside `--step`"),
    ("trace RUN --step 1", 2, SCHEDULE),
    ("trace RUN --position 1 --rank 1", 2, "--rank needs --micro-batch-size and"),
    ("trace RUN --position 1 --micro-batch-size 1 --data-parallel-size 2", 2, "ranks need --global-batch-size or"),
    ("trace RUN --step 1 --global-batch-size 8 --holdout", 2, "--holdout is about positions"),
    ("trace RUN --position 5:5", 2, "'5:5': item 1 '5:5' at column 1 ends where it begins, or before"),
    ("replay RUN --from-step 1", 2, SCHEDULE),
    # what is not there
    ("run lock none.toml", 1, "none.toml"),
    ("run check none.toml", 1, "none."),
    ("run digest RUN --position 101", 1, "expected a position in [0, 100] of the run, found 101"),
    ("run diff RUN none.lock", 1, "none.lock"),
    ("run diff RUN RUN --until-position 101", 1, "expected a position up to 100"),
    ("run plan RUN --start 2026-12-01", 1, "expected --tokens-per-second beside --start"),
    ("run plan RUN --batch-size-schedule 5:3", 1, "begins at 5, not at 0"),
    ("ledger RUN --until-position 101", 1, "expected a position in [0, 100] of the run, found 101"),
    ("show --run RUN --position 100", 1, "sample 100 of the run was asked for, but it has 100"),
    ("deny RUN --document web:300 --from-position 5", 1, "in [0, 100), found `web:300`"),
    ("deny RUN --documents-file gone.txt --from-position 5", 1, "cannot be read"),
    ("deny RUN --document web:3 --from-position 101", 1, "up to 100, found 101"),
    ("when RUN --document code:50", 1, "expected a document of source 'code' in [0, 50), found `code:50`"),
    ("when RUN --document cod:5", 1, "did you mean `code`?"),
    (
        "when RUN --tokens 'some words here'",
        1,
        "expected a `tokenizer` in run.toml, where texts are needed, found none",
    ),
    ("when RUN --text-file missing", 1, "`missing` cannot be read: No such file"),
    ("trace RUN --position 3,90:101", 1, "expected positions below 100, where the run ends, found 100"),
    (f"trace RUN --step 12 {DEALT}", 1, "found step 12, which reads positions 96 to 103"),
    (f"trace RUN --step 1 {DEALT} --rank 2", 1, "expected ranks below 2, as --data-parallel-size says, found 2"),
    ("trace RUN --holdout --position 5000", 1, "where what is held out ends, found 5,000"),
]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("run"))
    assert cli.main(["run", "lock", str(path)]) == 0
    return path


@pytest.mark.parametrize(("command", "status", "message"), OF_RUNS)
def test_mistakes_about_runs_leave_the_run_as_it_is(capsys, locked, command, status, message):
    before = {path.name: path.read_bytes() for path in locked.parent.iterdir() if path.is_file()}
    capsys.readouterr()
    try:
        found: object = cli.main(shlex.split(command.replace("RUN", str(locked))))
    except SystemExit as stopped:
        found = stopped.code
    out, err = capsys.readouterr()
    assert (found, out, message in err) == (status, "", True), err
    assert {path.name: path.read_bytes() for path in locked.parent.iterdir() if path.is_file()} == before
