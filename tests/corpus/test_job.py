import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.jobs import corpus_of, interrupt_after, preprocess, standard_input
from tests.indexed.pairs import pair_bytes
from tests.preprocess.corpus import PAIR_SUFFIXES, build_by_hand, documents_of, leftovers, make_tokenizer, write_lines
from tests.support import wait_until
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tokenloom import merge_datasets
from tokenloom.errors import ConfigError, InputError, OutputExistsError, StorageError, StuckRecordError, TokenizerError
from tokenloom.preprocess.corpus import plan_corpus, preprocess_corpus
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.settings import BadRecordBudget, CorpusSettings
from tokenloom.preprocess.sharded import JobProgress
from tokenloom.tokenizers.plain import ByteTokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded

DOCUMENTS = [f"document {number} " * (number % 5) for number in range(60)]


def test_only_the_shards_of_inputs_that_changed_are_done_again(tmp_path: Path, words):
    paths = corpus_of(tmp_path, ["alpha"] * 60)
    with paths[2].open("ab") as stream:
        stream.write(b"bad\n")
    with pytest.raises(InputError, match=r"part-2\.jsonl` line 21: not JSON"):
        preprocess(paths, tmp_path / "out", words, shard_bytes=80, num_processes=1)
    num_done = len(list((tmp_path / "out.job").glob("*.bin")))
    write_lines(paths[2], [{"text": "beta"}] * 3)
    summary = preprocess(paths, tmp_path / "out", words, shard_bytes=80)
    assert 0 < summary.num_shards_reused <= num_done
    assert documents_of(tmp_path / "out_text_document") == [[[2]]] * 40 + [[[3]]] * 3


def test_bad_records_are_numbered_from_the_beginning_of_their_file(tmp_path: Path, words):
    lines: list[object] = [{"text": "alpha"}] * 50
    lines[7], lines[31], lines[49] = b"seven", b"", b"forty-nine"
    paths = [write_lines(tmp_path / name, lines) for name in ("a.jsonl", "b.jsonl")]
    summary = preprocess(paths, tmp_path / "out", words, shard_bytes=60, skip_bad_records=True, num_workers=2)
    assert summary.rejected_paths == (str(tmp_path / "out.rejected.jsonl"),)
    records = [json.loads(line) for line in (tmp_path / "out.rejected.jsonl").read_text().splitlines()]
    expected = [(str(path), line, text) for path in paths for line, text in ((8, "seven"), (50, "forty-nine"))]
    assert [(record["file"], record["line"], record["text"]) for record in records] == expected
    assert (summary.num_documents, summary.num_rejected, summary.num_blank_lines) == (94, 4, 2)


def test_too_many_bad_records_are_an_error(tmp_path: Path, words):
    lines: list[object] = [{"text": "alpha"}] * 30
    lines[3] = lines[15] = lines[29] = b"bad"
    path = write_lines(tmp_path / "in.jsonl", lines)
    too_many = {"2": "(3 of 30 records, 2 allowed|line 30: .*; found more than 2 bad records)"}
    too_many["5%"] = "too many bad records: 3 of 30 records, 5 % allowed"
    for text, message in too_many.items():
        with pytest.raises(InputError, match=message):
            preprocess(path, tmp_path / "out", words, bad_records=BadRecordBudget.parse(text), shard_bytes=100)
    assert preprocess(path, tmp_path / "fine", words, bad_records=BadRecordBudget(most=3)).num_rejected == 3
    assert preprocess(path, tmp_path / "good", words, bad_records=BadRecordBudget.parse("10%")).num_rejected == 3
    assert not (tmp_path / "out_text_document.idx").exists()


def test_a_pair_per_file(tmp_path: Path, tokenizer):
    paths = corpus_of(tmp_path, DOCUMENTS)
    (tmp_path / "pairs").mkdir()
    options = {"shard_bytes": 300, "num_processes": 2, "num_workers": 1}
    summary = preprocess(paths, tmp_path / "pairs", tokenizer, one_pair_per_file=True, **options)
    for number, dataset in enumerate(summary.datasets):
        assert dataset.prefix == str(tmp_path / "pairs" / f"part-{number}_text_document")
        expected = build_by_hand(tmp_path / "hand", tokenizer, DOCUMENTS[20 * number :][:20], eod=None)
        assert pair_bytes(dataset.prefix) == expected
    (tmp_path / "other").mkdir()
    twin = write_lines(tmp_path / "other" / "part-0.jsonl", [{"text": "x"}])
    with pytest.raises(ConfigError, match="would both be written to `part-0`"):
        preprocess([*paths, twin], tmp_path / "pairs2", tokenizer, one_pair_per_file=True)


