"""The demo and the training example, run as a new user runs them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tokenloom.cli import main

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the demo has run, as `make demo` runs it."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "tokenloom", "demo", "--vocab-size", "1024"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


def test_demo_prints_its_steps_and_a_sample_of_several_documents(demo_folder: Path) -> None:
    text = (demo_folder / "stdout.txt").read_text()
    assert [line[0] for line in text.splitlines() if re.match(r"[1-6]\. ", line)] == list("123456")
    assert len(re.findall(r"── document [\d,]+ of ", text)) >= 2
    shown, _, _ = text.partition("Next, try:")  # then follow commands, with a path where it must be
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert re.search(
        r"^   start-up:  \d+\.\d\d s to the first batch of torch tensors, including its import\n"
        r"   streaming: [\d,]+ tokens/s, [\d,]+ batches in [1-9]\d*\.\d\d s$",
        text,
        re.MULTILINE,
    )


def test_demo_ends_with_commands_that_work(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (demo_folder / "stdout.txt").read_text()
    commands = re.findall(r"^   \S*tokenloom ((?:info|verify|show) .*)$", text, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["info", "verify", "show"]
    monkeypatch.chdir(demo_folder)
    for command in commands:
        assert main(shlex.split(command)) == 0, capsys.readouterr()


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


@pytest.mark.slow
def test_demo_without_torch_says_so_first_and_goes_all_the_way(tmp_path: Path) -> None:
    done = run_without("torch", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "torch is not installed: batches are NumPy arrays (tokenloom[torch])",
        "1. Text: the sources of Python's standard library, as JSON lines",
    ]
    assert re.search(r"start-up:  \d+\.\d\d s to the first batch of NumPy arrays", done.stdout)


def test_demo_that_cannot_go_all_the_way_writes_nothing(tmp_path: Path) -> None:
    done = run_without("tokenizers", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "error: `tokenizers` is not installed\nhint: run `pip install 'tokenloom[preprocess]'`\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_training_example_resumes_with_identical_batches(demo_folder: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "train_tiny_gpt.py"), "--steps", "3", "--workers", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=demo_folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "resumed after 12 samples: all 3 batches and losses are identical" in done.stdout
