"""`tokenloom preprocess`, `preprocess-chat` and `preprocess-multimodal`."""

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.runs import output, record, rows_of, run
from tests.indexed.pairs import pair_bytes
from tests.preprocess import corpus
from tests.preprocess.corpus import EOD, byte_level_json, documents_of, leftovers, write_gpt2, write_lines
from tests.support import wait_until

from tokenloom.cli import main

DEADLINE_SECONDS = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds a tokenizer; what a command writes goes to `out` in it."""
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    (tmp_path / "out").mkdir()
    return tmp_path


def arguments(folder: Path, path: Path, *more: str) -> list[str]:
    return ["preprocess", str(path), "--output-prefix", str(folder / "out" / "p"), "--tokenizer", str(folder), *more]


def command(folder: Path, path: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "tokenloom", *arguments(folder, path, *more)]


def test_command_writes_the_dataset_and_a_summary(folder: Path, capsys: pytest.CaptureFixture[str]):
    texts = ["def f(): pass", "", "naïve 中文"]
    path = write_lines(folder / "in.jsonl", [{"text": text} for text in texts])
    out = output(capsys, *arguments(folder, path, "--append-eod", "--workers", "2", "--verbose"))
    rows = {row[0]: row[1] for row in rows_of(out) if len(row) == 2}
    tokenizer = corpus.make_tokenizer(byte_level_json())
    expected = corpus.build_by_hand(folder / "hand", tokenizer, texts, eod=0)
    assert pair_bytes(folder / "out" / "p_text_document") == expected
    num_tokens = len(expected[0]) // 2
    assert (rows["documents"], rows["dtype"]) == ("3", "uint16")
    assert "moved to" not in out
    assert out.splitlines()[-1].startswith(f"{folder / 'out' / 'p'}: 3 documents, {num_tokens} tokens, in ")
    assert re.match(r"gigatoken \(certificate", rows["engine"])
    assert rows["engine reason"].startswith("the same ids as `tokenizers` for")
    assert f"{folder / 'out' / 'p_text_document'}   3   1   2   {num_tokens}   " in re.sub("  +", "   ", out)


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
    (folder / "tokenizer.json").write_text(corpus.word_level_json(), encoding="utf-8")
    path = write_lines(folder / "in.jsonl", [{"a": "alpha", "b": "beta"}, b"bad", b"", {"a": "beta", "b": "alpha"}])
    words = ("--json-keys", "a", "b", "--engine", "tokenizers")
    status, _, err = run(capsys, *arguments(folder, path, *words))
    assert (status, leftovers(folder / "out")) == (1, [])
    assert err.startswith(f"error: `{path}` line 2: not JSON: Expecting value at column 1\nhint: ")
    out = run(capsys, *arguments(folder, path, *words, "--skip-bad-lines"))[1]
    assert documents_of(folder / "out" / "p_a_document") == [[[2]], [[3]]]
    assert documents_of(folder / "out" / "p_b_document") == [[[3]], [[2]]]
    assert f"1 bad records were moved to {folder / 'out' / 'p.rejected.jsonl'}\n" in out


def large_input(folder: Path, megabytes: int) -> Path:
    line = {"text": "def some_function(argument):\n    return argument ** 2  # comment\n" * 100}
    return write_lines(folder / "in.jsonl", [line] * (megabytes * 160))


@pytest.mark.parametrize("engine", ["gigatoken", pytest.param("tokenizers", marks=pytest.mark.slow)])
def test_limit_on_file_size_leaves_nothing(folder: Path, engine: str):
    path = large_input(folder, 3)

    def limit() -> None:  # Python ignores SIGXFSZ, so that writing fails with EFBIG, as ENOSPC would come
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    options = {"capture_output": True, "text": True, "timeout": DEADLINE_SECONDS, "preexec_fn": limit}
    result = subprocess.run(command(folder, path, "--engine", engine), **options)
    assert (result.returncode, leftovers(folder / "out")) == (1, []), result.stderr
    assert re.match("error: cannot write `.*File too large", result.stderr)


def sizes_in(process: subprocess.Popen[str], folder: Path) -> list[int]:
    """Returns the sizes of the hidden files that a process and its children write in a job's folder."""
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
    (folder / "ranks.tiktoken").write_bytes(corpus.tiktoken_file())
    (folder / "m.model").write_bytes(corpus.sentencepiece_model())
    pieces = corpus.make_sentencepiece()
    words = ["preprocess", str(path), "--output-prefix", prefix, "--overwrite", "--tokenizer"]
    for tokenizer, expected in (
        ("null:100", [[[7, 8, 100]], [[9, 100]]]),
        ("byte", [[[55, 32, 56, 256]], [[57, 256]]]),
        (str(folder / "m.model"), [[[*pieces.tokenize("7 8"), 2]], [[*pieces.tokenize("9"), 2]]]),
    ):
        assert main([*words, tokenizer, "--append-eod"]) == 0
        assert documents_of(f"{prefix}_text_document") == expected
    words.append(str(folder / "ranks.tiktoken"))
    assert main([*words, "--tiktoken-pattern", "cl100k", "--tokenizer-kind", "tiktoken"]) == 0
    status, _, err = run(capsys, *words)
    assert (status, "needs a `pattern`" in err) == (1, True)


