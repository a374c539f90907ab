"""Losses by position: the file format, writers, kills, and losses of spans."""

import json
import math
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.runs import RUN, write_run

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError
from tokenloom.loading.losses import JsonLinesWriter, LossRecorder, SpanLoss, read_losses, span_losses, torn_files
from tokenloom.loading.state import loader_state
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run


def record(folder: Path, *appended: tuple) -> Path:
    with LossRecorder(folder) as recorder:
        for positions, losses in appended:
            recorder.append(positions, losses)
    return max(folder.glob("*.losses"))


def test_a_record_is_position_document_and_loss(tmp_path):
    file = record(tmp_path, ([7, 2**40], [1.5, math.nan]), ([8], [[2.0, 0.0, 4.0]]))
    expected = b"tokenloom loss 1"
    for position, document, loss in ((7, -1, 1.5), (2**40, -1, math.nan), (8, 0, 2.0), (8, 2, 4.0)):
        expected += position.to_bytes(8, "little") + document.to_bytes(4, "little", signed=True)
        expected += np.float32(loss).tobytes()
    assert file.read_bytes() == expected
    assert read_losses(str(tmp_path), [8, 7, 9]) == {7: {-1: 1.5}, 8: {0: 2.0, 2: 4.0}}
    assert math.isnan(read_losses(str(tmp_path), [2**40])[2**40][-1])
    assert read_losses(str(tmp_path), []) == {}


def test_losses_are_arrays_tensors_or_lists(tmp_path):
    for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.float64)):
        loss = torch.tensor([[1.5, 0.5], [0.0, 0.0]], dtype=dtype, requires_grad=True) * 2
        record(tmp_path / str(number), (np.array([3, 4]), loss), (range(5, 7), (1, 2)))
        expected = {3: {0: 3.0, 1: 1.0}, 4: {0: 0.0}, 5: {-1: 1.0}, 6: {-1: 2.0}}
        assert read_losses(str(tmp_path / str(number)), range(10)) == expected


def test_the_last_record_counts(tmp_path):
    first = record(tmp_path, ([0, 1], [1.0, 1.0]), ([2], [[1.0, 1.0]]), ([1], [2.0]))
    second = record(tmp_path, ([2], [3.0]), ([3], [[4.0, 5.0]]))
    assert first.name < second.name
    assert read_losses(str(tmp_path), range(9)) == {0: {-1: 1.0}, 1: {-1: 2.0}, 2: {-1: 3.0}, 3: {0: 4.0, 1: 5.0}}


@pytest.mark.parametrize(
    ("positions", "losses", "found"), [([1, 2], [1.0], "[1]"), ([1], 1.0, "[]"), ([1], [[[1.0]]], "[1, 1, 1]")]
)
def test_losses_of_other_shapes_are_refused(tmp_path, positions, losses, found):
    with LossRecorder(tmp_path) as recorder, pytest.raises(ConfigError) as caught:
        recorder.append(positions, losses)
    count = np.asarray(positions).size
    assert caught.value.message == f"`losses`: must be of shape [{count}] or [{count}, …], got {found}"


def test_invalid_losses_folders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="`path`: must be a local folder, got the URL 's3://bucket/losses'"):
        LossRecorder("s3://bucket/losses")
    with pytest.raises(DatasetNotFoundError, match=r"no losses folder `.*/none`"):
        read_losses(str(tmp_path / "none"), [1])
    (tmp_path / "other.losses").write_bytes(b"something else of some length")
    with pytest.raises(DatasetFormatError, match="is not a losses file: expected header b"):
        read_losses(str(tmp_path), [1])


def append_forever(folder: Path, rank: int) -> None:
    recorder = LossRecorder(folder)
    for first in range(rank * 10**9, (rank + 1) * 10**9, 64):
        positions = np.arange(first, first + 64)
        recorder.append(positions, np.stack([positions + 1, positions + 2], axis=1))
        time.sleep(1e-4)


def test_writers_that_are_killed_leave_whole_records_in_order(tmp_path):
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=append_forever, args=(tmp_path, rank)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    deadline = time.monotonic() + 60
    while sum(path.stat().st_size for path in tmp_path.iterdir()) < 1 << 18 or len(list(tmp_path.iterdir())) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for rank in ranks:
        os.kill(rank.pid, signal.SIGKILL)
        rank.join()
    for rank in range(3):
        found = read_losses(str(tmp_path), range(rank * 10**9, rank * 10**9 + 10**6))
        assert list(found) == list(range(rank * 10**9, rank * 10**9 + len(found)))
        found.pop(max(found, default=None), None)
        assert all(of_sample == {0: np.float32(k + 1), 1: np.float32(k + 2)} for k, of_sample in found.items())


@pytest.mark.parametrize("cut", [1, 15])
def test_a_truncated_record_is_ignored(tmp_path, cut):
    file = record(tmp_path, ([1, 2], [1.0, 2.0]))
    os.truncate(file, file.stat().st_size - cut)
    assert torn_files(str(tmp_path)) == [str(file)]
    assert read_losses(str(tmp_path), [1, 2]) == {1: {-1: 1.0}}
    record(tmp_path, ([2, 3], [4.0, 5.0]))
    assert read_losses(str(tmp_path), [1, 2, 3]) == {1: {-1: 1.0}, 2: {-1: 4.0}, 3: {-1: 5.0}}


