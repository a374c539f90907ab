"""A tokenizer for fill in the middle, of which every text can be undone by eye."""

from __future__ import annotations

from tests.support import StandInTokenizer

PREFIX, MIDDLE, SUFFIX, SPLIT, EOD = 1001, 1002, 1003, 1004, 0


class CharacterTokenizer(StandInTokenizer):
    """A token is a character; the sentinels are beyond all of them."""

    def __init__(self) -> None:
        super().__init__(eod=EOD, vocab_size=1100)

    def tokenize(self, text):
        return [ord(char) for char in text]

    def detokenize(self, ids):
        return "".join(map(chr, ids))

    def tokens_to_ids(self, tokens):
        return [{"<pre>": PREFIX, "<mid>": MIDDLE, "<suf>": SUFFIX, "<file>": SPLIT}.get(token) for token in tokens]
