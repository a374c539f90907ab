"""`tokenloom info`, `verify`, `merge`, `catalogue`, `export`, `column` and `show`."""

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.runs import objects, output, record, rows_of, run, write_run
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.origins import add_hashes, add_origins
from tests.indexed.pairs import FIRST, SECOND, read_pair, write_pair, write_two_pairs
from tests.preprocess.corpus import EOD, byte_level_json, make_tokenizer, word_level_json
from tests.run.data import write_source

from tokenloom import cli, load, load_tokenizer, merge_datasets
from tokenloom.indexed.columns import open_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import SpecialToken, identity_of

CORPUS = [[[10, 11, 12], [13]], [], [[], list(range(1500))]]


@pytest.fixture
def corpus(tmp_path):
    return write_pair(tmp_path / "corpus", CORPUS)


def cells_of(text):
    """Returns the rows of all tables: first cell to the cells after it."""
    return {row[0]: row[1:] for row in rows_of(text)}


def test_tables_show_the_statistics(capsys, corpus):
    out = output(capsys, "info", corpus)
    rows = cells_of(out)
    assert corpus in rows
    found = [rows[name] for name in ("documents", "sequences", "bytes", "dtype", "longest", "percentile 50")]
    assert found == [["3"], ["4"], ["6,016"], ["int32"], ["1,500"], ["1"]]
    assert rows["0 to 0"][0] == "1"
    assert rows["1,024 to 2,047"] == ["1", "█" * 30]
    assert "1,504" in out
    assert "\x1b" not in out


def test_the_command_prints_a_readable_table_to_a_pipe(corpus):
    command = [sys.executable, "-m", "tokenloom", "info", corpus]
    environment = {"PYTHONIOENCODING": "ascii", "COLUMNS": "20"}
    done = subprocess.run(command, capture_output=True, check=True, env=environment, encoding="ascii")
    assert all(text in done.stdout for text in (corpus, "1,024 to 2,047", "#" * 30))
    assert ("\x1b" in done.stdout, done.stderr) == (False, "")


def test_a_manifest_says_what_the_data_were_made_of(capsys, tmp_path):
    corpus = write_recorded(tmp_path / "recorded", [[[10, 11]]], engine="evil \x1b[31m")
    out = output(capsys, "info", corpus)
    tokenizer = {"kind": "word-level", "path": "words/tokenizer.json", "sha256": "ab" * 32, "vocab size": "100"}
    tokenizer |= {"bos": "none", "eod id": "9", "eod text": "</s>"}
    expected = {f"tokenizer {name}": text for name, text in tokenizer.items()}
    expected |= {"largest token": "11", "options append eod": "True", "engine": "evil \\x1b[31m", "input files": "2"}
    expected |= {"ledger read": "1", "ledger kept": "1", "ledger duplicates": "0"}
    rows = cells_of(out)
    assert {name: rows[name] for name in expected} == {name: [text] for name, text in expected.items()}
    assert "\x1b" not in out
    assert record(capsys, "info", corpus)["manifest"] == json.loads(Path(f"{corpus}.manifest.json").read_text())


def test_info_shows_origins_and_hashes(capsys, tmp_path, corpus):
    def shown(prefix):
        rows = cells_of(output(capsys, "info", prefix))
        return rows["origins"] + rows["hashes of texts"]

    assert shown(corpus) == ["none", "none"]
    add_origins(corpus)
    add_hashes(corpus)
    merged = merge_datasets([corpus, write_pair(tmp_path / "other", [[[1]]])], f"{tmp_path}/all").path_prefix
    found = record(capsys, "info", corpus)
    assert (found["origins"], found["hashes"]) == ({"num_input_files": 1, "num_known_documents": 3}, True)
    assert shown(merged) == ["of 3 documents, input files: 1", "none"]
    assert shown(corpus) == ["of all documents, input files: 1", "of all documents"]