def test_command_begins_documents_and_splits_sentences(folder: Path, capsys: pytest.CaptureFixture[str]):
    path = write_lines(folder / "in.jsonl", [{"text": "Rain falls.\nSnow melts."}])
    prefix = str(folder / "out" / "p")
    words = ["preprocess", str(path), "--output-prefix", prefix, "--tokenizer", "byte", "--prepend-bos"]
    assert main([*words, "--bos-token", "<pad>", "--split-sentences", "--keep-newlines"]) == 0
    assert documents_of(f"{prefix}_text_sentence") == [[[258, *b"Rain falls.\n"], [*b"Snow melts."]]]
    assert "doubled" not in capsys.readouterr().out
    assert "`--keep-newlines`: needs `--split-sentences`" in run(capsys, *words, "--keep-newlines")[2]


def test_splits_duplicates_and_a_budget(folder: Path, capsys: pytest.CaptureFixture[str]):
    inputs = [folder / f"part-{number}.jsonl" for number in range(3)]
    for number, path in enumerate(inputs):
        lines: list[object] = [{"text": f"text {row % 5} of {number}"} for row in range(10)]
        write_lines(path, [*lines, b"bad"] if number == 1 else lines)
    words = ("preprocess", *inputs, "--output-prefix", folder / "out" / "p", "--tokenizer", folder, "--verbose")
    words += ("--drop-duplicates", "--split", "train=0.5,valid=0.5", "--split-seed", 3, "--max-bad-records")
    status, _, err = run(capsys, *words, "2%")
    assert f"3 files: too many bad records: 1 of 31 records, 2 % allowed; the first is `{inputs[1]}` line 11" in err
    assert (status, "and run the same command again" in err) == (1, True)
    out = run(capsys, *words, 1)[1]
    rows = {row[0]: row[1] for row in rows_of(out) if len(row) == 2}
    assert [rows[name] for name in ("documents", "duplicates", "shards", "shards reused")] == ["30", "15", "1", "1"]
    assert out.endswith(f"\n1 bad records were moved to {folder / 'out' / 'p.rejected.jsonl'}\n")
    found = [len(documents_of(folder / "out" / f"p_{split}_text_document")) for split in ("train", "valid")]
    assert sum(found) == 15
    table = re.sub(" +", " ", out)
    for number, split in zip(found, ("train", "valid"), strict=True):
        assert f" text {split} {folder / 'out' / f'p_{split}_text_document'} {number} " in table
    assert "tokens, already complete\n" in run(capsys, *words, 1)[1]


