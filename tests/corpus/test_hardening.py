from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from tests.corpus.jobs import corpus_of, interrupt_after, preprocess, standard_input
from tests.indexed.pairs import pair_bytes
from tests.preprocess.corpus import PAIR_SUFFIXES, documents_of, leftovers, write_lines
from tests.support import wait_until

from tokenloom import merge_datasets
from tokenloom.errors import ConfigError, InputError, OutputExistsError, StorageError
from tokenloom.preprocess.settings import BadRecordBudget

ANY_NUMBER = BadRecordBudget(most=None)


def test_more_bad_records_may_be_allowed_without_doing_anything_twice(tmp_path: Path, words):
    path = write_lines(tmp_path / "in.jsonl", [{"text": "alpha"}] * 30 + [b"bad"])
    with pytest.raises(InputError, match="line 31: not JSON"):
        preprocess(path, tmp_path / "out", words, shard_bytes=60, num_processes=1)
    num_done = len(list((tmp_path / "out.job").glob("*.bin")))
    summary = preprocess(path, tmp_path / "out", words, shard_bytes=60, bad_records=ANY_NUMBER)
    assert summary.num_shards_reused == num_done > 3
    assert (summary.num_documents, summary.num_rejected) == (30, 1)
    with pytest.raises(InputError, match="1 of 31 input records are bad, more than `bad_records` = 0"):
        preprocess(path, tmp_path / "out", words, shard_bytes=60)


def test_keys_with_slashes_are_written_with_underscores(tmp_path: Path, words):
    path = write_lines(tmp_path / "in.jsonl", [{"a/b": "alpha", "ü b": "beta"}])
    preprocess(path, tmp_path / "out", words, keys=["a/b", "ü b"])
    assert documents_of(tmp_path / "out_a_b_document") == [[[2]]]
    assert documents_of(tmp_path / "out_ü b_document") == [[[3]]]
    with pytest.raises(ConfigError, match=r"'a_b' and of 'a/b' would both be written to `.*out_a_b_document`"):
        preprocess(path, tmp_path / "out", words, keys=["a/b", "a_b"])
    shares = {"x": 0.5, "x_b": 0.5}
    with pytest.raises(ConfigError, match="of 'a' and of 'b_a' of 'x' would both"):
        preprocess(path, tmp_path / "out", words, keys=["a", "b_a"], shares=shares)


def test_file_names_that_are_not_utf8_can_be_told(tmp_path: Path, words):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")
    write_lines(Path(path), [{"text": "alpha"}, b"bad"])
    summary = preprocess(path, tmp_path / "out", words, skip_bad_records=True)
    assert json.loads(Path(summary.rejected_paths[0]).read_text())["file"] == path
    assert preprocess(path, tmp_path / "out", words, skip_bad_records=True).was_complete


def test_files_without_documents_stop_no_others(tmp_path: Path, words):
    contents: list[list[object]] = [[{"text": "alpha"}], [], [b"", b"bad"], [{"text": "alpha"}, {"text": "beta"}]]
    paths = [write_lines(tmp_path / f"{number}.jsonl", lines) for number, lines in enumerate(contents)]
    options = {"one_pair_per_file": True, "skip_bad_records": True, "drop_duplicates": True}
    summary = preprocess(paths, tmp_path / "pairs", words, **options)
    assert [dataset.num_documents for dataset in summary.datasets] == [1, 0, 0, 1]
    assert documents_of(tmp_path / "pairs" / "3_text_document") == [[[3]]]
    assert documents_of(tmp_path / "pairs" / "1_text_document") == []
    assert (summary.num_duplicates, summary.num_rejected, summary.num_blank_lines) == (1, 1, 1)
    assert preprocess(paths, tmp_path / "pairs", words, **options).was_complete