def test_a_folder_is_all_pairs_in_it(capsys, tmp_path, corpus):
    write_pair(tmp_path / "another", CORPUS)
    found = [each["prefix"] for each in objects(capsys, "info", tmp_path)]
    assert found == [str(tmp_path / "another"), corpus]
    (tmp_path / "corpus" / "cache").mkdir(parents=True)  # of a sample that was shown
    objects(capsys, "info", corpus)


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "corpus", [[[10, 11, 12], [13]], [[14]]])


def test_a_sound_dataset_is_one_line_and_each_problem_names_file_and_field(capsys, tmp_path, prefix):
    empty = write_pair(tmp_path / "empty", [])
    out = output(capsys, "verify", prefix, empty)
    assert out == f"{prefix}: ok, 5 tokens from 10 to 14\n{empty}: ok, no tokens\n"
    with open(f"{prefix}.idx", "r+b") as stream:
        stream.seek(34)
        stream.write(struct.pack("<i", -5))
    assert run(capsys, "verify", prefix, "--vocab-size", 14)[1].splitlines() == [
        f"{prefix}: `{prefix}.idx`: expected a length of at least 0, found -5 for sequence 0",
        f"{prefix}: `{prefix}.bin`: expected tokens below 14 (the vocabulary size), found 14",
    ]


def test_datasets_after_a_broken_one_are_still_checked(capsys, tmp_path, prefix):
    broken = write_pair(tmp_path / "broken", [[[1, 2]]])
    os.truncate(f"{broken}.bin", 4)
    words = ("verify", broken, f"{tmp_path}/absent", prefix)
    status, out, _ = run(capsys, *words)
    problem = f"`{broken}.bin`: expected 8 bytes (the end of sequence 0 in `{broken}.idx`), found 4"
    assert (status, f"{broken}: {problem}\n" in out) == (1, True)
    assert f"{tmp_path}/absent: no file `{tmp_path}/absent.idx`" in out
    assert out.endswith(f"{prefix}: ok, 5 tokens from 10 to 14\n")
    told = record(capsys, *words, status=1)
    found = [(each["ok"], each["num_tokens"], len(each["problems"])) for each in told["datasets"]]
    assert (told["ok"], found) == (False, [(False, 0, 1), (False, 0, 1), (True, 5, 0)])


def test_a_manifest_is_compared(capsys, tmp_path):
    prefix = write_recorded(tmp_path / "recorded", [[[10, 11]]])
    assert output(capsys, "verify", prefix) == f"{prefix}: ok, 2 tokens from 10 to 11, matches the manifest\n"
    with open(f"{prefix}.bin", "r+b") as stream:
        stream.write(b"\x09")
    assert f"{prefix}: `{prefix}.bin`: expected 4 bytes with CRC-32 " in run(capsys, "verify", prefix)[1]


@pytest.fixture
def folder(tmp_path):
    write_two_pairs(tmp_path / "parts")
    return f"{tmp_path}/parts"


def test_datasets_are_joined_in_the_order_given_and_a_damaged_one_is_named(capsys, tmp_path, folder):
    merged = f"{tmp_path}/all"
    rows = rows_of(output(capsys, "merge", f"{folder}/b.bin", f"{folder}/a", "--output-prefix", merged))
    assert read_pair(merged) == SECOND + FIRST
    assert re.fullmatch(r"merged, \d+ MB/s", rows[1][0])
    assert ["input bytes", "24"] in rows
    assert [merged, "4", "5", "6", "24", "int32"] in rows
    os.truncate(f"{folder}/b.bin", 4)
    status, _, err = run(capsys, "merge", "--input", folder, "--output-prefix", f"{tmp_path}/more")
    assert (status, f"error: `{folder}/b.bin`: expected 12 bytes" in err, "found 4" in err) == (1, True, True)
    assert [name for name in os.listdir(tmp_path) if not name.startswith("all.")] == ["parts"]


