"""Conversations as a job: shards, processes, deaths, and every record counted."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.corpus.jobs import files_of, kill_until_it_ends, preprocess_chat, standard_input
from tests.inputs.corpora import write_parquet
from tests.preprocess.corpus import byte_level_json, leftovers, make_tokenizer, write_lines
from tests.support import few_examples

from tokenloom.errors import ConfigError, InputError, OutputExistsError, StuckRecordError
from tokenloom.indexed.manifests import read_manifest
from tokenloom.indexed.verify import verify_dataset
from tokenloom.preprocess.ray_runner import RayRunner
from tokenloom.preprocess.sharded import JobProgress
from tokenloom.preprocess.summary import CorpusSummary
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer

SUFFIXES = (".bin", ".idx", ".roles.npy", ".manifest.json", ".rejected.jsonl")


def talk(number: int) -> dict[str, Any]:
    turns = [f"Question {number}?", "word " * (number % 20), "More?", "No."][: 2 + 2 * (number % 2)]
    return {"messages": [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(turns)]}


def lines_with_faults(count: int) -> list[object]:
    lines: list[object] = [talk(number) for number in range(count)]
    for number in range(7, count, 23):
        lines.insert(number, b"{bad %d" % number)
    lines.insert(count // 2, b"")
    return lines


def run(path: Path, prefix: Path, tokenizer: HuggingFaceTokenizer, **options: Any) -> CorpusSummary:
    options = {"chat_template": "chatml", "skip_bad_lines": True, "num_workers": 1, "num_processes": 1, **options}
    return preprocess_chat(path, prefix, tokenizer, **options)


def outputs(prefix: Path) -> list[bytes]:
    return [Path(f"{prefix}{suffix}").read_bytes() for suffix in SUFFIXES if Path(f"{prefix}{suffix}").exists()]


def interrupt_after(num_blocks: int, *arguments: Any, **options: Any) -> None:
    calls = itertools.count(1)

    def interrupt(_: JobProgress) -> None:
        if next(calls) == num_blocks:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(*arguments, progress=interrupt, **options)


@few_examples
@given(count=st.integers(1, 40), shard_bytes=st.integers(200, 3000), workers=st.integers(1, 3))
def test_bytes_depend_on_neither_shards_nor_threads(tmp_path_factory, tokenizer, count, shard_bytes, workers):
    folder = tmp_path_factory.mktemp("shards")
    path = write_lines(folder / "chat.jsonl", lines_with_faults(count))
    whole = run(path, folder / "whole", tokenizer)
    cut = run(path, folder / "cut", tokenizer, shard_bytes=shard_bytes, num_workers=workers)
    assert outputs(folder / "cut") == outputs(folder / "whole")
    for name in ("num_documents", "num_tokens", "numbers", "num_rejected", "num_blank_lines"):
        assert getattr(cut, name) == getattr(whole, name)
    assert not (folder / "cut.job").exists()


@pytest.mark.parametrize("name", ["chat.jsonl", pytest.param("chat.parquet", marks=pytest.mark.slow)])
def test_processes_make_the_same_bytes(tmp_path, tokenizer, name):
    path = write_lines(tmp_path / "chat.jsonl", lines_with_faults(300))
    if name == "chat.parquet":
        path = tmp_path / name
        write_parquet(path, [talk(number) for number in range(300)], row_group_size=40)
    run(path, tmp_path / "one", tokenizer)
    summary = run(path, tmp_path / "two", tokenizer, shard_bytes=6000, num_processes=2)
    assert outputs(tmp_path / "two") == outputs(tmp_path / "one")
    manifest = read_manifest(str(tmp_path / "two"))
    ledger = manifest.ledger
    assert (ledger.num_kept, ledger.num_rejected) == (summary.num_documents, summary.num_rejected)
    assert verify_dataset(str(tmp_path / "two")).problems == ()


def test_the_schema_is_that_of_the_beginning_in_all_shards(tmp_path, tokenizer):
    lines = [talk(1)] * 10 + [{"text": "plain"}] * 10
    path = write_lines(tmp_path / "chat.jsonl", lines)
    summary = run(path, tmp_path / "out", tokenizer, shard_bytes=100)
    schema = read_manifest(summary.prefix).options["schema"]
    assert (schema, summary.num_documents, summary.num_rejected) == ("messages", 10, 10)


def test_an_interrupted_job_goes_on(tmp_path, tokenizer):
    path = write_lines(tmp_path / "chat.jsonl", lines_with_faults(200))
    run(path, tmp_path / "whole", tokenizer)
    interrupt_after(12, path, tmp_path / "out", tokenizer, shard_bytes=2000)
    done = {part.name: part.stat().st_mtime_ns for part in (tmp_path / "out.job").glob("*.roles.npy")}
    assert len(done) >= 2
    with pytest.raises(ConfigError, match=r"other settings: chat_template .*; schema was 'messages', and is 'text'"):
        run(path, tmp_path / "out", tokenizer, shard_bytes=2000, schema="text")
    run(path, tmp_path / "out", tokenizer, shard_bytes=2000)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")
    assert not (tmp_path / "out.job").exists()


def test_a_part_that_was_damaged_is_done_again(tmp_path, tokenizer, caplog):
    path = write_lines(tmp_path / "chat.jsonl", lines_with_faults(60))
    run(path, tmp_path / "whole", tokenizer)
    interrupt_after(4, path, tmp_path / "out", tokenizer, shard_bytes=2000)
    part = sorted((tmp_path / "out.job").glob("*_0.roles.npy"))[0]
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    report = part.with_name(part.name.replace("_0.roles.npy", ".json"))  # as another machine would have written it
    report.write_text(json.dumps(json.loads(report.read_text()) | {"boot_id": "another"}))
    run(path, tmp_path / "out", tokenizer, shard_bytes=2000)
    assert any("is done again" in message for message in caplog.messages)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")


def test_what_is_finished_is_left_alone_unless_it_is_to_be_replaced(tmp_path, tokenizer):
    path = write_lines(tmp_path / "chat.jsonl", lines_with_faults(60))
    first = run(path, tmp_path / "out", tokenizer, shard_bytes=2000)
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in leftovers(tmp_path, path)}
    again = run(path, tmp_path / "out", tokenizer)
    assert (first.was_complete, again.was_complete) == (False, True)
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in leftovers(tmp_path, path)} == before
    assert not run(path, tmp_path / "out", tokenizer, restart=True).was_complete
    with pytest.raises(InputError, match="expected at most 0 bad records, found"):
        run(path, tmp_path / "out", tokenizer, skip_bad_lines=False)
    with pytest.raises(OutputExistsError):
        run(path, tmp_path / "out", tokenizer, schema="text")
    (tmp_path / "out.rejected.jsonl").unlink()
    run(path, tmp_path / "out", tokenizer)
    assert (tmp_path / "out.rejected.jsonl").exists()


def test_standard_input_is_read_once(tmp_path):
    path = write_lines(tmp_path / "chat.jsonl", lines_with_faults(100))
    tokenizer = make_tokenizer(byte_level_json())
    with standard_input(path.read_bytes()):
        run(Path("-"), tmp_path / "out", tokenizer)
    run(path, tmp_path / "whole", tokenizer)
    for suffix in (".bin", ".idx", ".roles.npy"):
        assert (tmp_path / f"out{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    with pytest.raises(ConfigError, match="expected inputs that all machines can read, got a stream"):
        preprocess_chat("-", tmp_path / "ray", tokenizer, runner=RayRunner(), schema="text")


@pytest.mark.slow
@pytest.mark.parametrize("work", [("--processes", "1"), ("--processes", "2", "--work-folder", "{folder}/work")])
def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path, rng, work):
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    (tmp_path / "work").mkdir()
    (tmp_path / "out").mkdir()
    path = write_lines(tmp_path / "chat.jsonl", lines_with_faults(2500))
    run(path, tmp_path / "whole", make_tokenizer(byte_level_json()))
    command = [sys.executable, "-m", "tokenloom", "preprocess-chat", str(path), "--workers", "1"]
    command += ["--output-prefix", str(tmp_path / "out" / "out"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    command += ["--chat-template", "chatml", "--skip-bad-lines", "--shard-bytes", "64KB"]
    command += [each.format(folder=tmp_path) for each in work]
    kill_until_it_ends(command, [tmp_path / "out", tmp_path / "work"], rng, most=4)
    for suffix in (".bin", ".idx", ".origins.npy", ".rejected.jsonl", ".roles.npy"):
        assert (tmp_path / "out" / f"out{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    names = ["out.bin", "out.columns.json", "out.idx", "out.origins.npy", "out.rejected.jsonl", "out.roles.npy"]
    assert sorted(files_of(tmp_path / "out")) == names
    assert list((tmp_path / "work").iterdir()) == []


LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def test_a_template_that_loops_on_the_first_record_is_named_with_the_limit(tmp_path, tokenizer):
    path = write_lines(tmp_path / "chat.jsonl", [talk(1)])
    template = tmp_path / "template.jinja"
    template.write_text(LOOPS.replace("99999", "999", 1))  # some seconds
    message = r"template\.jinja takes longer than 0\.5 seconds for the first record of `.*chat\.jsonl`"
    with pytest.raises(StuckRecordError, match=message) as caught:
        run(path, tmp_path / "out", tokenizer, chat_template=str(template), record_timeout_seconds=0.5)
    assert "`record_timeout_seconds`" in caught.value.hint
    assert leftovers(tmp_path, path, template) == []


@pytest.mark.slow
def test_a_record_on_which_a_template_loops_is_set_aside_by_the_next_call(tmp_path, tokenizer):
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.content }}{% if m.content == 'loop' %}" + LOOPS + "{% endif %}{% endfor %}"
    )
    talks = [
        {"messages": [{"role": "user", "content": said}, {"role": "assistant", "content": "b"}]}
        for said in ("a", "loop", "c")
    ]
    path = write_lines(tmp_path / "chat.jsonl", talks)
    options = {"chat_template": str(template), "record_timeout_seconds": 0.5}
    with pytest.raises(StuckRecordError, match=r"tokenising `.*chat\.jsonl` from line 1 on takes longer than 0\.5"):
        run(path, tmp_path / "out", tokenizer, **options)
    summary = run(path, tmp_path / "out", tokenizer, **options)
    assert (summary.num_documents, summary.num_rejected) == (2, 1)
    assert json.loads(Path(summary.rejected_paths[0]).read_text())["line"] == 2