def test_what_a_killed_process_did_not_remove_goes_with_the_next_run(tmp_path: Path, words):
    paths = corpus_of(tmp_path, ["alpha beta"] * 40)
    interrupt_after(9, paths, tmp_path / "out", words, shard_bytes=200)
    shutil.copytree(tmp_path / "out.job", tmp_path / "kept")
    preprocess(paths, tmp_path / "out", words, shard_bytes=200)
    shutil.copytree(tmp_path / "kept", tmp_path / "out.job")  # killed before it began to remove
    shutil.move(tmp_path / "kept", tmp_path / "out.job.removed")  # killed while it did
    assert preprocess(paths, tmp_path / "out", words, shard_bytes=200).was_complete
    assert leftovers(tmp_path, *paths) == [f"out_text_document.{suffix}" for suffix in PAIR_SUFFIXES]


def test_a_folder_of_another_job_stays(tmp_path: Path, words):
    paths = corpus_of(tmp_path, ["alpha beta"] * 40)
    preprocess(paths[:1], tmp_path / "out", words, shard_bytes=200)
    with pytest.raises(OutputExistsError):
        preprocess(paths, tmp_path / "out", words, shard_bytes=200)
    interrupt_after(9, paths, tmp_path / "out", words, shard_bytes=200, overwrite=True)
    num_done = len(list((tmp_path / "out.job").glob("*.bin")))
    assert preprocess(paths[:1], tmp_path / "out", words, shard_bytes=200).was_complete
    summary = preprocess(paths, tmp_path / "out", words, shard_bytes=200, overwrite=True)
    assert summary.num_shards_reused == num_done > 0


def test_standard_input_is_never_taken_for_what_it_was_before(tmp_path: Path, words):
    few = BadRecordBudget(most=None, most_share=0.01)
    with standard_input(b'{"text": "alpha"}\nbad\n'), pytest.raises(InputError, match="bad records: 1 of 2, 1 % all"):
        preprocess("-", tmp_path / "out", words, bad_records=few)
    with standard_input(b'{"text": "beta"}\nbad\n'):
        preprocess("-", tmp_path / "out", words, bad_records=ANY_NUMBER)
    assert documents_of(tmp_path / "out_text_document") == [[[3]]]


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *((name, "missing") for name in (".hashes", ".rejected.jsonl", "_0.manifest.json")),
        *((name, "other bytes") for name in (".hashes", ".records", ".json", "_0.bin")),
        ("_0.bin", "truncated"),
    ],
)
def test_parts_that_a_loss_of_power_damaged_are_done_again(tmp_path: Path, words, caplog, file: str, damage: str):
    lines: list[object] = [{"text": "alpha"}, b"bad", {"text": "beta"}] * 15
    path = write_lines(tmp_path / "in.jsonl", lines)
    options = {"shard_bytes": 150, "skip_bad_records": True, "drop_duplicates": True}
    interrupt_after(5, path, tmp_path / "out", words, **options)
    report = sorted((tmp_path / "out.job").glob("?" * 24 + ".json"))[0]
    if (file, damage) == ("_0.bin", "other bytes"):  # after a restart, bytes are compared, too
        report.write_text(json.dumps(json.loads(report.read_text()) | {"boot_id": "of another machine"}))
    damaged = Path(str(report).removesuffix(".json") + file)
    data = damaged.read_bytes()
    if damage == "missing":
        damaged.unlink()
    else:
        damaged.write_bytes(data[:-2] if damage == "truncated" else bytes([data[0] ^ 1]) + data[1:])
    summary = preprocess(path, tmp_path / "out", words, **options)
    assert any("redoing shard" in message and report.stem in message for message in caplog.messages)
    assert documents_of(tmp_path / "out_text_document") == [[[2]], [[3]]]
    assert (summary.num_rejected, summary.num_duplicates) == (15, 28)


