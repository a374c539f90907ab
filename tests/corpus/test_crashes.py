import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.jobs import files_of, names_in, preprocess
from tests.preprocess.corpus import byte_level_json, write_lines

from tokenloom.tokenizers.load import load_tokenizer

SHARD_BYTES = 120_000
COMMAND = [sys.executable, "-m", "tokenloom", "preprocess"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer, two inputs of some 600 kB, and what an undisturbed run makes of them."""
    folder = tmp_path_factory.mktemp("crashes")
    rng = np.random.default_rng(5)
    words = ["alpha ", "beta(", ") = gamma\n", "delta_1 ", "é中 ", "\n\n"]
    for name in ("a.jsonl", "b.jsonl"):
        lines: list[object] = [{"text": "".join(rng.choice(words, 200))} for _ in range(500)]
        lines[100] = b"not json"
        lines[400] = {"text": lines[0]["text"]}  # type: ignore[index]
        write_lines(folder / name, lines)
    (folder / "tokenizer.json").write_text(byte_level_json())
    (folder / "expected").mkdir()
    inputs, tokenizer = [folder / "a.jsonl", folder / "b.jsonl"], load_tokenizer(folder / "tokenizer.json")
    options = {"append_eod": True, "skip_bad_records": True, "drop_duplicates": True, "num_workers": 1}
    preprocess(inputs, folder / "expected" / "out", tokenizer, **options)
    return folder


def arguments(corpus: Path, prefix: Path, *more: object) -> list[str]:
    return [
        *COMMAND,
        str(corpus / "a.jsonl"),
        str(corpus / "b.jsonl"),
        *("--output-prefix", str(prefix), "--tokenizer", str(corpus / "tokenizer.json"), "--append-eod"),
        *("--skip-bad-lines", "--drop-duplicates", "--shard-bytes", str(SHARD_BYTES)),
        *map(str, more),
    ]


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def kill_after_changes(process: subprocess.Popen[bytes], folder: Path, num_changes: int) -> bool:
    """Kills a command once it has made or renamed so many files of its job; False if it ended first."""
    seen: set[str] = set()
    before = names_in(folder)
    while len(seen) < num_changes:
        if process.poll() is not None:
            return False
        time.sleep(0.002)
        seen |= names_in(folder) - before
    os.killpg(process.pid, signal.SIGKILL)
    return True


def run_forked_jobs(*arguments: object) -> str:
    command = [sys.executable, "-m", "tests.corpus.forked_jobs", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_again_and_again_it_ends_with_the_same_bytes(corpus: Path, tmp_path: Path, processes: int, seed: int):
    rng = np.random.default_rng(seed)
    folder = tmp_path / "out.job"
    num_kills = num_done = 0
    while True:
        process = start(arguments(corpus, tmp_path / "out", "--processes", processes, "--workers", 1))
        was_killed = kill_after_changes(process, folder, int(rng.integers(1, 80)))
        output, _ = process.communicate()
        if not was_killed:
            assert process.returncode == 0, output.decode()
            if num_kills:
                break
            for path in tmp_path.iterdir():  # it ran while we did not, or nearly to its end: once more
                path.unlink()
            continue
        num_kills += 1
        if folder.exists():
            reports = len(list(folder.glob("?" * 24 + ".json")))
            assert reports >= num_done  # what is done stays
            num_done = reports
        elif num_done:  # killed as it removed the folder in the end
            assert files_of(tmp_path) == files_of(corpus / "expected")
    assert files_of(tmp_path) == files_of(corpus / "expected")
    assert not folder.exists()


def is_ours(process: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may go between the two calls that read it
        return b"tokenloom.preprocess.processes" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


@pytest.mark.slow
def test_children_end_when_their_parent_is_killed(corpus: Path, tmp_path: Path):
    process = start(arguments(corpus, tmp_path / "out", "--processes", 2, "--workers", 1))
    while len(found := Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()  # ends when no child holds the pipe any more
    assert not any(map(is_ours, found))


@pytest.mark.slow
def test_any_number_may_come_and_be_killed_at_any_time(tmp_path: Path, seed: int):
    run_forked_jobs("share", tmp_path, seed)


@pytest.mark.parametrize("stride", [10, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options", [{"shard_bytes": 300, "drop_duplicates": True}, {}], ids=["parts are copied", "the part is linked"]
)
def test_killed_at_any_step_of_the_assembly_it_ends_with_the_same_bytes(
    tmp_path: Path, options: dict[str, object], stride: int
):
    assert int(run_forked_jobs("kill", tmp_path, json.dumps(options), stride)) > 20 // stride
