"""`tokenloom trace`: steps and positions of a run, ranks, files and records, texts, and what is asked wrongly."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
from tests.cli.runs import run, write_run
from tests.indexed.columns import put_origins

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import RUNS, OriginFile
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.run.run import Run

NAMES = (
    *("position", "step", "rank", "micro_batch", "source", "pass", "document", "start", "length", "file", "record"),
    *("slot", "denied", "stage", "walk", "window", "pair", "row", "run"),
)
DEALT = ("--global-batch-size", 8, "--micro-batch-size", 2, "--data-parallel-size", 2)


@pytest.fixture
def path(tmp_path, capsys):
    """A run whose source `code` has origins: two documents per line of a file, `web` none."""
    path = write_run(tmp_path)
    lines = tmp_path / "raw" / "code" / "lines.jsonl"
    lines.parent.mkdir(parents=True)
    lines.write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(1, 52)))
    status = lines.stat()
    file = OriginFile(
        path=str(lines), num_bytes=status.st_size, version=str(status.st_mtime_ns), unit="line", num_records=51
    )
    prefix = str(tmp_path / "data" / "code")
    put_origins(prefix, [file], [np.array([(0, 2, 50)], dtype=RUNS)])
    run(capsys, "run", "lock", path)
    return path


def traced(capsys, path, *words) -> list[dict]:
    status, out, _ = run(capsys, "trace", path, *words, "--json")
    assert status == 0
    return [json.loads(line) for line in out.splitlines()]


def test_a_step_as_ranks_read_it(path, capsys):
    rows = traced(capsys, path, "--step", 3, *DEALT)
    assert tuple(rows[0]) == NAMES
    assert {(row["step"], row["run"], row["stage"]) for row in rows} == {(3, Run.open(path).identity, "main")}
    for rank in range(2):
        batches = list(MegatronPretrainingSampler(100, 24, 2, rank, 2))[:2]
        for number, batch in enumerate(batches):
            assert {row["position"] for row in rows if (row["rank"], row["micro_batch"]) == (rank, number)} == set(
                batch
            )
        mine = [row for row in rows if row["rank"] == rank]
        assert traced(capsys, path, "--step", 3, *DEALT, "--rank", rank) == mine


def test_positions_and_ranges_of_them(path, capsys):
    rows = traced(capsys, path, "--position", "7,20:22", "--sample", 3)
    assert list(dict.fromkeys(row["position"] for row in rows)) == [7, 20, 21, 3]
    assert {(row["step"], row["rank"]) for row in rows} == {(None, None)}
    plain = [row for k in (7, 20, 21, 3) for row in Run.open(path).trace([k]).rows()]
    assert [row | {"file": None, "record": None} for row in rows] == plain
    tokens = Run.open(path).dataset().sample(20)["tokens"]
    assert sum(row["length"] for row in rows if row["position"] == 20) == len(tokens) + 1
    dealt = traced(capsys, path, "--position", 20, "--batch-size-schedule", "0:8 160:4")
    assert dealt[0]["step"] == 1 + 1 + (20 - 16) // 4  # 8, 8 as 160 tokens are 10 samples, then 4
    assert traced(capsys, path, "--step", "4:6", "--global-batch-size", 5) == [
        row | {"step": row["position"] // 5} for row in traced(capsys, path, "--position", "20:30")
    ]


def test_files_and_records(path, capsys):
    rows = traced(capsys, path, "--position", "0:100")
    code = [row for row in rows if row["source"] == "code"]
    assert code
    assert all(row["record"] == row["document"] + 2 for row in code)
    assert {os.path.basename(row["file"]) for row in code} == {"lines.jsonl"}
    web = [row for row in rows if row["source"] == "web"]
    assert {(row["file"], row["record"]) for row in web} == {(None, None)}
    status, out, err = run(capsys, "trace", path, "--position", "0:100")
    assert status == 0
    assert err.count("\n") == 1
    assert err.startswith("no origins beside 1 pair (`")
    assert "`tokenloom preprocess` writes PREFIX.origins.npy" in err
    lines = out.splitlines()
    assert lines[0] == f"run {Run.open(path).identity}"
    assert lines[1].startswith("stage ")
    assert lines[3].split()[-4:] == ["start", "length", "document", "origin"]
    shown = [line for line in lines if "lines.jsonl:" in line]
    assert len(shown) == len(code)
    assert len(lines) == 6 + len(rows)


def test_texts_and_records_read_again(path, capsys):
    rows = traced(capsys, path, "--position", "0:20", "--text", "--from-input")
    for row in rows:
        tokens = IndexedDataset(row["pair"]).get(row["row"], row["start"], row["length"])
        assert row["text"] == " ".join(map(str, tokens))  # the run names no tokenizer
        known = row["source"] == "code"
        assert row["input"] == (f'{{"text": "line {row["record"]}"}}' if known else None)
    _, out, _ = run(capsys, "trace", path, "--position", 0, "--text")
    assert re.search(r"\n(web|code):\d+ text \| \d+ ", out)
