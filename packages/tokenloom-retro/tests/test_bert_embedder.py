"""BERT of Hugging Face as an embedder, with random weights."""

import re

import numpy as np
import pytest
import torch
from tests.adapters.frameworks import library

from tokenloom import ConfigError
from tokenloom_retro.embedders import as_embedder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

transformers = library("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "chunk", "of", "text", "##s"]
TEXTS = ["a chunk of texts", "text", "", "a a a a a a a a a a a a"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained(folder)
    return str(folder)


def test_vectors_are_means_over_tokens(folder):
    embedder = as_embedder(f"bert:{folder}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    for text, vector in zip(TEXTS, embedder.embed(TEXTS), strict=True):
        with torch.inference_mode():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:-1].numpy()
        assert np.allclose(vector, states.mean(axis=0) if len(states) else 0, atol=1e-5)
    assert (embedder.name, embedder.dimension) == (f"bert:{folder}:256", 16)
    assert embedder.count_tokens(TEXTS).tolist() == [5, 1, 0, 12]


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        as_embedder(f"bert:{tmp_path}")
