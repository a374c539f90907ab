"""`tokenloom preprocess-chat`, and `tokenloom show` of what it makes."""

from __future__ import annotations

import pytest
from tests.preprocess.corpus import EOD, byte_level_json, leftovers, write_lines

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
    assert cli.main([*chat, "--chat-template", "chatml", "--verbose"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert ["documents", "2"] in [line.split() for line in table]
    assert any("answer tokens" in line for line in table)
    assert last.startswith("chat: 2 documents, ")
    files = leftovers(tmp_path, tmp_path / "chat.jsonl", tmp_path / "tokenizer.json")
    assert files == [
        "chat.bin",
        "chat.columns.json",
        "chat.idx",
        "chat.manifest.json",
        "chat.origins.npy",
        "chat.roles.npy",
    ]


def test_a_sample_shows_what_has_loss(chat, capsys):
    assert cli.main([*chat, "--chat-template", "chatml"]) == 0
    capsys.readouterr()
    command = ["show", "chat", "--sample", "0", "--tokenizer", "tokenizer.json", "--split", "1"]
    assert cli.main([*command, "--sequence-length", "128"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sample 0 of 2 (train)"
    marks = [number for number, line in enumerate(lines) if line.endswith("loss]")]
    assert [lines[number] for number in marks] == ["[prompt, without loss]", "[answer, with loss]"] * 2
    assert lines[marks[1] + 1] == "Ho<|im_end|>"
    assert lines[marks[3] + 1] == f"No<|im_end|>[EOD {EOD}]"


def test_a_template_that_never_ends_is_ended_at_the_limit(chat, tmp_path, capsys):
    (tmp_path / "loops.jinja").write_text(
        "{% for i in range(999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    assert cli.main([*chat, "--chat-template", "loops.jinja", "--record-timeout-seconds", "0.5"]) == 1
    said = capsys.readouterr().err
    assert "loops.jinja takes longer than 0.5 seconds for the first record of `chat.jsonl`" in said
    assert "raise `--record-timeout-seconds`" in said