@pytest.mark.parametrize("command", ["merge", "catalogue"])
def test_the_number_of_documents_with_an_origin_is_printed(capsys, caplog, tmp_path, folder, command):
    words = (command, "--input", folder, "--output-prefix", f"{tmp_path}/all", "--json")
    add_origins(f"{folder}/a")
    assert '"num_known_origins": 2, ' in run(capsys, *words)[1]
    assert f"`{folder}/b` has no column `origins`" in caplog.text
    add_origins(f"{folder}/b")
    assert '"num_known_origins": 4, ' in run(capsys, *words, "--overwrite")[1]


@pytest.mark.parametrize(
    ("command", "way"),
    [("catalogue", "prefixes"), ("catalogue", "folder"), ("merge", "glob"), ("merge", "--input"), ("merge", "--list")],
)
def test_datasets_are_named_in_any_way(tmp_path, folder, command, way):
    (tmp_path / "list.txt").write_text(f"# two pairs\n{folder}/a\n\n{folder}/b.idx\n")
    named = {
        "prefixes": [f"{folder}/a", f"{folder}/b.bin"],
        "glob": [f"{folder}/*"],
        "folder": [folder],
        "--input": ["--input", folder],
        "--list": ["--list", f"{tmp_path}/list.txt"],
    }
    assert cli.main([command, *named[way], "--output-prefix", f"{tmp_path}/all"]) == 0
    assert read_pair(f"{tmp_path}/all") == FIRST + SECOND
    assert (tmp_path / "all.catalogue").exists() == (command == "catalogue")


def test_a_catalogue_is_taken_by_other_commands(capsys, tmp_path, folder):
    merged = f"{tmp_path}/all"
    output(capsys, "catalogue", folder, "--output-prefix", merged)
    facts = record(capsys, "info", merged)
    assert (facts["num_documents"], facts["num_tokens"], facts["num_bytes"]) == (4, 6, 24)
    assert output(capsys, "verify", merged) == f"{merged}: ok, 6 tokens from 1 to 6\n"
    assert "5" in run(capsys, "show", merged, "--document", 3)[1]
    (tmp_path / "parts/b.bin").unlink()
    error = f"{merged}: cannot open `{folder}/b.bin`: No such file or directory\n"
    assert run(capsys, "verify", merged)[:2] == (1, error)


def test_documents_go_to_a_file(capsys, tmp_path: Path):
    prefix = write_source(str(tmp_path / "a"), 3, 4)
    words = ("export", prefix, "--output", path := tmp_path / "a.parquet")
    rows = rows_of(output(capsys, *words, "--tokenizer", "null:500"))
    assert pq.read_table(path).column("text").to_pylist() == ["0 0 0", "1 1 1 1"]
    size = ["bytes", f"{path.stat().st_size:,}"]
    assert rows[3:7] == [["paths", f"{path}"], ["rows", "2"], ["tokens", "7"], size]
    status, _, error = run(capsys, *words)
    assert (status, "exists" in error) == (1, True)
    output(capsys, *words, "--overwrite")
    assert pq.read_table(path).schema.names == ["document", "tokens"]


def test_a_run_says_itself_what_its_samples_are(capsys, tmp_path: Path):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    out = output(capsys, "export", path, "--output", tmp_path / "run.parquet", "--num-samples", 5)
    assert ["rows", "5"] in rows_of(out)
    rows = pq.read_table(tmp_path / "run.parquet")["input_ids"].to_pylist()
    assert rows == load(path).batch(range(5))["tokens"].tolist()


@pytest.fixture
def valued(tmp_path) -> str:
    np.save(tmp_path / "values.npy", np.array([0.5, 1.0, 2.0], dtype=np.float16))
    return str(write_pair(tmp_path / "pair", [[[1, 2]], [[3]]]))


def test_a_column_is_added_shown_and_removed(capsys, tmp_path, valued):
    out = output(capsys, "column", "add", valued, "weight", tmp_path / "values.npy", "--of", "label")
    assert ["weight", "token, of labels", "3 x float16", "134", "values.npy"] in rows_of(out)
    assert open_column(IndexedDataset(valued), "weight").data.tolist() == [0.5, 1.0, 2.0]
    told = record(capsys, "column", "info", valued)["columns"]["weight"]
    facts = {"kind": "token", "dtype": "float16", "shape": [3], "num_bytes": 134, "of": "label", "padding": 0.0}
    assert told == facts | {"crc32": told["crc32"], "made_by": "values.npy", "about": []}
    assert output(capsys, "column", "remove", valued, "weight") == f"{valued}: no columns\n"