def test_restart_gives_up_what_was_done(folder: Path, capsys: pytest.CaptureFixture[str]):
    path = write_lines(folder / "in.jsonl", [{"text": "a" * 9000}] * 20 + [b"bad"])
    words = arguments(folder, path, "--shard-bytes", "64KB", "--workers", "1", "--processes", "1")
    assert main(words) == 1
    assert "other settings: append_eod was False, is True" in run(capsys, *words, "--append-eod")[2]
    assert record(capsys, *words, "--append-eod", "--skip-bad-lines", "--restart")["num_shards_reused"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory-bytes", "1KB"], "`--memory-bytes`: must be 67108864 or more, got 1000"),
        (["--shard-bytes", "1"], "`--shard-bytes`: must be 64000 or more, got 1"),
        (["--shard-bytes", "63.9KB"], "`--shard-bytes`: must be 64000 or more, got 63900"),
        (["--split", "train=0.9"], "must be above 0 and add up to 1, got {'train': 0.9}"),
        (["--split", "a=1", "--split-seed", "-1"], "`--split-seed`: must be in [0, 2**64), got -1"),
        (["--max-bad-records", "few"], "'few': it is not an integer"),
        (["--max-bad-records", "1", "--skip-bad-lines"], "cannot be combined with `--max-bad-records`"),
        (["--processes", "0"], "`--processes`: must be 1 or more, got 0"),
        (["--runner", "ray", "--workers", "-1"], "`--workers`: must be 1 or more, got -1"),
    ],
)
def test_wrong_values_are_told(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str):
    path = write_lines(folder / "in.jsonl", [{"text": "a"}])
    status, _, err = run(capsys, *arguments(folder, path, *words))
    assert (status in (1, 2), message in err, leftovers(folder / "out")) == (True, True, [])


TURNS = (("user", "Hi"), ("assistant", "Ho"), ("user", "More"), ("assistant", "No"))
TALK = {"messages": [{"role": role, "content": content} for role, content in TURNS]}


