"""The options of commands that compare chunks."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from tests.support import write_corpus

from tokenloom.cli.vector_options import add_vector_options, chunk_maker_of, vectors_of
from tokenloom.errors import ConfigError


def options_of(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_vector_options(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "known", "length"), [((), None, 64), ((), 32, 32), (("--chunk-length", "16"), 32, 16)]
)
def test_the_length_of_chunks_is_what_is_said_or_known(tmp_path: Path, words, known, length):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2]])
    options = options_of("--tokenizer", "byte", *words)
    assert chunk_maker_of(options, prefix, chunk_length=known).chunk_length == length


def test_without_a_tokenizer_the_reason_is_said(tmp_path: Path):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2]])
    with pytest.raises(ConfigError, match="found none") as caught:
        chunk_maker_of(options_of(), prefix)
    assert caught.value.hint == ("name it with --tokenizer: the data have no manifest, and no tokenizer was named")


def test_what_is_made_is_said(tmp_path: Path, capsys):
    prefix = write_corpus(tmp_path / "corpus", [[104, 105]])
    found = vectors_of(options_of("--tokenizer", "byte", "--embedder", "wordllama:64"), prefix)
    assert found.texts(np.arange(1)) == ["hi"]
    assert capsys.readouterr().err.startswith(f"making `{prefix}.neighbors/wordllama_l2_supercat_64-64`: ")
