"""Messages on stderr, tables and lines on stdout; stopped commands clean up and print how to resume."""

import io
import itertools
import logging
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
from tests.inspect.drawn import sample
from tests.preprocess.corpus import byte_level_json, leftovers, write_lines
from tests.support import wait_until, write_corpus

from tokenloom import cli
from tokenloom.cli.messages import TerminalReporter, error_lines, hint_in_options, print_warnings
from tokenloom.cli.options import CommandParser
from tokenloom.cli.output import look_of, print_lines, table
from tokenloom.errors import ConfigError, IgnoredSettingWarning
from tokenloom.inspect.shown import shown_lines
from tokenloom.progress import Task, Wait
from tokenloom.rendering.progress_words import Amounts
from tokenloom.rendering.words import cell_width, printable


def parser_of(*words: str) -> CommandParser:
    """Returns the parser of a command."""
    parser = cli.build_parser(())
    for word in words:
        parser.load([word])
        parser = parser._commands.choices[word]
    return parser


REPLACE = "choose another output, or replace it with `overwrite=True`"
USE = "use that one; `allow_tokenizer_mismatch=True` reads them"


@pytest.mark.parametrize(
    ("command", "hint", "told"),
    [
        ("preprocess", "leave out `restart=True` to share it", "leave out `--restart` to share it"),
        ("preprocess", "name it with `eod_token`", "name it with `--eod-token`"),
        ("preprocess", "allow more with `memory_bytes`", "allow more with `--memory-bytes`"),
        ("preprocess", "`data` or `./data_x.jsonl`", "`data` or `./data_x.jsonl`"),
        ("pack-report", "raise `max_seqlen_per_dp_cp_rank`", "raise `--max-seqlen-per-dp-cp-rank`"),
        ("info", "open it with `multimodal=True`", "open it with `--multimodal`"),
        ("info", "read them with `IndexedDataset(prefix, multimodal=True)`", "read them with `--multimodal`"),
        ("info", "open it with `multimodal=False`", "open it without `--multimodal`"),
        ("plan", 'such as `split="99,1,0"`', "such as `--split 99,1,0`"),
        ("plan", "made without `append_eod`", "made without `tokenloom preprocess --append-eod`"),
        ("prepare-cache", "`mmap_bin_files=False` reads it", "`--no-mmap-bin-files` reads it"),
        ("merge", REPLACE, "choose another output, or replace it with `--overwrite`"),
        ("verify", REPLACE, "choose another output"),
        ("show", f"tokenize again, or {USE}", "tokenize again, or use that one"),
        ("prepare-cache", USE, "use that one; `--set allow_tokenizer_mismatch=true` reads them"),
        ("show", "`allow_tokenizer_mismatch=True` reads them", None),
    ],
)
def test_settings_become_options_of_the_command(command, hint, told):
    assert hint_in_options(hint, parser_of(command)) == told


def test_an_error_links_its_documentation():
    error = ConfigError("`window_policy` is 3", hint="such as `window_policy=concat`")
    assert error_lines(error, parser_of("plan")) == (
        "error: `--window-policy` is 3\nhint: such as `--window-policy concat`\n"
        "more: docs/troubleshooting.md#configerror"
    )


def test_warnings_have_no_file_and_no_source(capsys):
    with print_warnings(parser_of("plan")):
        warned = IgnoredSettingWarning("`window_policy` is\x1b[2J ignored")
        text = warnings.formatwarning(warned, IgnoredSettingWarning, "file.py", 3, "source")
        logging.getLogger("tokenloom.indexed").warning("`%s` is slow", "path_to_cache")
        logging.getLogger("tokenloom.indexed").info("not said")
    assert text == "warning: `--window-policy` is\\x1b[2J ignored\n"
    assert capsys.readouterr().err == "warning: `path_to_cache` is slow\n"


