"""A character tokenizer for fill-in-the-middle tests, readable by eye."""

from tests.support import StandInTokenizer

PREFIX, MIDDLE, SUFFIX, SPLIT, EOD = 1001, 1002, 1003, 1004, 0


class CharacterTokenizer(StandInTokenizer):
    """A tokenizer of one token per character; sentinel ids are above all characters."""

    def __init__(self) -> None:
        super().__init__(eod=EOD, vocab_size=1100)

    def tokenize(self, text):
        return [ord(char) for char in text]

    def detokenize(self, ids):
        return "".join(map(chr, ids))

    def tokens_to_ids(self, tokens):
        return [{"<pre>": PREFIX, "<mid>": MIDDLE, "<suf>": SUFFIX, "<file>": SPLIT}.get(token) for token in tokens]
