"""All commands: options, likely mistakes, defaults, JSON, and starting the program."""

import argparse
import dataclasses
import functools
import importlib
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from retro_building import build_words, write_data
from tests.cli.runs import output, run, write_run
from tests.preprocess.corpus import byte_level_json, write_lines
from tests.run.data import write_source
from tests.support import write_corpus

import tokenloom
from tokenloom import IndexedDatasetBuilder, cli
from tokenloom.adapters.arrow import export_documents
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.cli import build_parser, demo, main
from tokenloom.cli.commands import COMMANDS, RUN_COMMANDS
from tokenloom.cli.options import CommandParser, option, shares, split_weights
from tokenloom.cli.output import json_text
from tokenloom.errors import OutputExistsError
from tokenloom.indexed.writing.concatenate import build_catalogue, merge_datasets
from tokenloom.inputs.formats import FORMATS
from tokenloom.numbers import bytes_text
from tokenloom.preprocess.chat import preprocess_chat
from tokenloom.preprocess.corpus import preprocess_corpus
from tokenloom.preprocess.multimodal import preprocess_multimodal
from tokenloom.preprocess.schemas import SCHEMAS
from tokenloom.preprocess.settings import ChatSettings, CorpusSettings
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.kinds import ENGINES, KINDS
from tokenloom_look.target import SampleSettings
from tokenloom_retro.build import build_retro