class Terminal:
    """A terminal, and what was written to it."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")

    def written(self) -> str:
        """Returns what was written since the last call."""
        found = b""
        while select.select([self.master], [], [], 0)[0]:
            found += os.read(self.master, 1 << 16)
        return found.decode().replace("\r\n", "\n")


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.stream.close()
    os.close(opened.master)


def bytes_task(description: str, done: int, total: int | None = None, *notes: str) -> Task:
    made = Task(description, Amounts("bytes", 0, total))
    made.tell(done, total=total, notes=notes)
    return made


def shown(text: str) -> list[str]:
    """Returns the successive texts of the changing line, without escape sequences."""
    lines = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]|\r", "\n", text).split("\n")
    return [line for line, _ in itertools.groupby(filter(None, lines))]


@pytest.mark.parametrize("width", [60, 200])
def test_a_line_fits_the_terminal(terminal, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    reporter = TerminalReporter(terminal.stream)
    job = bytes_task("preprocess", 1_200_000_000, 2_800_000_000, "12 rejected", "shards 4 of 11")
    job.started -= 60
    reporter.look([job], [])
    [text] = shown(terminal.written())
    reporter.hide()
    whole = "preprocess: 42 % (1.2 of 2.8 GB), 1 min 20 s left, 20 MB/s, 12 rejected, shards 4 of 11"
    assert text == (whole if width == 200 else whole[: width - 1] + "…")


def test_a_line_changes_in_its_place_and_goes(terminal):
    reporter = TerminalReporter(terminal.stream, clock=lambda: 0.0)
    merge = bytes_task("merge", 0)
    reporter.look([merge], [])
    merge(1000)
    reporter.look([merge], [])
    print("warning: odd", file=sys.stderr)
    reporter.end(merge, is_complete=True)
    written = terminal.written()
    assert shown(written) == ["merge: 0 bytes", "merge: 1 kB", "warning: odd", "merge: 1 kB"]
    assert written.endswith("\x1b[2K")  # the line is gone
    reporter.look([], [])
    assert terminal.written() == ""


def test_a_wait_stays_on_the_screen(terminal, capsys):
    reporter = TerminalReporter(terminal.stream)
    wait = Wait("an answer of `http://a:secret@b`", "AWS_ENDPOINT_URL names it")
    wait.started -= 6
    reporter.look([], [wait])
    reporter.look([], [wait])
    assert capsys.readouterr().err == "waiting for an answer of `http://…@b` for 6 s (AWS_ENDPOINT_URL names it)\n"


def test_a_narrow_terminal_folds_no_name_and_a_program_gets_whole_lines(capsys, monkeypatch):
    rows = [("demo-output/corpus/train_text_document", "1,234,567", "0.75"), ("b", "12", "0.25")]
    plan = lambda: table(("dataset", "tokens", "weight"), rows, title="a plan")  # noqa: E731
    print_lines(plan())
    assert "demo-output/corpus/train_text_document" in capsys.readouterr().out
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    print_lines(plan())
    lines = re.sub("\x1b[^m]*m", "", capsys.readouterr().out).splitlines()
    assert any("demo-output/corpu…ain_text_document   1,234,567     0.75" in line for line in lines)
    assert max(map(cell_width, lines)) <= 60


class Stdout(io.TextIOWrapper):
    """A terminal of some encoding."""

    def __init__(self, encoding="utf-8"):
        super().__init__(io.BytesIO(), encoding=encoding)
        self.isatty = lambda: True

    def text(self):
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


def test_a_terminal_has_colours_and_its_own_width(monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal := Stdout())  # no fixture: pytest replaces stdout after fixtures
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "LINES"):
        monkeypatch.delenv(name, raising=False)
    assert (look_of().colour, look_of().width) == (True, 50)
    print_lines(shown_lines(sample(), look_of()))
    assert "\x1b[7;33m<eod>\x1b[0m" in terminal.text()
    assert "\x1b[1m── document 5 of web, all 5 tokens ───────────────\x1b[0m\n" in terminal.text()


def test_a_log_has_marks_and_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "50")
    assert (look_of().colour, look_of().width) == (False, 80)
    print_lines(shown_lines(sample(), look_of(most_tokens=2)))
    out = capsys.readouterr().out
    assert "[without loss][BOS <s>]\n[3 more tokens]\n[with loss][EOD <eod>]\n" in out
    assert "\x1b" not in out


def test_visible_text_is_what_stdout_can_take(monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal := Stdout("ascii"))
    print_lines([printable("na\u00efve\x1b\n\t")])
    assert terminal.text() == "na\\xefve\\x1b\n\t\n"


START_OVER = "nothing was written: run the same command again to start over"
GO_ON = "[0-9]+ of [0-9]+ shards (is|are) done: run the same command again to go on"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("data") / "data", [np.arange(40) for _ in range(2000)])


@contextmanager
def running(*words: object, program: Any = ("-m", "tokenloom"), **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Starts a command with default signal handlers; kills it at the end of the block."""

    def reset() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": reset} | options
    process = subprocess.Popen([sys.executable, *program, *map(str, words)], **settings)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], number: int | None = None) -> tuple[int, str]:
    """Sends a signal, if any; returns the exit status and the rest of stderr."""
    if number is not None:
        process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def is_alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_stopped_corpus_job_cleans_up_and_leaves_no_process(tmp_path):
    rng, out = np.random.default_rng(0), tmp_path / "out"
    words = ["alpha ", "beta(", ") = gamma\n", "delta_1 "]
    write_lines(tmp_path / "in.jsonl", [{"text": "".join(rng.choice(words, 300))} for _ in range(300)] * 25)
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    out.mkdir()
    command = f"preprocess {tmp_path}/in.jsonl --tokenizer {tmp_path}/tokenizer.json --output-prefix {out}/p"
    work = "--engine tokenizers --processes 2 --workers 1 --shard-bytes 500KB"
    with running(*command.split(), *work.split()) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        has_begun = lambda: any(path.is_file() for path in out.rglob("*"))  # noqa: E731
        wait_until(lambda: has_begun() and len(children.read_text().split()) == 2, seconds=300, process=process)
        begun = [int(number) for number in children.read_text().split()]
        status, errors = ended(process, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM
    assert re.fullmatch(rf"stopped by SIGTERM; ({START_OVER}|{GO_ON})\n", errors), errors
    # One that was just being started ends once it finds its parent gone.
    wait_until(lambda: not any(is_alive(child) for child in begun), seconds=300)
    assert [name for name in leftovers(out) if name != "p.job"] == []


SLOW_CLEANUP = """
import sys, time
from tokenloom import cli
from tokenloom.cli import datasets
def run(options):
    try:
        print("ready", flush=True)
        while True:  # one long sleep could begin just after the signal, and Python would act on it at its end
            time.sleep(0.01)
    finally:
        print("cleaning", flush=True)
        sys.stdin.readline()
        print("clean", flush=True)
run.__annotations__ = {"options": datasets.InfoOptions}
datasets.info = run
sys.exit(cli.main(["info", "x"]))
"""


def test_signals_that_come_together_are_one():
    with running(program=("-c", SLOW_CLEANUP), stdin=subprocess.PIPE) as process:
        for line, number in (("ready", signal.SIGTERM), ("cleaning", signal.SIGHUP)):
            assert process.stdout.readline() == f"{line}\n"
            process.send_signal(number)
        output, _ = process.communicate("\n", timeout=300)
        assert (process.returncode, output) == (143, "clean\n")


@pytest.mark.parametrize(
    ("command", "status"), [("info DATA", 141), pytest.param("info --help", 0, marks=pytest.mark.slow)]
)
def test_output_that_nobody_reads_ends_a_command_quietly(data, command, status):
    read, write = os.pipe()
    os.close(read)
    with running(*command.replace("DATA", data).split(), stdout=write) as process:
        os.close(write)
        assert ended(process) == (status, "")


def test_output_that_does_not_fit_the_disk_is_an_error(data):
    with open("/dev/full", "w") as full, running("info", data, stdout=full) as process:
        assert ended(process) == (1, "error: cannot write to standard output: No space left on device\n")


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_named_with_its_setting():
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections and never answers
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        with running("info", "s3://bucket/data", env={**os.environ, **keys, "AWS_ENDPOINT_URL": address}) as process:
            reason = rf"`s3://bucket` for \d+ s \(attempt 1; AWS_ENDPOINT_URL={address}\)"
            assert re.fullmatch(f"waiting for an answer of {reason}\n", process.stderr.readline())
            assert ended(process, signal.SIGINT) == (130, "interrupted\n")


STOPPED_WITHIN = """
import sys, time
from tokenloom import cli
import {module} as module
def wait(*_, **__):
    print("ready", file=sys.stderr, flush=True)
    while True:  # one long sleep could begin just after the signal, and Python would act on it at its end
        time.sleep(0.01)
module.{name} = wait
sys.exit(cli.main({arguments!r}))
"""


@pytest.mark.parametrize(
    ("command", "place", "words"),
    [
        (
            "merge PREFIX PREFIX --output-prefix OUT/all",
            "tokenloom.indexed.writing.concatenate.put_piece",
            START_OVER,
        ),
        pytest.param(
            "prepare-cache --data-path PREFIX --split 1,0,0 --sequence-length 8 --train-samples 20 --path-to-cache OUT "
            "--tokenizer TOKENIZER",
            "tokenloom.order.array_store.IndexCacheWriter",
            "complete indices are kept: run the same command again to resume",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["merge", "prepare-cache"],
)
def test_a_command_that_is_stopped_says_what_it_leaves(tmp_path: Path, command: str, place: str, words: str):
    prefix = tmp_path / "data"
    write_corpus(prefix, [np.arange(40) for _ in range(20)])
    (tmp_path / "out").mkdir()
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    module, _, name = place.rpartition(".")
    paths = {"PREFIX": prefix, "OUT": tmp_path / "out", "TOKENIZER": tmp_path / "tokenizer.json"}
    for word, path in paths.items():
        command = command.replace(word, str(path))
    script = STOPPED_WITHIN.format(module=module, name=name, arguments=command.split())
    with running(program=("-c", script)) as process:
        assert process.stderr.readline() == "ready\n"
        assert ended(process, signal.SIGINT) == (130, f"interrupted; {words}\n")
    assert list((tmp_path / "out").iterdir()) == []
