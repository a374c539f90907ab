"""The demo, the README's example and the training example, run as a new user runs them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import tokenloom
from tokenloom.cli import main

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
    assert re.search(r"[\d,]+ tokens/s", text)


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


def test_readme_example_of_a_run_is_ten_lines(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = (ROOT / "README.md").read_text().split("### Tokens to batches")[1]
    commands, *_ = re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    code, *_ = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(demo_folder)
    for command in commands.replace("\\\n", "").splitlines():
        program, *words = shlex.split(command, comments=True)
        assert (program, main(words)) == ("tokenloom", 0)
    names: dict[str, object] = {}
    exec(code, names)
    assert shapes_of(names["batch"]) == {
        "dataset_id": (8,), **dict.fromkeys(("tokens", "labels", "loss_mask", "position_ids"), (8, 512))
    }  # fmt: skip


def test_readme_example_in_the_form_of_megatron_runs_and_is_short(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, code, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 16
    monkeypatch.chdir(demo_folder)
    names: dict[str, object] = {}
    exec(code, names)
    expected = dict.fromkeys(("tokens", "labels", "loss_mask", "position_ids"), (8, 512))
    assert shapes_of(names["batch"]) == expected


def shapes_of(batch: object) -> dict[str, tuple[int, ...]]:
    assert isinstance(batch, dict)
    return {name: tuple(tensor.shape) for name, tensor in batch.items()}


def test_readme_example_of_bert_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = (ROOT / "README.md").read_text().split("### BERT and T5")[1]
    code = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)[0]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "##s", "sentence"]
    backend = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(words[:5])
    backend.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"articles": [["one sentence", "two sentences", "three sentences"]] * 200}
    exec(code, names)
    batch = names["batch"]
    assert isinstance(batch, dict)
    assert {name: array.shape for name, array in batch.items()} == {
        **dict.fromkeys(("text", "types", "labels"), (8, 128)),
        "is_random": (8,),
        **dict.fromkeys(("padding_mask", "loss_mask"), (8, 128)),
        "truncated": (8,),
    }
    assert batch["loss_mask"].any()
    assert batch["text"].max() < len(words)


def test_readme_examples_of_packs_and_fill_in_the_middle_run(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(demo_folder)
    readme = (ROOT / "README.md").read_text()
    names: dict[str, object] = {"tokenloom": tokenloom}
    for heading in ("### Whole documents in every sample", "### Fill in the middle"):
        code, *_ = re.findall(r"```python\n(.*?)```", readme.split(heading)[1], flags=re.DOTALL)
        exec(code, names)
        assert isinstance(names["train"], tokenloom.GPTDataset)
    assert "num_split_documents=" in capsys.readouterr().out
    fim = names["train"]
    assert isinstance(fim, tokenloom.GPTFIMDataset)
    assert {1, 2, 3} & set(fim.batch(range(8))["tokens"].ravel().tolist()) == {1, 2, 3}


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
