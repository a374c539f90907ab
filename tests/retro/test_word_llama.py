"""WordLlama from its wheel: a slow twin, the library's own vectors, and no way online."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from tokenloom import StorageError
from tokenloom.optional import folder_of
from tokenloom.retro import word_llama
from tokenloom.retro.embedders import as_embedder, embeddings_of, token_counts_of
from tokenloom.retro.word_llama import WordLlama

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
from tokenloom.retro.embedders import as_embedder
print(as_embedder("wordllama").embed(["a text"]).shape, "wordllama" in sys.modules, "requests" in sys.modules)
"""


@pytest.fixture(scope="module")
def embedder():
    return WordLlama()


def test_vectors_are_means_of_those_of_tokens(embedder):
    tokenizer = Tokenizer.from_file(os.path.join(FOLDER, "tokenizers", "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    for text, vector, count in zip(TEXTS, embedder.embed(TEXTS), embedder.count_tokens(TEXTS), strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert count == len(ids)
        mean = embedder._vectors[ids].astype(np.float64).mean(axis=0) if ids else np.zeros(256)
        length = np.sqrt((mean**2).sum()) or 1
        assert np.allclose(vector, mean / length, rtol=0, atol=1e-6)


def test_a_text_without_tokens_is_zero(embedder):
    assert embedder.count_tokens(TEXTS).tolist()[2] == 0
    assert not embedder.embed(TEXTS)[2].any()


def test_what_stands_beside_a_text_changes_no_bit(embedder):
    whole = embeddings_of(embedder, TEXTS * 200)  # more than are tokenized together
    alone = np.concatenate([embeddings_of(embedder, [text]) for text in TEXTS])
    assert whole.tobytes() == np.tile(alone, (200, 1)).tobytes()
    assert np.array_equal(token_counts_of(embedder, TEXTS * 200), np.tile(token_counts_of(embedder, TEXTS), 200))


def test_narrow_vectors_are_the_first_numbers(embedder):
    narrow = as_embedder("wordllama:64")
    assert (narrow.name, narrow.dimension) == ("wordllama:l2_supercat:64", 64)
    wide = embedder.embed(TEXTS[:2])[:, :64]
    expected = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    assert np.allclose(narrow.embed(TEXTS[:2]), expected, rtol=0, atol=1e-6)


def test_it_travels_to_other_processes(embedder):
    copy = pickle.loads(pickle.dumps(embedder))
    assert repr(copy) == "WordLlama(256)"
    assert copy.embed(TEXTS).tobytes() == embedder.embed(TEXTS).tobytes()
    assert len(pickle.dumps(embedder)) < 1000


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


def test_a_wheel_without_the_model_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(word_llama, "folder_of", lambda package, *, extra: str(tmp_path))
    with pytest.raises(StorageError, match=r"expected the model of `wordllama` at `.*l2_supercat_256\.safetensors`"):
        WordLlama()
