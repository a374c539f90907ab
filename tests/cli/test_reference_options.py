"""Options as Megatron's tools call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.indexed.pairs import pair_bytes
from tests.preprocess.corpus import byte_level_json, write_lines

from tokenloom.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds records in `data.txt`, GPT-2's two files, a tokenizer and word pieces; it is the current folder."""
    model = json.loads(byte_level_json())["model"]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "##s"]
    texts = {
        "vocab.json": json.dumps(model["vocab"]),
        "merges.txt": "\n".join(["#version: 0.2", *merges, ""]),
        "tokenizer.json": byte_level_json(),
        "vocab.txt": "\n".join(pieces),
        "lines.txt": "one\ntwo\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    write_lines(tmp_path / "data.txt", [{"text": "one two", "title": "Ones"}, {"text": "", "title": "two"}])
    monkeypatch.chdir(tmp_path)
    return tmp_path


GPT2 = "--tokenizer-type GPT2BPE --vocab-file vocab.json --merge-file merges.txt"


def preprocess(line: str, output: str) -> int:
    return main(["preprocess", *line.split(), "--output-prefix", output, "--no-origins"])


def test_the_tools_line_gives_what_our_own_options_give(folder, capsys):
    """JSON lines in a file of any name, GPT-2's two files, and options that change nothing, which is said."""
    more = "--log-interval 10 --keep-sequential-samples --dataset-impl mmap --lang english --append-eod"
    assert preprocess(f"--input data.txt {GPT2} --json-keys text title {more} --workers 2 --partitions 1", "a") == 0
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[0] for note in notes] == ["--log-interval", "--keep-sequential-samples"]
    ours = "data.txt --input-format jsonl --tokenizer tokenizer.json --json-keys text title --append-eod --processes 1"
    assert preprocess(ours, "b") == 0
    for key in ("text", "title"):
        assert pair_bytes(folder / f"a_{key}_document") == pair_bytes(folder / f"b_{key}_document")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"data.txt --input data.txt {GPT2}", "both name inputs"),
        ("--input data.txt --tokenizer byte --tokenizer-type GPT2BPE", "--tokenizer and --tokenizer-type both"),
        ("--input data.txt --tokenizer byte --tokenizer-model x", "--tokenizer and --tokenizer-model both"),
        ("--input data.txt --tokenizer-type GPT2BPE", "expected --vocab-file and --merge-file"),
        ("--input data.txt --vocab-file vocab.json", "expected --tokenizer-type with --vocab-file"),
        (f"--input data.txt {GPT2} --partitions 2 --processes 2", "--partitions and --processes"),
        (f"--input lines.txt {GPT2}", "line 1"),  # which is no JSON: the tool reads nothing else
    ],
)
def test_what_cannot_be_meant_is_said(folder, capsys, line, words):
    assert preprocess(line, "x") == 1
    assert words in capsys.readouterr().err
    assert not list(folder.glob("x*"))


def test_images_of_a_folder_go_with_lines(folder, capsys):
    (folder / "images").mkdir()
    for name in ("1.png", "2.png"):
        (folder / "images" / name).write_bytes(b"image " + name.encode())
    line = "--input data.txt --input-image images --pad-length 4 --append-eod --output-prefix mm --no-origins"
    assert main(["preprocess-multimodal", *line.split(), *GPT2.split(), "--text-key", "title"]) == 0
    images = [json.loads(row)["image"] for row in (folder / "mm.pairs.jsonl").read_text().splitlines()]
    assert images == [str(folder / "images" / name) for name in ("1.png", "2.png")]
    assert (folder / "mm.bin").exists()
    bert = "--tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt"
    assert main(["preprocess-multimodal", *line.split(), *bert.split()]) == 1
    assert "leave them out with --tokenizer-hf-no-include-special-tokens" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["preprocess-multimodal", "--output-prefix", "mm", "--tokenizer", "byte"])
    assert "missing: INPUT (or --input)" in capsys.readouterr().err