def test_a_disk_that_is_full_in_the_end_leaves_no_dataset(tmp_path: Path, tokenizer):
    path = write_lines(tmp_path / "in.jsonl", [{"text": "some text " * 50}] * 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StorageError, match="File too large"):
            preprocess(path, tmp_path / "out", tokenizer, shard_bytes=10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.glob("out_*"))
    assert preprocess(path, tmp_path / "out", tokenizer, shard_bytes=10_000).num_shards_reused > 3
    expected = build_by_hand(tmp_path / "hand", tokenizer, ["some text " * 50] * 100, eod=None)
    assert pair_bytes(tmp_path / "out_text_document") == expected


def test_progress_tells_bytes_and_tokens(tmp_path: Path, tokenizer):
    path = write_lines(tmp_path / "in.jsonl", [{"text": f"document {number}"} for number in range(100)])
    seen: list[JobProgress] = []
    summary = preprocess(path, tmp_path / "out", tokenizer, block_bytes=300, progress=seen.append)
    assert len(seen) > 5
    assert [at.counts["num_tokens"] for at in seen] == sorted(at.counts["num_tokens"] for at in seen)
    last = seen[-1]
    assert last.counts["num_file_bytes"] == last.total == last.counts["num_text_bytes"] == path.stat().st_size
    assert (last.counts["num_tokens"], last.counts["num_documents"]) == (summary.num_tokens, 100)
    assert (last.num_shards_done, last.num_shards) == (1, 1)


def test_budgets_are_counts_or_shares():
    for text, most, share, shown in (("3", 3, 1.0, "3"), ("0.5%", None, 0.005, "0.5 %")):
        assert str(BadRecordBudget.parse(text)) == shown
        assert BadRecordBudget.parse(text) == BadRecordBudget(most=most, most_share=share)
    for text in ("-1", "101%", "many", ""):
        with pytest.raises(ConfigError, match=r"bad records '.*\nhint: give a number .* such as 100, or a share"):
            BadRecordBudget.parse(text)


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
    with standard_input(b'{"text": "alpha"}\nbad\n'), pytest.raises(InputError, match="1 of 2 records, 1 % allowed"):
        preprocess("-", tmp_path / "out", words, bad_records=few)
    with standard_input(b'{"text": "beta"}\nbad\n'):
        preprocess("-", tmp_path / "out", words, bad_records=ANY_NUMBER)
    assert documents_of(tmp_path / "out_text_document") == [[[3]]]


DAMAGES = [(name, "missing") for name in (".hashes", ".rejected.jsonl", "_0.manifest.json")]
DAMAGES += [(name, "other bytes") for name in (".hashes", ".records", ".json", "_0.bin")]


@pytest.mark.parametrize(("file", "damage"), [*DAMAGES, ("_0.bin", "truncated")])
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
    path = write_lines(tmp_path / "in.jsonl", [{"text": "alpha"}])
    (tmp_path / "out.job").mkdir()
    (tmp_path / "out.job" / "job.json").write_bytes(b'{"mine": 1}')
    with pytest.raises(StorageError, match=r"cannot read `.*job\.json`"):
        preprocess(path, tmp_path / "out", words)
    assert (tmp_path / "out.job" / "job.json").read_bytes() == b'{"mine": 1}'


LETTERS = "abcdefghijklmnopqrstuvwxyz"


FAILURES = {"overflow": RecursionError, "want memory": MemoryError, "interrupt": KeyboardInterrupt}


class Awkward(ByteTokenizer):
    def __reduce__(self):
        return Awkward, ()

    def encode_texts(self, texts):
        texts = list(texts)
        for text in texts:
            if text in FAILURES:
                raise FAILURES[text]
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
        ("one too many", "the engine returned inconsistent results: 2 lengths and 12 ids for 1 texts"),
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
    assert rejected_of(tmp_path / "out") == [(11, "a process that tokenized only this record stopped responding")]


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
    assert "this process does shard 0 too: the owner of its lock does not respond" in caplog.text
