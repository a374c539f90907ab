"""Embedders, and the texts and vectors of chunks."""

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


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("word2vec", "unknown embedder 'word2vec'"),
        (5, "expected an embedder, a function or a name, got 5"),
        (lambda texts: count_letters(texts), "has no name to identify its vectors"),
        ("wordllama:100", "the dimension of `wordllama` must be one of 64, 128, 256, got 100"),
    ],
)
def test_wrong_sources_are_errors(source, message):
    with pytest.raises(ConfigError, match=message):
        as_embedder(source)


TEXTS = [
    "A chunk of a document.",
    "def chunk(document):\n    return 64\n",
    "\x00",
    "Ein Stück — 文書の一部 🙂",
    "word " * 3000,
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


def run(program, *arguments, text=""):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def test_it_never_goes_online():
    assert run(OFFLINE).strip() == "(1, 256) False False"


def test_vectors_match_the_library():
    found = json.loads(run(THEIRS, FOLDER, text=json.dumps(TEXTS)))
    assert np.allclose(WordLlama().embed(TEXTS), np.array(found), rtol=0, atol=1e-6)
