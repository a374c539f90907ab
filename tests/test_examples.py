"""Examples that readers start by hand."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.preprocess.corpus import byte_level_json
from tests.support import random_documents, write_corpus
from tokenloom import IndexCacheError
from tokenloom.order.arrays import forbid_building

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parent.parent / "examples"


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
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
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
    assert spec is not None
    assert spec.loader is not None
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
    found = re.fullmatch(r"(\d+) samples, \[(\d+), (\d+)\] of each", first)
    assert found is not None
    total, books, web = map(int, found.groups())
    assert books + web == total
    assert books / total == pytest.approx(0.75, abs=0.02)
    assert second == "4 forms of one blend: [0.75, 0.25]"
