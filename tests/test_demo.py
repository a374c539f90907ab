"""The demo and the training example, run as a new user runs them."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tokenloom
from tokenloom import demo
from tokenloom.cli import main
from tokenloom.errors import ConfigError, ShortDatasetWarning

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the demo has run, as `make demo` runs it."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "tokenloom.cli", "demo", "--vocab-size", "1024"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


def test_demo_says_what_it_does_and_shows_a_sample_of_several_documents(demo_folder: Path) -> None:
    text = (demo_folder / "stdout.txt").read_text()
    assert [line[0] for line in text.splitlines() if re.match(r"[1-6]\. ", line)] == list("123456")
    assert len(re.findall(r"── document [\d,]+ of ", text)) >= 2


def test_demo_tells_starting_from_streaming_which_it_does_for_a_second(demo_folder: Path) -> None:
    text = (demo_folder / "stdout.txt").read_text()
    assert re.search(
        r"^   start-up:  \d+\.\d\d s to the first batch of torch tensors, its import included\n"
        r"   streaming: [\d,]+ tokens/s, [\d,]+ batches in [1-9]\d*\.\d\d s$",
        text,
        re.MULTILINE,
    )


def test_demo_fits_a_terminal_of_80_columns(demo_folder: Path) -> None:
    lines = (demo_folder / "stdout.txt").read_text().splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_demo_ends_with_the_command_that_makes_the_report_and_all_its_commands_work(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = re.findall(r"^   tokenloom (.*)$", (demo_folder / "stdout.txt").read_text(), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["info", "verify", "show", "report"]
    monkeypatch.chdir(demo_folder)
    for command in commands:
        assert main(shlex.split(command)) == 0, capsys.readouterr()
    assert (demo_folder / "report.html").read_text().startswith("<!doctype html>")


WITHOUT = """
import sys
from importlib import machinery, util

def lacks(name):
    return name.partition(".")[0] in missing

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if lacks(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

missing = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Hidden())
found = util.find_spec
util.find_spec = lambda name, package=None: None if lacks(name) else found(name, package)
"""
"""Lets a process believe that some libraries are not installed."""
DEMO = "from tokenloom.cli import main; sys.exit(main(['demo', '--vocab-size', '1024']))"


def run_without(libraries: str, folder: Path, program: str = DEMO) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + program, libraries]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_demo_says_what_is_missing_and_what_that_changes(tmp_path: Path) -> None:
    done = run_without("torch,gigatoken", tmp_path, "from tokenloom.demo import missing_parts; print(missing_parts())")
    assert ast.literal_eval(done.stdout) == [
        "gigatoken is not installed: tokenizing is slower (tokenloom[tokenizers])",
        "torch is not installed: batches are NumPy arrays (tokenloom[torch])",
    ]


def test_demo_without_torch_says_so_first_and_goes_all_the_way(tmp_path: Path) -> None:
    done = run_without("torch", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "torch is not installed: batches are NumPy arrays (tokenloom[torch])",
        "1. Text: the sources of Python's standard library, as JSON lines",
    ]
    assert re.search(r"start-up:  \d+\.\d\d s to the first batch of NumPy arrays", done.stdout)


@pytest.mark.parametrize("library", ["tokenizers", "orjson"])
def test_demo_that_cannot_go_all_the_way_writes_nothing(tmp_path: Path, library: str) -> None:
    done = run_without(library, tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(
        f"error: `{library}` is not installed\nhint: run `pip install tokenloom[preprocess]`\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_demo_streams_whole_batches_or_says_why_not(demo_folder: Path) -> None:
    prefix = str(demo_folder / "demo-output" / "stdlib_text_document")
    train = tokenloom.load(prefix, sequence_length=512)
    report = demo.stream(train, micro_batch_size=8, at_least_seconds=1e-9)
    assert (report.num_epochs, report.num_batches) == (1, len(train) // 8)
    assert report.num_tokens == report.num_batches * 8 * 512
    with pytest.raises(ConfigError) as caught:
        demo.stream(train, micro_batch_size=10**6)
    assert caught.value.message == (
        f"expected at least the 1000000 samples of a batch for training, found {len(train)}"
    )
    assert caught.value.hint == "give a smaller `micro_batch_size` or `sequence_length`"


def test_demo_refuses_samples_longer_than_all_sources(demo_folder: Path, tmp_path: Path) -> None:
    folder = demo_folder / "demo-output"
    tokenizer = tokenloom.load_tokenizer(str(folder / "tokenizer.json"))
    with pytest.warns(ShortDatasetWarning), pytest.raises(ConfigError) as caught:
        demo.build_datasets(
            str(folder / "stdlib_text_document"), tokenizer, sequence_length=10**8, path_to_cache=str(tmp_path)
        )
    assert caught.value.message == "expected at least one sample of 100000000 tokens for training, found none"
    assert caught.value.hint == "give a smaller `sequence_length`"


def test_demo_data_passes_verify(demo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = str(demo_folder / "demo-output" / "stdlib_text_document")
    assert main(["verify", prefix, "--vocab-size", "1024"]) == 0
    assert "ok" in capsys.readouterr().out


def test_demo_can_run_again_over_its_own_output(demo_folder: Path) -> None:
    before = (demo_folder / "demo-output" / "stdlib_text_document.bin").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "tokenloom.cli", "demo", "--vocab-size", "1024"], cwd=demo_folder, capture_output=True
    )
    assert done.returncode == 0
    assert (demo_folder / "demo-output" / "stdlib_text_document.bin").read_bytes() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_training_example_resumes_with_identical_batches(demo_folder: Path, workers: int) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "train_tiny_gpt.py"), "--steps", "3", "--workers", str(workers)],
        cwd=demo_folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "resumed after 12 samples: all 3 batches and losses are identical" in done.stdout
