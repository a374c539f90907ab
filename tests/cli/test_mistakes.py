"""Mistakes that people made at the command line, and what they are told now, to the letter.

Each was tried as a new user would; most ended in silence, in a page of usage, or in words of Python.

Mistakes and frictions whose tests are elsewhere:

- settings that look for end-of-document tokens which the data lack: tests/datasets/test_data_match.py
- a blend in Python that names data twice: tests/datasets/test_config.py
- a loop over object storage that is left early, and ends in tracebacks: tests/test_interpreter_end.py
- a progress bar that fits no terminal and leaves logs empty: tests/cli/test_progress_display.py, tests/test_progress.py
- Ctrl-C that does not say what is done: tests/cli/test_stopping.py, tests/cli/test_waiting.py
- an endpoint that does not answer, and silence: tests/cli/test_waiting.py
- no version and `python -m tokenloom`: tests/cli/test_parser.py; no completion: tests/cli/test_completion.py
- names broken at 60 columns: tests/cli/test_console.py; no colours in `show`: tests/cli/test_drawing.py
- `--json` in few commands: tests/cli/test_json_output.py; two grammars of `--split`: tests/cli/test_values.py
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.preprocess.corpus import byte_level_json
from tests.support import write_corpus

import tokenloom
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
        "tokeniser is a typing error",
        "preprocess corpus.jsonl --output-prefix x --tokeniser byte",
        "error: unknown option `--tokeniser`\n"
        "hint: did you mean `--tokenizer`? `tokenloom preprocess --help` shows all options\n",
    ),
    (
        "a command is a typing error",
        "preproces corpus.jsonl",
        "error: unknown command `preproces`\nhint: did you mean `preprocess`? `tokenloom --help` shows all commands\n",
    ),
    (
        "several options are missing",
        "preprocess corpus.jsonl",
        "error: missing: --output-prefix PREFIX, --tokenizer PATH (or --tokenizer-type)\n"
        "hint: `tokenloom preprocess --help` shows all options\n",
    ),
    (
        "sizes in words of programmers",
        "plan --data-path corpus_text_document --sequence-length 2 --sizes 1e6,10.5,10",
        "error: `--sizes`: '1e6,10.5,10': item 1 '1e6' at column 1 is no whole number\n"
        "hint: `tokenloom plan --help` shows all options\n",
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
        "more: tokenloom explain OutputExistsError\n",
    ),
    (
        "a prefix without a name",
        f"preprocess corpus.jsonl --output-prefix . {BYTE}",
        "error: expected a path that ends with a name as `--output-prefix`, found '.'\n"
        "hint: such as './corpus'\n"
        "more: tokenloom explain ConfigError\n",
    ),
    (
        "the texts have another key",
        f"preprocess body.jsonl --output-prefix body {BYTE}",
        "error: `body.jsonl` line 1: no key 'text'; found 'body'\n"
        "hint: name the key of the texts with `--json-keys`, or correct the line, or let bad lines be skipped with "
        "`--skip-bad-lines`: they are then set aside in a file\n"
        "more: tokenloom explain InputError\n",
    ),
    (
        "an input that is not there",
        f"preprocess corpsu.jsonl --output-prefix x {BYTE}",
        "error: cannot open `corpsu.jsonl`: No such file or directory\n"
        "hint: did you mean `corpus.jsonl`?\n"
        "more: tokenloom explain StorageError\n",
    ),
    (
        "a prefix without its key",
        "info corpus",
        "error: no file `corpus.idx` and `corpus.bin`\n"
        "hint: did you mean `corpus_text_document`?\n"
        "more: tokenloom explain DatasetNotFoundError\n",
    ),
    (
        "a blend of a prefix without its key",
        "plan --data-path corpus --sequence-length 2",
        "error: 'corpus' in the blend: no file `corpus.idx` and `corpus.bin`\n"
        "hint: did you mean `corpus_text_document`?\n"
        "more: tokenloom explain DatasetNotFoundError\n",
    ),
    (
        "a picture beside which nothing can lie",
        "pack-report corpus_text_document --max-tokens 64 --dp 1 --plot corpus.jsonl/x.png",
        "error: cannot make the folder of `corpus.jsonl/x.png`: File exists\nmore: tokenloom explain StorageError\n",
    ),
    (
        "sequences longer than a pack",
        "pack-report corpus_text_document --max-tokens 4 --dp 1",
        "error: sub-sample 0 has 7 tokens, but a pack holds 4 (1 ranks of 4)\n"
        "hint: shorten it with `--cut`, raise `--max-tokens`, or plan with `hybrid_cost_balanced`\n"
        "more: tokenloom explain ConfigError\n",
    ),
    (
        "samples longer than the data",
        "plan --data-path corpus_text_document --sequence-length 5000 --split 1",
        "problem: `corpus_text_document` has no sample for train\n"
        "hint: it holds too few tokens for one sample: shorten the samples, or give the split more data, or none\n",
    ),
    (
        "a document of text and images as text",
        "show images --document 0",
        "error: expected text in `images`, found text and images\n"
        "hint: add --multimodal\n"
        "more: tokenloom explain ConfigError\n",
    ),
    (
        "a sample of text and images as text",
        "show images --sample 0 --sequence-length 2 --split 1 --tokenizer byte",
        "error: expected text in `images`, found text and images\n"
        "hint: samples are of text: show a document with --document and --multimodal\n"
        "more: tokenloom explain ConfigError\n",
    ),
    (
        "a document in words of another tokenizer",
        "show corpus_text_document --document 0 --tokenizer null:9",
        "error: the tokenizer cannot decode these tokens: tokenizer `null:9`: expected ids in [0, 10), found 111 at "
        "index 0\nhint: was the data made with this tokenizer?\nmore: tokenloom explain ConfigError\n",
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


def test_samples_of_another_tokenizer_are_refused_without_a_word_of_python(capsys):
    words = "--sample 0 --sequence-length 2 --split 1 --tokenizer null:300"
    status, err = said(capsys, f"show corpus_text_document {words}")
    assert status == 1
    assert err.startswith("error: `corpus_text_document`: expected the tokenizer that made the data, byte `byte` (sha")
    assert err.endswith("\nhint: use that one, or tokenize the data again\nmore: tokenloom explain TokenizerError\n")


def test_what_a_check_finds_in_images_is_not_said_of_texts(capsys):
    assert cli.main(["verify", "images", "corpus_text_document"]) == 0
    texts = "corpus_text_document: ok, 12 tokens from 32 to 119, as the manifest says\n"
    assert capsys.readouterr().out == f"images: ok, 3 tokens of text and images from 1 to 1073741824\n{texts}"


def test_the_tokenizer_is_found_from_another_folder(capsys, folder, monkeypatch):
    Path("tokenizer.json").write_text(byte_level_json())
    words = "--output-prefix data/words --tokenizer tokenizer.json --append-eod --workers 1"
    assert cli.main(["preprocess", "corpus.jsonl", *words.split()]) == 0
    monkeypatch.chdir(folder.parent)
    show = "show copy/data/words_text_document"
    sample = "--sample 0 --sequence-length 2 --split 1"
    assert said(capsys, f"{show} --document 0") == said(capsys, f"{show} {sample}") == (0, "")
    (folder / "tokenizer.json").unlink()
    lost = "cannot read tokenizer `tokenizer.json`: No such file or directory"
    lost = f"the tokenizer of the manifest cannot be used: {lost}"
    assert said(capsys, f"{show} --document 0") == (0, f"{lost}: ids are shown\n")
    assert said(capsys, f"{show} {sample}") == (
        1,
        f"{lost}\nerror: samples need a tokenizer, found none\n"
        "hint: name it with --tokenizer\nmore: tokenloom explain ConfigError\n",
    )


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_is_told(capsys, option):
    with pytest.raises(SystemExit) as stopped:
        cli.main([option])
    assert (stopped.value.code, capsys.readouterr().out) == (0, f"tokenloom {tokenloom.__version__}\n")


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


def test_what_is_cut_off_is_said(capsys):
    write_corpus("lengths", [[1] * 5, [1] * 40, [1] * 6])
    assert cli.main(["pack-report", "lengths", "--max-tokens", "8", "--dp", "1", "--cut"]) == 0
    assert capsys.readouterr().out.startswith(
        "cut 1 of 3 sequences, those of more than 8 tokens: 32 of 51 tokens are left out\n"
    )


def test_a_chat_template_for_texts_is_said_to_change_nothing(capsys):
    capsys.readouterr()
    assert preprocess("other.jsonl", "texts", "--chat-template", "nope.jinja") == 0
    assert "--chat-template has no effect here: texts are no conversations: see preprocess-chat" in (
        capsys.readouterr().err
    )
