"""The tokenizers of these tests."""

from tests.preprocess.corpus import tokenizer, words  # noqa: F401 - fixtures of all tests here