def test_more_shards_than_descriptors(tmp_path: Path, words):
    paths = corpus_of(tmp_path, [f"alpha {number}" for number in range(120)], num_files=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    try:
        summary = preprocess(paths, tmp_path / "out", words, shard_bytes=30, drop_duplicates=True, num_processes=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert summary.num_shards > 80


def open_and_running() -> set[str]:
    found = {f"thread {number}" for number in os.listdir("/proc/self/task")}
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            found.add(f"{descriptor}: {os.readlink(f'/proc/self/fd/{descriptor}')}")
    return found


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_descriptor_or_thread_stays_open(tmp_path: Path, words, processes: int):
    paths = corpus_of(tmp_path, ["alpha"] * 30)
    preprocess(paths, tmp_path / "warm", words, shard_bytes=100)
    before = open_and_running()
    preprocess(paths, tmp_path / "out", words, shard_bytes=100, num_processes=processes, num_workers=2)
    write_lines(paths[1], [{"text": "alpha"}, b"bad"])
    with pytest.raises(InputError, match=r"part-1\.jsonl` line 2"):
        preprocess(paths, tmp_path / "bad", words, shard_bytes=100, num_processes=processes)
    # Those of tests before may end meanwhile; the system forgets a thread a moment after it was joined.
    wait_until(lambda: open_and_running() <= before)


def test_a_work_folder_on_another_filesystem(tmp_path: Path, words):
    paths = corpus_of(tmp_path, ["alpha beta"] * 9)
    preprocess(paths, tmp_path / "here", words)
    elsewhere = Path(tempfile.mkdtemp(prefix="tokenloom-test-", dir="/dev/shm"))
    try:
        if elsewhere.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is one filesystem only")
        interrupt_after(6, paths, tmp_path / "out", words, work_folder=elsewhere, shard_bytes=60)
        assert leftovers(tmp_path, *paths) == [f"here_text_document.{suffix}" for suffix in PAIR_SUFFIXES]
        # Another prefix of the same name has a folder of its own.
        (tmp_path / "twin").mkdir()
        interrupt_after(6, paths[:2], tmp_path / "twin" / "out", words, work_folder=elsewhere, shard_bytes=60)
        assert len(list(elsewhere.iterdir())) == 2
        for shard_bytes in (60, 1 << 20):  # copied part by part, and one whole part that cannot be linked
            preprocess(paths, tmp_path / "out", words, work_folder=elsewhere, shard_bytes=shard_bytes, restart=True)
            assert pair_bytes(tmp_path / "out_text_document") == pair_bytes(tmp_path / "here_text_document")
        preprocess(paths[:2], tmp_path / "twin" / "out", words, work_folder=elsewhere, shard_bytes=60)
        assert not list(elsewhere.iterdir())
    finally:
        shutil.rmtree(elsewhere)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, words):
    paths = corpus_of(tmp_path, ["alpha"] * 60)

    def grow(_at: object) -> None:
        with paths[2].open("ab") as stream:
            stream.write(b'{"text": "beta"}\n')

    with pytest.raises(InputError, match=r"part-2\.jsonl` changed after the job was planned: it grew"):
        preprocess(paths, tmp_path / "out", words, shard_bytes=80, num_processes=1, num_workers=1, progress=grow)
    summary = preprocess(paths, tmp_path / "out", words, shard_bytes=80)
    assert 0 < summary.num_shards_reused < summary.num_shards
    assert summary.num_documents > 60


def test_nobody_elses_dataset_is_lost_that_comes_while_a_job_works(tmp_path: Path, words):
    path = write_lines(tmp_path / "in.jsonl", [{"text": "alpha"}] * 3)
    preprocess(write_lines(tmp_path / "other.jsonl", [{"text": "beta"}]), tmp_path / "other", words)
    target = str(tmp_path / "out_text_document")

    def copy(_at: object) -> None:
        merge_datasets([str(tmp_path / "other_text_document")] * 2, target, overwrite=True)

    with pytest.raises(OutputExistsError, match="exists already"):
        preprocess(path, tmp_path / "out", words, progress=copy)
    assert documents_of(target) == [[[3]]] * 2
    preprocess(path, tmp_path / "out", words, overwrite=True)
    assert documents_of(target) == [[[2]]] * 3


def test_a_file_of_a_users_own_with_the_name_of_ours_stays(tmp_path: Path, words):
    content = b'{"mine": 1}'
    path = write_lines(tmp_path / "in.jsonl", [{"text": "alpha"}])
    (tmp_path / "out.job").mkdir()
    (tmp_path / "out.job" / "job.json").write_bytes(content)
    with pytest.raises(StorageError, match=r"cannot read `.*job\.json`"):
        preprocess(path, tmp_path / "out", words)
    assert (tmp_path / "out.job" / "job.json").read_bytes() == content
