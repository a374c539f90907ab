"""Likely mistakes at the command line: exact error texts, and no file is changed."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.runs import run, write_run
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
    """Returns the exit status and the stderr of a command."""
    return run(capsys, *command.split())[::2]


BYTE, PAIR = "--tokenizer byte --workers 1", "--data-path corpus_text_document --sequence-length 2"

REFUSED = {
    f"plan {PAIR} --train-samples 1e6": "`--train-samples`: '1e6' is not an integer",
    f"plan {PAIR} --data-args-path data.txt": "`--data-args-path`: cannot be combined with `--data-path`",
    "pack-report --max-seqlen-per-dp-cp-rank 4 --dp-size 1": "give either PREFIX or --lengths",
    f"prepare-cache {PAIR} --tokenizer byte --path-to-cache cache --sft --dataset bert": (
        "`--dataset`: cannot be combined with `--sft`"
    ),
    f"plan {PAIR} --split 90,abc,5": (  # a split that silently vanished
        "`--split`: split '90,abc,5': item 2 'abc' at column 4 is not a number; "
        "write weights such as 98,1,1, or shares such as train=0.98,valid=0.01,test=0.01"
    ),
}

NO_PAIR, KEY = "no file `corpus.idx` and `corpus.bin`", "did you mean `corpus_text_document`?"
FAILED = [
    (
        f"preprocess other.jsonl --output-prefix corpus {BYTE}",
        "`corpus_text_document.idx` exists already",
        *("choose another output, or replace it with `--overwrite`", "outputexistserror"),
    ),
    (
        f"preprocess corpus.jsonl --output-prefix . {BYTE}",
        "`--output-prefix`: must end with a file name, got '.'",
        *("write './corpus'", "configerror"),
    ),
    (
        f"preprocess body.jsonl --output-prefix body {BYTE}",
        "`body.jsonl` line 1: no key 'text'; found 'body'",
        "pass the key of the texts with `--json-keys`, or correct the line, or set `--max-bad-records` to write "
        "bad lines to a separate file",
        "inputerror",
    ),
    (
        f"preprocess corpsu.jsonl --output-prefix x {BYTE}",
        "cannot open `corpsu.jsonl`: No such file or directory",
        *("did you mean `corpus.jsonl`?", "storageerror"),
    ),
    ("info corpus", NO_PAIR, KEY, "datasetnotfounderror"),
    ("plan --data-path corpus --sequence-length 2", f"'corpus' in the blend: {NO_PAIR}", KEY, "datasetnotfounderror"),
    (
        "pack-report corpus_text_document --max-seqlen-per-dp-cp-rank 4 --dp-size 1",
        "sub-sample 0 has 7 tokens; a pack has at most 4",
        *("increase `--max-seqlen-per-dp-cp-rank`, or plan with `hybrid_cost_balanced`", "configerror"),
    ),
    (
        "show images --sample 0 --sequence-length 2 --split 1 --tokenizer byte",
        "`images` has images, which samples cannot contain",
        *("show a document with --document", "configerror"),
    ),
    (
        "show corpus_text_document --document 0 --tokenizer null:9",
        "the tokenizer cannot decode these tokens: id 111 at index 0 out of range: tokenizer `null:9` has 10 ids",
        *("use the tokenizer that made the data", "configerror"),
    ),
]


@pytest.mark.parametrize(("command", "error"), REFUSED.items())
def test_wrong_usage(capsys, command, error):
    hint = f"`tokenloom {command.split()[0]} --help` lists all options"
    assert said(capsys, command) == (2, f"error: {error}\nhint: {hint}\n")


@pytest.mark.parametrize(("command", "error", "hint", "section"), FAILED, ids=[each[0] for each in FAILED])
def test_what_cannot_be_done(capsys, folder, command, error, hint, section):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert said(capsys, command) == (1, f"error: {error}\nhint: {hint}\nmore: docs/troubleshooting.md#{section}\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_samples_longer_than_the_data_are_a_problem_of_the_plan(capsys):
    command = "plan --data-path corpus_text_document --sequence-length 5000 --split 1"
    hint = "it has too few tokens for one sample: lower `--sequence-length`, or change the weight of the split"
    problem = "`corpus_text_document` has no sample for train"
    assert said(capsys, command) == (1, f"problem: {problem}\nhint: {hint}\n")


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
    lost = f"no `tokenizer` given, and {lost}"
    assert said(capsys, f"{show} --document 0") == (0, f"{lost}: showing ids\n")
    assert said(capsys, f"{show} {sample}") == (
        1,
        f"error: {lost}\nhint: pass the tokenizer of the data, such as `--tokenizer tokenizer.json`\n"
        "more: docs/troubleshooting.md#tokenizererror\n",
    )


@pytest.mark.slow
def test_a_warning_has_neither_file_nor_source():
    command = "prepare-cache --data-path corpus_text_document corpus_text_document --split 1 --sequence-length 2 "
    command += "--path-to-cache cache --tokenizer byte"
    done = subprocess.run(
        [sys.executable, "-m", "tokenloom", *command.split()], capture_output=True, text=True, check=True
    )
    assert done.stderr == "warning: `corpus_text_document` appears twice in the blend\n"


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
SCHEDULE = "steps need --global-batch-size"
OF_RUNS = [
    # wrong usage
    ("run init", 2, "missing: FOLDER…, --data-path or --args-file"),
    ("run lock RUN --consumed-step 1", 2, "`tokenloom run lock --help` lists"),
    ("run digest RUN --at-step 3", 2, "`tokenloom run digest --help` lists"),
    ("run init data --tokens 5X", 2, "5X"),
    ("run amend RUN --weights web=1", 2, "--at-"),
    ("run amend RUN --at-step 1 --grow", 2, SCHEDULE),
    ("run diff RUN", 2, "missing: "),
    ("show --position 1", 2, "--run"),
    ("show data --sample 1 --holdout", 2, "--holdout needs --run"),
    ("ledger RUN --until-step 3", 2, SCHEDULE),
    ("ledger RUN --until-step 3 --until-position 4", 2, "`--until-position`: cannot be combined with"),
    ("deny RUN --from-position 5", 2, "missing: --document, --record or --documents-file"),
    ("deny RUN --document web:3", 2, "missing: --from-step or --from-position"),
    ("when RUN", 2, "missing: --document, --record, --text-file, --tokens or --ids"),
    ("when RUN --ids 1,x", 2, "'1,x': item 2 'x' at column 3 is not an integer"),
    ("when RUN --document code:5 --micro-batch-size 3", 2, "must be given together"),
    ("trace RUN", 2, "missing: --step or --position"),
    ("trace RUN --step 1 --position 2", 2, "`--position`: cannot be combined with `--step`"),
    ("trace RUN --step 1", 2, SCHEDULE),
    ("trace RUN --position 1 --rank 1", 2, "--rank needs --micro-batch-size and"),
    (
        "trace RUN --position 1 --micro-batch-size 1 --data-parallel-size 2",
        2,
        "--micro-batch-size needs --global-batch-size or",
    ),
    ("trace RUN --step 1 --global-batch-size 8 --holdout", 2, "--holdout needs --position, not steps"),
    ("trace RUN --position 3 --losses x", 2, "--losses needs --worst"),
    ("trace RUN --position 3 --worst 2 --holdout", 2, "--holdout and --worst exclude each other"),
    ("trace RUN --position 5:5", 2, "'5:5': item 1 '5:5' at column 1 is an empty range"),
    ("replay RUN --from-step 1", 2, SCHEDULE),
    # values that do not exist or do not fit
    ("run amend RUN --at-position 40", 1, "nothing to change"),
    ("run amend RUN --at-position 101 --weights web=1", 1, "position 101 out of range: the run has 100 samples"),
    (
        "run amend RUN --at-position 100 --weights web=1",
        1,
        "a new stage at the end of the run, position 100, needs a size",
    ),
    ("run amend RUN --at-position 0 --weights web=1", 1, "position 0 is where stage 'main' begins"),
    ("run amend RUN --at-position 40 --weights wob=1", 1, "not a source of the run\nhint: did you mean `web`?"),
    ("run amend RUN --at-position 40 --weights web=1 --add-source more=data/none", 1, "none"),
    ("run amend RUN --at-position 40 --grow", 1, "nothing to grow: "),
    ("run amend RUN --at-position 40 --sequence-length 4096", 1, "must be at least one sample, 4096, got 960"),
    ("run amend RUN --at-position 40 --sequence-length 3500 --samples 9", 1, "0 samples of 3500 tokens"),
    ("run lock none.toml", 1, "none.toml"),
    ("run check none.toml", 1, "none."),
    ("run digest RUN --position 101", 1, "position 101 out of range: the run has 100 samples"),
    ("run diff RUN none.lock", 1, "none.lock"),
    ("run diff RUN RUN --until-position 101", 1, "position 101 out of range: the longer run has 100 samples"),
    ("run plan RUN --start 2026-12-01", 1, "--start needs --tokens-per-second"),
    ("run plan RUN --batch-size-schedule 5:3", 1, "must start at 0, got 5"),
    ("ledger RUN --until-position 101", 1, "position 101 out of range: the run has 100 samples"),
    ("show --run RUN --position 100", 1, "position 100 out of range: the run has 100 samples"),
    ("deny RUN --document web:300 --from-position 5", 1, "document `web:300` out of range: the source has 100"),
    ("deny RUN --documents-file gone.txt --from-position 5", 1, "cannot be read"),
    ("deny RUN --document web:3 --from-position 101", 1, "position 101 out of range: the run has 100 samples"),
    ("when RUN --document code:50", 1, "document `code:50` out of range: the source has 50"),
    ("when RUN --document cod:5", 1, "did you mean `code`?"),
    ("when RUN --tokens 'some words here'", 1, "text is needed, but run.toml has no `tokenizer`"),
    ("when RUN --text-file missing", 1, "`missing` cannot be read: No such file"),
    ("trace RUN --position 3,90:101", 1, "position 100 out of range: the run has 100 positions"),
    (
        f"trace RUN --step 12 {DEALT}",
        1,
        "step 12 out of range: it reads positions 96 to 103; the run has 100 positions",
    ),
    (f"trace RUN --step 1 {DEALT} --rank 2", 1, "rank 2 out of range: --data-parallel-size is 2"),
    ("trace RUN --holdout --position 5000", 1, "position 5,000 out of range: the held-out part has "),
]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("run"))
    assert cli.main(["run", "lock", str(path)]) == 0
    return path


@pytest.mark.parametrize(("command", "status", "message"), OF_RUNS)
def test_mistakes_about_runs_leave_the_run_as_it_is(capsys, locked, command, status, message):
    before = {path.name: path.read_bytes() for path in locked.parent.iterdir() if path.is_file()}
    found, out, err = run(capsys, *shlex.split(command.replace("RUN", str(locked))))
    assert (found, out, message in err) == (status, "", True), err
    assert {path.name: path.read_bytes() for path in locked.parent.iterdir() if path.is_file()} == before
