"""What is shown of a sample is what a model reads: the dataset's own tokens, decoded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.retro.making import EOD, LetterEmbedder, LetterTokenizer, project_of

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.inspect.retro_sample import EOD_MARK, retro_sample
from tokenloom.retro.assembled import RetroSettings, get_retro_datasets
from tokenloom.retro.build import build_retro, retro_samples
from tokenloom.retro.project import RetroProject
from tokenloom.retro.settings import RetroBuildSettings

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


def test_a_sample_is_shown_as_training_reads_it(project: RetroProject):
    tokenizer = LetterTokenizer()
    settings = replace(SETTINGS, sizes=(20, None, None))
    config = RetroSettings(retro_project_dir=project.folder, retro_chunk_length=4, retro_verify_neighbor_count=False)
    train, _, _ = get_retro_datasets(config, retro_samples(project, settings, tokenizer), 8, EOD)
    for number in range(-20, 20):
        shown = retro_sample(project.folder, number, tokenizer=tokenizer, num_neighbors=5, num_retrieved=2)
        sample = train[number % 20]
        assert (shown.sample, shown.num_samples) == (number % 20, 20)
        name = ("books", "web")[int(sample["dataset_id"])]
        assert shown.documents == tuple((name, document) for document in sample["document_ids"].tolist())
        texts = [chunk.text for chunk in shown.chunks]
        parts = "".join(texts).split(EOD_MARK)
        expected, kept = [], []
        for token in [*sample["text"][:8].tolist(), EOD]:
            if token == EOD:
                expected.append(tokenizer.detokenize(kept))
                kept = []
            else:
                kept.append(token)
        assert parts == expected
        for place, chunk in enumerate(shown.chunks):
            found = sample["neighbor_chunks"][place]
            told = [[each.chunk for each in retrieved] for retrieved in chunk.neighbors]
            assert told == [[each for each in row if each >= 0] for row in found.tolist()]
            for retrieved, row in zip(chunk.neighbors, sample["neighbor_tokens"][place].reshape(2, 2, 4), strict=True):
                for each, tokens in zip(retrieved, row, strict=False):
                    length = each.stop - each.start
                    assert each.text == tokenizer.detokenize(tokens[:length].tolist())
                    assert (tokens[length:] == EOD).all()


def test_what_cannot_be_shown_is_said(project: RetroProject):
    tokenizer = LetterTokenizer()
    with pytest.raises(IndexError, match="sample 20 of train was asked for, but 20 have neighbors"):
        retro_sample(project.folder, 20, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match=r"expected neighbors of test in `.*`, found those of: train, valid"):
        retro_sample(project.folder, 0, split="test", tokenizer=tokenizer)
    with pytest.raises(TokenizerError, match=r"the tokenizer that `.*config.json` names cannot be used"):
        retro_sample(project.folder, 0)
