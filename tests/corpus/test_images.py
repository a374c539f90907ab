"""Texts with images as a job: shards, processes, deaths, and images that change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.corpus.jobs import preprocess_multimodal
from tests.preprocess.corpus import write_lines

from tokenloom.errors import ConfigError
from tokenloom.indexed.manifests import read_manifest
from tokenloom.indexed.verify import verify_dataset
from tokenloom.preprocess.job import CorpusSummary
from tokenloom.preprocess.sharded import JobProgress
from tokenloom.tokenizers.plain import ByteTokenizer

NUM_PAIRS = 120
SUFFIXES = (".bin", ".idx", ".rejected.jsonl")


@pytest.fixture
def folder(tmp_path: Path, rng: Any) -> Path:
    """Holds a folder of pairs, one of them incomplete, and records that name the same images, some of them bad."""
    (tmp_path / "pairs").mkdir()
    lines: list[object] = []
    for number in range(NUM_PAIRS):
        text = f"text {number} " * (number % 5)
        (tmp_path / "pairs" / f"{number:03d}.txt").write_text(text)
        (tmp_path / "pairs" / f"{number:03d}.jpg").write_bytes(rng.bytes(int(rng.integers(1, 400))))
        lines.append({"text": text, "image": f"pairs/{number:03d}.jpg"})
    (tmp_path / "pairs" / "lone.txt").write_text("x")
    lines[40:40] = [b"{bad", b""]
    lines.append({"text": "x", "image": "absent.jpg"})
    write_lines(tmp_path / "pairs.jsonl", lines)
    return tmp_path


def run(folder: Path, name: str, prefix: str, **options: Any) -> CorpusSummary:
    options = {"skip_bad_lines": True, "num_workers": 2, "num_processes": 1, "append_eod": True, **options}
    return preprocess_multimodal(folder / name, folder / prefix, options.pop("tokenizer", ByteTokenizer()), **options)


def outputs(prefix: Path) -> list[bytes]:
    return [Path(f"{prefix}{suffix}").read_bytes() for suffix in SUFFIXES]


def interrupt_after(count: int, *arguments: Any, **options: Any) -> None:
    def interrupt(at: JobProgress) -> None:
        if at.counts["num_documents"] >= count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(*arguments, progress=interrupt, **options)


@pytest.mark.parametrize(("name", "shard_bytes"), [("pairs", 3), ("pairs.jsonl", 300)])
def test_bytes_depend_on_neither_shards_nor_processes(folder, name, shard_bytes):
    whole = run(folder, name, "whole")
    cut = run(folder, name, "cut", shard_bytes=shard_bytes)
    assert outputs(folder / "cut") == outputs(folder / "whole")
    for count in ("num_documents", "num_tokens", "numbers", "num_rejected"):
        assert getattr(cut, count) == getattr(whole, count)
    ledger = read_manifest(str(folder / "cut")).ledger
    is_folder = name == "pairs"
    assert (ledger.num_kept, ledger.num_rejected, ledger.num_blank) == (
        NUM_PAIRS,
        1 if is_folder else 2,
        0 if is_folder else 1,
    )
    assert read_manifest(str(folder / "cut")) == read_manifest(str(folder / "whole"))
    assert verify_dataset(str(folder / "cut"), multimodal=True).problems == ()
    assert not (folder / "cut.job").exists()


@pytest.mark.parametrize("name", ["pairs", "pairs.jsonl"])
def test_an_interrupted_job_goes_on(folder, name, caplog):
    run(folder, name, "whole")
    shard_bytes = 4 if name == "pairs" else 1000
    interrupt_after(60, folder, name, "out", shard_bytes=shard_bytes)
    assert len(list((folder / "out.job").glob("*_0.bin"))) >= 2
    with pytest.raises(ConfigError, match="other settings: append_eod was True, and is False"):
        run(folder, name, "out", shard_bytes=shard_bytes, append_eod=False)
    run(folder, name, "out", shard_bytes=shard_bytes)
    assert outputs(folder / "out") == outputs(folder / "whole")
    assert "is done again" not in caplog.text
    assert not (folder / "out.job").exists()