def write_rows(path, rows) -> str:
    """Writes a file of documents with their `w`."""
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps({'document': document, 'w': value})}\n" for document, value in rows))
    else:
        documents, values = zip(*rows, strict=True)
        pq.write_table(pa.table({"document": documents, "w": values, "more": documents}), path)
    return str(path)


MUST_HAVE = "must have `w`, and a document index `document` below 2 that no earlier record has"


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("rows", "expected"), [([(1, 2), (0, 0.5)], [0.5, 2]), ([(1, [1, 2]), (0, [3, 4])], [[3, 4], [1, 2]])]
)
def test_rows_of_documents_become_a_column(capsys, tmp_path, valued, form, rows, expected):
    path = write_rows(tmp_path / f"rows.{form}", rows)
    words = ("column", "add", valued, "w", path, "--kind", "document", "--dtype", "float64")
    assert run(capsys, *words)[0] == 0
    column = open_column(IndexedDataset(valued), "w")
    assert (column.data.tolist(), column.data.dtype, column.facts.kind) == (expected, np.float64, "document")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 2)], "no row for document 0"),
        ([(1, 2), (1, 3)], f"record 2: {MUST_HAVE}, got {{'document': 1, 'w': 3}}"),
        ([(2, 2)], f"record 1: {MUST_HAVE}, got {{'document': 2"),
        ([(0, "a")], "record 1: `w` must be one or more numbers, got 'a'"),
    ],
)
def test_rows_that_do_not_fit_are_named_and_leave_nothing(capsys, tmp_path, valued, rows, message):
    path = write_rows(tmp_path / "rows.jsonl", rows)
    status, _, err = run(capsys, "column", "add", valued, "w", path, "--kind", "document")
    assert (status, message in err) == (1, True), err
    assert sorted(path.name for path in tmp_path.glob("pair.*")) == ["pair.bin", "pair.idx"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("add PREFIX w FOLDER/bad.jsonl --kind document", "`FOLDER/bad.jsonl`, record 1: "),
        ("add PREFIX w FOLDER/no.parquet --kind document", "cannot open `FOLDER/no.parquet`"),
        ("add PREFIX w FOLDER/other.npy", "cannot read `FOLDER/other.npy` as a NumPy file"),
        ("add PREFIX w PREFIX.bin", "cannot read `PREFIX.bin` as a NumPy file"),
        ("add PREFIX w FOLDER/values.npy --kind document", "expected 2 rows, one per document, found 3"),
        ("remove PREFIX w", "`PREFIX` has no column `w`"),
        ("add PREFIX w", "a file of values"),
        ("add PREFIX w FOLDER/bad.jsonl", "needs --kind document"),
        ("info PREFIX w", "takes a prefix"),
    ],
)
def test_mistakes_about_columns_are_named(capsys, tmp_path, valued, words, message):
    (tmp_path / "bad.jsonl").write_text("oops\n")
    words, message = (text.replace("PREFIX", valued).replace("FOLDER", str(tmp_path)) for text in (words, message))
    is_usage = message in ("a file of values", "needs --kind document", "takes a prefix")
    status, _, err = run(capsys, "column", *words.split())
    assert (status, message in err) == (2 if is_usage else 1, True)


