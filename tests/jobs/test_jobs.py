"""Folders of jobs, and runners of their shards: local processes and Ray."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.corpus.jobs import files_of, preprocess
from tests.faults import dies_at
from tests.jobs.numbers import NumberBook, NumberPlan, sum_of
from tests.preprocess.corpus import byte_level_json, make_tokenizer, write_lines
from tests.support import wait_until

from tokenloom.errors import ConfigError, WorkerError
from tokenloom.preprocess.corpus import plan_corpus
from tokenloom.preprocess.folder import FolderGoneError, JobFolder
from tokenloom.preprocess.job_plan import JobPlan
from tokenloom.preprocess.processes import local_runner, work_in_processes
from tokenloom.preprocess.ray_runner import RayRunner
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.sharded import Counts, Runner, work_on_shards
from tokenloom.tokenizers.load import load_tokenizer

PLAN = NumberPlan(3)


def folder_at(path: Path, plan: NumberPlan = PLAN) -> JobFolder:
    return JobFolder(os.fspath(path / "job"), plan)


def do(folder: JobFolder, number: int) -> None:
    PLAN.square(PLAN.shards[number], folder.part_prefix(PLAN.shards[number]))


def test_a_shard_is_for_one_process_until_it_lets_go(tmp_path: Path):
    one, two = folder_at(tmp_path), folder_at(tmp_path)
    shard = PLAN.shards[0]
    with one.joined():
        with two.joined():
            pass
        assert sorted(os.listdir(one.path)) == ["job.json", "job.lock"]
    assert list(tmp_path.iterdir()) == []  # the last member removes a folder in which nothing is done
    with one.joined(), two.joined():
        with one.claimed(shard, wait=False) as is_ours, two.claimed(shard, wait=False) as is_theirs:
            assert (is_ours, is_theirs) == (True, False)
        with two.claimed(shard, wait=False) as is_theirs:
            assert is_theirs
            do(two, 0)
        with one.claimed(shard, wait=True) as is_ours:
            assert not is_ours
        assert one.report(shard) == {"value": 0}
        one.forget(shard)
        with one.claimed(shard, wait=False) as is_ours:
            assert is_ours


def test_whoever_is_late_finds_the_folder_gone(tmp_path: Path):
    folder, late = folder_at(tmp_path), folder_at(tmp_path)
    with pytest.raises(FolderGoneError), late.joined(makes=False):
        raise AssertionError
    with folder.joined(), late.joined():
        folder.remove()
        with pytest.raises(FolderGoneError), late.claimed(PLAN.shards[0], wait=True):
            raise AssertionError
        assert late.is_gone
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_part_of_a_job_is_neither_joined_nor_removed(tmp_path: Path):
    folder = folder_at(tmp_path)
    with folder.joined():
        do(folder, 0)
        (tmp_path / "job" / "mine.txt").write_text("mine")
        folder.remove()
    assert os.listdir(folder.path) == ["mine.txt"]
    with pytest.raises(ConfigError, match=r"cannot be a job folder: it contains `mine\.txt`"):
        folder_at(tmp_path).joined().__enter__()


def test_other_settings_go_on_with_nothing_and_are_refused_where_something_is_done(tmp_path: Path):
    folder, other = folder_at(tmp_path), folder_at(tmp_path, NumberPlan(3, settings="product"))
    with folder.joined():
        with pytest.raises(ConfigError, match="another process is running a different job"):
            other.joined().__enter__()
        with pytest.raises(ConfigError, match="another process is running this job"):
            other.restart()
        do(folder, 0)
    with pytest.raises(ConfigError, match="unfinished job with other settings: what was 'sum', is 'product'"):
        other.joined().__enter__()
    with pytest.raises(ConfigError, match="unfinished job with other inputs: 1 of its inputs are missing"):
        folder_at(tmp_path, NumberPlan(2)).joined().__enter__()
    other.restart()
    with other.joined():
        assert sorted(os.listdir(other.path)) == ["job.json", "job.lock"]


def test_a_death_at_any_call_keeps_what_is_done_and_nobody_from_going_on(tmp_path: Path):
    number = 0
    while True:
        at = tmp_path / str(number)
        at.mkdir()

        def work(at: Path = at) -> None:
            folder = folder_at(at)
            with folder.joined():
                for shard in PLAN.shards[:2]:
                    with folder.claimed(shard, wait=True):
                        do(folder, shard.number)
                folder.remove()

        died = dies_at(at, number, work)
        folder = folder_at(at)
        with folder.joined():
            for shard in PLAN.shards:
                with folder.claimed(shard, wait=True) as is_ours:
                    assert is_ours == (folder.report(shard) is None)
                    if is_ours:
                        do(folder, shard.number)
            assert [folder.report(shard) for shard in PLAN.shards] == [{"value": 0}, {"value": 1}, {"value": 4}]
            folder.remove()
        assert list(at.iterdir()) == []
        if not died:
            break
        number += 1
    assert number > 5


# --- local processes ------------------------------------------------------------------------------------------------
def runner(num_processes: int) -> Runner:
    return local_runner(most_processes=8, num_processes=num_processes, num_workers=1)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_all_shards_are_done_and_the_folder_goes(tmp_path: Path, num_processes: int):
    book = NumberBook()
    assert sum_of(NumberPlan(5), tmp_path / "job", runner(num_processes), book=book) == 0 + 1 + 4 + 9 + 16
    assert set(book.done) == {0, 1, 2, 3, 4}  # each process tells of those that others did, too
    assert set(map(str, book.told.values())) == {"{'written': 1}"}
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    plan = NumberPlan(3, folder=str(tmp_path), dies_at=1, deaths=2)
    assert sum_of(plan, tmp_path / "job", runner(2)) == 5
    assert "a process that worked on shard 1 (the number 1) died (signal 9)" in caplog.text


def test_a_shard_that_kills_everybody_ends_the_job_and_keeps_the_others(tmp_path: Path):
    plan = NumberPlan(3, folder=str(tmp_path), dies_at=2, deaths=100)
    with pytest.raises(WorkerError, match=r"shard 2 \(the number 2\) died \(signal 9\), as did 2 processes before it"):
        sum_of(plan, tmp_path / "job", runner(2))
    assert {path.name for path in (tmp_path / "job").glob("*.json")} == {"job.json", f"{0:024x}.json", f"{1:024x}.json"}
    (tmp_path / "deaths").write_text("x" * 100)
    assert sum_of(plan, tmp_path / "job", runner(1)) == 5


@pytest.mark.parametrize("num_processes", [1, 2])
def test_what_a_shard_raises_reaches_the_caller_with_its_hint(tmp_path: Path, num_processes: int):
    with pytest.raises(ConfigError, match="the number 1 cannot be squared") as caught:
        sum_of(NumberPlan(2, wrong_at=1), tmp_path / "job", runner(num_processes))
    assert caught.value.hint == "leave it out"
    for setting in ("num_processes", "num_workers"):
        with pytest.raises(ConfigError, match=setting):
            local_runner(most_processes=3, **{"num_processes": 1, "num_workers": 1, setting: 0})


def test_a_shard_that_another_holds_comes_last_and_is_waited_for(tmp_path: Path):
    plan, is_at_the_end = NumberPlan(4), threading.Event()

    class Watched(NumberBook):
        def update(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
            super().update(number, counts, is_done=is_done)
            if number == 3 and is_done:
                is_at_the_end.set()

    folder, other, book = *(JobFolder(str(tmp_path / "job"), plan) for _ in range(2)), Watched()
    with other.joined(), folder.joined():
        with other.claimed(plan.shards[1], wait=False) as is_theirs:
            assert is_theirs
            options = {"num_workers": 1, "book": book}
            thread = threading.Thread(target=work_on_shards, args=(plan, folder), kwargs=options)
            thread.start()
            assert is_at_the_end.wait(60)
            plan.square(plan.shards[1], other.part_prefix(plan.shards[1]))
        thread.join()
        folder.remove()
    assert book.done == [0, 2, 3, 1]


HINT = "move your own functions and classes to an importable module, or use `num_processes=1`"

SCRIPT = """
import sys
from tests.jobs.numbers import NumberBook, NumberPlan
from tokenloom.errors import ConfigError
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.processes import work_in_processes

