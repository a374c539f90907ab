"""A command without options calls the Python function with its defaults."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
from tests.cli.runs import run
from tests.preprocess.corpus import byte_level_json, write_lines
from tests.support import write_corpus

from tokenloom.adapters.arrow import export_documents
from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.cli import build_parser, main
from tokenloom.errors import OutputExistsError
from tokenloom.indexed.writing.concatenate import build_catalogue, merge_datasets
from tokenloom.numbers import bytes_text
from tokenloom.preprocess.chat import preprocess_chat
from tokenloom.preprocess.multimodal import preprocess_multimodal
from tokenloom.preprocess.settings import ChatSettings, CorpusSettings
from tokenloom.preprocess.text import preprocess_corpus
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom_look.target import SampleSettings
from tokenloom_retro.build import build_retro


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
        (preprocess_corpus, "tokenloom.preprocess.text", f"preprocess {TEXTS}"),
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
    assert SampleSettings(**{field.name: options[field.name] for field in dataclasses.fields(SampleSettings)}) == (
        SampleSettings()
    )


def test_help_says_sizes_as_their_owner_has_them(capsys):
    for command, option, size in (
        ("preprocess", "max-record-bytes", CorpusSettings().max_record_bytes),
        ("preprocess", "memory-bytes", CorpusSettings().memory_bytes),
        ("preprocess-chat", "shard-bytes", ChatSettings().shard_bytes),
    ):
        text = " ".join(run(capsys, command, "--help")[1].split())
        assert f"(default {bytes_text(size)})" in text.partition(f"--{option} SIZE ")[2].partition(" --")[0]


def preprocessed(folder: Path, **settings: Any) -> Any:
    return preprocess_corpus("in.jsonl", "out/c", str(folder), CorpusSettings(append_eod=True, **settings))


def test_the_command_line_goes_on_with_what_python_began(folder):
    write_lines(folder / "in.jsonl", [{"text": "a b " * 30}] * 20_000)

    def interrupt(_at: object) -> None:
        raise KeyboardInterrupt

    command = ["preprocess", "in.jsonl", "--output-prefix", "out/c", "--tokenizer", ".", "--append-eod"]
    with pytest.raises(KeyboardInterrupt):
        preprocess_corpus(
            "in.jsonl", "out/c", str(folder), CorpusSettings(append_eod=True), num_workers=1, progress=interrupt
        )
    assert not list((folder / "out").glob("*.idx"))
    assert main(command) == 0
    assert preprocessed(folder).was_complete


@pytest.mark.parametrize(
    "settings",
    [
        {"memory_bytes": 10**9},
        {"shard_bytes": 256_000_000},
        {"block_bytes": 100},
        {"record_timeout_seconds": 1.0, "worker_timeout_seconds": 9.0, "max_window_bytes": 1 << 20},
    ],
)
def test_what_only_changes_the_speed_leaves_a_job_the_same(folder, settings):
    preprocessed(folder)
    assert preprocessed(folder, **settings).was_complete


@pytest.mark.parametrize("settings", [{"max_record_bytes": 100}, {"split_sentences": True}, {"engine": "tokenizers"}])
def test_what_may_change_the_bytes_makes_another_job(folder, settings):
    preprocessed(folder)
    if "split_sentences" in settings:
        assert not preprocessed(folder, **settings).was_complete  # under another name
        return
    with pytest.raises(OutputExistsError, match="exists already"):
        preprocessed(folder, **settings)
