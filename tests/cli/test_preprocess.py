from __future__ import annotations

import contextlib
import os
import pty
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.preprocess.corpus import (
    build_by_hand,
    byte_level_json,
    documents_of,
    leftovers,
    make_sentencepiece,
    make_tokenizer,
    read_pair,
    sentencepiece_model,
    tiktoken_file,
    word_level_json,
    write_lines,
)

from tokenloom.cli import main

DEADLINE_SECONDS = 60


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
    return [sys.executable, "-m", "tokenloom.cli", *arguments(folder, path, *more, output=output)]


def test_command_writes_the_dataset_and_a_summary(folder: Path, capsys: pytest.CaptureFixture[str]):
    texts = ["def f(): pass", "", "naïve 中文"]
    path = write_lines(folder / "in.jsonl", [{"text": text} for text in texts])
    assert main(arguments(folder, path, "--append-eod", "--workers", "2")) == 0
    output = capsys.readouterr()
    assert output.err == ""
    rows = dict(line.strip().split("  ", 1) for line in output.out.splitlines() if "  " in line.strip())
    rows = {name: value.strip() for name, value in rows.items()}
    tokenizer = make_tokenizer(byte_level_json())
    expected = build_by_hand(folder / "hand", tokenizer, texts, eod=0)
    assert read_pair(folder / "out" / "p_text_document") == expected
    assert rows["documents"] == "3"
    assert rows["tokens"] == str(len(expected[0]) // 2)
    assert rows["bytes written"] == str(len(expected[0]))
    assert rows["dtype"] == "uint16"
    assert rows["rejected records"] == "0"
    assert rows["engine"] == "gigatoken"
    assert rows["engine chosen"].startswith("same ids as `tokenizers` for")
    described = f"{folder / 'out' / 'p_text_document'} (3 documents, {rows['tokens']} tokens)"
    assert rows["dataset of 'text'"] == described


def test_several_keys_and_skipped_lines(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "tokenizer.json").write_text(word_level_json(), encoding="utf-8")
    path = write_lines(folder / "in.jsonl", [{"a": "alpha", "b": "beta"}, b"bad", b"", {"a": "beta", "b": "alpha"}])
    assert main(arguments(folder, path, "--json-keys", "a", "b", "--skip-bad-lines", "--engine", "tokenizers")) == 0
    assert documents_of(folder / "out" / "p_a_document") == [[[2]], [[3]]]
    assert documents_of(folder / "out" / "p_b_document") == [[[3]], [[2]]]
    output = capsys.readouterr().out
    assert f"1 in {folder / 'out' / 'p.rejected.jsonl'}" in output
    assert "asked for" in output


def test_eod_token_can_be_named(folder: Path):
    path = write_lines(folder / "in.jsonl", [{"text": ""}, {"text": "a"}])
    assert main(arguments(folder, path, "--append-eod", "--eod-token", "<|pad|>")) == 0
    [_, [row]] = documents_of(folder / "out" / "p_text_document")
    assert row[-1] == 1


def test_bad_line_is_one_line_of_error_with_a_hint(folder: Path, capsys: pytest.CaptureFixture[str]):
    path = write_lines(folder / "in.jsonl", [{"text": "a"}, b"bad"])
    assert main(arguments(folder, path)) == 1
    assert capsys.readouterr().err.startswith(f"error: `{path}` line 2: not JSON: Expecting value at column 1\nhint: ")
    assert leftovers(folder / "out") == []


def test_tokenizer_that_cannot_be_loaded_ends_the_command(folder: Path):
    path = write_lines(folder / "in.jsonl", [{"text": "a"}])
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "unknown"}}', encoding="utf-8")
    result = subprocess.run(command(folder, path), capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert result.returncode == 1
    assert "tokenizer.json` is not a tokenizer" in result.stderr
    assert leftovers(folder / "out") == []


def test_help_imports_no_engine():
    code = (
        "import sys\nfrom tokenloom.cli import main\n"
        "try: main(['preprocess', '--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('tokenizers', 'gigatoken', 'orjson', 'rich', 'torch') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_progress_is_shown_on_a_terminal_only(folder: Path):
    path = write_lines(folder / "in.jsonl", [{"text": "a"}])
    terminal, slave = pty.openpty()
    try:
        result = subprocess.run(
            command(folder, path), stdout=subprocess.PIPE, stderr=slave, text=True, timeout=DEADLINE_SECONDS
        )
        shown = os.read(terminal, 1 << 16).decode()
    finally:
        os.close(slave)
        os.close(terminal)
    assert result.returncode == 0
    assert "preprocess" in shown
    assert "tokens/s" in shown
    assert "documents" in result.stdout
    assert "\x1b" not in result.stdout


def large_input(folder: Path, megabytes: int) -> Path:
    line = {"text": "def some_function(argument):\n    return argument ** 2  # comment\n" * 100}
    return write_lines(folder / "in.jsonl", [line] * (megabytes * 160))


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
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


def test_full_disk_leaves_nothing(folder: Path):
    disk = folder / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"cannot mount a small disk: {mount.stderr.strip()}")
    try:
        result = subprocess.run(
            command(folder, large_input(folder, 3), output=disk),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        assert result.returncode == 1, result.stderr
        assert "No space left on device" in result.stderr
        assert "hint: the disk is full" in result.stderr
        assert leftovers(disk) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def sizes_in(folder: Path) -> list[int]:
    """Returns the sizes of the files of tokens that are being written below a folder."""
    sizes = []
    for path in folder.glob("p.job/.*.bin.*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes


@pytest.mark.parametrize(
    ("engine", "num_bytes"),
    [("tokenizers", 1), ("gigatoken", 0), ("gigatoken", 1)],
    ids=["writing slowly", "starting", "writing"],
)
def test_interrupted_command_leaves_nothing(folder: Path, engine: str, num_bytes: int):
    path = large_input(folder, 60)
    out = folder / "out"
    process = subprocess.Popen(
        command(folder, path, "--engine", engine),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(process, lambda: any(size >= num_bytes for size in sizes_in(out)))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert leftovers(out) == []


def test_killed_command_leaves_nothing_that_opens(folder: Path):
    path = large_input(folder, 40)
    out = folder / "out"
    process = subprocess.Popen(command(folder, path, "--engine", "tokenizers"), stdout=subprocess.PIPE, text=True)
    try:
        wait_until(process, lambda: any(sizes_in(out)))
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
        assert main(words) == 0
        assert documents_of(f"{prefix}_text_document") == expected
    words = ["preprocess", str(path), "--output-prefix", prefix, "--tokenizer", str(folder / "ranks.tiktoken")]
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
    assert "expected `split_sentences` with `keep_newlines`, found none" in capsys.readouterr().err
