"""`tokenloom neighbours`, as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.retro_projects import built
from tests.support import write_corpus

from tokenloom import load_tokenizer
from tokenloom.cli import main
from tokenloom.rendering.terminal import cell_width

TEXTS = [
    "The cat sat on the warm mat and purred all day long.",
    "A kitten slept on a warm rug and purred for hours.",
    "Shares fell sharply after the central bank raised interest rates.",
    "",
]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = load_tokenizer("byte")
    documents = [[*tokenizer.tokenize(text), tokenizer.eod] for text in TEXTS]
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus", documents)


def test_the_nearest_document_is_shown_in_lines_of_80_columns(prefix, capsys):
    assert main(["neighbours", prefix, "--document", "0", "-k", "1", "--tokenizer", "byte"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert "  │ A kitten slept on a warm rug and purred for hours." in lines
    assert max(map(cell_width, lines)) <= 80
    assert f"`{prefix}.neighbors/wordllama_l2_supercat_256-64`: chunks of 64 tokens" in err


@pytest.mark.parametrize("document", ["4", "-5"])
def test_a_document_that_is_not_there_is_refused_before_vectors_are_made(tmp_path, document, capsys):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 256]] * 4)
    assert main(["neighbours", prefix, f"--document={document}", "--tokenizer", "byte"]) == 1
    assert capsys.readouterr().err == f"error: document {document} of `{prefix}` was asked for, but it has 4\n"
    assert list(tmp_path.glob("*.neighbors")) == []


def test_both_spellings_print_the_same_object(prefix, capsys):
    found = []
    for name in ("neighbours", "neighbors"):
        assert main([name, prefix, "--document", "-2", "--chunks", "--json", "--tokenizer", "byte"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    [first, _] = found[0]["chunks"]
    assert first["chunk"]["text"].startswith("Shares fell")
    assert [each["chunk"]["document"] for each in first["neighbors"]]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (
            ["--document", "9", "--tokenizer", "byte"],
            1,
            "error: document 9 of `{prefix}` was asked for, but it has 4\n",
        ),
        (["--document", "0"], 1, "error: comparing texts needs the tokenizer of `{prefix}`, found none\n"),
        (["--document", "0", "--tokenizer", "byte", "--embedder", "x"], 1, "error: expected the name of an embedder"),
        (["--document", "0", "--nprobe", "3"], 2, "error: `--index` and `--nprobe` are of a project"),
        (["--document", "0", "--tokenizer", "byte", "--project", "{prefix}-no"], 1, "error: expected the index of the"),
    ],
)
def test_what_cannot_be_is_an_error(prefix, capsys, arguments, status, text):
    words = ["neighbours", prefix, *(each.format(prefix=prefix) for each in arguments)]
    if status == 2:
        with pytest.raises(SystemExit, match="2"):
            main(words)
    else:
        assert main(words) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert text.format(prefix=prefix) in err


def test_vectors_are_kept_where_that_is_said(prefix, tmp_path: Path, capsys):
    words = ["neighbours", prefix, "--document", "0", "--tokenizer", "byte", "--chunk-length", "16"]
    assert main([*words, "--embedder", "wordllama:64", "--cache", str(tmp_path)]) == 0
    capsys.readouterr()
    assert [path.name for path in tmp_path.glob("*/*")] == ["wordllama_l2_supercat_64-16"]


def test_a_project_says_embedder_and_chunk_length(tmp_path: Path, capsys):
    project = built(capsys, tmp_path)  # with the embedder `wordllama:64`, in chunks of 16
    prefix = project / "data" / "books_text_document"
    words = ["neighbours", str(prefix), "--document", "0", "--project", str(project)]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["embedder"] == "wordllama:l2_supercat:64"
    assert told["documents"]
    assert (
        main(["neighbours", str(prefix), "--document", "0", "--project", str(project), "--embedder", "wordllama"]) == 1
    )
    assert "embedder" in capsys.readouterr().err