class MyPlan(NumberPlan):
    pass

plan = MyPlan(2)
folder = JobFolder(sys.argv[1], plan)
try:
    with folder.joined():
        work_in_processes(plan, folder, num_processes=1, num_workers=1, book=NumberBook())
except ConfigError as error:
    print(error.message, error.hint, sep="; ")
"""


@dataclass(frozen=True)
class WithFunction(NumberPlan):
    function: object = None


@pytest.mark.parametrize("unnamed", [lambda texts: texts, open(os.devnull)])  # noqa: SIM115 - only to be pickled
def test_what_has_no_name_is_refused_before_a_process_is_started(tmp_path: Path, unnamed: object):
    plan = WithFunction(2, function=unnamed)
    folder: JobFolder = JobFolder(os.fspath(tmp_path / "job"), plan)
    with folder.joined(), pytest.raises(ConfigError, match="cannot pickle the job for another process: ") as caught:
        work_in_processes(plan, folder, num_processes=1, num_workers=1, book=NumberBook())
    assert caught.value.hint == HINT
    assert list(tmp_path.iterdir()) == []


def test_a_class_of_a_script_is_told_of_at_once(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "job")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    message, hint = done.stdout.strip().split("; ")
    assert message.startswith("cannot load the job in another process: ")
    assert "MyPlan" in message
    assert hint == HINT
    assert not (tmp_path / "job").exists()


# --- Ray ------------------------------------------------------------------------------------------------------------
# In a process of its own: Ray leaves warnings and threads behind, and this one is to stay clean.
RAY_SCRIPT = """
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
    tokenizer = load_tokenizer(f"{tmp_path}/tokenizer.json")
    plan = plan_corpus([path], tmp_path / "ray", tokenizer, CorpusSettings(shard_bytes=400_000))
    folder: JobFolder = JobFolder(f"{tmp_path}/ray.job", plan)
    # We hold the first shard, so that the job cannot end, and one worker waits, until another has been killed.
    with folder.joined(), folder.claimed(plan.shards[0], wait=False) as is_ours:
        assert is_ours
        env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.getcwd()}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True, "text": True}
        command = [sys.executable, "-c", RAY_SCRIPT, str(tmp_path), str(short_folder)]
        process = subprocess.Popen(command, env=env, **options)
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
