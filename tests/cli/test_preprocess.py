from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.indexed.pairs import pair_bytes
from tests.preprocess.corpus import (
    build_by_hand,
    byte_level_json,
    documents_of,
    leftovers,
    make_sentencepiece,
    make_tokenizer,
    sentencepiece_model,
    tiktoken_file,
    word_level_json,
    write_lines,
)
from tests.support import wait_until

from tokenloom.cli import main

DEADLINE_SECONDS = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds a tokenizer; what a command writes goes to `out` in it."""
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    (tmp_path / "out").mkdir()
    return tmp_path


def arguments(folder: Path, path: Path, *more: str, output: Path | None = None) -> list[str]:
    prefix = str((output or folder / "out") / "p")
    return ["preprocess", str(path), "--output-prefix", prefix, "--tokenizer", str(folder), *more]


def command(folder: Path, path: Path, *more: str, output: Path | None = None) -> list[str]:
    return [sys.executable, "-m", "tokenloom", *arguments(folder, path, *more, output=output)]


def test_command_writes_the_dataset_and_a_summary(folder: Path, capsys: pytest.CaptureFixture[str]):
    texts = ["def f(): pass", "", "naïve 中文"]
    path = write_lines(folder / "in.jsonl", [{"text": text} for text in texts])
    assert main(arguments(folder, path, "--append-eod", "--workers", "2", "--verbose")) == 0
    output = capsys.readouterr()
    assert output.err == ""
    rows = rows_of(output.out)
    tokenizer = make_tokenizer(byte_level_json())
    expected = build_by_hand(folder / "hand", tokenizer, texts, eod=0)
    assert pair_bytes(folder / "out" / "p_text_document") == expected
    assert rows["documents"] == "3"
    num_tokens = len(expected[0]) // 2
    assert rows["dtype"] == "uint16"
    assert "set aside" not in output.out
    assert output.out.splitlines()[-1].startswith(f"{folder / 'out' / 'p'}: 3 documents, {num_tokens} tokens, in ")
    assert re.match(r"gigatoken \(certificate", rows["engine"])
    assert rows["engine reason"].startswith("same ids as `tokenizers` for")
    assert f"{folder / 'out' / 'p_text_document'}   3   1   2   {num_tokens}   " in re.sub("  +", "   ", output.out)


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ((), ["origins.npy", "columns.json"]),
        (("--no-origins",), []),
        (("--document-hashes",), ["hashes.npy", "origins.npy", "columns.json"]),
    ],
)
def test_what_goes_beside_the_dataset(folder: Path, options: tuple[str, ...], more: list[str]):
    path = write_lines(folder / "in.jsonl", [{"text": "a"}])
    assert main(arguments(folder, path, *options)) == 0
    names = sorted(["bin", "idx", "manifest.json", *more])
    assert leftovers(folder / "out") == [f"p_text_document.{name}" for name in names]


def test_several_keys_and_skipped_lines(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "tokenizer.json").write_text(word_level_json(), encoding="utf-8")
    path = write_lines(folder / "in.jsonl", [{"a": "alpha", "b": "beta"}, b"bad", b"", {"a": "beta", "b": "alpha"}])
    assert main(arguments(folder, path, "--json-keys", "a", "b", "--skip-bad-lines", "--engine", "tokenizers")) == 0
    assert documents_of(folder / "out" / "p_a_document") == [[[2]], [[3]]]
    assert documents_of(folder / "out" / "p_b_document") == [[[3]], [[2]]]
    output = capsys.readouterr().out
    assert f"1 bad records are set aside in {folder / 'out' / 'p.rejected.jsonl'}\n" in output


def test_bad_line_is_one_line_of_error_with_a_hint(folder: Path, capsys: pytest.CaptureFixture[str]):
    path = write_lines(folder / "in.jsonl", [{"text": "a"}, b"bad"])
    assert main(arguments(folder, path)) == 1
    assert capsys.readouterr().err.startswith(f"error: `{path}` line 2: not JSON: Expecting value at column 1\nhint: ")
    assert leftovers(folder / "out") == []


def large_input(folder: Path, megabytes: int) -> Path:
    line = {"text": "def some_function(argument):\n    return argument ** 2  # comment\n" * 100}
    return write_lines(folder / "in.jsonl", [line] * (megabytes * 160))


@pytest.mark.parametrize("engine", ["gigatoken", pytest.param("tokenizers", marks=pytest.mark.slow)])
def test_limit_on_file_size_leaves_nothing(folder: Path, engine: str):
    path = large_input(folder, 3)

    def limit() -> None:  # Python ignores SIGXFSZ, so that writing fails with EFBIG, as ENOSPC would come
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    result = subprocess.run(
        command(folder, path, "--engine", engine),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        preexec_fn=limit,
    )
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("error: cannot write `")
    assert "File too large" in result.stderr
    assert leftovers(folder / "out") == []


def sizes_in(process: subprocess.Popen[str], folder: Path) -> list[int]:
    """Returns the sizes of the hidden files that a process and its children write in the folder of a job."""
    sizes = []
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for writer in [str(process.pid), *children]:
            for path in Path(f"/proc/{writer}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(path).startswith(f"{folder}/p.job/."):
                        sizes.append(path.stat().st_size)
    return sizes


def test_killed_command_leaves_nothing_that_opens(folder: Path):
    path = large_input(folder, 40)
    out = folder / "out"
    process = subprocess.Popen(command(folder, path, "--engine", "tokenizers"), stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: any(sizes_in(process, out)), seconds=DEADLINE_SECONDS, process=process)
    finally:
        process.kill()
        process.communicate()
    assert leftovers(out) == ["p.job"]
    assert not list((out / "p.job").glob("*.idx"))


def test_command_takes_every_kind_of_tokenizer(folder: Path, capsys: pytest.CaptureFixture[str]):
    path = write_lines(folder / "in.jsonl", [{"text": "7 8"}, {"text": "9"}])
    prefix = str(folder / "out" / "p")
    (folder / "ranks.tiktoken").write_bytes(tiktoken_file())
    (folder / "m.model").write_bytes(sentencepiece_model())
    cases = {
        "null:100": [[[7, 8, 100]], [[9, 100]]],
        "byte": [[[55, 32, 56, 256]], [[57, 256]]],
        str(folder / "m.model"): [
            [[*make_sentencepiece().tokenize("7 8"), 2]],
            [[*make_sentencepiece().tokenize("9"), 2]],
        ],
    }
    for tokenizer, expected in cases.items():
        words = ["preprocess", str(path), "--output-prefix", prefix, "--tokenizer", tokenizer, "--append-eod"]
        assert main([*words, "--overwrite"]) == 0
        assert documents_of(f"{prefix}_text_document") == expected
    words = ["preprocess", str(path), "--output-prefix", prefix, "--tokenizer", str(folder / "ranks.tiktoken")]
    words.append("--overwrite")
    assert main([*words, "--tiktoken-pattern", "cl100k", "--tokenizer-kind", "tiktoken"]) == 0
    capsys.readouterr()
    assert main(words) == 1
    assert "nothing says how" in capsys.readouterr().err


def test_command_begins_documents_and_splits_sentences(folder: Path, capsys: pytest.CaptureFixture[str]):
    path = write_lines(folder / "in.jsonl", [{"text": "Rain falls.\nSnow melts."}])
    prefix = str(folder / "out" / "p")
    words = ["preprocess", str(path), "--output-prefix", prefix, "--tokenizer", "byte", "--prepend-bos"]
    assert main([*words, "--bos-token", "<pad>", "--split-sentences", "--keep-newlines"]) == 0
    assert documents_of(f"{prefix}_text_sentence") == [[[258, *b"Rain falls.\n"], [*b"Snow melts."]]]
    assert "doubled" not in capsys.readouterr().out
    assert main([*words, "--keep-newlines"]) == 1
    assert "expected `--split-sentences` with `--keep-newlines`, found none" in capsys.readouterr().err


def small_inputs(folder: Path) -> list[str]:
    """Writes three files of ten documents, half of them duplicates; the second has a bad line too."""
    for number in range(3):
        lines: list[object] = [{"text": f"text {row % 5} of {number}"} for row in range(10)]
        write_lines(folder / f"part-{number}.jsonl", [*lines, b"bad"] if number == 1 else lines)
    return [str(folder / f"part-{number}.jsonl") for number in range(3)]


def rows_of(output: str) -> dict[str, str]:
    """Returns the rows of a table, by their first column."""
    rows = [line.strip().split("  ", 1) for line in output.splitlines() if "  " in line.strip()]
    return {row[0]: row[1].strip() for row in rows}


def words_for(folder: Path, inputs: list[str], *more: str) -> list[str]:
    prefix = str(folder / "out" / "p")
    return ["preprocess", *inputs, "--output-prefix", prefix, "--tokenizer", str(folder), *more]


def test_splits_duplicates_and_a_budget(folder: Path, capsys: pytest.CaptureFixture[str]):
    inputs = small_inputs(folder)
    splits = ["--split", "train=0.5,valid=0.5", "--split-seed", "3"]
    words = words_for(folder, inputs, "--verbose", "--drop-duplicates", *splits)
    assert main([*words, "--max-bad-records", "2%"]) == 1
    captured = capsys.readouterr()
    assert (
        f"3 files: expected at most 2 % bad records, found 1 of 31; the first is `{inputs[1]}` line 11" in captured.err
    )
    assert "hint: allow more and run the same command again" in captured.err
    assert main([*words, "--max-bad-records", "1"]) == 0
    output = capsys.readouterr().out
    rows = rows_of(output)
    assert rows["documents"] == "30"
    assert rows["duplicates"] == "15"
    assert output.endswith(f"\n1 bad records are set aside in {folder / 'out' / 'p.rejected.jsonl'}\n")
    assert (rows["shards"], rows["shards reused"]) == ("1", "1")
    found = [len(documents_of(folder / "out" / f"p_{split}_text_document")) for split in ("train", "valid")]
    assert sum(found) == 15
    table = re.sub(" +", " ", output)
    for number, split in zip(found, ("train", "valid"), strict=True):
        assert f" text {split} {folder / 'out' / f'p_{split}_text_document'} {number} " in table
    assert main([*words, "--max-bad-records", "1"]) == 0
    assert "tokens, all of it was done before\n" in capsys.readouterr().out


def test_restart_gives_up_what_was_done(folder: Path, capsys: pytest.CaptureFixture[str]):
    path = write_lines(folder / "in.jsonl", [{"text": "a" * 9000}] * 20 + [b"bad"])
    words = arguments(folder, path, "--shard-bytes", "64KB", "--workers", "1", "--processes", "1")
    assert main(words) == 1
    assert main([*words, "--append-eod"]) == 1
    assert (
        "belongs to an unfinished job with other settings: append_eod was False, and is True" in capsys.readouterr().err
    )
    assert main([*words, "--append-eod", "--skip-bad-lines", "--restart", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_shards_reused"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory-bytes", "1KB"], "expected memory_bytes of at least 67108864, found 1000"),
        (["--shard-bytes", "1"], "expected shard_bytes of at least 64000, found 1"),
        (["--shard-bytes", "63.9KB"], "expected shard_bytes of at least 64000, found 63900"),
        (["--split", "train=0.9"], "expected shares above 0 that add up to 1, got {'train': 0.9}"),
        (["--split", "a=1", "--split-seed", "-1"], "expected split_seed in [0, 2**64), found -1"),
        (["--max-bad-records", "few"], "a share such as 0.1%, got 'few'"),
        (["--max-bad-records", "1", "--skip-bad-lines"], "`--skip-bad-lines`: cannot stand beside `--max-bad-records`"),
        (["--processes", "0"], "expected num_processes of at least 1, found 0"),
        (["--runner", "ray", "--workers", "-1"], "expected num_workers of at least 1, found -1"),
    ],
)
def test_wrong_values_are_told(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str):
    path = write_lines(folder / "in.jsonl", [{"text": "a"}])
    try:
        assert main(arguments(folder, path, *words)) == 1
    except SystemExit as error:
        assert error.code == 2  # noqa: PT017 - either way is right, depending on who finds it
    assert message in capsys.readouterr().err
    assert leftovers(folder / "out") == []
