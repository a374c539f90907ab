"""Examples run as new users run them: those of docstrings, the demo, and the programs in `examples/`."""

import doctest
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.preprocess.corpus import byte_level_json
from tests.support import random_documents, write_corpus
from tokenloom import IndexCacheError
from tokenloom.cli import main
from tokenloom.order.array_store import forbid_building

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
MODULES = [
    ".".join(path.relative_to(sources).with_suffix("").parts).removesuffix(".__init__")
    for sources in (ROOT / "src", *sorted(ROOT.glob("packages/*/src")))
    for path in sorted(sources.rglob("*.py"))
    if re.search("^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed


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
        r"^   start-up:  \d+\.\d\d s to the first batch of torch tensors, with `import torch`\n"
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
        "1. Text: the source code of Python's standard library, as JSON lines",
    ]
    assert re.search(r"start-up:  \d+\.\d\d s to the first batch of NumPy arrays", done.stdout)


def test_demo_that_cannot_go_all_the_way_writes_nothing(tmp_path: Path) -> None:
    done = run_without("tokenizers", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    message = "error: `tokenizers` is not installed\nhint: run `pip install 'tokenloom[preprocess]'`\n"
    assert done.stderr.startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_training_example_resumes_with_identical_batches(demo_folder: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_tiny_gpt.py"), "--steps", "3", "--workers", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=demo_folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "resumed after 12 samples: all 3 batches and losses are identical" in done.stdout


@pytest.mark.slow
def test_packed_training_runs_on_two_processes_and_sees_the_same_packs_in_both_modes(tmp_path, rng):
    documents = random_documents(rng, count=60, longest=300, vocab_size=1000)
    prefix = write_corpus(tmp_path / "data", documents)
    outputs = []
    for more in ([], ["--exchange"]):
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            str(EXAMPLES / "train_packed.py"), "--data", prefix, "--steps", "2", "--global-batch-size", "16",
            "--vocab-size", "1000", *more,
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    lines = outputs[0].splitlines()
    assert len(lines) == 2
    expected = sum(min(len(document) - 1, 256) for document in [d for d in documents if len(d) > 1][:16])
    assert re.fullmatch(rf"step 0: \d+ microbatches, {expected} tokens, loss \d+\.\d+", lines[0])


def run_example(name: str, *arguments: object) -> None:
    """Runs an example in this process, which saves the imports of torch."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    module.main([str(each) for each in arguments])


@pytest.mark.slow
def test_a_job_reads_from_a_bucket_and_shares_its_indices(bucket, tmp_path, rng, capsys, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_S3_ENDPOINT_URL", bucket.proxy.endpoint)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(byte_level_json(), encoding="utf-8")
    addresses = [
        bucket.put_pair(write_corpus(tmp_path / name, rng.integers(0, 900, size=(100, 40))), f"data/{name}")
        for name in ("my_gpt_data", "more")
    ]
    usual = ["--tokenizer", tokenizer, "--samples", 8, "--sequence-length", 64]
    run_example("from_a_bucket", addresses[0], *usual, "--object-storage-cache-path", tmp_path / "kept")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["batch 0: tokens (4, 64), 256 with loss", "batch 1: tokens (4, 64), 256 with loss"]
    assert lines[-1].startswith(f"{addresses[0]}.bin: ")
    assert list((tmp_path / "kept").glob("objects-*/indices/*-description.txt"))
    shared = [0.7, addresses[0], 0.3, addresses[1], *usual, "--path-to-cache", bucket.url("indices")]
    with pytest.raises(IndexCacheError, match=r"no file `s3://.*/indices/.*"):
        run_example("from_a_bucket", *shared, "--ready")
    run_example("from_a_bucket", *shared)
    expected = capsys.readouterr().out.splitlines()[:3]
    with forbid_building():
        run_example("from_a_bucket", *shared, "--ready")
    assert capsys.readouterr().out.splitlines()[:3] == expected


def test_a_task_of_ones_own_in_a_blend(tmp_path, capsys):
    run_example("own_task", tmp_path / "sums")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "24 samples for training, 8 for validation"
    assert len(lines) == 7
    assert all(re.match(r"rank [01]: datasets \[0, 0, 0, 1\], sums \[.*\] of 4 pairs", line) for line in lines[1:])


def test_text_files_become_a_blend_in_every_form(tmp_path, capsys):
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    for name in ("books", "web"):
        (tmp_path / f"{name}.txt").write_text(f"a line of {name}, as a document\n" * 200)
    texts = [f"{tmp_path}/books.txt:0.75", f"{tmp_path}/web.txt:0.25"]
    output = ["--output", tmp_path / "out", "--sequence-length", 32]
    run_example("text_to_blend", *texts, "--tokenizer", tmp_path / "tokenizer.json", *output)
    first, second = capsys.readouterr().out.splitlines()
    total, books, web = map(int, re.fullmatch(r"(\d+) samples, \[(\d+), (\d+)\] of each", first).groups())
    assert books + web == total
    assert books / total == pytest.approx(0.75, abs=0.02)
    assert second == "4 forms of one blend: [0.75, 0.25]"
