from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.jobs import preprocess
from tests.preprocess.corpus import documents_of, make_tokenizer, write_lines
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tokenloom.errors import InputError, StuckRecordError, TokenizerError
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import plan_corpus, preprocess_corpus
from tokenloom.tokenizers.plain import ByteTokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Awkward(ByteTokenizer):
    def __reduce__(self):
        return Awkward, ()

    def encode_texts(self, texts):
        texts = list(texts)
        for text in texts:
            if text == "overflow":
                raise RecursionError
            if text == "want memory":
                raise MemoryError
            if text == "interrupt":
                raise KeyboardInterrupt
            if text == "die":
                ctypes.CDLL(None).abort()
            if text == "never end":
                time.sleep(1000)
        encoded = super().encode_texts(texts)
        if "one too many" in texts:
            return Encoded(encoded.tokens, np.append(encoded.lengths, 0))
        return Encoded(np.where(encoded.tokens == ord("#"), 9999, encoded.tokens.astype(np.int64)), encoded.lengths)


def giving_up() -> str:
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate([*LETTERS, "</s>"])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")
    return backend.to_str()


def rejected_of(prefix: Path) -> list[tuple[int, str]]:
    records = map(json.loads, Path(f"{prefix}.rejected.jsonl").read_text().splitlines())
    return [(record["line"], record["reason"]) for record in records]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_panic_of_a_library_is_one_bad_record(tmp_path: Path, processes: int):
    lines = [{"text": "ab"}] * 5 + [{"text": "x" * 40}] + [{"text": "c"}] * 5 + [b"bad", {"text": "x" * 50}]
    path = write_lines(tmp_path / "in.jsonl", lines)
    (tmp_path / "first").mkdir()
    options = {"num_processes": processes, "num_workers": 2, "shard_bytes": 90, "engine": "tokenizers"}
    tokenizer = make_tokenizer(giving_up())
    reason = r"in\.jsonl` line 6: `tokenizers` failed: PanicException: .*retry-limit"
    with pytest.raises(InputError, match=reason) as caught:
        preprocess(write_lines(tmp_path / "first" / "in.jsonl", lines[:11]), tmp_path / "other", tokenizer, **options)
    assert isinstance(caught.value, TokenizerError)
    summary = preprocess(path, tmp_path / "out", tokenizer, skip_bad_records=True, **options)
    assert documents_of(summary.datasets[0].prefix) == [[[0, 1]]] * 5 + [[[2]]] * 5
    assert [line for line, _ in rejected_of(tmp_path / "out")] == [6, 12, 13]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("overflow", "`numpy` failed: RecursionError"),
        ("want memory", "`numpy` failed: MemoryError"),
        ("#", "the engine returned token id 9999 out of range: the vocabulary has 259 ids"),
        ("one too many", "the engine returned inconsistent lengths: 2 texts with 12 ids, expected 1 texts"),
    ],
)
def test_a_tokenizer_that_fails_on_a_text_is_no_end_of_the_run(tmp_path: Path, text: str, reason: str):
    path = write_lines(tmp_path / "in.jsonl", [{"text": "a"}, {"text": "b"}, {"text": text}, {"text": "c"}])
    summary = preprocess(path, tmp_path / "out", Awkward(), skip_bad_records=True)
    assert documents_of(summary.datasets[0].prefix) == [[[97]], [[98]], [[99]]]
    assert rejected_of(tmp_path / "out") == [(3, reason)]
    assert summary.num_rejected == 1
    path = write_lines(tmp_path / "in.jsonl", [{"text": "a"}, {"text": "interrupt"}])
    with pytest.raises(KeyboardInterrupt):
        preprocess(path, tmp_path / "other", Awkward(), skip_bad_records=True)
    assert not (tmp_path / "other.job").exists()


def test_a_record_of_which_processes_die_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    lines = [{"text": "a"}] * 20 + [{"text": "die"}] + [{"text": "b"}] * 20
    path = write_lines(tmp_path / "in.jsonl", lines)
    options = {"num_processes": 2, "num_workers": 2, "shard_bytes": 300}
    summary = preprocess(path, tmp_path / "out", Awkward(), skip_bad_records=True, **options)
    assert documents_of(summary.datasets[0].prefix) == [[[97]]] * 20 + [[[98]]] * 20
    assert rejected_of(tmp_path / "out") == [(21, "a process that tokenized only this record died (signal 6)")]
    assert "starting another process" in caplog.text


@pytest.mark.slow
def test_a_record_that_never_ends_is_found(tmp_path: Path):
    path = write_lines(tmp_path / "in.jsonl", [{"text": "a"}] * 10 + [{"text": "never end"}, {"text": "b"}])
    options = {"record_timeout_seconds": 0.5, "num_processes": 1, "num_workers": 1, "skip_bad_records": True}
    with pytest.raises(StuckRecordError, match=r"line 1 or later: tokenizing takes longer than 0\.5 seconds"):
        preprocess(path, tmp_path / "out", Awkward(), **options)
    summary = preprocess(path, tmp_path / "out", Awkward(), **options)  # as its hint says
    assert documents_of(summary.datasets[0].prefix) == [[[97]]] * 10 + [[[98]]]
    reason = "a process that tokenized only this record stopped responding"
    assert rejected_of(tmp_path / "out") == [(11, reason)]


@pytest.mark.slow
def test_a_frozen_process_loses_its_shard_to_another(tmp_path: Path):
    (tmp_path / "in.jsonl").write_text((json.dumps({"text": "word " * 40}) + "\n") * 3000)
    script = (
        "import sys; from tokenloom import CorpusSettings, preprocess_corpus\n"
        "settings = CorpusSettings(worker_timeout_seconds=2, shard_bytes=64_000)\n"
        "preprocess_corpus(sys.argv[1:2], sys.argv[2], 'byte', settings, num_processes=2, num_workers=1)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "in.jsonl"), str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    frozen = None
    while frozen is None:
        assert process.poll() is None
        time.sleep(0.002)
        for path in (tmp_path / "out.job").glob("?" * 24 + ".lock"):
            if not path.with_suffix(".json").exists() and (owner := path.read_text().split()[1:]):
                frozen = int(owner[0])
    os.kill(frozen, signal.SIGSTOP)
    _, told = process.communicate(timeout=100)
    assert process.returncode == 0, told
    assert "stopped responding" in told
    assert len(documents_of(str(tmp_path / "out_text_document"))) == 3000


def test_a_shard_whose_holder_is_silent_is_done_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = write_lines(tmp_path / "in.jsonl", [{"text": "a"}, {"text": "b"}])
    settings = CorpusSettings(worker_timeout_seconds=0.5)
    plan = plan_corpus([path], str(tmp_path / "out"), ByteTokenizer(), settings)
    folder = JobFolder(str(tmp_path / "out.job"), plan)
    with folder.joined(), folder.lock(f"{plan.shards[0].key}.lock"):  # as a frozen process holds it
        summary = preprocess_corpus([path], tmp_path / "out", ByteTokenizer(), settings)
    assert documents_of(summary.datasets[0].prefix) == [[[97]], [[98]]]
    assert "this process does shard 0 too: its owner does not respond" in caplog.text