TEXTS = ["def first():\n\treturn 1", "", "class Second:\n    ...", "third = 'naïve \x1b[31m ✓'"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(byte_level_json())
    return str(path)


@pytest.fixture
def decodable(tmp_path):
    backend = make_tokenizer(byte_level_json())
    end = [backend.eod]
    return write_pair(tmp_path / "corpus", [[backend.tokenize(text) + end] if text else [] for text in TEXTS])


def test_a_document_is_decoded(capsys, decodable, tokenizer):
    lines = output(capsys, "show", decodable, "--document", 2, "--tokenizer", tokenizer).splitlines()
    assert " ".join(lines[:-3]).startswith(f"── document 2 of {decodable}, all ")
    assert lines[-3:] == ["class Second:↵", f"    ...[EOD {EOD}]", "legend: [EOD] end of document; ↵ line break"]
    out = output(capsys, "show", decodable, "--document", -1, "--tokenizer", tokenizer)
    assert "\x1b" not in out
    assert "third = 'na▏ïve \\x1b[31m ▏▏✓'" in out


def test_a_sample_is_decoded_with_its_boundaries(capsys, decodable, tokenizer):
    words = ("--sample", 0, "--tokenizer", tokenizer, "--sequence-length", 24, "--split", 1)
    out = output(capsys, "show", decodable, *words)
    lines = out.splitlines()
    assert re.fullmatch(r"sample 0 of \d+ \(train\)", lines[0])
    assert "tokens 25, with loss 24, padding 0" in " ".join(lines[1:4])
    headings = [line for line in lines if line.startswith("── ")]
    assert 1 < len(headings) < 4
    assert not any("── document 1 of" in heading for heading in headings)  # it is empty
    assert out.count("[EOD <|endoftext|>]") == len(headings) - 1


def test_only_the_split_that_is_shown_is_built(recwarn, capsys, decodable, tokenizer):
    words = ("--sample", 0, "--tokenizer", tokenizer, "--sequence-length", 8, "--split", "90,5,5")
    output(capsys, "show", decodable, *words)  # valid and test are empty
    assert not recwarn.list
    names = os.listdir(f"{decodable}/cache/GPTDataset_indices")
    assert len(names) == 5
    assert all("-GPTDataset-train-" in name for name in names)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--document 9 --tokenizer {}", "document 9 out of range: `{}` has 4 documents\n"),
        ("--sample 0", "no `tokenizer` given, and no manifest beside `{}` names a tokenizer\n"),
        ("--sample 999 --sequence-length 8 --split 1 --tokenizer {}", "sample 999 out of range: `{}` (train) has "),
        ("--sample 0 --split 1 --from test --tokenizer {}", "--split 1 gives no documents to test\n"),
    ],
)
def test_what_cannot_be_shown_is_an_error(capsys, decodable, tokenizer, arguments, text):
    status, out, err = run(capsys, "show", decodable, *arguments.format(tokenizer).split())
    assert (status, out) == (1, "")
    assert err.startswith(f"error: {text.format(decodable)}")


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
        (lambda path: path.write_bytes(path.read_bytes() + b" "), "recorded`: showing token ids\n"),
        (lambda path: path.unlink(), "no `tokenizer` given, and cannot read tokenizer"),
    ],
)
def test_a_tokenizer_that_changed_is_not_used(capsys, recorded, tmp_path, change, complaint):
    change(tmp_path / "tokenizer.json")
    status, out, err = run(capsys, "show", recorded, "--document", 1)
    assert (status, complaint in err) == (0, True)
    assert re.search(rf"^[\d ]+ \[EOD {re.escape(EOD)}\]$", out, re.MULTILINE)


def test_json_has_an_item_per_token(capsys, decodable, tokenizer):
    found = record(capsys, "show", decodable, "--document", 2, "--tokenizer", tokenizer)
    assert (found["heading"], found["first"]) == (f"document 2 of {decodable}", 0)
    *texts, end = found["tokens"]
    assert "".join(token["text"] for token in texts) == TEXTS[2]
    assert end == {"id": end["id"], "text": EOD, "kind": "eod", "part": None, "loss": None, "span": 0}
    assert {token["kind"] for token in texts} == {"text"}
    assert len(found["tokens"]) == found["num_tokens"]
    assert [(span["document"], span["stop"]) for span in found["spans"]] == [(2, found["num_tokens"])]