@pytest.fixture
def chat(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    write_lines(tmp_path / "chat.jsonl", [TALK, TALK])
    return ["preprocess-chat", "chat.jsonl", "--output-prefix", "chat", "--tokenizer", "tokenizer.json"]


def test_conversations_become_a_pair_with_roles(chat, tmp_path, capsys):
    *table, last = output(capsys, *chat, "--chat-template", "chatml", "--verbose").splitlines()
    assert ["documents", "2"] in [line.split() for line in table]
    assert any("answer tokens" in line for line in table)
    assert last.startswith("chat: 2 documents, ")
    files = leftovers(tmp_path, tmp_path / "chat.jsonl", tmp_path / "tokenizer.json")
    names = ("bin", "columns.json", "idx", "manifest.json", "origins.npy", "roles.npy")
    assert files == [f"chat.{name}" for name in names]
    words = ("--sample", 0, "--tokenizer", "tokenizer.json", "--split", 1, "--sequence-length", 128)
    lines = output(capsys, "show", "chat", *words).splitlines()
    assert lines[0] == "sample 0 of 2 (train)"
    marks = [number for number, line in enumerate(lines) if line.endswith("loss]")]
    assert [lines[number] for number in marks] == ["[prompt, without loss]", "[answer, with loss]"] * 2
    assert lines[marks[1] + 1] == "Ho<|im_end|>"
    assert lines[marks[3] + 1] == f"No<|im_end|>[EOD {EOD}]"


def test_a_template_that_never_ends_is_ended_at_the_limit(chat, tmp_path, capsys):
    loops = "{% for i in range(999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    (tmp_path / "loops.jinja").write_text(loops)
    status, _, err = run(capsys, *chat, "--chat-template", "loops.jinja", "--record-timeout-seconds", 0.5)
    assert "loops.jinja takes longer than 0.5 seconds for the first record of `chat.jsonl`" in err
    assert (status, "raise `--record-timeout-seconds`" in err) == (1, True)


def test_other_commands_know_the_images(capsys, folder, monkeypatch):
    (folder / "cat.jpg").write_bytes(b"\xff\xd8image")
    write_lines(folder / "pairs.jsonl", [{"text": "a cat", "image": "cat.jpg"}, {"text": "x", "image": "absent"}])
    monkeypatch.chdir(folder)
    words = ("pairs.jsonl", "--output-prefix", "p", "--tokenizer", ".", "--skip-bad-lines")
    assert run(capsys, "preprocess-multimodal", *words)[0] == 0
    lines = output(capsys, "show", "p", "--document", 0, "--tokenizer", ".").splitlines()
    assert lines[0] == "document 0 of p"
    assert any(", sequence 0 of 2, all 3 tokens ─" in line for line in lines)
    assert {"a cat", "[image of 7 bytes]"} <= set(lines)
    assert ["sequences of mode 0", "1 with 3 tokens"] in rows_of(output(capsys, "info", "p", "--multimodal"))
    assert record(capsys, "info", "p", "--multimodal")["modes"] == [[0, 1, 3], [1, 1, 3]]
    assert run(capsys, "verify", "p", "--multimodal")[0] == 0
    out = output(capsys, "merge", "p", "p", "--multimodal", "--output-prefix", "twice")
    assert ["2", "2", "4", "12", "48", "int32"] in [row[1:] for row in rows_of(out)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory with records in `data.txt`, GPT-2's two files, a tokenizer and word pieces."""
    write_gpt2(tmp_path)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "##s"]
    texts = {"tokenizer.json": byte_level_json(), "vocab.txt": "\n".join(pieces), "lines.txt": "one\ntwo\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    write_lines(tmp_path / "data.txt", [{"text": "one two", "title": "Ones"}, {"text": "", "title": "two"}])
    monkeypatch.chdir(tmp_path)
    return tmp_path


GPT2 = "--tokenizer-type GPT2BPE --vocab-file vocab.json --merge-file merges.txt"


def as_tool(line: str, output: str) -> int:
    return main(["preprocess", *line.split(), "--output-prefix", output, "--no-origins"])


def test_the_tools_line_gives_what_our_own_options_give(files, capsys):
    more = "--log-interval 10 --keep-sequential-samples --dataset-impl mmap --lang english --append-eod"
    assert as_tool(f"--input data.txt {GPT2} --json-keys text title {more} --workers 2 --partitions 1", "a") == 0
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[0] for note in notes] == ["--log-interval", "--keep-sequential-samples"]
    ours = "data.txt --input-format jsonl --tokenizer tokenizer.json --json-keys text title --append-eod --processes 1"
    assert as_tool(ours, "b") == 0
    for key in ("text", "title"):
        assert pair_bytes(files / f"a_{key}_document") == pair_bytes(files / f"b_{key}_document")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"data.txt --input data.txt {GPT2}", "INPUT and --input both set the inputs"),
        ("--input data.txt --tokenizer byte --tokenizer-type GPT2BPE", "--tokenizer and --tokenizer-type both"),
        ("--input data.txt --tokenizer byte --tokenizer-model x", "--tokenizer and --tokenizer-model both"),
        ("--input data.txt --tokenizer-type GPT2BPE", "needs --vocab-file and --merge-file"),
        ("--input data.txt --vocab-file vocab.json", "--vocab-file needs --tokenizer-type"),
        (f"--input data.txt {GPT2} --partitions 2 --processes 2", "--partitions and --processes"),
        (f"--input lines.txt {GPT2}", "line 1"),  # which is no JSON: the tool reads nothing else
    ],
)
def test_what_cannot_be_meant_is_said(files, capsys, line, words):
    assert as_tool(line, "x") == 1
    assert words in capsys.readouterr().err
    assert not list(files.glob("x*"))


def test_images_of_a_folder_go_with_lines(files, capsys):
    (files / "images").mkdir()
    for name in ("1.png", "2.png"):
        (files / "images" / name).write_bytes(b"image " + name.encode())
    line = "--input data.txt --input-image images --pad-length 4 --append-eod --output-prefix mm --no-origins"
    assert main(["preprocess-multimodal", *line.split(), *GPT2.split(), "--text-key", "title"]) == 0
    images = [json.loads(row)["image"] for row in (files / "mm.pairs.jsonl").read_text().splitlines()]
    assert images == [str(files / "images" / name) for name in ("1.png", "2.png")]
    assert (files / "mm.bin").exists()
    bert = "--tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt"
    status, _, err = run(capsys, "preprocess-multimodal", *line.split(), *bert.split())
    assert (status, "add --tokenizer-hf-no-include-special-tokens" in err) == (1, True)
    status, _, err = run(capsys, "preprocess-multimodal", "--output-prefix", "mm", "--tokenizer", "byte")
    assert (status, "missing: INPUT (or --input)" in err) == (2, True)
