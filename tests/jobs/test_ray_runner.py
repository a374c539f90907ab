from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.corpus.jobs import files_of, preprocess
from tests.preprocess.corpus import byte_level_json, make_tokenizer, write_lines
from tests.support import wait_until

from tokenloom.errors import ConfigError
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.plan import JobPlan
from tokenloom.preprocess.ray_runner import RayRunner
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import plan_corpus
from tokenloom.tokenizers.load import load_tokenizer

# In a process of its own: Ray leaves warnings and threads behind, and this one is to stay clean.
SCRIPT = """
import sys
from tests.corpus.jobs import preprocess
from tokenloom.preprocess.ray_runner import RayRunner
from tokenloom.errors import InputError
from tokenloom.tokenizers.load import load_tokenizer

folder = sys.argv[1]
tokenizer = load_tokenizer(f"{folder}/tokenizer.json")
options = {"num_cpus": 2, "include_dashboard": False, "_temp_dir": sys.argv[2], "_node_ip_address": "127.0.0.1"}
runner = RayRunner(init_options=options)
try:
    preprocess(f"{folder}/bad.jsonl", f"{folder}/bad", tokenizer, runner=runner)
except InputError as error:
    print(error.message)
summary = preprocess(f"{folder}/in.jsonl", f"{folder}/ray", tokenizer, shard_bytes=400_000, runner=runner)
print(summary.num_documents, summary.num_shards)
"""


def kills_a_worker(folder: JobFolder, plan: JobPlan, root: int) -> bool:
    """Kills a Ray worker once a shard is done; returns whether it killed one."""
    if all(folder.report(shard) is None for shard in plan.shards):
        return False
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):  # not a process, or it has ended since
            line = (entry / "cmdline").read_bytes()
            if line.startswith(b"ray::_do_shard") and os.getsid(os.getpgid(int(entry.name))) == root:
                os.kill(int(entry.name), signal.SIGKILL)
                return True
    return False


@pytest.fixture
def short_folder() -> Iterator[Path]:
    # Ray creates sockets in the folder, whose paths may have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.slow
def test_bytes_are_those_of_one_process_though_a_worker_is_killed(tmp_path: Path, short_folder: Path):
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    write_lines(tmp_path / "bad.jsonl", [{"text": "fine"}, b"bad"])
    documents = [f"document {number} " * 400 for number in range(1000)]
    path = write_lines(tmp_path / "in.jsonl", [{"text": document} for document in documents])
    plan = plan_corpus(
        [path], tmp_path / "ray", load_tokenizer(f"{tmp_path}/tokenizer.json"), CorpusSettings(shard_bytes=400_000)
    )
    folder: JobFolder = JobFolder(f"{tmp_path}/ray.job", plan)
    # We hold the first shard, so that the job cannot end, and one worker waits, until another has been killed.
    with folder.joined(), folder.claimed(plan.shards[0], wait=False) as is_ours:
        assert is_ours
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path), str(short_folder)],
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.getcwd()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        wait_until(lambda: kills_a_worker(folder, plan, process.pid), seconds=240, process=process)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    told = output.splitlines()  # Ray tells of the worker in between
    assert told[0] == f"`{tmp_path / 'bad.jsonl'}` line 2: not JSON: Expecting value at column 1"
    assert told[-1] == f"1000 {-(-path.stat().st_size // 400_000)}"
    preprocess(path, tmp_path / "local", make_tokenizer(byte_level_json()), num_processes=1)
    found = files_of(tmp_path)
    for suffix in ("bin", "idx"):
        assert found[f"ray_text_document.{suffix}"] == found[f"local_text_document.{suffix}"]


def test_standard_input_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="other machines cannot read a pipe"):
        preprocess("-", tmp_path / "out", make_tokenizer(byte_level_json()), runner=RayRunner(), input_format="jsonl")
