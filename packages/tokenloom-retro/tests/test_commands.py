"""The commands of `tokenloom retro`, recorded settings of projects, and how a sample is shown."""

import json
import os
from pathlib import Path

import pytest
from retro_building import build_words, write_data
from tests.cli.runs import run

from tokenloom import cli
from tokenloom.errors import TokenizerError
from tokenloom.inspect.shown import Look
from tokenloom_retro.project import RetroProject
from tokenloom_retro.sample import retro_lines
from tokenloom_retro.settings import recorded_settings, tokenizer_of_project


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retro")
    write_data(folder)
    assert cli.main([str(word) for word in build_words(folder)]) == 0
    return folder / "project"


def test_a_second_build_finds_everything_done(project, capsys):
    folder = project.parent
    status, out, err = run(capsys, *build_words(folder), "--json")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert told["data"][1] == {"prefix": "web_text_document", "weight": 2.0}
    assert told["num_vectors"] == told["database"]["num_chunks_train"]
    assert told["neighbors"] == {"train": {"num_chunks": 24}, "valid": {"num_chunks": 4}}
    for name in ("books_text_document.bin", "web_text_document.idx"):
        assert os.readlink(project / "data" / name) == str(folder / name)


def test_other_settings_need_overwrite(tmp_path, capsys):
    write_data(tmp_path)
    assert run(capsys, *build_words(tmp_path))[0] == 0
    files = [path for path in (tmp_path / "project").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    assert json.loads(before[tmp_path / "project" / "config.json"])["retro_query_num_neighbors_save"] == 3
    status, out, err = run(capsys, *build_words(tmp_path, "--num-neighbors", "2"))
    assert (status, out) == (1, "")
    assert "exists, and was made with other settings" in err
    assert "`--overwrite`" in err
    assert {path: path.read_bytes() for path in (tmp_path / "project").rglob("*") if path.is_file()} == before
    assert run(capsys, *build_words(tmp_path, "--num-neighbors", "2", "--overwrite"))[0] == 0
    config = json.loads((tmp_path / "project" / "config.json").read_text())
    assert config["retro_query_num_neighbors_save"] == 2


def test_a_sample_is_shown_with_its_neighbors(project, capsys):
    status, out, err = run(capsys, "retro", "show", project, "--sample", 3)
    assert (status, err) == (0, "")
    first, second, third, *lines = out.splitlines()
    assert first == "sample 3 of 12 (train)"
    assert second.startswith("of document")
    assert third == "── chunk 0, tokens 0 to 15 " + "─" * 53
    assert [line for line in lines if line.startswith("    neighbor 2: document ")]
    assert max(map(len, lines)) <= 80
    words = ["--sample", -1, "--split", "valid", "--neighbors", 9, "--json"]
    told = json.loads(run(capsys, "retro", "show", project, *words)[1])
    assert (told["split"], told["sample"], told["num_samples"]) == ("valid", 1, 2)
    assert [(chunk["start"], len(chunk["neighbors"])) for chunk in told["chunks"]] == [(0, 3), (16, 3)]


def test_verify_finds_a_changed_file(project, capsys):
    head = f"{project}: ok: all files and all recomputed blocks are unchanged"
    assert run(capsys, "retro", "verify", project, "--task-validate", 1)[1].startswith(head)
    [path] = project.glob("query/train_*/*.hdf5")
    before = path.read_bytes()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        status, out, err = run(capsys, "retro", "verify", project)
    finally:
        path.write_bytes(before)
    assert (status, err, out.splitlines()[-1]) == (1, "", f"{project}: 1 problem")
    assert str(path) in out.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify", "PROJECT", "--task-validate", 1.5], "`fraction` must be in (0, 1], got 1.5"),
        (["show", "PROJECT", "--sample", 12], "sample index 12 out of range: 12 samples of train have neighbors"),
        (["show", "PROJECT", "--sample", 0, "--tokenizer", "null:300"], "expected the tokenizer that made the data"),
        (["show", ".", "--sample", 0], "no file `./config.json`"),
    ],
)
def test_missing_projects_are_errors(words, message, project, capsys):
    status, out, err = run(capsys, "retro", *(project if word == "PROJECT" else word for word in words))
    assert (status, out) == (1, "")
    assert message in err


REFERENCE = {
    "retro_gpt_seed": 1234,
    "retro_gpt_data_path": ["0.5", "books", "0.5", "web"],
    "retro_gpt_split": "98,2,0",
    "retro_gpt_seq_length": 2048,
    "retro_gpt_chunk_length": 64,
    "retro_gpt_train_samples": 1000,
    "retro_gpt_eval_interval": 25,
    "retro_gpt_eval_iters": 3,
    "retro_gpt_global_batch_size": 10,
    "retro_block_size": 100000,
    "retro_index_str": "OPQ32_64,IVF65536_HNSW8,PQ32",
    "retro_index_ntrain": 66625331,
    "retro_neighbor_dirs": {"train": "train_0", "valid": "valid_1", "test": None},
    "retro_bert_vocab_file": "vocab.txt",
}


@pytest.mark.slow
def test_projects_of_the_reference(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(REFERENCE))
    found = recorded_settings(RetroProject(tmp_path))
    assert found.build.sizes == (1000, 5 * 30, 30)  # evaluations before the first of 100 steps and after each 25
    assert found.build.data == ((0.5, "books"), (0.5, "web"))
    assert (found.tokenizer, found.embedder) == (None, None)
    with pytest.raises(TokenizerError, match=r"`.*config.json` has no tokenizer"):
        tokenizer_of_project(RetroProject(tmp_path), found)


def retrieved(text, *, start=64, stop=128):
    return {"chunk": 7, "data": "web", "document": 1234, "start": start, "stop": stop, "text": text}


def sample(*chunks):
    which = {"split": "train", "sample": 5, "num_samples": 1000, "documents": [["books", 3]]}
    return {**which, "num_retrieved": 2, "chunks": chunks}


def chunk(text, *neighbors, start=0):
    return {"start": start, "stop": start + 64, "text": text, "neighbors": neighbors}


def test_neighbors_are_printed_below_their_chunk():
    found = sample(
        chunk("first line\nsecond\n", (retrieved("near"), retrieved("after it", start=128, stop=129)), ()),
        chunk("end[EOD]", (retrieved("last"),), start=64),
    )
    assert list(retro_lines(found, Look(width=40))) == [
        "sample 5 of 1,000 (train)",
        "of document 3 of books",
        "── chunk 0, tokens 0 to 63 ─────────────",
        "first line",
        "second",
        "    neighbor 1: document 1,234 of web,",
        "    tokens 64 to 127",
        "        near",
        "    then token 128",
        "        after it",
        "    neighbor 2: none",
        "── chunk 1, tokens 64 to 127 ───────────",
        "end[EOD]",
        "    neighbor 1: document 1,234 of web,",
        "    tokens 64 to 127",
        "        last",
        "    end of the document",
    ]


def test_terminal_escapes_are_shown_as_text():
    found = sample(chunk("a\x1b[2Jb\rc\td\n\n\u202ee", (retrieved("\x07"),)))
    lines = list(retro_lines(found, Look(width=20)))
    text = "\n".join(lines)
    assert all(line.isprintable() for line in lines)
    assert "a\\x1b[2Jb\\rc" in text
    assert max(map(len, lines)) <= 20
    assert "── chunk 0, tokens 0\nto 63" in text
