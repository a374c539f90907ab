"""Embedders, and the texts and vectors of chunks."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from tokenloom.errors import ConfigError
from tokenloom.optional import folder_of
from tokenloom_retro.embedders import Embedder, WordLlama, as_embedder

pytestmark = pytest.mark.slow


def count_letters(texts):
    """Counts the letters a to d of each text."""
    return np.array([[text.count(letter) for letter in "abcd"] for text in texts], dtype=np.float32)


def test_a_function_is_an_embedder():
    embedder = as_embedder(count_letters)
    assert isinstance(embedder, Embedder)
    assert (embedder.name, embedder.dimension) == (f"{__name__}.count_letters", 4)
    assert embedder.embed(["abba", ""]).tolist() == [[2, 2, 0, 0], [0, 0, 0, 0]]
    assert embedder.count_tokens(["one two  three", " ", ""]).tolist() == [3, 0, 0]


WRONG_SOURCES = {
    "unknown embedder 'word2vec'": "word2vec",
    "embedder 5: is no embedder, function of texts or name": 5,
    "`name`: required for <function": lambda texts: count_letters(texts),
    "dimension of `wordllama`: must be one of 64, 128, 256, got 100": "wordllama:100",
}


@pytest.mark.parametrize("message", WRONG_SOURCES)
def test_what_is_no_embedder_is_refused(message):
    with pytest.raises(ConfigError) as caught:
        as_embedder(WRONG_SOURCES[message])
    assert message in str(caught.value)


TEXTS = [
    "A chunk of a document, cut at 64 tokens.",
    "def chunk(document):\n    return document[:64]\n",
    "",
    "\x00",
    "Ein Stück eines Dokuments — 文書の一部 🙂",
    "word " * 3000,
    "x",
]

FOLDER = folder_of("wordllama", extra="retro")

THEIRS = """
import json, sys
from pathlib import Path
from safetensors import safe_open
from wordllama import WordLlama, WordLlamaInference
folder = Path(sys.argv[1])
with safe_open(folder / "weights/l2_supercat_256.safetensors", framework="np") as file:
    weights = file.get_tensor("embedding.weight")
tokenizer = WordLlama.load_tokenizer(folder / "tokenizers/l2_supercat_tokenizer_config.json")
texts = json.load(sys.stdin)
print(json.dumps(WordLlamaInference(weights, tokenizer).embed(texts, norm=True).tolist()))
"""

OFFLINE = """
import sys
def refuse(event, arguments):
    if event.startswith("socket."):
        raise RuntimeError(event)
sys.addaudithook(refuse)
from tokenloom_retro.embedders import as_embedder
print(as_embedder("wordllama").embed(["a text"]).shape, "wordllama" in sys.modules, "requests" in sys.modules)
"""


@pytest.fixture(scope="module")
def embedder():
    return WordLlama()


def test_it_never_goes_online():
    found = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "(1, 256) False False"


def test_vectors_are_those_of_the_library(embedder):
    """The library's own code, given the paths of its files: what it would look for lies elsewhere."""
    texts = [text for text in TEXTS if text]
    found = subprocess.run(
        [sys.executable, "-c", THEIRS, FOLDER], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    assert np.allclose(embedder.embed(texts), np.array(json.loads(found.stdout)), rtol=0, atol=1e-6)