def with_subparsers(parser: CommandParser) -> Iterator[CommandParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from with_subparsers(inner)


PARSERS = {parser.prog.removeprefix("tokenloom "): parser for parser in with_subparsers(cli.build_parser())}


def test_no_parser_takes_abbreviations():
    names = [name for group in COMMANDS.values() for name in group]
    of_run = [f"run {name}" for group in RUN_COMMANDS.values() for name in group]
    of_retro = [f"retro {name}" for name in ("build", "show", "verify")]
    assert set(PARSERS) == {"tokenloom", *names, *of_run, *of_retro}
    assert not any(parser.allow_abbrev for parser in PARSERS.values())


NO_NUMBER = "split '90,abc,5': item 2 'abc' at column 4 is not a number"
GRAMMAR = "write weights such as 98,1,1, or shares such as train=0.98,valid=0.01,test=0.01"
PAIR = "--data-path corpus_text_document --sequence-length 2"
MISTAKES = [
    ("", "", "no command given", ""),
    ("run", "lokc", "unknown command `lokc`", "did you mean `lock`? "),
    ("merge", "data --output-prefix x --overwrit", "unknown option `--overwrit`", "did you mean `--overwrite`? "),
    (
        *("preprocess", "--workrs 3 --tokeniser=t.json"),
        *("unknown options `--workrs`, `--tokeniser`", "did you mean `--workers`, `--tokenizer`? "),
    ),
    (
        *("preprocess", ""),
        *("missing: --output-prefix PREFIX, INPUT (or --input), --tokenizer PATH (or --tokenizer-type)", ""),
    ),
    ("plan", "", "missing: --sequence-length N, --data-path ENTRY… (or --data-args-path FILE)", ""),
    ("catalogue", "data --output-prefix", "`--output-prefix`: no value given", ""),
    ("show", "data --document 1 --sample 2", "`--sample`: cannot be combined with `--document`", ""),
    ("show", "data", "missing: --document, --sample or --position", ""),
    ("run init", "data --json=yes", "`--json`: takes no value, got 'yes'", ""),
    *(
        ("show", f"data --sample 0 --from {word}", f"`--from`: must be train, valid or test, got '{word}'", hint)
        for word, hint in (("trian", "did you mean `train`? "), ("some", ""))
    ),
    ("preprocess-chat", "a --input b --output-prefix o", "`--input`: cannot be combined with `INPUT`", ""),
    ("run id", "run.toml and more", "unexpected `and`, `more`", ""),
    ("plan", f"{PAIR} --train-samples 1e6", "`--train-samples`: '1e6' is not an integer", ""),
    ("plan", f"{PAIR} --data-args-path x", "`--data-args-path`: cannot be combined with `--data-path`", ""),
    ("pack-report", "--max-seqlen-per-dp-cp-rank 4 --dp-size 1", "missing: PREFIX", ""),
    (
        *("prepare-cache", f"{PAIR} --tokenizer byte --path-to-cache cache --sft --dataset bert"),
        *("`--dataset`: cannot be combined with `--sft`", ""),
    ),
    ("plan", f"{PAIR} --split 90,abc,5", f"`--split`: {NO_NUMBER}; {GRAMMAR}", ""),  # one that silently vanished
]


@pytest.mark.parametrize(("command", "more", "error", "hint"), MISTAKES)
def test_mistakes_are_named_with_what_was_meant(command, more, error, hint, capsys):
    program = f"tokenloom {command}".strip()
    what = "commands" if command in ("", "run") else "options"
    expected = f"error: {error}\nhint: {hint}`{program} --help` lists all {what}\n"
    assert run(capsys, *command.split(), *more.split()) == (2, "", expected)


def test_messages_contain_no_secret_and_no_control_character(capsys):
    assert output(capsys, "--version") == f"tokenloom {tokenloom.__version__}\n"
    status, _, err = run(capsys, "merge", "--ouput-prefix=http://host/a?token=word", "--\x1b[2J")
    assert (status, "word" in err, "\x1b" in err) == (2, False, False)
    assert err.startswith("error: unknown options `--ouput-prefix`, `--\\x1b[2J`\n")


@pytest.mark.parametrize(("command", "groups"), [([], COMMANDS), (["run"], RUN_COMMANDS)])
def test_help_names_every_command_in_its_group(command, groups, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = output(capsys, *command, "--help").splitlines()
    for title, commands in groups.items():
        start = lines.index(f"{title}:") + 1
        found = [line.split(maxsplit=1) for line in lines[start : start + len(commands)]]
        assert found == [[name, text] for name, (_, text) in commands.items()]
    assert any("--help" in line for line in lines)
    assert all(len(line) < 80 for line in lines)


IMPORTED = """
import json, sys
from tokenloom import cli
try:
    cli.main(sys.argv[1:])
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["--help"], ["run", "lokc"]])
def test_what_runs_no_command_imports_none(words):
    done = subprocess.run([sys.executable, "-c", IMPORTED, *words], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    assert not modules & {"numpy", "torch", "rich", "multiprocessing", "pyarrow"}


@pytest.mark.parametrize(
    ("text", "weights", "by_name"),
    [
        ("98,1,1", "98,1,1", {"train": 0.98, "valid": 0.01, "test": 0.01}),
        ("3,1", "3,1", {"train": 0.75, "valid": 0.25}),
        ("1", "1", {"train": 1.0}),
        ("train=0.99,valid=0.01", "0.99,0.01,0.0", {"train": 0.99, "valid": 0.01}),
        ("test=0.25,train=0.75", "0.75,0.0,0.25", {"train": 0.75, "test": 0.25}),
    ],
)
def test_splits_have_one_grammar(text, weights, by_name):
    assert split_weights(text) == weights
    assert shares(text) == by_name


@pytest.mark.parametrize("parse", [split_weights, shares])
@pytest.mark.parametrize(
    "text", ["90,abc,5", "1,-1", "1,2,3,4", "0,0", "train=0.9,train=0.1", "train", "train=2", "=1", "train=0.5,98", ""]
)
def test_a_split_that_is_none_shows_both_forms(parse, text):
    with pytest.raises(ArgumentTypeError, match=r"; write weights such as 98,1,1, or shares such as train=0\.98"):
        option(parse)(text)


@pytest.mark.parametrize("text", ["train=0.9", "train=0.9,dev=0.1"])
def test_shares_of_a_run_are_of_train_valid_and_test(text):
    with pytest.raises(ArgumentTypeError, match="shares of train, valid and test must add up to 1, got"):
        option(split_weights)(text)


@pytest.mark.parametrize(
    ("command", "option", "expected"),
    [
        ("preprocess", "--engine", ENGINES),
        ("preprocess", "--tokenizer-kind", ("auto", *KINDS)),
        ("preprocess", "--input-format", FORMATS),
        ("preprocess-chat", "--engine", ENGINES),
        ("preprocess-chat", "--schema", SCHEMAS),
    ],
)
def test_choices_are_those_of_the_library(capsys, command, option, expected):
    words = (command, "in", "--output-prefix", "out", "--tokenizer", "byte", option, "none-of-them")
    choices = run(capsys, *words)[2].partition(": must be ")[2].partition(", got ")[0]
    assert choices.replace(" or ", ", ").split(", ") == list(expected)


MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}
SATELLITES = {name: module.strip("[]") for name, module in MODULES.items() if module[0] == "["}
ROOT = Path(__file__).parents[2]
PROJECTS = {path.parent.name: tomllib.loads(path.read_text()) for path in ROOT.glob("packages/*/pyproject.toml")}


@pytest.mark.parametrize("name", SATELLITES)
def test_a_command_that_is_missing_names_its_distribution(name, monkeypatch, capsys):
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    status, out, err = run(capsys, name)
    error, hint, _ = err.splitlines()
    assert (status, out) == (1, "")
    assert error == f"error: `tokenloom {name}` is in tokenloom-{SATELLITES[name]}, which is not installed"
    assert hint == f"hint: run `pip install 'tokenloom[{SATELLITES[name]}]'`"


def test_satellites_have_the_commands_and_the_version_of_the_core():
    found = {}
    for name, project in PROJECTS.items():
        assert project["project"]["version"] == tokenloom.__version__
        core = [each for each in project["project"]["dependencies"] if each.startswith("tokenloom")]
        assert [each.partition("==")[2] for each in core] == [tokenloom.__version__]
        commands = project["project"]["entry-points"]["tokenloom.commands"]
        found |= dict.fromkeys(commands, name.removeprefix("tokenloom-"))
    assert found == SATELLITES


def test_nothing_imports_a_satellite_but_itself():
    faults = []
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")]:
        own = path.relative_to(ROOT).parts[3] if path.parts[len(ROOT.parts)] == "packages" else ""
        named = re.findall(r"^\s*(?:from|import) (tokenloom_\w+)", path.read_text(), re.MULTILINE)
        faults += [f"{path}: {name}" for name in named if name != own]
    assert faults == []


class Shape(Enum):
    round = 1


@dataclass(frozen=True, slots=True)
class Pair:
    path: Path
    lengths: object


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Pair(Path("a/b"), np.array([1, 2], dtype=np.uint16)), '{"path": "a/b", "lengths": [1, 2]}'),
        ({"n": np.int64(3), "b": np.bool_(True), "x": np.float32(0.5)}, '{"n": 3, "b": true, "x": 0.5}'),
        ([Shape.round, Fraction(1, 4), datetime(2026, 1, 2)], '["round", 0.25, "2026-01-02T00:00:00"]'),
        ({"m": MappingProxyType({"k": (1, None)})}, '{"m": {"k": [1, null]}}'),
        ("ü\udcff", r'"\u00fc\udcff"'),
    ],
)  # fmt: skip
def test_values_of_all_kinds(value, text):
    assert json_text(value) == text


WITHOUT_JSON = {"explore", "tokenloom", "run", "retro"}

LIKE = {"when": "trace", "run amend": "run lock"}
LIKE |= dict.fromkeys(("preprocess-chat", "preprocess-multimodal"), "preprocess")
"""Commands whose help refers to the keys of another one."""

DATA = ("--data-path", "F/plain", "--sequence-length", 8, "--split", "8,1,1")
RUN = ("F/run.toml",)
CHATML = ("--workers", 1, "--chat-template", "chatml")

# F is a folder with a run, P a prefix in it.
CASES: dict[str, Sequence[object]] = {
    "preprocess": ("F/in.jsonl", "--output-prefix", "F/out/text", "--tokenizer", "byte", "--workers", 1),
    "preprocess-chat": ("F/chat.jsonl", "--output-prefix", "F/out/chat", "--tokenizer", "F/tokenizer.json", *CHATML),
    "preprocess-multimodal": ("F/mm", "--output-prefix", "F/out/mm", "--tokenizer", "byte", "--workers", 1),
    "merge": ("P", "P", "--output-prefix", "F/out/merged"),
    "catalogue": ("P", "P", "--output-prefix", "F/out/all"),
    "column": ("info", "P"),
    "info": ("P",),
    "plan": DATA,
    "pack-report": ("P", "--max-seqlen-per-dp-cp-rank", 64, "--dp-size", 2),
    "prepare-cache": (*DATA, "--path-to-cache", "F/out/cache", "--tokenizer", "null:5000", "--verify"),
    "sequences-per-dataset": ("--data-path", "P", "--output", "F/out/counts.json"),
    "show": ("P", "--document", 0, "--tokenizer", "null:5000"),
    "stream": (*DATA, "--tokenizer", "null:5000", "--batches", 2),
    "trace": (*RUN, "--position", 3),
    "when": (*RUN, "--document", "code:3"),
    "deny": (*RUN, "--document", "code:3", "--from-position", 2, "--dry-run"),
    "verify": ("P",),
    "contamination": ("F/in.jsonl", "--data", "P", "--tokenizer", "null:5000"),
    "run init": ("--data-path", "P", "-o", "F/out/new.toml"),
    "run lock": RUN,
    "run plan": RUN,
    "run amend": (*RUN, "--at-position", 50, "--weights", "web=1,code=1", "--dry-run"),
    "run check": RUN,
    "run digest": RUN,
    "run id": RUN,
    "run diff": (*RUN, *RUN),
    "run stream": (*RUN, "--batches", 2),
    "export": ("P", "--output", "F/out/rows.parquet"),
    "ledger": (*RUN, "--until-position", 20),
    "replay": (*RUN, "--to-position", 8),
    "report": ("P", "--sequence-length", 16, "--tokenizer", "null:5000", "-o", "F/out/page.html"),
    "demo": ("--output", "F/out/demo", "--vocab-size", 300, "--sequence-length", 64),
    "check-isolation": ("F/models.py:make", "F/packed.toml"),
    "doctor": ("F",),
    "retro build": build_words(Path("F/retro"))[2:],
    "retro show": ("F/retro/project", "--sample", 0),
    "retro verify": ("F/retro/project",),
    "verify-resume": ("F/loaders.py:make", "--batches", 3, "--world-sizes", "1", "--kill-at", 1, "--seed", 1),
}

LOADER = "def make(consumed):\n    return [[number] for number in range(3)][consumed:]\n"
MODEL = """\
from torch import nn

class Model(nn.Embedding):
    def forward(self, tokens):
        return super().forward(tokens)

def make():
    return Model(300, 300)
"""

PACKED = """\
order = 1
seed = 1
samples.inter_document_masking = true
sources.packed = "packed_text_document"
[[stages]]
sequence_length = 24
samples = 4
weights = { packed = 1 }
"""


@pytest.fixture(scope="module")
def json_folder(tmp_path_factory):
    json_folder = tmp_path_factory.mktemp("json")
    write_run(json_folder, manifests=True)
    (json_folder / "out").mkdir()
    write_source(str(json_folder / "plain"), *[32] * 40)
    (json_folder / "tokenizer.json").write_text(byte_level_json())
    write_lines(json_folder / "in.jsonl", [{"text": "two words"}, {"text": "three more words"}])
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    write_lines(json_folder / "chat.jsonl", [{"messages": turns}])
    (json_folder / "mm").mkdir()
    (json_folder / "mm" / "cat.txt").write_text("a cat")
    (json_folder / "mm" / "cat.jpg").write_bytes(b"\xff\xd8\xff\xe0 an image")
    (json_folder / "loaders.py").write_text(LOADER)
    (json_folder / "models.py").write_text(MODEL)
    (json_folder / "packed.toml").write_text(PACKED)
    packed = (
        f"{json_folder}/in.jsonl",
        "--output-prefix",
        f"{json_folder}/packed",
        "--tokenizer",
        "byte",
        "--workers",
        "1",
    )
    assert cli.main(["preprocess", *packed]) == 0
    (json_folder / "retro").mkdir()
    write_data(json_folder / "retro")
    for command, words in (("retro build", CASES["retro build"]), ("run lock", RUN)):
        assert cli.main(_words(command, words, json_folder)) == 0
    return json_folder


def _words(command, words, json_folder):
    prefix = str(json_folder / "data" / "code")
    paths = {"P": prefix, "F": str(json_folder)}
    return [*command.split(), *(paths.get(word) or str(word).replace("F/", f"{json_folder}/") for word in words)]


def test_every_command_prints_json():
    assert set(CASES) | WITHOUT_JSON == set(PARSERS)
    lacking = [name for name in CASES if "--json" not in PARSERS[name]._option_string_actions]
    assert lacking == []


@pytest.mark.parametrize("command", CASES)
def test_json_is_one_object_whose_keys_the_help_names(command, json_folder, capsys, monkeypatch):
    texts = [(str(number), f"def f{number}():\n    return {number}\n" * 20) for number in range(40)]
    monkeypatch.setattr(demo, "_source_texts", lambda: iter(texts))
    capsys.readouterr()
    assert cli.main([*_words(command, CASES[command], json_folder), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 or command in ("trace", "when")
    parsers = [PARSERS[name] for name in (command, LIKE.get(command, command))]
    texts = [f"{each.description} {each._option_string_actions['--json'].help}" for each in parsers]
    named = {word for text in texts for word in re.findall(r"\w+", text)}
    for line in lines:
        found = json.loads(line, parse_constant=pytest.fail)
        assert found
        assert [name for name in found if not re.fullmatch("[a-z][a-z0-9_]*", name)] == []
        assert sorted(set(found) - named) == []


class CallError(Exception):
    """The arguments of a call that a command was about to make."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()
        self.given, self.named = given, named


def called(monkeypatch: pytest.MonkeyPatch, place: str, *words: str) -> CallError:
    """Runs a command up to the call of a function; returns the call."""
    module, _, name = place.rpartition(".")

    @functools.wraps(getattr(importlib.import_module(module), name))  # whose defaults commands look up
    def call(*given: Any, **named: Any) -> None:
        raise CallError(*given, **named)

    monkeypatch.setattr(place, call)
    with pytest.raises(CallError) as caught:
        main(words)
    return caught.value


def others_than_by_default(value: Any) -> dict[str, Any]:
    """Returns the settings that differ from their defaults."""
    missing, known = dataclasses.MISSING, {}
    for field in dataclasses.fields(value):
        if field.init and (field.default is not missing or field.default_factory is not missing):
            known[field.name] = field.default if field.default is not missing else field.default_factory()
    return {name: getattr(value, name) for name in known if getattr(value, name) != known[name]}


def check(function: Any, call: CallError) -> None:
    """Checks that all optional arguments of a call are the defaults of the function."""
    signature = inspect.signature(function)
    for name, value in signature.bind(*call.given, **call.named).arguments.items():
        default = signature.parameters[name].default
        if dataclasses.is_dataclass(value):
            assert others_than_by_default(value) == {}, name
        elif default is not inspect.Parameter.empty:
            assert value == default, name


TEXTS = "in.jsonl --output-prefix out --tokenizer ."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory with records, a tokenizer and a pair."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    write_lines(tmp_path / "in.jsonl", [{"text": "a"}])
    write_corpus(tmp_path / "pair", [[1] * 20, [2] * 20])
    return tmp_path


@pytest.mark.parametrize(
    ("function", "module", "words"),
    [
        (preprocess_corpus, "tokenloom.preprocess.corpus", f"preprocess {TEXTS}"),
        (preprocess_chat, "tokenloom.preprocess.chat", f"preprocess-chat {TEXTS}"),
        (preprocess_multimodal, "tokenloom.preprocess.multimodal", f"preprocess-multimodal {TEXTS}"),
        (merge_datasets, "tokenloom.cli.datasets", "merge pair --output-prefix out"),
        (build_catalogue, "tokenloom.cli.datasets", "catalogue pair --output-prefix out"),
        (export_documents, "tokenloom.cli.datasets", "export pair --output out"),
        (
            *(build_retro, "tokenloom_retro.build"),
            "retro build project --data pair --tokenizer . --sequence-length 64 --index Flat --num-index-chunks 9",
        ),
    ],
    ids=lambda each: each.partition(" ")[0] if isinstance(each, str) and " " in each else "",
)
def test_a_command_without_options_is_the_plain_call(folder, monkeypatch, function, module, words):
    call = called(monkeypatch, f"{module}.{function.__name__}", *words.split())
    call.named.pop("notice", None)
    if function is build_retro:
        call.named["tasks"] = tuple(call.named["tasks"])
    check(function, call)


PREPARE = "prepare-cache --path-to-cache cache --data-path pair --sequence-length 8 --tokenizer ."


def test_a_configuration_has_the_defaults_of_its_class(folder, monkeypatch):
    words = PREPARE.split()
    call = called(monkeypatch, "tokenloom.cli.blends.BlendedMegatronDatasetBuilder", *words)
    config = inspect.signature(BlendedMegatronDatasetBuilder).bind(*call.given).arguments["config"]
    given = {"blend", "split", "tokenizer", "path_to_cache", "verify", "create_attention_mask"}
    others = {name: value for name, value in others_than_by_default(config).items() if name not in given}
    assert others.pop("object_storage", ObjectStorageSettings()) == ObjectStorageSettings()
    assert not any(others.values()), others  # False where the class has None, which is the same


@pytest.mark.parametrize("words", ["show pair --sample 0", "explore pair", "report pair --output r.html"])
def test_samples_of_a_prefix_are_made_as_in_python(words):
    options = vars(build_parser([words.partition(" ")[0]]).parse_args(words.split()))
    found = {field.name: options[field.name] for field in dataclasses.fields(SampleSettings)}
    assert SampleSettings(**found) == SampleSettings()


def test_help_says_sizes_as_their_owner_has_them(capsys):
    for command, name, size in (
        ("preprocess", "max-record-bytes", CorpusSettings().max_record_bytes),
        ("preprocess", "memory-bytes", CorpusSettings().memory_bytes),
        ("preprocess-chat", "shard-bytes", ChatSettings().shard_bytes),
    ):
        text = " ".join(run(capsys, command, "--help")[1].split())
        assert f"(default {bytes_text(size)})" in text.partition(f"--{name} SIZE ")[2].partition(" --")[0]


def preprocessed(folder: Path, **settings: Any) -> Any:
    return preprocess_corpus("in.jsonl", "out/c", str(folder), CorpusSettings(append_eod=True, **settings))


def test_the_command_line_goes_on_with_what_python_began(folder):
    write_lines(folder / "in.jsonl", [{"text": "a b " * 30}] * 20_000)

    def interrupt(_at: object) -> None:
        raise KeyboardInterrupt

    command = ["preprocess", "in.jsonl", "--output-prefix", "out/c", "--tokenizer", ".", "--append-eod"]
    settings = CorpusSettings(append_eod=True)
    with pytest.raises(KeyboardInterrupt):
        preprocess_corpus("in.jsonl", "out/c", str(folder), settings, num_workers=1, progress=interrupt)
    assert not list((folder / "out").glob("*.idx"))
    assert main(command) == 0
    assert preprocessed(folder).was_complete


TIMEOUTS = {"record_timeout_seconds": 1.0, "worker_timeout_seconds": 9.0, "max_window_bytes": 1 << 20}
FAST = [{"memory_bytes": 10**9}, {"shard_bytes": 256_000_000}, {"block_bytes": 100}, TIMEOUTS]


@pytest.mark.parametrize("settings", [*FAST, {"split_sentences": True}])
def test_what_only_changes_the_speed_leaves_a_job_the_same(folder, settings):
    preprocessed(folder)
    assert preprocessed(folder, **settings).was_complete == (settings in FAST)  # sentences have another name


@pytest.mark.parametrize("settings", [{"max_record_bytes": 100}, {"engine": "tokenizers"}])
def test_what_may_change_the_bytes_makes_another_job(folder, settings):
    preprocessed(folder)
    with pytest.raises(OutputExistsError, match="exists already"):
        preprocessed(folder, **settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, a dataset of it, and one of text and images."""
    folder = tmp_path_factory.mktemp("made")
    write_lines(folder / "corpus.jsonl", [{"text": "one two"}, {"text": "three"}])
    write_lines(folder / "other.jsonl", [{"text": "four"}])
    write_lines(folder / "body.jsonl", [{"body": "one"}])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert preprocess("corpus.jsonl", "corpus") == 0
    with IndexedDatasetBuilder(f"{folder}/images.bin", dtype=np.int32, multimodal=True) as builder:
        builder.add_item(np.array([1, 2], dtype=np.int32), 0)
        builder.add_item(np.array([2**30], dtype=np.int32), 1)
        builder.end_document()
        builder.finalize(f"{folder}/images.idx")
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, a copy of that one."""
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    monkeypatch.chdir(copy)
    return copy


def preprocess(path: str, prefix: str, *more: str) -> int:
    return cli.main(["preprocess", path, "--output-prefix", prefix, "--tokenizer", "byte", "--workers", "1", *more])


def said(capsys: pytest.CaptureFixture[str], command: str) -> tuple[object, str]:
    """Returns the exit status and the stderr of a command."""
    return run(capsys, *command.split())[::2]


BYTE = "--tokenizer byte --workers 1"
NO_PAIR, KEY = "no file `corpus.idx` and `corpus.bin`", "did you mean `corpus_text_document`?"
FAILED = [
    (
        f"preprocess other.jsonl --output-prefix corpus {BYTE}",
        "`corpus_text_document.idx` exists already",
        *("choose another output, or replace it with `--overwrite`", "outputexistserror"),
    ),
    (
        f"preprocess corpus.jsonl --output-prefix . {BYTE}",
        "`--output-prefix`: must end with a file name, got '.'",
        *("write './corpus'", "configerror"),
    ),
    (
        f"preprocess body.jsonl --output-prefix body {BYTE}",
        "`body.jsonl` line 1: no key 'text'; found 'body'",
        "pass the key of the texts with `--json-keys`, or correct the line, or set `--max-bad-records` to write "
        "bad lines to a separate file",
        "inputerror",
    ),
    (
        f"preprocess corpsu.jsonl --output-prefix x {BYTE}",
        "cannot open `corpsu.jsonl`: No such file or directory",
        *("did you mean `corpus.jsonl`?", "storageerror"),
    ),
    ("info corpus", NO_PAIR, KEY, "datasetnotfounderror"),
    ("plan --data-path corpus --sequence-length 2", f"'corpus' in the blend: {NO_PAIR}", KEY, "datasetnotfounderror"),
    (
        "pack-report corpus_text_document --max-seqlen-per-dp-cp-rank 4 --dp-size 1",
        "sub-sample 0 has 7 tokens; a pack has at most 4",
        *("increase `--max-seqlen-per-dp-cp-rank`, or plan with `hybrid_cost_balanced`", "configerror"),
    ),
    (
        "show images --sample 0 --sequence-length 2 --split 1 --tokenizer byte",
        "`images` has images, which samples cannot contain",
        *("show a document with --document", "configerror"),
    ),
    (
        "show corpus_text_document --document 0 --tokenizer null:9",
        "the tokenizer cannot decode these tokens: id 111 at index 0 out of range: tokenizer `null:9` has 10 ids",
        *("use the tokenizer that made the data", "configerror"),
    ),
]


@pytest.mark.parametrize(("command", "error", "hint", "section"), FAILED, ids=[each[0] for each in FAILED])
def test_what_cannot_be_done(capsys, copied, command, error, hint, section):
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    assert said(capsys, command) == (1, f"error: {error}\nhint: {hint}\nmore: docs/troubleshooting.md#{section}\n")
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before


@pytest.mark.slow
def test_a_warning_has_neither_file_nor_source(copied):
    blend = "--data-path corpus_text_document corpus_text_document --sequence-length 2 --split 1"
    words = f"-m tokenloom prepare-cache {blend} --path-to-cache cache --tokenizer byte"
    done = subprocess.run([sys.executable, *words.split()], capture_output=True, text=True, check=True)
    assert done.stderr == "warning: `corpus_text_document` appears twice in the blend\n"


def test_samples_longer_than_the_data_are_a_problem_of_the_plan(capsys, copied):
    command = "plan --data-path corpus_text_document --sequence-length 5000 --split 1"
    hint = "it has too few tokens for one sample: lower `--sequence-length`, or change the weight of the split"
    problem = "`corpus_text_document` has no sample for train"
    assert said(capsys, command) == (1, f"problem: {problem}\nhint: {hint}\n")


def test_the_tokenizer_is_found_from_another_folder(capsys, copied, monkeypatch):
    Path("tokenizer.json").write_text(byte_level_json())
    words = "--output-prefix data/words --tokenizer tokenizer.json --append-eod --workers 1"
    assert cli.main(["preprocess", "corpus.jsonl", *words.split()]) == 0
    monkeypatch.chdir(copied.parent)
    show = "show copy/data/words_text_document"
    sample = "--sample 0 --sequence-length 2 --split 1"
    assert said(capsys, f"{show} --document 0") == said(capsys, f"{show} {sample}") == (0, "")
    (copied / "tokenizer.json").unlink()
    lost = f"cannot read tokenizer `{copied}/tokenizer.json`: No such file or directory"
    lost = f"no `tokenizer` given, and {lost}"
    assert said(capsys, f"{show} --document 0") == (0, f"{lost}: showing token ids\n")
    assert said(capsys, f"{show} {sample}") == (
        1,
        f"error: {lost}\nhint: pass the tokenizer of the data, such as `--tokenizer tokenizer.json`\n"
        "more: docs/troubleshooting.md#tokenizererror\n",
    )


def test_folders_of_outputs_are_made(capsys, copied):
    assert preprocess("other.jsonl", "new/text/other") == 0
    commands = (
        "merge corpus_text_document --output-prefix new/merged/corpus",
        "catalogue corpus_text_document --output-prefix new/all/corpus",
        "sequences-per-dataset --data-path corpus_text_document --output new/counts/a.json",
        "run init corpus_text_document --output new/run/run.toml",
    )
    assert [said(capsys, command) for command in commands] == [(0, "")] * len(commands)
    for name in ("text/other_text_document.idx", "merged/corpus.bin", "all/corpus.catalogue", "run/run.toml"):
        assert Path("new", name).is_file()
    assert json.loads(Path("new/counts/a.json").read_text()) == {"corpus_text_document": [2, 3]}


MICRO = "--micro-batch-size 2 --data-parallel-size 2"
DEALT = f"--global-batch-size 8 {MICRO}"
SCHEDULE = "steps need --global-batch-size"
WRONG_USAGE = [
    ("run init", "missing: FOLDER…, --data-path or --args-file"),
    ("run lock RUN --consumed-step 1", "`tokenloom run lock --help` lists"),
    ("run digest RUN --at-step 3", "`tokenloom run digest --help` lists"),
    ("run init data --tokens 5X", "5X"),
    ("run amend RUN --weights web=1", "--at-"),
    ("run amend RUN --at-step 1 --grow", SCHEDULE),
    ("run diff RUN", "missing: "),
    ("show --position 1", "--run"),
    ("show data --sample 1 --holdout", "--holdout needs --run"),
    ("ledger RUN --until-step 3", SCHEDULE),
    ("ledger RUN --until-step 3 --until-position 4", "`--until-position`: cannot be combined with"),
    ("deny RUN --from-position 5", "missing: --document, --record or --documents-file"),
    ("deny RUN --document web:3", "missing: --from-step or --from-position"),
    ("when RUN", "missing: --document, --record, --text-file, --tokens or --ids"),
    ("when RUN --ids 1,x", "'1,x': item 2 'x' at column 3 is not an integer"),
    ("when RUN --document code:5 --micro-batch-size 3", "must be given together"),
    ("trace RUN", "missing: --step or --position"),
    ("trace RUN --step 1 --position 2", "`--position`: cannot be combined with `--step`"),
    ("trace RUN --step 1", SCHEDULE),
    ("trace RUN --position 1 --rank 1", "--rank needs --micro-batch-size and"),
    (f"trace RUN --position 1 {MICRO}", "--micro-batch-size needs --global-batch-size or"),
    ("trace RUN --step 1 --global-batch-size 8 --holdout", "--holdout needs --position, not steps"),
    ("trace RUN --position 3 --losses x", "--losses needs --worst"),
    ("trace RUN --position 3 --worst 2 --holdout", "--holdout and --worst exclude each other"),
    ("trace RUN --position 5:5", "'5:5': item 1 '5:5' at column 1 is an empty range"),
    ("replay RUN --from-step 1", SCHEDULE),
]
WRONG_VALUES = [  # that do not exist or do not fit
    ("run amend RUN --at-position 40", "nothing to change"),
    ("run amend RUN --at-position 101 --weights web=1", "position 101 out of range: the run has 100 samples"),
    (
        "run amend RUN --at-position 100 --weights web=1",
        "a new stage at the end of the run, position 100, needs a size",
    ),
    ("run amend RUN --at-position 0 --weights web=1", "position 0 is where stage 'main' begins"),
    ("run amend RUN --at-position 40 --weights wob=1", "not a source of the run\nhint: did you mean `web`?"),
    ("run amend RUN --at-position 40 --weights web=1 --add-source more=data/none", "none"),
    ("run amend RUN --at-position 40 --grow", "nothing to grow: "),
    ("run amend RUN --at-position 40 --sequence-length 4096", "must be at least 4096, the sample length, got 960"),
    ("run amend RUN --at-position 40 --sequence-length 3500 --samples 9", "0 samples of 3500 tokens"),
    ("run lock none.toml", "none.toml"),
    ("run check none.toml", "none."),
    ("run digest RUN --position 101", "position 101 out of range: the run has 100 samples"),
    ("run diff RUN none.lock", "none.lock"),
    ("run diff RUN RUN --until-position 101", "position 101 out of range: the longer run has 100 samples"),
    ("run plan RUN --start 2026-12-01", "--start needs --tokens-per-second"),
    ("run plan RUN --batch-size-schedule 5:3", "must start at 0, got 5"),
    ("ledger RUN --until-position 101", "position 101 out of range: the run has 100 samples"),
    ("show --run RUN --position 100", "position 100 out of range: the run has 100 samples"),
    ("deny RUN --document web:300 --from-position 5", "document `web:300` out of range: the source has 100"),
    ("deny RUN --documents-file gone.txt --from-position 5", "cannot be read"),
    ("deny RUN --document web:3 --from-position 101", "position 101 out of range: the run has 100 samples"),
    ("when RUN --document code:50", "document `code:50` out of range: the source has 50"),
    ("when RUN --document cod:5", "did you mean `code`?"),
    ("when RUN --tokens 'some words here'", "text is needed, but run.toml has no `tokenizer`"),
    ("when RUN --text-file missing", "`missing` cannot be read: No such file"),
    ("trace RUN --position 3,90:101", "position 100 out of range: the run has 100 positions"),
    (f"trace RUN --step 12 {DEALT}", "step 12 out of range: it reads positions 96 to 103; the run has 100 positions"),
    (f"trace RUN --step 1 {DEALT} --rank 2", "rank 2 out of range: --data-parallel-size is 2"),
    ("trace RUN --holdout --position 5000", "position 5,000 out of range: the held-out part has "),
]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("run"))
    assert cli.main(["run", "lock", str(path)]) == 0
    return path


@pytest.mark.parametrize(("command", "message"), WRONG_USAGE + WRONG_VALUES)
def test_mistakes_about_runs_leave_the_run_as_it_is(capsys, locked, command, message):
    status = 2 if (command, message) in WRONG_USAGE else 1
    before = {path.name: path.read_bytes() for path in locked.parent.iterdir() if path.is_file()}
    found, out, err = run(capsys, *shlex.split(command.replace("RUN", str(locked))))
    assert (found, out, message in err) == (status, "", True), err
    assert {path.name: path.read_bytes() for path in locked.parent.iterdir() if path.is_file()} == before
