from tests.preprocess.corpus import tokenizer, words  # noqa: F401 - fixtures of all tests here
