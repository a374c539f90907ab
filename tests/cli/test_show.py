"""`tokenloom show`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.cli.runs import output, record, run
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.pairs import write_pair
from tests.preprocess.corpus import EOD, byte_level_json, make_tokenizer, word_level_json

from tokenloom import load_tokenizer
from tokenloom.indexed.manifests import SpecialToken, identity_of
from tokenloom.run.run import Run

TEXTS = ["def first():\n\treturn 1", "", "class Second:\n    ...", "third = 'naïve \x1b[31m ✓'"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(byte_level_json())
    return str(path)


@pytest.fixture
def prefix(tmp_path):
    backend = make_tokenizer(byte_level_json())
    end = [backend.eod]
    return write_pair(tmp_path / "corpus", [[backend.tokenize(text) + end] if text else [] for text in TEXTS])


def test_a_document_is_decoded(capsys, prefix, tokenizer):
    lines = output(capsys, "show", prefix, "--document", 2, "--tokenizer", tokenizer).splitlines()
    assert " ".join(lines[:-3]).startswith(f"── document 2 of {prefix}, all ")
    assert lines[-3:] == ["class Second:↵", f"    ...[EOD {EOD}]", "legend: [EOD] end of document; ↵ line break"]
    out = output(capsys, "show", prefix, "--document", -1, "--tokenizer", tokenizer)
    assert "\x1b" not in out
    assert "third = 'na▏ïve \\x1b[31m ▏▏✓'" in out


def test_a_sample_is_decoded_with_its_boundaries(capsys, prefix, tokenizer):
    words = ("--sample", 0, "--tokenizer", tokenizer, "--sequence-length", 24, "--split", 1)
    out = output(capsys, "show", prefix, *words)
    lines = out.splitlines()
    assert re.fullmatch(r"sample 0 of \d+ \(train\)", lines[0])
    assert "tokens 25, with loss 24, padding 0" in " ".join(lines[1:4])
    headings = [line for line in lines if line.startswith("── ")]
    assert 1 < len(headings) < 4
    assert not any("── document 1 of" in heading for heading in headings)  # it is empty
    assert out.count("[EOD <|endoftext|>]") == len(headings) - 1


def test_only_the_split_that_is_shown_is_built(recwarn, capsys, prefix, tokenizer):
    words = ("--sample", 0, "--tokenizer", tokenizer, "--sequence-length", 8, "--split", "90,5,5")
    output(capsys, "show", prefix, *words)  # valid and test are empty
    assert not recwarn.list
    names = os.listdir(f"{prefix}/cache/GPTDataset_indices")
    assert len(names) == 5
    assert all("-GPTDataset-train-" in name for name in names)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--document 9 --tokenizer {}", "document 9 out of range: `{}` has 4 documents\n"),
        ("--sample 0", "no `tokenizer` given, and no manifest beside `{}` names one\n"),
        ("--sample 999 --sequence-length 8 --split 1 --tokenizer {}", "sample 999 out of range: `{}` (train) has "),
        ("--sample 0 --split 1 --from test --tokenizer {}", "--split 1 gives no documents to test\n"),
    ],
)
def test_what_cannot_be_shown_is_an_error(capsys, prefix, tokenizer, arguments, text):
    status, out, err = run(capsys, "show", prefix, *arguments.format(tokenizer).split())
    assert (status, out) == (1, "")
    assert err.startswith(f"error: {text.format(prefix)}")


@pytest.fixture
def recorded(tmp_path, tokenizer):
    """Data whose manifest names a tokenizer that may be changed."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(Path(tokenizer).read_bytes())
    backend = load_tokenizer(path)
    eod = SpecialToken(id=backend.eod, text=EOD)
    ids = [[*backend.tokenize(text), backend.eod] for text in TEXTS if text]
    return write_recorded(tmp_path / "recorded", [[row] for row in ids], tokenizer=identity_of(backend, eod=eod))


def test_the_tokenizer_of_the_manifest_is_the_default(capsys, recorded):
    out = output(capsys, "show", recorded, "--document", 1)
    assert out.splitlines()[-3:-1] == ["class Second:↵", f"    ...[EOD {EOD}]"]
    assert output(capsys, "show", f"{recorded}.idx", "--document", 1) == out


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda path: path.write_text(word_level_json()), "no `tokenizer` given, and "),
        (lambda path: path.write_bytes(path.read_bytes() + b" "), "recorded`: showing ids\n"),
        (lambda path: path.unlink(), "no `tokenizer` given, and cannot read tokenizer"),
    ],
)
def test_a_tokenizer_that_changed_is_not_used(capsys, recorded, tmp_path, change, complaint):
    change(tmp_path / "tokenizer.json")
    status, out, err = run(capsys, "show", recorded, "--document", 1)
    assert (status, complaint in err) == (0, True)
    assert re.search(rf"^[\d ]+ \[EOD {re.escape(EOD)}\]$", out, re.MULTILINE)


def test_json_has_an_item_per_token(capsys, prefix, tokenizer):
    found = record(capsys, "show", prefix, "--document", 2, "--tokenizer", tokenizer)
    assert (found["heading"], found["first"]) == (f"document 2 of {prefix}", 0)
    *texts, end = found["tokens"]
    assert "".join(token["text"] for token in texts) == TEXTS[2]
    assert end == {"id": end["id"], "text": EOD, "kind": "eod", "part": None, "loss": None, "span": 0}
    assert {token["kind"] for token in texts} == {"text"}
    assert len(found["tokens"]) == found["num_tokens"]
    assert [(span["document"], span["stop"]) for span in found["spans"]] == [(2, found["num_tokens"])]


def test_a_position_is_shown_with_the_documents_that_it_is_made_of(path, capsys):
    place = Run.open(path).dataset().place(7)
    first, second, *rest = output(capsys, "show", "--run", path, "--position", 7).splitlines()
    assert first == "position 7 of the run"
    assert second.startswith(f"source {place.source}, pass 0, window {place.window}, stage main, tokens 17, ")
    headings = [line for line in rest if line.startswith("── ")]
    assert headings
    assert all(f" of {place.source}, " in heading for heading in headings)


def test_denied_documents_are_marked(path, capsys):
    dataset = Run.open(path).dataset()
    position = next(position for position in range(10, 100) if dataset.place(position).source == "code")
    document = int(dataset.spans(position).documents[0])
    (path.parent / "deny").write_text(f"code:{document}\n")
    run(capsys, "run", "amend", path, "--at-position", 10, "--deny", path.parent / "deny")
    out = output(capsys, "show", "--run", path, "--position", position)
    assert f"── document {document} of code, " in out
    assert ", denied: padding ──" in out
    assert re.search(r"^\[denied: padding x \d+\]$", out, re.MULTILINE)
