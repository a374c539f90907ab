"""`tokenloom preprocess-chat`, and `tokenloom show` of what it makes."""

from __future__ import annotations

import pytest
from tests.preprocess.corpus import EOD, byte_level_json, leftovers, write_lines

import tokenloom
from tokenloom import cli

TALK = {
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho"},
        {"role": "user", "content": "More"},
        {"role": "assistant", "content": "No"},
    ]
}


@pytest.fixture
def chat(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    write_lines(tmp_path / "chat.jsonl", [TALK, TALK])
    return ["preprocess-chat", "chat.jsonl", "--output-prefix", "chat", "--tokenizer", "tokenizer.json"]


def test_conversations_become_a_pair_with_roles(chat, tmp_path, capsys):
    assert cli.main([*chat, "--chat-template", "chatml"]) == 0
    out = capsys.readouterr().out
    for name, number in (
        ("schema", "messages"),
        ("template", "chatml"),
        ("conversations", "2"),
        ("rejected lines", "0"),
    ):
        assert any(line.split() == [*name.split(), number] for line in out.splitlines()), name
    files = leftovers(tmp_path, tmp_path / "chat.jsonl", tmp_path / "tokenizer.json")
    assert files == ["chat.bin", "chat.idx", "chat.manifest.json", "chat.origins", "chat.roles"]


def test_a_sample_shows_what_has_loss(chat, capsys):
    assert cli.main([*chat, "--chat-template", "chatml"]) == 0
    capsys.readouterr()
    command = ["show", "chat", "--sft", "--sample", "0", "--tokenizer", "tokenizer.json", "--split", "1"]
    assert cli.main([*command, "--sequence-length", "128"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sample 0 of 2 (train)"
    marks = [number for number, line in enumerate(lines) if line.endswith("loss]")]
    assert [lines[number] for number in marks] == ["[prompt, without loss]", "[answer, with loss]"] * 2
    assert lines[marks[1] + 1] == "Ho<|im_end|>"
    assert lines[marks[3] + 1] == f"No<|im_end|>[EOD {EOD}]"


def test_a_missing_template_is_one_line_of_error(chat, capsys):
    assert cli.main(chat) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: tokenizer `tokenizer.json` has no chat template\nhint: use the built-in one")


def test_bad_lines_are_counted(chat, tmp_path, capsys):
    write_lines(tmp_path / "chat.jsonl", [TALK, {"messages": []}])
    assert cli.main([*chat, "--chat-template", "chatml"]) == 1
    assert "error: `chat.jsonl` line 2: the conversation under 'messages' is empty" in capsys.readouterr().err
    assert cli.main([*chat, "--chat-template", "chatml", "--skip-bad-lines"]) == 0
    assert "1 in chat.rejected.jsonl" in capsys.readouterr().out


def test_indices_of_conversations_are_prepared(chat, tmp_path, capsys):
    assert cli.main([*chat, "--chat-template", "chatml"]) == 0
    command = ["prepare-cache", "--dataset", "sft", "--data-path", "chat", "--split", "1", "--sequence-length", "128"]
    options = [
        "--path-to-cache",
        "cache",
        "--tokenizer",
        "tokenizer.json",
        "--set",
        "context_parallel_size=2",
        "--verify",
    ]
    assert cli.main([*command, *options, "--train-samples", "5"]) == 0
    assert "train: 5 samples of 128 tokens (SFTDataset)\nindices in cache, verified" in capsys.readouterr().out
    config = tokenloom.SFTDatasetConfig(
        random_seed=1234,
        sequence_length=128,
        blend=(["chat"], None),
        split="1",
        tokenizer=tokenloom.load_tokenizer("tokenizer.json"),
        path_to_cache="cache",
        context_parallel_size=2,
        fast_cache_load=True,
    )
    train, _, _ = tokenloom.BlendedMegatronDatasetBuilder(
        tokenloom.SFTDataset, [5, None, None], lambda: True, config
    ).build()
    assert train.sample(4)["cu_seqlens"][1] % 4 == 0


def test_conversations_need_a_tokenizer_of_hugging_face(chat, capsys):
    chat[chat.index("tokenizer.json")] = "byte"
    assert cli.main(chat) == 1
    err = capsys.readouterr().err
    assert err.startswith(
        "error: expected a Hugging Face tokenizer, found `byte` of the kind 'byte'\nhint: which tokens"
    )
