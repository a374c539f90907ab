"""Conversations as a job: shards, processes, deaths, and every record counted."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.corpus.jobs import preprocess_chat
from tests.preprocess.corpus import leftovers, write_lines
from tests.support import few_examples

from tokenloom.errors import ConfigError, StuckRecordError
from tokenloom.indexed.manifests import read_manifest
from tokenloom.preprocess.job import CorpusSummary
from tokenloom.preprocess.sharded import JobProgress
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
