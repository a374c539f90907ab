"""A sample with its neighbors: the tokens that training reads, and its lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from retro_making import EOD, LetterEmbedder, LetterTokenizer, project_of

from tokenloom.inspect.shown import Look
from tokenloom_retro.assembled import RetroSettings, get_retro_datasets
from tokenloom_retro.build import build_retro, retro_samples
from tokenloom_retro.project import RetroProject
from tokenloom_retro.sample import EOD_MARK, retro_lines, retro_sample
from tokenloom_retro.settings import RetroBuildSettings

SETTINGS = RetroBuildSettings(
    data=((1.0, "books"), (2.0, "web")),
    sequence_length=8,
    sizes=(20, 3, None),
    split="80,20,0",
    chunk_length=4,
    index="Flat",
    num_index_chunks=10,
    num_neighbors=2,
    num_searched=50,
)


@pytest.fixture
def project(tmp_path: Path, rng: np.random.Generator) -> RetroProject:
    corpora = {
        name: [[*rng.integers(1, 26, rng.integers(1, 25)).tolist(), EOD] for _ in range(30)]
        for name in ("books", "web")
    }
    made = project_of(tmp_path, **corpora)
    build_retro(made.folder, SETTINGS, tokenizer=LetterTokenizer(), embedder=LetterEmbedder())
    return made


@pytest.mark.slow
def test_a_sample_is_shown_as_training_reads_it(project: RetroProject):
    tokenizer = LetterTokenizer()
    settings = replace(SETTINGS, sizes=(20, None, None))
    config = RetroSettings(retro_project_dir=project.folder, retro_chunk_length=4, retro_verify_neighbor_count=False)
    train, _, _ = get_retro_datasets(config, retro_samples(project, settings, tokenizer), 8, EOD)
    for number in range(-20, 20):
        shown = retro_sample(project.folder, number, tokenizer=tokenizer, num_neighbors=5, num_retrieved=2)
        sample = train[number % 20]
        assert (shown["sample"], shown["num_samples"]) == (number % 20, 20)
        name = ("books", "web")[int(sample["dataset_id"])]
        assert shown["documents"] == [[name, document] for document in sample["document_ids"].tolist()]
        texts = [chunk["text"] for chunk in shown["chunks"]]
        parts = "".join(texts).split(EOD_MARK)
        expected, kept = [], []
        for token in [*sample["text"][:8].tolist(), EOD]:
            if token == EOD:
                expected.append(tokenizer.detokenize(kept))
                kept = []
            else:
                kept.append(token)
        assert parts == expected
        for place, chunk in enumerate(shown["chunks"]):
            found = sample["neighbor_chunks"][place]
            told = [[each["chunk"] for each in retrieved] for retrieved in chunk["neighbors"]]
            assert told == [[each for each in row if each >= 0] for row in found.tolist()]
            rows = sample["neighbor_tokens"][place].reshape(2, 2, 4)
            for retrieved, row in zip(chunk["neighbors"], rows, strict=True):
                for each, tokens in zip(retrieved, row, strict=False):
                    length = each["stop"] - each["start"]
                    assert each["text"] == tokenizer.detokenize(tokens[:length].tolist())
                    assert (tokens[length:] == EOD).all()


def retrieved(text: str, *, start: int = 64, stop: int = 128) -> dict[str, object]:
    return {"chunk": 7, "data": "web", "document": 1234, "start": start, "stop": stop, "text": text}


def sample(*chunks: dict) -> dict[str, object]:
    which = {"split": "train", "sample": 5, "num_samples": 1000, "documents": [["books", 3]]}
    return {**which, "num_retrieved": 2, "chunks": chunks}


def chunk(text: str, *neighbors: tuple[dict, ...], start: int = 0) -> dict[str, object]:
    return {"start": start, "stop": start + 64, "text": text, "neighbors": neighbors}


def test_neighbors_stand_below_their_chunk():
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
        "    then the document ends",
    ]


def test_texts_cannot_drive_a_terminal():
    found = sample(chunk("a\x1b[2Jb\rc\td\n\n\u202ee", (retrieved("\x07"),)))
    lines = list(retro_lines(found, Look(width=20)))
    text = "\n".join(lines)
    assert all(line.isprintable() for line in lines)
    assert "a\\x1b[2Jb\\rc" in text
    assert max(map(len, lines)) <= 20
    assert "── chunk 0, tokens 0\nto 63" in text