def test_losses_are_recorded_by_the_positions_of_a_loader_and_a_resumed_one(tmp_path):
    run = Run.open(write_run(tmp_path))
    expected: dict[int, dict[int, float]] = {}
    for resumed, stop in ((0, 10), (20, 25)):
        loader = ThreadLoader(run.dataset(), batch_size=4, tensors="numpy")
        loader.load_state_dict(loader_state(run.dataset(), resumed))
        with LossRecorder(tmp_path / "losses") as recorder:
            for number, batch in zip(range(resumed // 4, stop), loader, strict=False):
                assert list(loader.positions) == list(range(4 * number, 4 * number + 4))
                losses = batch["tokens"].sum(1) + resumed
                recorder.append(loader.positions, losses)
                expected |= {k: {-1: float(loss)} for k, loss in zip(loader.positions, losses, strict=True)}
    assert read_losses(str(tmp_path / "losses"), range(100)) == expected
    assert len(expected) == 100


def test_the_loss_of_a_span_is_that_of_its_document_or_a_share_by_tokens(tmp_path):
    run = Run.open(write_run(tmp_path))
    table = run.trace(range(100))
    two = next(position for position in range(100) if (table.positions == position).sum() == 2)
    spans = list(run.trace([two]).rows())
    record(tmp_path, ([two], [170.0]))
    shares = {(two, span["slot"]): SpanLoss(10.0 * span["length"], is_recorded=False) for span in spans}
    assert span_losses(run, str(tmp_path), range(100)) == shares
    record(tmp_path, ([two], [[7.0, 0.0, 9.0]]))  # the sample has no third document
    assert span_losses(run, str(tmp_path), range(100)) == {(two, 0): SpanLoss(7.0, is_recorded=True)}


def test_the_level_of_a_loss_is_by_the_median_per_token(tmp_path):
    run = Run.open(write_run(tmp_path))
    spans = [next(row for row in run.trace([position]).rows()) for position in range(20)]
    per_token = [math.nan, math.inf, 3.1, 3.0, 1.6, 1.5, 0.1, *[1.0] * 13]
    for span, loss in zip(spans, per_token, strict=True):
        record(tmp_path, ([span["position"]], [[loss * span["length"]]]))
    found = span_losses(run, str(tmp_path), range(20))
    assert [found[span["position"], span["slot"]].level for span in spans] == [2, 2, 2, 1, 1, 0, 0, *[0] * 13]


@pytest.mark.parametrize("windows", ["concat", "best_fit"])
def test_documents_are_numbered_like_document_ids(tmp_path, windows):
    text = RUN.replace("seed = 7", f'seed = 7\nwindows = "{windows}"').replace("length = 16", "length = 80")
    path = write_run(tmp_path, f'{text}\n[samples]\nattention = "document_ids"\n')
    run = Run.open(path)
    names = [f"{row['source']}:{row['document']}" for row in run.trace(range(50, 60)).rows()]
    path.write_text(f"{path.read_text()}\n[[denied]]\ndocuments = {names[::2]}\nfrom = 40\n")
    lock_run(str(path), consumed=0)
    run = Run.open(path)
    table = run.trace(range(100))
    assert table.denied.sum() > 5
    loader = ThreadLoader(run.dataset(), batch_size=10)
    with LossRecorder(tmp_path / "losses") as recorder:
        for batch in loader:
            documents = batch["document_ids"].long()
            losses = batch["loss_mask"] * (batch["tokens"] + 1)  # all tokens of a document are its number
            sums = torch.zeros(10, int(documents.max()) + 1).scatter_add_(1, documents, losses)
            recorder.append(loader.positions, sums)
    found = span_losses(run, str(tmp_path / "losses"), range(100))
    for row in table.rows():
        loss, is_recorded, _ = found.get((row["position"], row["slot"]), (0, True, 0))
        num_tokens = 0 if row["denied"] else min(row["length"], 80 - row["slot"])
        assert is_recorded
        # The last token may have no label.
        assert loss / (row["document"] + 1) in (num_tokens, max(num_tokens - 1, 0)), row


def test_a_call_is_a_line_of_strict_json(tmp_path):
    loader = ThreadLoader([{"x": 1}] * 3, [[0], [1], [2]])
    assert len(list(loader)) == 3
    write = JsonLinesWriter(tmp_path / "file")
    write(step=np.int64(1), loss=torch.tensor(2.5), wait=loader.wait)
    write(unix_seconds=7.5, step=2, loss={"web": math.nan, 3: np.float32(0.5)}, note="<text>", is_last=True, rate=None)
    lines = (tmp_path / "file").read_text().splitlines()
    first, second = (json.loads(line, parse_constant=lambda constant: 1 / 0) for line in lines)
    assert (first["step"], first["loss"], first["wait"]["num_batches"]) == (1, 2.5, 3)
    assert first["unix_seconds"] > 1.7e9
    expected = {"unix_seconds": 7.5, "step": 2, "loss": {"web": "nan", "3": 0.5}, "note": "<text>", "is_last": True}
    assert second == expected | {"rate": None}
    with pytest.raises(ConfigError, match=r"`loss\['web'\]`: must be a number, .* got ndarray"):
        JsonLinesWriter(tmp_path / "none")(step=1, loss={"web": np.zeros(2)})
    assert not (tmp_path / "none").exists()
